"""Estimates of the memory and speed of a training config."""
