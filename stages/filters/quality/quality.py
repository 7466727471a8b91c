"""Compute quality signals of documents, and drop documents by the rules of Gopher, C4 and FineWeb.

`Quality` stores every signal of `definitions`. `QualityFilter` applies `rules` to the stored
signals, so a limit can be changed without computing them again.

    scored = Quality(QualitySettings()).apply(batch).kept
    outcome = QualityFilter(QualityFilterSettings()).apply(scored)
    outcome.dropped       # doc_id, reason "quality.words_too_few", value 12, limit 50
"""

from __future__ import annotations

from collections.abc import Mapping
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
from stages.settings.quality import QualityFilterSettings, QualitySettings
from stages.string_buffers import read_string_buffers

_LANGUAGE = pa.field("language", pa.string())


class Quality(Stage[QualitySettings]):
    """Adds the signals of `DEFINITIONS`, and those that need a list of words. Drops nothing."""

    name = "quality"
    version = 3
    needs: ClassVar[pa.Schema] = pa.schema([DOC_ID, pa.field("text", pa.large_string())])
    adds: ClassVar[pa.Schema] = pa.schema(SIGNAL_FIELDS)

    _lists: Mapping[str, Mapping[str, Phrases]]  # signal -> language -> list

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
        lists: dict[str, dict[str, Phrases]] = {}
        for signal, files in _list_files(self.settings).items():
            has_case = signal == STOP_WORDS
            lists[signal] = {}
            for language, file in sorted(files.items()):
                lists[signal][language] = _read_list(self.files[file], has_case)
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


def _read_list(path: Path, has_case: bool) -> Phrases:
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
    return Phrases.from_words(sorted(phrases))


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
    texts: pa.Array, languages: Column, signal: str, lists: Mapping[str, Phrases]
) -> pa.Array:
    """(n,) one of the signals that need a list; null where there is none for the language."""
    values = np.full(len(texts), np.nan)
    for language, phrases in lists.items():
        is_language = pc.fill_null(pc.equal(languages, language), False).combine_chunks()
        buffers = read_string_buffers(texts.filter(is_language))
        counts = kernel.count_listed(
            *buffers, build_alphabet(), phrases, signal == STOP_WORDS
        )
        num_listed, num_words = counts[:, 0], counts[:, 1]
        is_share = signal == STOP_WORDS
        rows = is_language.to_numpy(zero_copy_only=False)
        values[rows] = num_listed / np.maximum(num_words, 1) if is_share else num_listed
    return pa.array(values, mask=np.isnan(values)).cast(LIST_FIELDS[signal].type)


class QualityFilter(Stage[QualityFilterSettings]):
    """Drops documents that break a rule. The reason is the first broken rule of `RULES`."""

    name = "quality"
    version = 2
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
        """Keep the rows that break no rule, or are in a language without rules."""
        outcome = keep_all(batch)
        for rule in RULES:
            limit: float | None = getattr(self.settings, rule.limit)
            if limit is not None:
                outcome = chain(outcome, self._apply_rule(outcome.kept, rule, limit))
        return outcome

    def _apply_rule(self, batch: pa.Table, rule: Rule, limit: float) -> Outcome:
        value = rule.compute_value(batch)
        is_broken = rule.is_broken_by(value, limit)
        if self.settings.languages is not None:
            languages = pa.array(self.settings.languages, pa.string())
            has_rules = pc.is_in(batch.column("language"), value_set=languages)
            is_broken = pc.and_(is_broken, has_rules)
        return drop_where(batch, is_broken, rule.reason, value=value, limit=limit)
