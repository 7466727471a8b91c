"""The quality score is the weighted mean of ranks among the documents of a language."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract import DOC_ID
from stages.counters import Counters
from stages.filters.score import Score, ScorePart, signal_field
from stages.histograms import BIN_WIDTH, SCORE_BINS
from stages.settings.quality import ScoreSettings

WEIGHTS = {"num_chars": 3.0, "perplexity": -1.0, "classifier_hq": 1.0}


def make_batch(rows: Sequence[dict[str, object]]) -> pa.Table:
    """Return a batch of the signals in WEIGHTS."""
    fields = [DOC_ID, pa.field("language", pa.string()), *map(signal_field, WEIGHTS)]
    ids = [{"doc_id": number, **row} for number, row in enumerate(rows)]
    return pa.Table.from_pylist(ids, schema=pa.schema(fields))


def open_score(
    batch: pa.Table, candidates: Sequence[float] = (), **limits: object
) -> Score:
    """Return the stage with the ranks of a batch, and English candidates with these scores."""
    chosen = ScoreSettings.model_validate({"signals": WEIGHTS, **limits})
    counters = Counters()
    for histogram in Score.histograms(chosen):
        if histogram.of == "scored":
            histogram.count(counters, batch)
    counters.observe("score.en", SCORE_BINS.find(candidates))
    score = Score(chosen, run_counters=counters)
    score.open()
    return score


def read_scores(score: Score, batch: pa.Table) -> list[float | None]:
    return score.apply(batch).kept.column("quality_score").to_pylist()


PAGES: list[dict[str, object]] = [
    {"language": "en", "num_chars": 100, "perplexity": 900.0, "classifier_hq": 0.1},
    {"language": "en", "num_chars": 500, "perplexity": 300.0, "classifier_hq": 0.9},
    {"language": "fr", "num_chars": 500, "perplexity": None, "classifier_hq": 0.9},
    {"language": "fr", "num_chars": 900, "perplexity": None, "classifier_hq": 0.2},
    {"language": None, "num_chars": 70, "perplexity": None, "classifier_hq": None},
]


def test_each_signal_counts_by_its_rank_and_weight_within_the_language() -> None:
    """Of two values, the ranks are 1/4 and 3/4. A missing signal leaves the mean."""
    batch = make_batch(PAGES)
    scores = read_scores(open_score(batch), batch)
    # en: all signals agree. fr: length for the second, the classifier for the first.
    french = [(3 * 0.25 + 0.75) / 4, (3 * 0.75 + 0.25) / 4]
    assert scores == pytest.approx([0.25, 0.75, *french, 0.5])


def test_a_document_without_any_rank_has_no_score_and_is_kept() -> None:
    """Its language was not in the run, or it has no value."""
    score = open_score(make_batch(PAGES), min=1.0)
    others = make_batch([{"language": "de", "num_chars": 5}, {"language": "en"}])
    outcome = score.apply(others)
    assert outcome.kept.column("quality_score").to_pylist() == [None, None]


def test_the_parts_add_up_to_the_score() -> None:
    """`explain` has a part per signal, the largest first, and none for a missing value."""
    batch = make_batch(PAGES)
    score = open_score(batch)
    parts: list[ScorePart] = []
    for number, total in enumerate(read_scores(score, batch)):
        parts = score.explain(batch.slice(number, 1))
        assert sum(part.part for part in parts) == pytest.approx(total)
        assert [part.part for part in parts] == sorted(
            (part.part for part in parts), reverse=True
        )
    assert [part.signal for part in parts] == ["num_chars", "classifier_hq", "perplexity"]
    assert [part.rank for part in parts] == [0.5, None, None]


def test_limits_are_inclusive() -> None:
    """A score that is equal to `min`, or to the cut of its language, is kept."""
    batch = make_batch(PAGES[:2])
    kept = open_score(batch, [0.25, 0.75], min=0.25, keep_top=0.5).apply(batch)
    assert kept.kept.column("doc_id").to_pylist() == [1]
    (dropped,) = kept.dropped.to_pylist()
    assert (dropped["reason"], dropped["value"]) == ("score.not_in_top", 0.25)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=40))
def test_ranks_are_those_of_sorted_values_up_to_the_width_of_a_bin(
    lengths: list[int],
) -> None:
    """The rank of a value is the share below it and half of the equal ones."""
    batch = make_batch([{"language": "en", "num_chars": length} for length in lengths])
    values = np.array(lengths)
    scores = open_score(batch).apply(batch).kept.column("quality_score").to_numpy()
    for value, rank in zip(lengths, scores, strict=True):
        low, high = value / BIN_WIDTH, value * BIN_WIDTH
        least = (values < low).sum() + ((values >= low) & (values <= value)).sum() / 2 - 0.5
        most = (values <= high).sum()
        assert least / len(values) - 1e-9 <= rank <= most / len(values) + 1e-9
    assert scores.mean() == pytest.approx(0.5)


def test_an_intercept_makes_a_probability() -> None:
    """The logistic function of the weighted sum; a missing signal has the percentile rank 1/2."""
    batch = make_batch(PAGES)
    logistic = open_score(batch, intercept=-2.0)
    # fr: ranks 1/4 and 3/4, and none of the perplexity
    total = 3 * 0.25 + 0.5 + 0.75
    scores = read_scores(logistic, batch)
    assert scores[2] == pytest.approx(1 / (1 + math.exp(2 - total)), abs=1e-8)
    parts = {part.signal: part.part for part in logistic.explain(batch.slice(2, 1))}
    assert parts == {"num_chars": 3 * -0.25, "classifier_hq": 0.25, "perplexity": 0}
