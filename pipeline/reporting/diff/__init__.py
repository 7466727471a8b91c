"""Compare two finished runs: what has changed, and why.

found = compare_runs(RunFolder.open("runs/a"), RunFolder.open("runs/b"))
found.num_changed                     # documents with another decision
print_diff(found, SafeConsole())
list_diff_sections(found)             # for the page of a report
"""

from pipeline.reporting.diff.comparison import RunDiff, compare_runs, to_json
from pipeline.reporting.diff.sections import list_diff_sections
from pipeline.reporting.diff.terminal import print_diff

__all__ = ["RunDiff", "compare_runs", "list_diff_sections", "print_diff", "to_json"]
