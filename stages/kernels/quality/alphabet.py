"""Character classes by code point, and the functions that decode and classify a text.

A text becomes two arrays of one element per character: `points` (int32 code points) and `kinds`
(uint16 bits, see the constants below). Python's own str methods define the classes, so the
compiled signals equal a definition in plain Python.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.quality import columns
from stages.kernels.quality.columns import BULLETS, STOP_WORDS, TERMINAL_PUNCTUATION
from stages.sentence_marks import SENTENCE_MARKS

Ints: TypeAlias = NDArray[np.int32]
Kinds: TypeAlias = NDArray[np.uint16]

SPACE, ALPHABETIC, PUNCTUATION, BULLET, TERMINAL = 1, 2, 4, 8, 16
WORD_CHARACTER, UPPER, LOWER, NUMERIC, ASCII_LETTER = 32, 64, 128, 256, 512
# Marks that RedPajama-V2 counts, and those of all scripts.
SENTENCE_END_IN_RPV2, SENTENCE_END, TERMINAL_IN_RPV2 = 1024, 2048, 4096
# For tokens.py: marks at the ends of a word, signs of currencies, and other marks that can split it.
AFFIX, CURRENCY, MARK = 8192, 16384, 32768

# spaCy's punctuation and quotation marks. To these it adds pictures (Unicode category So).
_AFFIXES = (
    "\u2026\u2014\u2013,:;!?\u00bf\u061f\u00a1()[]{}<>_#*&\u3002\uff1f\uff01\uff0c\u3001\uff1b\uff1a\uff5e\u00b7"
    "\u0964\u060c\u06d4\u061b\u066a'\"\u201d\u201c`\u2018\u00b4\u2019\u201a\u201e\u00bb\u00ab\u300c\u300d\u300e\u300f\uff08\uff09"
    "\u3014\u3015\u3010\u3011\u300a\u300b\u3008\u3009\u27e6\u27e7"
)

# First code point that is not in the tables.
#
# From here on no character is white space, alphabetic or numeric, or has a lower case (Unicode 17).
NUM_CLASSIFIED = 0x34000


class Phrases(NamedTuple):
    """Different phrases of one or more words each, stored one after the other."""

    letters: Ints  # the code points of all words
    word_starts: Ints  # (num_words + 1,) where each word starts in `letters`
    phrase_starts: Ints  # (num_phrases + 1,) the first word of each phrase
    lengths: Ints  # the distinct numbers of words per phrase, ascending

    @classmethod
    def from_words(cls, phrases: Sequence[Sequence[str]]) -> Self:
        """Build the arrays from lists of words, which must be different."""
        words: list[str] = []
        for phrase in phrases:
            words += phrase
        letters = [ord(character) for character in "".join(words)]
        word_lengths = [len(word) for word in words]
        phrase_lengths = [len(phrase) for phrase in phrases]
        return cls(
            np.array(letters, dtype=np.int32),
            np.cumsum([0, *word_lengths], dtype=np.int32),
            np.cumsum([0, *phrase_lengths], dtype=np.int32),
            np.array(sorted(set(phrase_lengths)), dtype=np.int32),
        )


class Alphabet(NamedTuple):
    """The tables that `measure` and `count_listed` need."""

    classes: NDArray[np.uint16]  # (NUM_CLASSIFIED,) bits of each code point
    lowers: (
        Ints  # (NUM_CLASSIFIED,) the lower case if it is one character, else the character
    )
    wanted: Phrases  # STOP_WORDS and then "javascript", each a phrase of one word


@cache
def build_alphabet() -> Alphabet:
    """Build the tables, once per process (about 0.2 s)."""
    characters = [chr(point) for point in range(NUM_CLASSIFIED)]
    classes = [_classify_character(character) for character in characters]
    for members, bit in _MARKS:
        for character in members:
            classes[ord(character)] |= bit
    lowers = list(range(NUM_CLASSIFIED))
    for point, character in enumerate(characters):
        lower = character.lower()
        if len(lower) == 1:
            lowers[point] = ord(lower)
    wanted = Phrases.from_words([[word] for word in (*STOP_WORDS, "javascript")])
    return Alphabet(
        np.array(classes, dtype=np.uint16), np.array(lowers, dtype=np.int32), wanted
    )


_MARKS = (
    (string.punctuation, PUNCTUATION),
    (BULLETS, BULLET),
    (TERMINAL_PUNCTUATION, TERMINAL),
    (columns.TERMINAL_IN_RPV2, TERMINAL_IN_RPV2),
    (string.ascii_letters, ASCII_LETTER),
    (".!?", SENTENCE_END_IN_RPV2),
    (".!?" + SENTENCE_MARKS, SENTENCE_END),
    ("_", WORD_CHARACTER),
    (_AFFIXES, AFFIX),
    (".%§=/-~+^", MARK),
)


def _classify_character(character: str) -> int:
    is_lower = character.islower() or (character.istitle() and not character.isupper())
    return (
        SPACE * character.isspace()
        | ALPHABETIC * character.isalpha()
        | WORD_CHARACTER * character.isalnum()  # and the underscore: \w of Python's re
        | UPPER * character.isupper()
        | LOWER * is_lower
        | NUMERIC * character.isnumeric()
        | AFFIX * (unicodedata.category(character) == "So")
        | CURRENCY * (unicodedata.category(character) == "Sc")
    )


@njit(nogil=True)
def decode_text(utf8: NDArray[np.uint8]) -> Ints:
    """Return the code points of valid UTF-8 (RFC 3629, section 3)."""
    points = np.empty(len(utf8), np.int32)
    num_points = 0
    i = 0
    while i < len(utf8):
        point = np.int32(utf8[i])
        i += 1
        if point >= 0xC0:
            width = 2 + (point >= 0xE0) + (point >= 0xF0)
            point &= 0x7F >> width
            for _ in range(1, width):
                point = point << 6 | utf8[i] & 0x3F
                i += 1
        points[num_points] = point
        num_points += 1
    return points[:num_points]


@njit(nogil=True)
def classify(points: Ints, classes: NDArray[np.uint16]) -> Kinds:
    """Return the bits of each character, (len(points),)."""
    kinds = np.zeros(len(points), np.uint16)
    for i in range(len(points)):
        if points[i] < NUM_CLASSIFIED:
            kinds[i] = classes[points[i]]
    return kinds
