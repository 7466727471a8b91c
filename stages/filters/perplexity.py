"""Score documents with CCNet's language models, and sort them into head, middle and tail.

The score is the perplexity of a document under a model of Wikipedia in its language. Documents are
sorted by cutoffs, which can be percentiles of a run, in the bins `BINS`.

    perplexity = Perplexity(PerplexitySettings(models={"en": "lm-en"}), {"lm-en": folder})
    perplexity.open()
    scored = perplexity.apply(batch).kept                     # perplexity 312.4
    settings = PerplexityFilterSettings(cutoffs={"en": (340, 520)}, keep=("head",))
    PerplexityFilter(settings).apply(scored)
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.contract import (
    DOCUMENT,
    Column,
    Outcome,
    Stage,
    drop_where,
    keep_all,
    with_columns,
)
from stages.counters import Counters
from stages.filters.language_model import (
    MAX_PERPLEXITY,
    LanguageModel,
)
from stages.histograms import Bins, RunLimit, list_run_limits, make_log_edges
from stages.settings.filters import (
    FROM_RUN,
    PerplexityFilterSettings,
    PerplexitySettings,
)


class Perplexity(Stage[PerplexitySettings]):
    """Adds `perplexity`: null where the language has no model or the normalised text is empty."""

    name = "perplexity"
    version = 1
    needs = pa.schema([DOCUMENT.field("text"), pa.field("language", pa.string())])
    adds = pa.schema([pa.field("perplexity", pa.float64())])
    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "perplexity.": "Histogram (see `BINS`) of the perplexities of documents in the language"
        }
    )

    _models: dict[str, LanguageModel]

    @classmethod
    def required_files(cls, settings: PerplexitySettings) -> tuple[str, ...]:
        """Return the folders, without duplicates, sorted."""
        return tuple(sorted(set(settings.models.values())))

    def open(self) -> None:
        """Load the model of every language. Raises the errors of `LanguageModel`."""
        self._models = {
            language: LanguageModel(self.files[reference], language)
            for language, reference in self.settings.models.items()
        }

    def apply(self, batch: pa.Table) -> Outcome:
        """Add the perplexity to each row."""
        texts, languages = batch.column("text"), batch.column("language")
        perplexities: list[float | None] = [None] * batch.num_rows
        # One language after another: alternating models evict each other from the processor's
        # caches, which costs 10 % of the time with three languages.
        counters = Counters()
        for language, model in self._models.items():
            is_language = pc.fill_null(pc.equal(languages, language), False)
            rows = np.flatnonzero(is_language.to_numpy())
            found = model.perplexities(texts.take(rows))
            for row, perplexity in zip(rows, found, strict=True):
                perplexities[row] = perplexity
            counters.observe(
                f"perplexity.{language}", BINS.find([p for p in found if p is not None])
            )
        added = {"perplexity": pa.array(perplexities, pa.float64())}
        return keep_all(batch, added, counters)


# --- Cutoffs ---

# Bins of perplexities, for percentiles of a run.
BINS = Bins(make_log_edges(1.0, MAX_PERPLEXITY))


def read_cutoffs_csv(
    path: Path, percentiles: tuple[int, int] = (30, 60)
) -> dict[str, tuple[float, float]]:
    """Read language -> (head below, middle below) from a table like CCNet's `cutoff.csv`.

    Args:
        path: a header of language codes, then one row per percentile, with its number first.
        percentiles: the rows to read; CCNet's buckets use 30 and 60.

    Raises:
        ValueError: a row is missing, has other columns than the header, or contains a cell that is
            not a number.
    """
    with path.open(encoding="utf-8", newline="") as file:
        table = {row[0]: row[1:] for row in csv.reader(file) if row}
    languages = table.pop("", [])  # the first cell of the header is empty
    for wanted in map(str, percentiles):
        if wanted not in table:
            raise ValueError(
                f"{path}: no row for percentile {wanted}, found {', '.join(table) or 'none'}"
            )
    try:
        head, middle = (map(float, table[str(wanted)]) for wanted in percentiles)
        return dict(zip(languages, zip(head, middle, strict=True), strict=True))
    except ValueError as error:
        raise ValueError(
            f"{path}: rows {percentiles[0]} and {percentiles[1]} need one number for each of the "
            f"{len(languages)} languages of the header (whose first cell is empty): {error}"
        ) from error


def read_model_cutoffs(folder: Path, percentiles: tuple[int, int]) -> tuple[float, float]:
    """Return the cutoffs that were measured when a model was trained.

    Raises:
        ValueError: the model has no record, or none of these percentiles.
    """
    try:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        head, middle = (float(record["cutoffs"][str(each)]) for each in percentiles)
    except (FileNotFoundError, KeyError) as error:
        raise ValueError(
            f"{folder} records no cutoffs for percentiles {percentiles}: {error!r}; "
            f"set select.perplexity.cutoffs to run, or to the path of a cutoff.csv "
            f"(CCNet publishes one with its models)"
        ) from error
    return head, middle


# --- Buckets ---


class PerplexityFilter(Stage[PerplexityFilterSettings]):
    """Adds `bucket` and drops documents in buckets that are not kept.

    A perplexity strictly below the first cutoff of the language is head, strictly below the second
    middle, any other tail. Documents without cutoffs or perplexity are in the bucket all.
    The value of a drop is the perplexity. Its limit is the cutoff below which the document would
    have been kept, null if there is none. Source: `PerplexityBucket` in cc_net's `perplexity.py`.
    """

    name = "perplexity"
    version = 1
    needs = pa.schema(
        [pa.field("language", pa.string()), pa.field("perplexity", pa.float64())]
    )
    adds = pa.schema([pa.field("bucket", pa.string())])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "perplexity.bucket_not_wanted": "The perplexity is that of a bucket that is not kept."
        }
    )

    @classmethod
    def required_files(cls, settings: PerplexityFilterSettings) -> tuple[str, ...]:
        """Return the table, or the models, with the cutoffs."""
        cutoffs = settings.cutoffs
        if not isinstance(cutoffs, Mapping):
            return () if cutoffs == FROM_RUN else (cutoffs,)
        return tuple(sorted({each for each in cutoffs.values() if isinstance(each, str)}))

    def open(self) -> None:
        """Read the cutoffs, or compute them from the perplexities of the run.

        Raises:
            ValueError: a file has no cutoffs at these percentiles.
        """
        _ = self.cutoffs

    @cached_property
    def cutoffs(self) -> Mapping[str, tuple[float, float]]:
        """Language -> [head below, middle below]. CCNet's are percentiles 30 and 60: en 340 and 520."""
        chosen, percentiles = self.settings.cutoffs, self.settings.percentiles
        if chosen == FROM_RUN:
            head, middle = percentiles
            find = BINS.find_percentile
            histograms = self.run_counters.take_histograms("perplexity.")
            return {
                language: (find(bins, head), find(bins, middle))
                for language, bins in histograms.items()
            }
        if isinstance(chosen, str):
            return read_cutoffs_csv(self.files[chosen], percentiles)
        return {
            language: read_model_cutoffs(self.files[each], percentiles)
            if isinstance(each, str)
            else each
            for language, each in chosen.items()
        }

    def list_run_limits(self) -> Iterable[RunLimit]:
        """Return both cutoffs of each language whose perplexities the run has counted."""
        found: list[RunLimit] = []
        for place, bucket in enumerate(("head", "middle")):
            limits = {language: ends[place] for language, ends in self.cutoffs.items()}
            setting = f"select.perplexity: {bucket} below"
            found += list_run_limits(setting, limits, self.run_counters, "perplexity")
        return sorted(found, key=lambda limit: limit.language)

    def apply(self, batch: pa.Table) -> Outcome:
        """Add the bucket of every row, and keep the rows of the wanted buckets."""
        perplexity = batch.column("perplexity")
        head_below, middle_below = self._find_cutoffs(batch.column("language"))
        bucket = _name_buckets(perplexity, head_below, middle_below)
        return drop_where(
            with_columns(batch, {"bucket": bucket}),
            pc.invert(pc.is_in(bucket, value_set=pa.array(self.settings.keep))),
            "perplexity.bucket_not_wanted",
            value=perplexity,
            limit=self._find_missed_cutoff(perplexity, head_below, middle_below),
            detail=bucket,
        )

    def _find_missed_cutoff(
        self, perplexity: Column, head_below: Column, middle_below: Column
    ) -> Column:
        """Return the highest cutoff of a kept bucket that the perplexity reaches, or null; (n,)."""
        none = pa.nulls(len(perplexity), pa.float64())
        keep = self.settings.keep
        if "middle" in keep:
            cutoff = middle_below
        elif "head" in keep:
            cutoff = head_below
        else:
            return none
        return pc.if_else(pc.greater_equal(perplexity, cutoff), cutoff, none)

    def _find_cutoffs(self, language: Column) -> tuple[Column, Column]:
        """(n,) float64 each: the two cutoffs of every row, null where the language has none."""
        cutoffs = self.cutoffs
        row_of_cutoffs = pc.index_in(language, value_set=pa.array(cutoffs, pa.string()))
        heads, middles = np.array(list(cutoffs.values()), np.float64).reshape(-1, 2).T
        head_below, middle_below = pa.array(heads), pa.array(middles)
        return pc.take(head_below, row_of_cutoffs), pc.take(middle_below, row_of_cutoffs)


def _name_buckets(perplexity: Column, head_below: Column, middle_below: Column) -> Column:
    """(n,) string: the bucket of each row."""
    middle_or_tail = pc.if_else(pc.less(perplexity, middle_below), "middle", "tail")
    scored = pc.if_else(pc.less(perplexity, head_below), "head", middle_or_tail)
    # A comparison with null gives null. The last step replaces these nulls by "all".
    has_no_bucket = pc.or_(pc.is_null(perplexity), pc.is_null(head_below))
    return pc.if_else(has_no_bucket, "all", scored)
