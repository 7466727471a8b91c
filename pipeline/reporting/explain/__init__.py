r"""Explain the decision on a document, from what the phases stored in the run folder.

The input files are not needed, so a run can be explained long after it ended, on any machine.

    run = RunFolder.open("runs/ccnet")
    for trace in explain(run, "https://example.org/page"):
        print("\n".join(format_trace(trace)))
"""

from pipeline.reporting.explain.collect import explain
from pipeline.reporting.explain.text import format_trace, list_values
from pipeline.reporting.explain.trace import DocumentTrace

__all__ = ["DocumentTrace", "explain", "format_trace", "list_values"]
