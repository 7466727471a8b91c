"""Distribution of the model over ranks, and the optimizer."""
