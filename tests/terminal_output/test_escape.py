"""What reaches a terminal: text, line feeds and tabs, and nothing that a terminal obeys or hides."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from terminal_output import escape
from terminal_output.console import SafeConsole
from terminal_output.streams import EscapedStream
from tests.conftest import REPOSITORY

# Copies to the clipboard, clears the screen (with ESC and with C1), rings, goes back, reorders.
HOSTILE = "\x1b]52;c;x\x07\x1b\\\x1b[2J\x9b2J\b\r\u202e\u2066\u200b\ufeff\U000e0041\x7f"

# Number and verse signs that share the category of the invisible characters.
VISIBLE_MARKS = (
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)


def find_unsafe(text: str) -> list[str]:
    """Return the characters that are neither text nor a line feed or a tab."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    allowed = {"\n", "\t", *VISIBLE_MARKS}
    return [c for c in text if c not in allowed and unicodedata.category(c) in hidden]


@given(st.text())
def test_only_text_is_left(text: str) -> None:
    """No control, invisible, reordering or unpaired character passes; other text is unchanged."""
    assert find_unsafe(escape(text)) == []
    if not find_unsafe(text):
        assert escape(text) == text


def test_every_unsafe_character_is_escaped() -> None:
    """All 1,114,112 code points, by their Unicode category."""
    assert find_unsafe(escape("".join(map(chr, range(sys.maxunicode + 1))))) == []


def test_escapes_are_those_of_json() -> None:
    """Escaped JSON is JSON with the same value."""
    written = json.dumps({HOSTILE: [HOSTILE, "é"]}, ensure_ascii=False)
    assert find_unsafe(escape(written)) == []
    assert json.loads(escape(written)) == {HOSTILE: [HOSTILE, "é"]}
    assert escape("\x1b\U000e0041\udc00") == "\\u001b\\udb40\\udc41\\udc00"


def test_streams_escape_what_is_written() -> None:
    """`write`, `writelines` and `print` are escaped; other methods are those of the stream."""
    below = io.StringIO()
    stream: Any = EscapedStream(below)
    assert stream.write("a\x1b") == 2
    stream.writelines(["b\x9b", "\n"])
    print("c\u202e", file=stream)
    assert below.getvalue() == "a\\u001bb\\u009b\nc\\u202e\n"
    assert stream.isatty() is False


def test_a_process_escapes_prints_logs_warnings_and_tracebacks() -> None:
    """After one call; letters that the encoding lacks are escaped too."""
    code = (
        "import logging, sys, warnings\n"
        "from terminal_output import escape_output\n"
        "escape_output(); escape_output()\n"
        f"hostile = {HOSTILE!r} + '\\xe9'\n"
        "print(hostile); print(hostile, file=sys.stderr)\n"
        "logging.basicConfig(); logging.error('found %s', hostile)\n"
        "warnings.warn(hostile)\n"
        "raise ValueError(hostile)\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
    )
    out, err = done.stdout.decode("ascii"), done.stderr.decode("ascii")
    shown = escape(HOSTILE) + "\\xe9"
    assert out == shown + "\n"
    assert err.count(shown) == 4
    assert f"ValueError: {shown}" in err
    assert find_unsafe(out + err) == []


@pytest.mark.parametrize("is_terminal", [True, False])
def test_consoles_escape_text_and_keep_their_own_colours(is_terminal: bool) -> None:
    """Strings, tables, rich's texts and progress bars; markup and emoji codes are text."""
    below = io.StringIO()
    stream: Any = EscapedStream(below)
    console = SafeConsole(file=stream, width=400, force_terminal=is_terminal)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(f"[red]{HOSTILE}[/blue] :bomb:")
    console.print(f"[link=x]{HOSTILE}", Text(HOSTILE), style="red")
    console.print(table)
    with Progress(console=console, disable=not is_terminal) as progress:
        progress.add_task("bar")
    printed = below.getvalue()
    if is_terminal:
        assert "\x1b[31m[link=x]" in printed
        assert "bar" in printed
    else:
        assert find_unsafe(printed) == []
    for sequence in ("\x1b]52", "\x1b[2J", "\x9b", "\u202e", "\u200b"):
        assert sequence not in printed
    assert "[/blue] :bomb:" in printed
    assert "\\u001b[2J" in printed
