"""A rich console that escapes the text of everything it prints.

console = SafeConsole()
console.print(table, f"title {title!r}")     # no markup: `[red]` in a title stays `[red]`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RenderHook,
)
from rich.measure import Measurement
from rich.segment import Segment

from terminal_output.escape import escape
from terminal_output.streams import EscapedStream


class SafeConsole(Console):
    """A console for crawled data: text is escaped, and markup and emoji codes have no effect.

    Lines are not wrapped, except in tables.
    """

    def __init__(self, **settings: Any) -> None:
        """Create a console with other defaults; `settings` are those of `rich.console.Console`."""
        plain: dict[str, Any] = {
            "markup": False,
            "emoji": False,
            "highlight": False,
            "soft_wrap": True,
        }
        super().__init__(**{**plain, **settings})
        self.push_render_hook(_EscapeHook())

    @property
    def file(self) -> IO[str]:
        """The stream to write to. The escaped streams of the process would escape colours too."""
        stream: Any = super().file
        return stream.unescaped if isinstance(stream, EscapedStream) else stream

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file


class _EscapeHook(RenderHook):
    def process_renderables(
        self, renderables: list[ConsoleRenderable]
    ) -> list[ConsoleRenderable]:
        return [_Escaped(renderable) for renderable in renderables]


class _Escaped:
    """Renders as another object does, with escaped text."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Segment]:
        for segment in console.render(self._renderable, options):
            # Control segments are rich's own: they move the cursor of progress bars.
            if segment.control:
                yield segment
            else:
                yield Segment(escape(segment.text), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._renderable)
