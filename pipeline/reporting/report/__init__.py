"""The report of a run, as a value, on the terminal, as an HTML page and as JSON.

report = make_report(RunFolder.open("runs/ccnet"))
print_report(report, SafeConsole())
Path("report.html").write_text(to_html(report))
"""

from pipeline.reporting.report.page import to_html
from pipeline.reporting.report.summary import (
    Report,
    list_exceeded_limits,
    make_report,
    to_json,
)
from pipeline.reporting.report.terminal import print_report

__all__ = [
    "Report",
    "list_exceeded_limits",
    "make_report",
    "print_report",
    "to_html",
    "to_json",
]
