"""Small SentencePiece models, and the characters that need them."""

from __future__ import annotations

import io
import random
import unicodedata
from functools import cache
from typing import Any

import sentencepiece

SENTENCE = "the cat sat on a mat and thereby mattered to all cats, rats: 00 of them"
WORDS = SENTENCE.split()

CHARACTERS = [*map(chr, range(0xD800)), *map(chr, range(0xE000, 0x110000))]


@cache
def find_characters_in_context() -> frozenset[str]:
    """Return the characters whose normal form depends on their neighbours.

    A final sigma has another lower case, and combining characters that are not deleted can change
    places.
    """
    return frozenset("Σ").union(filter(_has_kept_mark, CHARACTERS))


def _has_kept_mark(character: str) -> bool:
    decomposed = unicodedata.normalize("NFD", character)
    marks = filter(unicodedata.combining, decomposed)
    return any(unicodedata.category(mark) != "Mn" for mark in marks)


def train_pieces(**options: Any) -> bytes:
    """Return a small SentencePiece model of texts that are made of WORDS."""
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(WORDS, k=9)) for _ in range(300)]
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "vocab_size": 90,
        "hard_vocab_limit": False,
        "minloglevel": 2,
        "num_threads": 1,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, **(settings | options)
    )
    return model.getvalue()
