r"""Measures of extracted text: those of the gold sets' own evaluations.

- Words: precision, recall and F1 of the multiset of words (`\w+`, lower case) of each page, and
  their means over the pages (evaluate.py of WCXB).
- Strings: precision, recall and F1 over the wanted and unwanted strings of all pages (evaluate.py
  of trafilatura).
"""

from __future__ import annotations

import html
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.quality.gold_pages import GoldPage


class Score(NamedTuple):
    """Precision, recall and F1 of one page."""

    precision: float
    recall: float
    f1: float


def score_words(text: str, gold: str) -> Score:
    """Compare the words of `text` with those of `gold`.

    >>> score_words("Home Flour and water", "flour and water")
    Score(precision=0.75, recall=1.0, f1=0.8571428571428571)
    """
    return _compare(_count_words(text), _count_words(gold))


def score_strings(texts: Sequence[str], pages: Sequence[GoldPage]) -> Score:
    """Return the share of found strings that are wanted, of wanted strings that are found, and F1."""
    num_right = num_wrong = num_missed = 0
    for text, page in zip(texts, pages, strict=True):
        words = _join_words(text)
        num_found = sum(_join_words(each) in words for each in page.wanted)
        num_right += num_found
        num_missed += len(page.wanted) - num_found
        num_wrong += sum(_join_words(each) in words for each in page.unwanted)
    precision = num_right / max(1, num_right + num_wrong)
    recall = num_right / max(1, num_right + num_missed)
    return Score(precision, recall, _harmonic_mean(precision, recall))


def count_half_lost(
    texts: Sequence[str], all_texts: Sequence[str], pages: Sequence[GoldPage]
) -> int:
    """Return the pages with less than half of the wanted strings that are in all their text."""
    num_lost = 0
    for text, all_text, page in zip(texts, all_texts, pages, strict=True):
        words, all_words = _join_words(text), _join_words(all_text)
        num_found = sum(_join_words(each) in words for each in page.wanted)
        num_there = sum(_join_words(each) in all_words for each in page.wanted)
        num_lost += 2 * num_found < len(page.wanted) <= 2 * num_there
    return num_lost


def score_ingredients(text: str, ingredients: Sequence[str]) -> float:
    """Return the mean share of the words of each ingredient that are words of the text."""
    words = set(re.findall(r"\w+", text.lower()))
    shares: list[float] = []
    for ingredient in ingredients:
        its_words = re.findall(r"\w+", html.unescape(ingredient).lower())
        shares.append(sum(word in words for word in its_words) / max(1, len(its_words)))
    return statistics.fmean(shares)


def summarize(texts: Sequence[str], pages: Sequence[GoldPage]) -> dict[str, Any]:
    """Return the figures of one extractor on one set."""
    if pages[0].wanted:
        score = score_strings(texts, pages)
        return {name: round(value, 3) for name, value in score._asdict().items()}
    golds = [page.text for page in pages]
    scores = [score_words(text, gold) for text, gold in zip(texts, golds, strict=True)]
    by_kind: dict[str, list[float]] = {}
    for page, score in zip(pages, scores, strict=True):
        by_kind.setdefault(page.kind, []).append(score.f1)
    return {
        "f1": round(statistics.fmean(score.f1 for score in scores), 3),
        "precision": round(statistics.fmean(score.precision for score in scores), 3),
        "recall": round(statistics.fmean(score.recall for score in scores), 3),
        "f1_by_kind": {
            kind: round(statistics.fmean(values), 3)
            for kind, values in sorted(by_kind.items())
        },
    }


def _compare(found: Counter[str], wanted: Counter[str]) -> Score:
    if not wanted or not found:
        same = float(not wanted and not found)
        return Score(same, same, same)
    shared = (found & wanted).total()
    precision, recall = shared / found.total(), shared / wanted.total()
    return Score(precision, recall, _harmonic_mean(precision, recall))


def _harmonic_mean(precision: float, recall: float) -> float:
    return 2 * precision * recall / ((precision + recall) or 1)


def _count_words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


def _join_words(text: str) -> str:
    return " ".join(text.split())
