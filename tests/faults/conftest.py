"""The option `--tries` of the attacks, and the table that is printed after them."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.result_file import read_commit


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of tries."""
    parser.addoption(
        "--tries", default="small", metavar="N", help='of each attack: "small", "full" or N'
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of docs/faults.md."""
    promises: dict[str, str] = {}
    tries, broken, skipped = Counter[str](), Counter[str](), set[str]()
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.getreports(outcome):
            found = dict(report.user_properties)
            if "attack" not in found:
                continue
            name = str(found["attack"])
            promises[name] = str(found["promise"])
            tries[name] += int(found.get("num_inputs", outcome == "failed"))
            broken[name] += outcome == "failed"
            skipped |= {name} if outcome == "skipped" else set()
    commit = (read_commit() or "unknown")[:7]
    lines = ["| attack | promise | tries | held | commit |", "|-|-|-:|-:|-|"]
    for name, promise in sorted(promises.items()):
        counts = f"{tries[name]:,} | {tries[name] - broken[name]:,}"
        if name in skipped:
            counts = "skipped | "
        lines.append(f"| {name} | {promise} | {counts} | {commit} |")
    lines.append(f"| all | | {tries.total():,} | {tries.total() - broken.total():,} | |")
    if promises:
        terminalreporter.write_line("\n" + "\n".join(lines))
