"""Weights to and from the format of transformers."""
