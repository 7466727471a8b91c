"""Rows of training data and held-out documents."""
