"""The command `python -m tests.faults`: runs attacks and prints one table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.result_file import describe_machine, format_command, read_commit
from tests.faults.runner import Row, plan_attacks, run_attacks

# Of each attack; the file of --json has all.
MAX_BREAKS_SHOWN = 2

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def main() -> None:
    """Run the attacks; the exit code is 1 if a promise was broken."""
    arguments = _parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    planned = plan_attacks(arguments.only, is_small=arguments.small, seeds=arguments.seed)
    run_attacks(planned, arguments.budget_s)
    rows = [run.row for run in planned]
    console.print(make_table(rows))
    _print_breaks(rows)
    lines = measure_coverage() if arguments.coverage else {}
    if lines:
        console.print(make_coverage_table(lines))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(make_report(rows, lines), encoding="utf-8")
        console.print(f"written to {arguments.json}")
    if any(row.breaks for row in rows):
        sys.exit(1)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few tries of each attack")
    parser.add_argument("--only", default="", metavar="TEXT", help="attacks with this name")
    parser.add_argument(
        "--seed", type=int, action="append", default=[], help="only this try"
    )
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="time for all")
    parser.add_argument("--coverage", action="store_true", help="show what fuzzing reaches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table")
    return parser.parse_args()


def make_table(rows: Sequence[Row]) -> Table:
    """Return the table of attacks, tries and what held."""
    table = Table("attack", "tries", "held", "broken", "seconds")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        if row.obstacle is not None:
            table.add_row(row.name, "skipped", "", "", "")
            continue
        tries = f"{row.num_tries:,}{' (time limit)' if row.is_cut else ''}"
        table.add_row(
            row.name, tries, f"{row.num_held:,}", str(len(row.breaks)), f"{row.seconds:.0f}"
        )
    num_tries = sum(row.num_tries for row in rows)
    num_broken = sum(len(row.breaks) for row in rows)
    seconds = sum(row.seconds for row in rows)
    table.add_section()
    table.add_row(
        "all",
        f"{num_tries:,}",
        f"{num_tries - num_broken:,}",
        str(num_broken),
        f"{seconds:.0f}",
    )
    return table


def _print_breaks(rows: Sequence[Row]) -> None:
    for row in rows:
        for found in row.breaks[:MAX_BREAKS_SHOWN]:
            console.rule(f"{row.name}, seed {found.seed}", align="left")
            console.print(found.message, markup=False)
            command = f"python -m tests.faults --only {row.name!r} --seed {found.seed}"
            console.print(f"again: {command}", markup=False)
        if len(row.breaks) > MAX_BREAKS_SHOWN:
            others = [found.seed for found in row.breaks[MAX_BREAKS_SHOWN:]]
            console.print(f"{row.name}: also broken: seeds {others}")


def measure_coverage() -> dict[str, list[int]]:
    """Return package -> [lines that fuzzing reaches, lines], measured in another process."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "lines.json"
        command = [sys.executable, "-m", "tests.faults.fuzz._coverage", str(target)]
        subprocess.run(command, check=True)
        return json.loads(target.read_bytes())


def make_coverage_table(lines: Mapping[str, Sequence[int]]) -> Table:
    """Return the table of packages and the lines that fuzzing reaches."""
    table = Table("package", "lines", "reached by the first tries of fuzzing")
    for package, (num_reached, num_lines) in lines.items():
        share = f"{num_reached / num_lines:.0%}"
        table.add_row(package, f"{num_lines:,}", share)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def make_report(
    rows: Sequence[Row], lines: Mapping[str, Sequence[int]] | None = None
) -> str:
    """Return the table as JSON, with machine, commit and command.

    Args:
        rows: The rows.
        lines: Package -> [lines that fuzzing reaches, lines].
    """
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": format_command(),
        "commit": read_commit(),
        "machine": describe_machine(),
        "fuzzing_reaches_lines": lines or {},
        "rows": [{**dataclasses.asdict(row), "num_held": row.num_held} for row in rows],
    }
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
