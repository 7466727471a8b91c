"""Figures of a model on held-out documents and on multiple-choice tasks."""
