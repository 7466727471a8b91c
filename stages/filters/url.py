r"""Drop documents by URL: block lists of domains and URLs, words, patterns, and curated sources.

A listed domain blocks all its subdomains: `example.com` blocks `a.b.example.com`, but not
`badexample.com`. A listed URL blocks the paths below it. URLs and entries are compared in the
normal form of `block_list.normalize_urls`.

    blacklists/adult/domains     one domain per line
    blacklists/adult/urls        one URL per line     # the layout of UT1, Université Toulouse Capitole
    more.txt                     either; # begins a comment

    stage = Url(UrlSettings(domains=("blacklists", "more.txt")), files)
    stage.open()
    stage.apply(batch).dropped   # reason "url.domain_blocked", detail "adult: example.com"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import DOCUMENT, Outcome, Stage, chain, drop_where, keep_all
from stages.filters.block_list import BlockList, normalize_urls, read_entries
from stages.kernels import url_keys
from stages.settings.filters import UrlSettings, normalize_words

_NORMAL = (
    "normal url"  # a column that exists during `apply` only; no other name has a space
)
_NOT_IN_WORDS = r"[^a-z0-9\x{80}-\x{10ffff}]+"


class Url(Stage[UrlSettings]):
    """Drops documents whose URL is listed, contains a listed word or matches a pattern.

    Documents without a URL are kept.

    Source: Penedo et al. 2023 (RefinedWeb), appendix G.1: block list, then words, then curated
    sources.
    """

    name = "url"
    version = 1
    needs = pa.schema([DOCUMENT.field("url")])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "url.domain_blocked": "The domain, a parent domain, or the URL is in a block list.",
            "url.subword": "The letters and digits of the URL contain one of subwords.",
            "url.hard_word": "A word of the URL is one of hard_words.",
            "url.soft_words": "The number of different soft_words in the URL is above "
            "max_soft_words.",
            "url.pattern": "The URL matches one of the regular expressions in patterns.",
            "url.curated": "The source is one of curated, whose copies come from elsewhere.",
        }
    )

    _rules: list[Callable[[pa.Table], Outcome]]

    @classmethod
    def required_files(cls, settings: UrlSettings) -> tuple[str, ...]:
        """Return the lists that are files, without duplicates, in the order of the settings."""
        lists = (
            settings.subwords,
            settings.hard_words,
            settings.soft_words,
            settings.curated,
        )
        files = [*settings.domains]
        files += [given for given in lists if isinstance(given, str)]
        return tuple(dict.fromkeys(files))

    def open(self) -> None:
        """Read the lists.

        Raises:
            ValueError: a list is empty, contains an entry that is not a word, or has too many
                categories.
        """
        settings = self.settings
        self._rules = []
        if settings.domains:
            blocked = BlockList.read(
                [self.files[reference] for reference in settings.domains]
            )
            self._rules.append(
                lambda batch: self._drop_by_domains(batch, blocked, "url.domain_blocked")
            )
        if subwords := self._read_words(settings.subwords):
            self._rules.append(lambda batch: self._drop_by_subwords(batch, subwords))
        if hard_words := self._read_words(settings.hard_words):
            hard = BlockList.from_words(hard_words)
            self._rules.append(lambda batch: self._drop_by_hard_words(batch, hard))
        if soft_words := self._read_words(settings.soft_words):
            soft = BlockList.from_words(soft_words)
            self._rules.append(lambda batch: self._drop_by_soft_words(batch, soft))
        for pattern in settings.patterns:
            self._rules.append(
                lambda batch, pattern=pattern: self._drop_by_pattern(batch, pattern)
            )
        if settings.curated:
            lines = self._read_entries(settings.curated)
            curated = BlockList.build([("", pa.array(lines, pa.large_string()))])
            self._rules.append(
                lambda batch: self._drop_by_domains(batch, curated, "url.curated")
            )

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows that break no rule. The reason is the first broken one, as in `reasons`."""
        outcome = keep_all(batch, {_NORMAL: normalize_urls(batch.column("url"))})
        for rule in self._rules:
            outcome = chain(outcome, rule(outcome.kept))
        return Outcome(
            outcome.kept.drop_columns([_NORMAL]), outcome.dropped, outcome.counters
        )

    def _read_entries(self, given: str | tuple[str, ...]) -> list[str]:
        if not isinstance(given, str):
            return list(given)
        lines: list[str] = []
        for chunk in read_entries(self.files[given]):
            lines += chunk.to_pylist()
        if not lines:
            raise ValueError(
                f"{self.files[given]}: the list is empty; write one entry per line"
            )
        return lines

    def _read_words(self, given: str | tuple[str, ...]) -> tuple[str, ...]:
        try:
            return normalize_words(self._read_entries(given))
        except ValueError as error:
            raise ValueError(f"{given}: {error}") from error

    def _drop_by_domains(self, batch: pa.Table, blocked: BlockList, reason: str) -> Outcome:
        hits = blocked.find(url_keys.list_parent_keys, batch.column(_NORMAL))
        # Hits are in the order of the URLs, so each URL's first hit follows another URL's hit.
        is_first = np.diff(hits.texts, prepend=-1) > 0
        details = hits.get_parts(is_first)
        for index, category in enumerate(hits.get_categories(is_first)):
            if category:
                details[index] = f"{category}: {details[index]}"
        return _drop(batch, reason, hits.texts[is_first], details)

    def _drop_by_subwords(self, batch: pa.Table, subwords: tuple[str, ...]) -> Outcome:
        letters_and_digits = pc.replace_substring_regex(
            batch.column(_NORMAL), _NOT_IN_WORDS, ""
        )
        rows = np.flatnonzero(
            pc.match_substring_regex(letters_and_digits, "|".join(subwords))
        )
        details: list[str] = []
        for text in letters_and_digits.take(rows).to_pylist():
            found = [word for word in subwords if word in text]
            details.append(found[0])
        return _drop(batch, "url.subword", rows, details)

    def _drop_by_hard_words(self, batch: pa.Table, hard: BlockList) -> Outcome:
        hits = hard.find(url_keys.list_word_keys, batch.column(_NORMAL))
        is_first = np.diff(hits.texts, prepend=-1) > 0
        return _drop(batch, "url.hard_word", hits.texts[is_first], hits.get_parts(is_first))

    def _drop_by_soft_words(self, batch: pa.Table, soft: BlockList) -> Outcome:
        hits = soft.find(url_keys.list_word_keys, batch.column(_NORMAL))
        # (hits,) by URL, equal words side by side
        order = np.lexsort((hits.keys, hits.texts))
        texts, keys = hits.texts[order], hits.keys[order]
        # A word that occurs twice in a URL counts once.
        is_new = (np.diff(texts, prepend=-1) > 0) | (keys != np.roll(keys, 1))
        counts = np.bincount(texts[is_new], minlength=batch.num_rows)
        limit = self.settings.max_soft_words
        rows = np.flatnonzero(counts > limit)
        is_in_dropped = np.isin(hits.texts, rows)
        words_by_row: dict[int, list[str]] = {}
        dropped_rows = hits.texts[is_in_dropped].tolist()
        for row, word in zip(dropped_rows, hits.get_parts(is_in_dropped), strict=True):
            words = words_by_row.setdefault(row, [])
            if word not in words:
                words.append(word)
        details = list(map(" ".join, words_by_row.values()))
        return _drop(
            batch, "url.soft_words", rows, details, value=pa.array(counts), limit=limit
        )

    def _drop_by_pattern(self, batch: pa.Table, pattern: str) -> Outcome:
        rows = np.flatnonzero(pc.match_substring_regex(batch.column(_NORMAL), pattern))
        return _drop(batch, "url.pattern", rows, [pattern] * len(rows))


def _drop(
    batch: pa.Table,
    reason: str,
    rows: NDArray[np.int64],
    details: list[str],
    **measured: Any,
) -> Outcome:
    is_dropped = np.zeros(batch.num_rows, np.bool_)
    is_dropped[rows] = True
    detail = np.full(batch.num_rows, None, object)
    detail[rows] = details
    return drop_where(
        batch,
        pa.array(is_dropped),
        reason,
        detail=pa.array(detail, pa.string()),
        **measured,
    )
