"""Tables and texts of Markdown. Everything that comes from the crawl is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from terminal_output import escape

# Characters with a meaning in Markdown. A backslash before other characters stays visible.
_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")


def escape_text(text: str) -> str:
    """Return a text as one line that Markdown shows as it is, without HTML and links."""
    line = " ".join(escape(text).splitlines())
    return _SPECIAL.sub(r"\\\1", html.escape(line, quote=False))


def make_table(header: Sequence[str], rows: Iterable[Sequence[str | int]]) -> list[str]:
    """Return the lines of a table. Columns of integers are aligned to the right.

    Args:
        header: names of the columns.
        rows: cells; texts are already escaped.
    """
    shown = [list(row) for row in rows]
    is_number = [
        bool(shown) and all(isinstance(row[column], int) for row in shown)
        for column in range(len(header))
    ]
    rule = ["-:" if number else "-" for number in is_number]
    return [_join(header), _join(rule), *map(_format_row, shown)]


def _format_row(row: Sequence[str | int]) -> str:
    return _join(f"{cell:,}" if isinstance(cell, int) else cell for cell in row)


def _join(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
