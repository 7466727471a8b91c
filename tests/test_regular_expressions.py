"""Foreign text cannot make a regular expression slow."""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from tests.test_architecture import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIXES = [
    "", " ", "\n", "+1 ", "<a ", "<noscript ", "HTTP/1.1 ", "WARC/1.0\r\nA", "<", "</",
    "<!--", "charset=", "http://a", "//", "[", "&", "a@", "1-", "DE89", "a (at) ", "Tel. ",
]  # fmt: skip
REPEATED = [
    " ", "\t", "\n", "\r\n", "\u3000", "\ue000", "a ", "0 ", "00000000 ", "http://a ",
    "x: ", "a", "A", "0", "é", "0-", "0.", "a.", "a@", "-", ".", "@", ",", ";", ":", "/",
    "_", "+", "=", "%", "&", "&amp;", "(", "[", "]", ">", "<", "<a", "<!--", "<noscript>",
    "<rt>", "\\", "'", '"', "charset=",
]  # fmt: skip
# Matched at one place only. A search would begin anew at each letter.
ANCHORED = {
    "pipeline.runs.slow_documents._NAME",
    "stages.warc.arc.START",
    "stages.text_records.jsonl._BLANK_LINES",
    "stages.warc.documents._HOST",
    "storage.local._STAGING_NAME",
}
ENDS = ["", "\x01"]
NUM_CHARS = 2_000
# 0.5 µs for a character. Nearly all expressions take 0.1, a quadratic one takes up to 20.
QUICK_S = 0.001


def find_patterns() -> dict[str, re.Pattern[Any]]:
    patterns: dict[str, re.Pattern[Any]] = {}
    for package in PACKAGES:
        for info in pkgutil.walk_packages([package], f"{package}."):
            if info.name.endswith("__main__"):
                continue
            for name, value in vars(importlib.import_module(info.name)).items():
                for number, pattern in enumerate(_list_patterns(value)):
                    if pattern not in patterns.values():
                        patterns[f"{info.name}.{name}" + f"[{number}]" * (number > 0)] = (
                            pattern
                        )
    return patterns


def _list_patterns(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, Mapping):
        value = list(value.values())
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, re.Pattern):
            yield item


def measure_s(
    pattern: re.Pattern[Any], name: str, start: str, repeated: str, end: str, num_chars: int
) -> float:
    text: Any = f"{start}{repeated * (num_chars // len(repeated))}{end}"
    if isinstance(pattern.pattern, bytes):
        text = text.encode()
    begin_s = time.thread_time()
    if name in ANCHORED:
        pattern.match(text)
    else:
        for _ in pattern.finditer(text):
            pass
    return time.thread_time() - begin_s


PATTERNS = find_patterns()


@pytest.mark.parametrize("name", PATTERNS)
def test_the_time_of_an_expression_grows_no_faster_than_its_text(name: str) -> None:
    pattern = PATTERNS[name]
    for text in product(PREFIXES, REPEATED, ENDS):
        if measure_s(pattern, name, *text, NUM_CHARS) < QUICK_S:
            continue
        short_s = min(measure_s(pattern, name, *text, 2 * NUM_CHARS) for _ in range(3))
        long_s = min(measure_s(pattern, name, *text, 8 * NUM_CHARS) for _ in range(3))
        assert long_s < 8 * short_s, (
            f"{pattern.pattern!r} is slow on {text[0]!r} + {text[1]!r} * n + {text[2]!r}"
        )
