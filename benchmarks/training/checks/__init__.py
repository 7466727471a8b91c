"""Checks of what the trainer assumes about CUDA, each with a verdict: a part of the GPU suite."""
