"""Estimates of the time, memory, disk and price of a run."""
