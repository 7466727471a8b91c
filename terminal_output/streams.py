"""Escape everything that a process writes to its standard streams."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from terminal_output.escape import escape


class EscapedStream:
    """A text stream that escapes what is written to it.

    Attributes:
        unescaped: the stream that it writes to. `terminal_output.console` needs it for colours.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        """Write the text with its unsafe characters escaped; return the length of `text`."""
        self.unescaped.write(escape(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


def escape_output() -> None:
    """Escape what this process prints from now on, tracebacks of uncaught errors included.

    Characters that the encoding of a stream lacks are escaped too. A second call changes nothing.
    """
    sys.stdout = _wrap(sys.stdout)
    sys.stderr = _wrap(sys.stderr)


def _wrap(stream: TextIO) -> TextIO:
    if isinstance(stream, EscapedStream):
        return stream
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return cast("TextIO", EscapedStream(stream))
