"""The code blocks of the docs, for tests that run them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_HEADING = re.compile(r"^#+ (.*)$")
_FENCE = re.compile(r"^```(\w*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: the heading above it, its language, its first line and its text."""

    heading: str
    language: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.heading or 'top'}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a Markdown page, in order."""
    blocks: list[Block] = []
    heading, language, started = "", "", 0
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if fence and not started:
            language, started = fence[1], number
        elif fence:
            text = "\n".join(lines[started : number - 1]) + "\n"
            blocks.append(Block(heading, language, started + 1, text))
            started = 0
        elif not started and (found := _HEADING.match(line)):
            heading = found[1]
    return blocks
