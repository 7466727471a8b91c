"""Tables with one layout for all commands and pages, and rates and durations as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import rich.table

from terminal_output.console import SafeConsole

# Columns that are aligned to the right.
NUMBER_COLUMNS = frozenset(
    {
        "documents",
        "share",
        "characters",
        "tokens",
        "records",
        "seconds",
        "number",
        "before",
        "after",
        "change",
        "read",
        "kept",
        "moved",
    }
)

WRAPPED_COLUMNS = frozenset({"meaning", "stages", "licence", "description"})

# Slower than this, a rate is given per minute.
MIN_RATE_PER_S = 1.0


@dataclass(frozen=True)
class Table:
    """Rows with a title, for the terminal and for pages.

    Attributes:
        columns: their heads.
        rows: the cells of each row. A table without rows is not shown.
        bars: a number for each row, which a page draws as a bar; empty: no bars.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[float] = ()


def print_tables(
    tables: Iterable[Table], console: SafeConsole, num_rows: int | None = None
) -> None:
    """Print the tables that have rows. Columns of numbers are aligned to the right.

    Args:
        tables: the tables.
        console: where to print.
        num_rows: the first rows of each table only; None: all.
    """
    for table in tables:
        if not table.rows:
            continue
        shown = rich.table.Table(
            title=table.title,
            title_justify="left",
            header_style="bold",
            box=None,
            padding=(0, 2, 0, 0),
        )
        for name in table.columns:
            shown.add_column(
                name,
                justify="right" if name in NUMBER_COLUMNS else "left",
                no_wrap=name not in WRAPPED_COLUMNS,
            )
        for row in table.rows[:num_rows]:
            shown.add_row(*row)
        console.print(shown)


def format_change(before: int, after: int) -> tuple[str, str, str]:
    """Return both numbers and their difference; equal numbers have none."""
    change = f"{after - before:+,}" if after != before else ""
    return f"{before:,}", f"{after:,}", change


def format_duration(seconds: float) -> str:
    """Return `0:01:40` for 100 s."""
    return str(timedelta(seconds=round(seconds)))


def format_rate(number: float, seconds: float, items: str) -> str:
    """Return `812 documents/s`, or `4.5 tasks/min` where that is below one per second."""
    rate = number / max(seconds, 1e-9)
    if rate < MIN_RATE_PER_S:
        return f"{_format_number(rate * 60)} {items}/min"
    return f"{_format_number(rate)} {items}/s"


def _format_number(number: float) -> str:
    return f"{number:,.1f}" if number < 10 else f"{number:,.0f}"
