"""Does the corpus help? `python -m benchmarks.ablation`."""
