"""One script per question; entrants side by side, interleaved in one run; results kept as dated files."""
