"""Attacks on the trainer and its checkpoints."""
