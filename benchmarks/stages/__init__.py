"""Speed and correctness of single stages, beside the libraries that they replace or use."""
