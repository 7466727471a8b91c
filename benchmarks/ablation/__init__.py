"""The effect of the corpus on training: `python -m benchmarks.ablation`."""
