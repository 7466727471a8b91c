"""Estimates of what a run of any size takes."""
