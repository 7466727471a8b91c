"""Estimates of the memory of a training config, by the parts that take it."""
