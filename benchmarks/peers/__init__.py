"""Other programs for the same task, on the same pages: the benchmark `make bench-peers`."""
