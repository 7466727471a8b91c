"""Logs, metrics and traces of a training run."""
