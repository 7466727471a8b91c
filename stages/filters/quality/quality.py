"""Compute quality signals of documents, and drop documents by the rules of Gopher, C4 and FineWeb.

`Quality` stores every signal of `definitions`. `QualityFilter` applies `rules` to the stored
signals, so a limit can be changed without computing them again.

    scored = Quality(QualitySettings()).apply(batch).kept
    outcome = QualityFilter(QualityFilterSettings()).apply(scored)
    outcome.dropped       # doc_id, reason "quality.words_too_few", value 12, limit 50
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import (
    DOC_ID,
    Column,
    Outcome,
    Stage,
    chain,
    drop_where,
    keep_all,
)
from stages.filters.quality.definitions import (
    BAD_WORDS,
    LIST_FIELDS,
    SIGNAL_FIELDS,
    STOP_WORDS,
)
from stages.filters.quality.rules import RULES, Rule
from stages.kernels.quality import columns
from stages.kernels.quality import signals as kernel
from stages.kernels.quality.alphabet import Phrases, build_alphabet
from stages.settings.base import find_limit
from stages.settings.languages import has_blanks
from stages.settings.quality import QualityFilterSettings, QualitySettings
from stages.string_buffers import read_string_buffers

_LANGUAGE = pa.field("language", pa.string())

# A temporary column: the number of the row's language in the batch.
_LANGUAGE_NUMBER = "language_number"

# The detail of a rule that does not apply to a document.
_OFF = "off for its language"


class Quality(Stage[QualitySettings]):
    """Adds the signals of `DEFINITIONS`, and those that need a list of words. Drops nothing."""

    name = "quality"
    version = 6
    needs: ClassVar[pa.Schema] = pa.schema([DOC_ID, pa.field("text", pa.large_string())])
    adds: ClassVar[pa.Schema] = pa.schema(SIGNAL_FIELDS)

    _lists: Mapping[
        str, Mapping[str, Phrases | str]
    ]  # signal -> language -> list or pattern

    @classmethod
    def required_columns(cls, settings: QualitySettings) -> pa.Schema:
        """Return the text, and the language if there are lists."""
        if not cls.required_files(settings):
            return cls.needs
        return pa.schema([*cls.needs, _LANGUAGE])

    @classmethod
    def added_columns(cls, settings: QualitySettings) -> pa.Schema:
        """Return the signals, with one more for each kind of list."""
        list_fields = map(LIST_FIELDS.__getitem__, _list_files(settings))
        return pa.schema([*cls.adds, *list_fields])

    @classmethod
    def required_files(cls, settings: QualitySettings) -> tuple[str, ...]:
        """Return the lists, without duplicates, sorted."""
        files: set[str] = set()
        for by_language in _list_files(settings).values():
            files.update(by_language.values())
        return tuple(sorted(files))

    def open(self) -> None:
        """Read the lists.

        Raises:
            ValueError: a list is empty, or is not UTF-8.
        """
        lists: dict[str, dict[str, Phrases | str]] = {}
        for signal, files in _list_files(self.settings).items():
            has_case = signal == STOP_WORDS
            lists[signal] = {}
            for language, file in sorted(files.items()):
                phrases = _read_list(self.files[file], has_case)
                lists[signal][language] = (
                    Phrases.from_words(phrases)
                    if has_blanks(language)
                    else _make_pattern(phrases)
                )
        self._lists = lists

    def apply(self, batch: pa.Table) -> Outcome:
        """Add the signals of each text. A null text counts as empty."""
        texts = pc.fill_null(
            pc.cast(batch.column("text"), pa.large_string()), ""
        ).combine_chunks()
        signals = _compute_signals(texts)
        added: dict[str, Column] = {}
        for field in self.adds:
            added[field.name] = pa.array(signals[field.name]).cast(field.type)
        # A stage without lists needs no `open`.
        for signal, lists in (self._lists if self.files else {}).items():
            added[signal] = _count_listed(texts, batch.column("language"), signal, lists)
        return keep_all(batch, added)


def _list_files(settings: QualitySettings) -> dict[str, Mapping[str, str]]:
    """Return signal -> language -> file, without the signals that have no list."""
    files: dict[str, Mapping[str, str]] = {}
    if settings.stop_words:
        files[STOP_WORDS] = settings.stop_words
    if settings.bad_words:
        files[BAD_WORDS] = settings.bad_words
    return files


def _read_list(path: Path, has_case: bool) -> list[tuple[str, ...]]:
    """Read a list of words, one per line; or, if case does not matter, of phrases."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: a list of words must be UTF-8: {error}") from error
    phrases: set[tuple[str, ...]] = set()
    for line in lines:
        entry = line.strip()
        if entry:
            phrases.add((entry,) if has_case else tuple(entry.lower().split()))
    if not phrases:
        raise ValueError(
            f"{path}: no word in this list; write one per line, or remove the list from "
            f"annotate.quality"
        )
    return sorted(phrases)


def _make_pattern(phrases: Iterable[Sequence[str]]) -> str:
    """Return an expression of RE2 that finds the phrases anywhere, the longest first."""
    entries = sorted((" ".join(phrase) for phrase in phrases), key=len, reverse=True)
    return "|".join(map(re.escape, entries))


def _compute_signals(texts: pa.Array) -> dict[str, NDArray[np.float64]]:
    """Return signal -> (num_texts,) float64."""
    values = kernel.measure(*read_string_buffers(texts), build_alphabet())
    signals: dict[str, NDArray[np.float64]] = {}
    for index, name in enumerate(columns.SIGNALS):
        signals[name] = np.ascontiguousarray(values[:, index])
    # The last bits of a logarithm depend on the mathematical library. Rounding makes the column
    # equal on all machines; RedPajama-V2 rounds all its signals to 8 decimals.
    signals["rps_doc_unigram_entropy"] = np.round(signals["rps_doc_unigram_entropy"], 8)
    return signals


def _count_listed(
    texts: pa.Array,
    languages: Column,
    signal: str,
    lists: Mapping[str, Phrases | str],
) -> pa.Array:
    """(n,) one of the signals that need a list; null where there is none for the language."""
    values = np.full(len(texts), np.nan)
    for language, phrases in lists.items():
        is_language = pc.fill_null(pc.equal(languages, language), False).combine_chunks()
        rows = is_language.to_numpy(zero_copy_only=False)
        if isinstance(phrases, str):
            found = pc.count_substring_regex(
                texts.filter(is_language), phrases, ignore_case=True
            )
            values[rows] = found.to_numpy()
            continue
        buffers = read_string_buffers(texts.filter(is_language))
        counts = kernel.count_listed(
            *buffers, build_alphabet(), phrases, signal == STOP_WORDS
        )
        num_listed, num_words = counts[:, 0], counts[:, 1]
        is_share = signal == STOP_WORDS
        values[rows] = num_listed / np.maximum(num_words, 1) if is_share else num_listed
    return pa.array(values, mask=np.isnan(values)).cast(LIST_FIELDS[signal].type)


class QualityFilter(Stage[QualityFilterSettings]):
    """Drops documents that break a rule. The reason is the first broken rule of `RULES`."""

    name = "quality"
    version = 3
    needs: ClassVar[pa.Schema] = pa.schema([DOC_ID, _LANGUAGE])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {rule.reason: rule.sentence for rule in RULES}
    )

    @classmethod
    def required_columns(cls, settings: QualityFilterSettings) -> pa.Schema:
        """Return the signals that have a limit."""
        limited = {
            rule.signal for rule in RULES if getattr(settings, rule.limit) is not None
        }
        fields = (*SIGNAL_FIELDS, *LIST_FIELDS.values())
        needed = [field for field in fields if field.name in limited]
        return pa.schema([*cls.needs, *needed])

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows that break no rule. A rule can be off in the language of a row."""
        languages = pa.chunked_array(batch.column("language")).combine_chunks()
        encoded = pc.dictionary_encode(languages, null_encoding="encode")
        outcome = keep_all(batch, {_LANGUAGE_NUMBER: encoded.indices})
        for rule in RULES:
            if getattr(self.settings, rule.limit) is not None:
                by_language = self._list_limits(encoded.dictionary, rule)
                outcome = chain(outcome, _apply_rule(outcome.kept, rule, by_language))
        return replace(outcome, kept=outcome.kept.drop_columns(_LANGUAGE_NUMBER))

    def _list_limits(self, languages: pa.Array, rule: Rule) -> pa.Array:
        """(num_languages,) float64: the limit in each language, null where the rule is off."""
        known = languages.to_pylist()
        return pa.array(
            [self._find_limit(language, rule) for language in known], pa.float64()
        )

    def _find_limit(self, language: str | None, rule: Rule) -> float | None:
        chosen = self.settings.languages
        if chosen is not None and language not in chosen:
            return None
        if not rule.applies_to(language):
            return None
        return find_limit(getattr(self.settings, rule.limit), language)


def _apply_rule(batch: pa.Table, rule: Rule, by_language: pa.Array) -> Outcome:
    value = rule.compute_value(batch)
    limit, detail = by_language[0].as_py() if len(by_language) else None, None
    if len(pc.unique(by_language)) > 1 or limit is None:
        limit = by_language.take(batch.column(_LANGUAGE_NUMBER))
        # `explain` prints it.
        detail = pc.if_else(pc.is_null(limit), _OFF, pa.scalar(None, pa.string()))
    is_broken = rule.is_broken_by(value, limit)
    return drop_where(
        batch, is_broken, rule.reason, value=value, limit=limit, detail=detail
    )
