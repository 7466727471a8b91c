"""Compare two finished runs: what has changed, and why.

found = compare_runs(RunFolder.open("runs/a"), RunFolder.open("runs/b"))
found.num_changed                     # documents with another decision
print_diff(found, SafeConsole())
"""

from pipeline.reporting.diff.comparison import RunDiff, compare_runs, to_value
from pipeline.reporting.diff.tables import print_diff

__all__ = ["RunDiff", "compare_runs", "print_diff", "to_value"]
