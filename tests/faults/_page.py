"""Prints the table of docs/faults.md: `python -m tests.faults._page REPORT.json ...`.

Reports are those of `python -m tests.faults --json`. Of several with the same attack, the last counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def make_page(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the table as Markdown."""
    rows: dict[str, Mapping[str, Any]] = {}
    lines: Mapping[str, Sequence[int]] = {}
    for report in reports:
        lines = report["fuzzing_reaches_lines"] or lines
        for row in report["rows"]:
            rows[row["name"]] = {**row, "commit": report["commit"][:7]}
    text = ["| attack | promise | tries | held | commit |", "|-|-|-:|-:|-|"]
    text += map(_format_row, rows.values())
    num_tries = sum(row["num_tries"] for row in rows.values())
    num_held = sum(row["num_held"] for row in rows.values())
    text.append(f"| all | | {num_tries:,} | {num_held:,} | |")
    if lines:
        text += ["", "| package | lines | reached by fuzzing |", "|-|-:|-:|"]
        for package, (num_reached, num_lines) in lines.items():
            text.append(f"| `{package}` | {num_lines:,} | {num_reached / num_lines:.0%} |")
    return "\n".join(text) + "\n"


def _format_row(row: Mapping[str, Any]) -> str:
    tries = f"{row['num_tries']:,}{' (time limit)' if row['is_cut'] else ''}"
    if row["obstacle"] is not None:
        tries = f"skipped: {row['obstacle']}"
    held = f"{row['num_held']:,}"
    return f"| {row['name']} | {row['promise']} | {tries} | {held} | {row['commit']} |"


if __name__ == "__main__":
    print(make_page([json.loads(Path(name).read_bytes()) for name in sys.argv[1:]]))
