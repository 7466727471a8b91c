"""Decide how often each document is stored: copies by quality bin, and a budget of tokens.

The percentile of a document is that of its score among the documents of its group: those of its
language, and of its topic if the settings name topics. It is the share of documents that are worse,
with half of the equal ones, so any score and any language can be compared.

    bins = [{"from_percentile": 0, "num_copies": 0.5}, {"from_percentile": 90, "num_copies": 3}]
    settings = MixSettings(by="quality_score", bins=bins)
    for histogram in Mix.histograms(settings):
        histogram.count(counters, documents)    # of all documents of the run
    mix = Mix(settings, run_counters=counters)
    mix.open()
    mix.apply(batch).kept       # mix_percentile 95.0, quality_bin "90-100", num_copies 3

Dolma 3 repeats its documents by quality bins within topics, up to seven times (Olmo 3,
arXiv:2512.13961, "quality-aware upsampling").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import DOC_ID, Outcome, Stage, chain, drop_where, with_columns
from stages.filters.classifiers import score_column
from stages.filters.score import signal_field
from stages.histograms import (
    NO_SCORE,
    Histogram,
    PercentileRanks,
    RunLimit,
    find_bins,
    find_language,
    group_rows,
    name_languages,
)
from stages.kernels.splitmix import mix_bits
from stages.mixing.budget import BudgetCut, Level, TokenRates, find_budget_cuts
from stages.settings.base import find_limit
from stages.settings.quality import MixSettings

MIX_PERCENTILE = pa.field("mix_percentile", pa.float64())
QUALITY_BIN = pa.field("quality_bin", pa.string())
NUM_COPIES = pa.field("num_copies", pa.uint8())

# Copy k of a document has the id doc_id + k * 2**60. With k from 0 to 6, ids are below 2**63.
COPY_SHIFT = 60

# The percentile of a document without a score.
NO_SCORE_PERCENTILE = 50.0

# Keys of two independent choices by hash. The shuffle has the keys of seeds below 2**63.
_COPIES_KEY = int.from_bytes(b"copies..", "big") | 1 << 63
_BUDGET_KEY = int.from_bytes(b"budget..", "big") | 1 << 63

# The histograms of the run, by group.
_NUM_DOCUMENTS = "mix_documents"
_NUM_CHARS = "mix_chars"


class Mix(Stage[MixSettings]):
    """Adds percentile, bin and copies, and drops documents without a copy.

    A document without a score counts as one in the middle, at the percentile 50.
    """

    name = "mix"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([DOC_ID, pa.field("language", pa.string())])
    adds: ClassVar[pa.Schema] = pa.schema([MIX_PERCENTILE, QUALITY_BIN, NUM_COPIES])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "mix.no_copy": "The bin of its percentile gets no copies, or less than one and the "
            "hash of its doc_id leaves it out.",
            "mix.over_budget": "Better documents use up the budget of tokens, or the share of it "
            "that its language may have: its percentile is below the last one kept.",
        }
    )

    @classmethod
    def required_columns(cls, settings: MixSettings) -> pa.Schema:
        """Return id, language, the score, and the classifiers of topics."""
        names = dict.fromkeys([settings.by, *_list_topic_columns(settings)])
        return pa.schema([*cls.needs, *map(signal_field, names)])

    @classmethod
    def histograms(cls, settings: MixSettings) -> tuple[Histogram, ...]:
        """Return the documents and their characters by score, within each group."""
        column, topics = settings.by, _list_topic_columns(settings)
        return (
            Histogram(_NUM_DOCUMENTS, column, "kept", topics, counts_missing=True),
            Histogram(_NUM_CHARS, column, "kept", topics, "num_chars", counts_missing=True),
        )

    def open(self) -> None:
        """Sum up the histograms."""
        self._histograms = self.run_counters.take_histograms(f"{_NUM_DOCUMENTS}.")
        self._ranks = _rank_groups(self._histograms)
        starts = [each.from_percentile for each in self.settings.bins]
        self._starts = np.array(starts)
        self._copies = np.array([each.num_copies for each in self.settings.bins])
        self._labels = pa.array(label_bins(self.settings))

    @cached_property
    def cuts(self) -> Mapping[str, BudgetCut]:
        """Language -> where its budget ends; empty without a budget."""
        budget = self.settings.budget
        if budget is None:
            return {}
        return find_budget_cuts(
            self._list_levels(),
            budget.num_tokens,
            lambda language: find_limit(budget.max_language_share, language),
        )

    def _list_levels(self) -> Iterator[Level]:
        """Yield the estimated tokens of all documents, with their copies, by percentile."""
        rates = TokenRates(self.run_counters)
        for group, chars in self.run_counters.take_histograms(f"{_NUM_CHARS}.").items():
            language = find_language(group)
            for bin_ in sorted(chars):
                percentile = NO_SCORE_PERCENTILE
                if bin_ != NO_SCORE:
                    rank = self._ranks[group].rank(np.array([bin_]))
                    percentile = float(self._to_percentiles(rank)[0])
                place = int(np.searchsorted(self._starts, percentile, side="right")) - 1
                num_copies = self.settings.bins[place].num_copies
                num_tokens = rates.estimate(language, num_copies * chars[bin_])
                yield Level(language, percentile, num_tokens)

    def list_run_limits(self) -> Iterable[RunLimit]:
        """Yield the percentile at which the budget of each language ends."""
        num_scored: Counter[str] = Counter()
        for group, bins in self._histograms.items():
            num_scored[find_language(group)] += sum(bins.values())
        setting = "select.mix.budget: from percentile"
        for language, cut in sorted(self.cuts.items()):
            yield RunLimit(setting, language, cut.percentile, num_scored[language])

    def apply(self, batch: pa.Table) -> Outcome:
        """Add percentile, bin and copies; drop what has no copy or is over the budget."""
        percentiles = self._find_percentiles(batch)
        doc_ids = batch.column("doc_id").to_numpy()
        bins = np.searchsorted(self._starts, percentiles, side="right") - 1
        copies = count_copies(self._copies[bins], doc_ids)
        columns = {
            MIX_PERCENTILE.name: pa.array(percentiles),
            QUALITY_BIN.name: self._labels.take(pa.array(bins)),
            NUM_COPIES.name: pa.array(copies, NUM_COPIES.type),
        }
        annotated = with_columns(batch, columns)
        first = drop_where(
            annotated,
            pa.array(copies == 0),
            "mix.no_copy",
            value=annotated.column(MIX_PERCENTILE.name),
            detail=annotated.column(QUALITY_BIN.name),
        )
        return chain(first, self._drop_over_budget(first.kept))

    def _find_percentiles(self, batch: pa.Table) -> NDArray[np.float64]:
        """(n,) float64: the percentile of every row, 0..100, high is good."""
        scores = find_bins(batch, self.settings.by)
        percentiles = np.full(batch.num_rows, NO_SCORE_PERCENTILE)
        groups = group_rows(batch, _list_topic_columns(self.settings))
        for group, rows in groups.items():
            ranks = self._ranks.get(group)
            if ranks is not None:
                scored = rows[scores[rows] != NO_SCORE]
                percentiles[scored] = self._to_percentiles(ranks.rank(scores[scored]))
        return percentiles

    def _to_percentiles(self, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) float64: 0..100 and high is good, from shares of documents with lower scores."""
        return 100 * (1 - ranks if self.settings.is_low_best else ranks)

    def _drop_over_budget(self, kept: pa.Table) -> Outcome:
        percentiles = kept.column(MIX_PERCENTILE.name).to_numpy()
        limits = np.full(kept.num_rows, -np.inf)
        shares = np.ones(kept.num_rows)
        languages = name_languages(kept)
        for language, cut in self.cuts.items():
            is_language = pc.equal(languages, language).to_numpy(zero_copy_only=False)
            limits[is_language], shares[is_language] = cut.percentile, cut.share
        draws = draw_uniform(kept.column("doc_id").to_numpy(), _BUDGET_KEY)
        is_left_out = (percentiles == limits) & (draws >= shares)
        return drop_where(
            kept,
            pa.array((percentiles < limits) | is_left_out),
            "mix.over_budget",
            value=kept.column(MIX_PERCENTILE.name),
            limit=pa.array(limits),
        )


def _list_topic_columns(settings: MixSettings) -> tuple[str, ...]:
    return tuple(map(score_column, settings.topics))


def label_bins(settings: MixSettings) -> list[str]:
    """Return the names of the bins, such as `40-90`."""
    starts = [each.from_percentile for each in settings.bins]
    ends = [*starts[1:], 100.0]
    return [f"{start:g}-{end:g}" for start, end in zip(starts, ends, strict=True)]


def _rank_groups(
    histograms: Mapping[str, Mapping[int, int]],
) -> dict[str, PercentileRanks]:
    """Return group -> the percentile ranks of its scores. Documents without one do not count."""
    ranks: dict[str, PercentileRanks] = {}
    for group, histogram in histograms.items():
        scored = {bin_: number for bin_, number in histogram.items() if bin_ != NO_SCORE}
        if scored:
            ranks[group] = PercentileRanks(scored)
    return ranks


def count_copies(
    copies: NDArray[np.float64], doc_ids: NDArray[np.uint64]
) -> NDArray[np.uint8]:
    """(n,) uint8: whole copies, and one more for a share of the documents, chosen by hash.

    More copies are never fewer: a document that has three of 2.5 has three of 2.6.
    """
    whole = np.floor(copies)
    has_another = draw_uniform(doc_ids, _COPIES_KEY) < copies - whole
    return (whole + has_another).astype(np.uint8)


def draw_uniform(doc_ids: NDArray[np.uint64], key: int) -> NDArray[np.float64]:
    """(n,) float64: numbers in 0..1 that are fixed for each document and key.

    By SplitMix64; the highest 53 bits make the fraction.
    """
    highest = mix_bits(doc_ids.astype(np.uint64) + np.uint64(key)) >> np.uint64(11)
    return highest.astype(np.float64) * 2.0**-53
