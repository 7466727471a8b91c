"""Decide how often each document is stored: copies by quality bin, and a budget of tokens.

The percentile of a document is that of its score among the documents of its group: those of its
language, and of its topic if the settings name topics. It is the share of documents that are worse,
with half of the equal ones, so any score and any language can be compared.

    settings = MixSettings(
        column="quality_score",
        bins=[{"from_percentile": 0, "num_copies": 0.5}, {"from_percentile": 90, "num_copies": 3}],
        histograms={"en": {4100: 9, 4200: 1}},
    )
    mix = Mix(settings)
    mix.open()
    mix.apply(batch).kept       # mix_percentile 95.0, quality_bin "90-100", num_copies 3

Dolma 3 repeats its documents by quality bins within topics, up to seven times (Olmo 3,
arXiv:2512.13961, "quality-aware upsampling"). `count_groups` measures the histograms.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import DOC_ID, Outcome, Stage, chain, drop_where, with_columns
from stages.counters import Counters
from stages.filters.percentiles import PercentileRanks, name_languages
from stages.filters.score import choose_bins, signal_field
from stages.settings.mixing import MixSettings

MIX_PERCENTILE = pa.field("mix_percentile", pa.float64())
QUALITY_BIN = pa.field("quality_bin", pa.string())
NUM_COPIES = pa.field("num_copies", pa.uint8())

# Copy k of a document has the id doc_id + k * 2**60. With k from 0 to 6, ids are below 2**63.
COPY_SHIFT = 60

# The percentile, and the bin in histograms, of a document without a score.
NO_SCORE_PERCENTILE = 50.0
NO_SCORE = -1

# Keys of two independent choices by hash. The shuffle has the keys of seeds below 2**63.
_COPIES_KEY = int.from_bytes(b"copies..", "big") | 1 << 63
_BUDGET_KEY = int.from_bytes(b"budget..", "big") | 1 << 63

# Between the language and the topic of a group.
_TOPIC_SEPARATOR = "/"


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
        names = dict.fromkeys([settings.column, *settings.topics])
        return pa.schema([*cls.needs, *map(signal_field, names)])

    def open(self) -> None:
        """Sum up the histograms."""
        self._ranks = rank_groups(self.settings.histograms)
        starts = [each.from_percentile for each in self.settings.bins]
        self._starts = np.array(starts)
        self._copies = np.array([each.num_copies for each in self.settings.bins])
        self._labels = pa.array(label_bins(self.settings))

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
        scores = _read_bins(batch, self.settings.column)
        percentiles = np.full(batch.num_rows, NO_SCORE_PERCENTILE)
        for group, rows in group_rows(batch, self.settings.topics).items():
            ranks = self._ranks.get(group)
            if ranks is not None:
                scored = rows[scores[rows] != NO_SCORE]
                is_low_best = self.settings.is_low_best
                percentiles[scored] = to_percentiles(
                    ranks.rank(scores[scored]), is_low_best=is_low_best
                )
        return percentiles

    def _drop_over_budget(self, kept: pa.Table) -> Outcome:
        percentiles = kept.column(MIX_PERCENTILE.name).to_numpy()
        limits = np.full(kept.num_rows, -np.inf)
        shares = np.ones(kept.num_rows)
        languages = name_languages(kept)
        for language, cut in self.settings.cuts.items():
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


def label_bins(settings: MixSettings) -> list[str]:
    """Return the names of the bins, such as `40-90`."""
    starts = [each.from_percentile for each in settings.bins]
    ends = [*starts[1:], 100.0]
    return [f"{start:g}-{end:g}" for start, end in zip(starts, ends, strict=True)]


def rank_groups(
    histograms: Mapping[str, Mapping[int, int]],
) -> dict[str, PercentileRanks]:
    """Return group -> the percentile ranks of its scores. Documents without one do not count."""
    ranks: dict[str, PercentileRanks] = {}
    for group, histogram in histograms.items():
        scored = {bin_: number for bin_, number in histogram.items() if bin_ != NO_SCORE}
        if scored:
            ranks[group] = PercentileRanks(scored)
    return ranks


def to_percentiles(ranks: NDArray[np.float64], *, is_low_best: bool) -> NDArray[np.float64]:
    """(n,) float64: percentile ranks in percent, 100 for the best document."""
    high_is_best = 1 - ranks if is_low_best else ranks
    return 100 * high_is_best


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

    SplitMix64 (Steele, Lea and Flood 2014, figure 17); the highest 53 bits make the fraction.
    """
    x = doc_ids.astype(np.uint64) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    highest = (x ^ (x >> np.uint64(31))) >> np.uint64(11)
    return highest.astype(np.float64) * 2.0**-53


def group_rows(batch: pa.Table, topics: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
    """Return group -> the numbers of its rows: `en`, or `en/classifier_science` with topics."""
    groups = name_languages(batch)
    if topics:
        scores = np.stack(
            [pc.fill_null(batch.column(name), -1.0).to_numpy() for name in topics]
        )
        found = pa.array(topics).take(pa.array(scores.argmax(axis=0)))
        groups = pc.binary_join_element_wise(groups, found, _TOPIC_SEPARATOR)
    rows: dict[str, NDArray[np.int64]] = {}
    for group in pc.unique(groups).to_pylist():
        is_in_group = pc.equal(groups, group).to_numpy(zero_copy_only=False)
        rows[group] = np.flatnonzero(is_in_group)
    return rows


def find_language(group: str) -> str:
    """Return the language of a group."""
    return group.partition(_TOPIC_SEPARATOR)[0]


def count_groups(
    counters: Counters, column: str, topics: tuple[str, ...], documents: pa.Table
) -> None:
    """Count the documents and characters of each group by their scores.

    Args:
        counters: the histograms `mix_documents.<group>` and `mix_chars.<group>` are added to them.
        column: the score.
        topics: columns of classifiers.
        documents: with these columns, `language` and `num_chars`.
    """
    bins = _read_bins(documents, column)
    num_chars = documents.column("num_chars").to_numpy()
    for group, rows in group_rows(documents, topics).items():
        counters.observe(f"mix_documents.{group}", bins[rows])
        counters.observe(f"mix_chars.{group}", bins[rows], num_chars[rows])


def _read_bins(documents: pa.Table, column: str) -> NDArray[np.int64]:
    """(n,) int64: the bin of every score, NO_SCORE without one."""
    values = pc.cast(documents.column(column), pa.float64())
    scores = values.to_numpy(zero_copy_only=False)
    has_score = ~np.isnan(scores)
    bins = np.full(len(scores), NO_SCORE, np.int64)
    bins[has_score] = choose_bins(column).find(scores[has_score])
    return bins
