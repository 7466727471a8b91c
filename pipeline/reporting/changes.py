"""What two sets of decisions keep, compared: amounts of documents, and limits, as values and as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.reporting.queries import Row
from stages.histograms import RunLimit

# Languages of a table. The others are added up in one row.
NUM_LANGUAGES = 12


@dataclass(frozen=True)
class Amount:
    """A number of documents, with their characters, and the tokens of all their copies."""

    num_docs: int = 0
    num_chars: int = 0
    num_tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.num_docs + other.num_docs,
            self.num_chars + other.num_chars,
            self.num_tokens + other.num_tokens,
        )


# Name -> what is kept before and after.
AmountPairs = Mapping[str, tuple[Amount, Amount]]


def sum_amounts(
    groups: Iterable[Row], key: str, num_chars: str, num_tokens: str
) -> dict[str, Amount]:
    """Return what groups of documents amount to, by name.

    Args:
        groups: rows with `num_docs` and the other columns.
        key: the column of the names.
        num_chars: the column of characters.
        num_tokens: the column of tokens.
    """
    amounts: dict[str, Amount] = {}
    for row in groups:
        amount = Amount(row["num_docs"], row[num_chars] or 0, row[num_tokens] or 0)
        amounts[row[key]] = amounts.get(row[key], Amount()) + amount
    return amounts


def pair_amounts(
    before: Mapping[str, Amount], after: Mapping[str, Amount]
) -> dict[str, tuple[Amount, Amount]]:
    """Return name -> what is kept before and after, the largest ones first."""
    pairs: dict[str, tuple[Amount, Amount]] = {}
    for name in (*before, *after):
        pairs[name] = (before.get(name, Amount()), after.get(name, Amount()))

    def order(item: tuple[str, tuple[Amount, Amount]]) -> tuple[int, str]:
        return -max(amount.num_docs for amount in item[1]), item[0]

    return dict(sorted(pairs.items(), key=order))


@dataclass(frozen=True)
class CutChange:
    """A limit of one language before and after; None: the setting gives none there."""

    setting: str
    language: str
    before: float | None
    after: float | None


def compare_cuts(
    before: Iterable[RunLimit], after: Iterable[RunLimit]
) -> tuple[CutChange, ...]:
    """Return the limits of each setting and language, in the order of `after`, then of `before`."""
    old = {(cut.setting, cut.language): cut.limit for cut in before}
    new = {(cut.setting, cut.language): cut.limit for cut in after}
    return tuple(
        CutChange(*key, old.get(key), new.get(key)) for key in dict.fromkeys([*new, *old])
    )


def format_limit(limit: float | None) -> str:
    """Return a limit with four digits that count."""
    return "none" if limit is None else f"{limit:.4g}"


def describe_settings(changes: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Yield each changed key with both values as `--set` accepts them. JSON is a subset of YAML."""
    for key, values in changes.items():
        before, after = (json.dumps(value, ensure_ascii=False) for value in values)
        yield f"{key}: {before} -> {after}"


def cut_languages(pairs: AmountPairs) -> AmountPairs:
    """Return the first languages, and the sum of the others."""
    names = list(pairs)
    shown = {name: pairs[name] for name in names[:NUM_LANGUAGES]}
    others = [pairs[name] for name in names[NUM_LANGUAGES:]]
    if others:
        before = sum((amount for amount, _ in others), Amount())
        after = sum((amount for _, amount in others), Amount())
        shown[f"{len(others)} more"] = (before, after)
    return shown
