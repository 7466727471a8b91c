"""A small sample crawl of invented words, for tests."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pipeline.sample_crawl.generator import SampleCrawl, generate


class InventedLibrary:
    """Sentences of made-up words, with the interface of the real library and without a network."""

    def summaries(self, language: str, part: Literal["pages"]) -> Iterable[tuple[str, str]]:
        """Four hundred titles with four sentences each."""
        assert part == "pages"
        sentences = _sentences(language, 1_600)
        return [
            (f"Title {i} <{language}>", " ".join(sentences[4 * i : 4 * i + 4]))
            for i in range(400)
        ]

    def sentences(self, language: str) -> Sequence[str]:
        """Six hundred sentences."""
        return _sentences(language, 600)


@cache
def _sentences(language: str, num_sentences: int) -> list[str]:
    draws = random.Random(language)
    return [_sentence(draws) for _ in range(num_sentences)]


def _sentence(draws: random.Random) -> str:
    words = [
        "".join(draws.choices("aeioulnrstdéñç", k=draws.randint(2, 9)))
        for _ in range(draws.randint(8, 18))
    ]
    return " ".join(words).capitalize() + " & 1984."


LIBRARY = InventedLibrary()


def make_crawl(
    out: Path, num_documents: int = 300, documents_per_file: int = 40, **arguments: Any
) -> SampleCrawl:
    """Write a small crawl of invented text."""
    arguments = {"seed": 1, "format": "wet", "library": LIBRARY, **arguments}
    return generate(
        out, num_documents=num_documents, documents_per_file=documents_per_file, **arguments
    )
