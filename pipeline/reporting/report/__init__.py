"""The report of a run, as a value, on the terminal, as an HTML page and as JSON.

run = RunFolder.open("runs/ccnet")
report = make_report(run)
print_report(report, SafeConsole())
Path("report.html").write_text(make_report_page(run, report))
"""

from pipeline.reporting.report.page import make_report_page, to_html
from pipeline.reporting.report.summary import (
    Report,
    list_exceeded_limits,
    make_report,
    to_json,
)
from pipeline.reporting.report.tables import print_report

__all__ = [
    "Report",
    "list_exceeded_limits",
    "make_report",
    "make_report_page",
    "print_report",
    "to_html",
    "to_json",
]
