"""Distribution of a model over ranks, and its optimizer."""
