"""Fills the templates of pages and cards. Every text that is filled in is escaped.

render("cards/eu_summary.md", escape_markdown, title="...")
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pipeline.reporting.tables import NUMBER_COLUMNS
from terminal_output import escape

# Characters with a meaning in Markdown. A backslash before other characters stays visible.
_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")


def render(path: str, escape_text: Callable[[str], str], **values: Any) -> str:
    """Return a template of this package with its values.

    Args:
        path: of the template.
        escape_text: is called with each text that is no Markup. What it returns is escaped for
            HTML, unless it is Markup.
        values: what the template names. Integers are shown with separators: `1,234`.
    """

    def finalize(value: Any) -> Any:
        if type(value) is int:
            return f"{value:,}"
        return escape_text(value) if type(value) is str else value

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=finalize,
    )
    template = resources.files("pipeline.reporting").joinpath(path)
    text = template.read_text(encoding="utf-8")
    return environment.from_string(text).render(values)


def escape_markdown(text: str) -> Markup:
    """Return a text as one line that Markdown shows as it is, without HTML and links."""
    line = " ".join(escape(text).splitlines())
    shown = _SPECIAL.sub(r"\\\1", html.escape(line, quote=False))
    return trust(shown)


def trust(text: str) -> Markup:
    """Return a text that is filled in as it is: nothing of it comes from the crawl."""
    return Markup(text)  # noqa: S704


def quote_code(name: str) -> Markup:
    """Return one of our own names as code in Markdown."""
    return trust(f"`{name}`")


def make_markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str | int]]
) -> Markup:
    """Return a table. Columns of numbers are aligned to the right.

    Args:
        header: names of the columns.
        rows: cells; texts are escaped, except Markup.
    """
    rule = ["-:" if name in NUMBER_COLUMNS else "-" for name in header]
    lines = [header, rule, *([_format_cell(cell) for cell in row] for row in rows)]
    return trust("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


def _format_cell(cell: str | int) -> str:
    if isinstance(cell, int):
        return f"{cell:,}"
    return cell if isinstance(cell, Markup) else escape_markdown(cell)
