"""From row positions to batches: reading ahead in chunks, copying to a GPU, making tensors."""
