"""Logs, metrics, traces and memory statistics of a run."""
