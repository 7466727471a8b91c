"""Training batches, instruction data and validation."""
