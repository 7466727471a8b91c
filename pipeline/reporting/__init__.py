"""Everything that shows a run: progress, summary, status, explain, preview, metrics."""
