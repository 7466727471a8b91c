"""Tables on the terminal, with one layout for all commands."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

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
    }
)

WRAPPED_COLUMNS = frozenset({"meaning", "stages", "licence", "description"})


def make_table(
    title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]
) -> Table:
    """Return a table. Columns of numbers are aligned to the right."""
    table = Table(
        title=title,
        title_justify="left",
        header_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in NUMBER_COLUMNS else "left",
            no_wrap=name not in WRAPPED_COLUMNS,
        )
    for row in rows:
        table.add_row(*row)
    return table
