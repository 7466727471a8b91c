"""Predict with supervised fastText models: a reader of their files, and compiled loops."""
