"""Titles, sentences and paragraphs of one language."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from pipeline.sample_crawl.keyed_random import KeyedRandom, Permutation

# Shorter "sentences" are mostly left over from a full stop after an abbreviation; longer are lists.
MIN_SENTENCE_LETTERS, MAX_SENTENCE_CHARS = 25, 400

# A full stop after a single letter ends no sentence ("J. K. Rowling").
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b\w\.)\s+(?=[^\W\d_])")


class Library(Protocol):
    """Source of texts: the module `pipeline.models.demo.texts`, or an object with its functions."""

    def summaries(
        self, language: str, part: Literal["pages"], /
    ) -> Iterable[tuple[str, str]]:
        """Return title and text of encyclopedia summaries."""
        ...

    def sentences(self, language: str, /) -> Sequence[str]:
        """Return single sentences."""
        ...


class Texts:
    """Titles, sentences and paragraphs of one language."""

    def __init__(
        self,
        language: str,
        titles: Iterable[str],
        sentences: Iterable[str],
        num_paragraphs: int,
        seed: int,
    ) -> None:
        one_line = map(_join_lines, sentences)
        self.sentences = keep_prefix_free(
            s for s in one_line if len(s) <= MAX_SENTENCE_CHARS
        )
        self.titles = list(map(_join_lines, titles))
        self.joiner = "" if language in {"ja", "zh"} else " "
        num_triples = len(self.sentences) ** 3
        if num_triples < num_paragraphs:
            raise ValueError(
                f"sample crawl: {len(self.sentences)} usable sentences in {language!r} make "
                f"{num_triples} different paragraphs, {num_paragraphs} are wanted; ask for "
                "fewer documents or bring more text"
            )
        self._triple = Permutation(num_triples, seed, language, "triples")

    def make_paragraph(self, number: int, rng: KeyedRandom) -> str:
        """Return three sentences that no other number has in this order, and up to two more."""
        rest, first = divmod(self._triple(number), len(self.sentences))
        second, third = divmod(rest, len(self.sentences))
        chosen = [self.sentences[first], self.sentences[second], self.sentences[third]]
        # The first three make the paragraph unique; the others only vary its length.
        chosen += [rng.pick(self.sentences) for _ in range(rng.below(3))]
        return self.joiner.join(chosen)

    def edit(self, paragraph: str, rng: KeyedRandom) -> str:
        """Replace one word in twenty, at least one, by another word of the language."""
        words = paragraph.split()
        num_edits = max(1, len(words) // 20)
        edited: set[int] = set()
        for _ in range(num_edits):
            edited.add(rng.below(len(words)))
        for i in sorted(edited):
            old = _fold(words[i])
            while _fold(words[i]) == old:
                words[i] = rng.pick(rng.pick(self.sentences).split())
        return " ".join(words)


def load_summary_texts(
    library: Library, language: str, num_paragraphs: int, seed: int
) -> Texts:
    """Build the texts of a language from summaries."""
    titles: list[str] = []
    sentences: list[str] = []
    for title, text in library.summaries(language, "pages"):
        titles.append(title)
        sentences += _SENTENCE_END.split(text)
    return Texts(language, titles, sentences, num_paragraphs, seed)


def load_sentence_texts(
    library: Library, language: str, num_paragraphs: int, seed: int
) -> Texts:
    """Build the texts of a language from single sentences; a title is the beginning of one."""
    sentences = library.sentences(language)
    titles = (sentence[:40] for sentence in sentences)
    return Texts(language, titles, sentences, num_paragraphs, seed)


def keep_prefix_free(sentences: Iterable[str]) -> list[str]:
    """Return the sentences whose letters do not begin with the letters of another sentence.

    Two different rows of such sentences differ, regardless of the text that follows. In
    sorted order everything that begins with a sentence directly follows it, so one
    comparison each is enough.
    """
    sentence_by_letters: dict[str, str] = {}
    for sentence in sentences:
        sentence_by_letters[_fold(sentence)] = sentence
    kept: list[str] = []
    last = "\0"
    for letters, sentence in sorted(sentence_by_letters.items()):
        if len(letters) >= MIN_SENTENCE_LETTERS and not letters.startswith(last):
            kept.append(sentence)
            last = letters
    return kept


def _join_lines(text: str) -> str:
    """Return the text on one line, with single blanks between words."""
    return " ".join(text.split())


def _fold(text: str) -> str:
    """Return the letters of a text without case.

    This is coarser than CCNet's normal form, which keeps digits, punctuation and spaces. Texts that
    differ here differ there.
    """
    return "".join(filter(str.isalpha, text.casefold()))
