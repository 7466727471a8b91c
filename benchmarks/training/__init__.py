"""Benchmarks of the trainer on one GPU: `python -m benchmarks.training.gpu_suite`."""
