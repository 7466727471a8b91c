"""Copies by quality bin, and the budget of tokens, on documents with random scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.counters import Counters
from stages.mixing.mix import (
    COPY_SHIFT,
    MIX_PERCENTILE,
    NUM_COPIES,
    QUALITY_BIN,
    Mix,
    count_copies,
    draw_uniform,
)
from stages.settings.quality import MAX_COPIES, MixSettings

Bins = Sequence[tuple[float, float]]

SCORES = st.lists(st.none() | st.integers(0, 30), min_size=1, max_size=60)
STARTS = st.sets(st.integers(1, 99), max_size=4).map(lambda found: [0, *sorted(found)])
COPY_NUMBERS = st.integers(0, 4 * MAX_COPIES).map(lambda quarters: quarters / 4)


@st.composite
def bins(draw: st.DrawFn) -> Bins:
    """Bins with any starts and numbers of copies."""
    return [(start, draw(COPY_NUMBERS)) for start in draw(STARTS)]


def make_documents(scores: Sequence[float | None], **columns: Any) -> pa.Table:
    """Documents with these scores, in one language."""
    num_docs = len(scores)
    return pa.table(
        {
            "doc_id": pa.array([7 * i for i in range(num_docs)], pa.uint64()),
            "language": pa.array(["en"] * num_docs),
            "num_chars": pa.array([100] * num_docs, pa.int64()),
            "perplexity": pa.array(scores, pa.float64()),
            **columns,
        }
    )


def apply(documents: pa.Table, chosen: Bins, **settings: Any) -> list[dict[str, Any]]:
    """Return the kept rows; percentiles are those of the documents themselves."""
    values: Mapping[str, Any] = {
        "by": "perplexity",
        "best": "high",
        "bins": [
            {"from_percentile": start, "num_copies": number} for start, number in chosen
        ],
        **settings,
    }
    chosen_settings = MixSettings.model_validate(values)
    counters = Counters()
    for histogram in Mix.histograms(chosen_settings):
        histogram.count(counters, documents)
    stage = Mix(chosen_settings, run_counters=counters)
    stage.open()
    outcome = stage.apply(documents)
    outcome.check(documents, "mix")
    return outcome.kept.to_pylist()


def count(rows: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return doc_id -> copies."""
    return {row["doc_id"]: row[NUM_COPIES.name] for row in rows}


@given(SCORES)
def test_one_copy_of_all_keeps_every_document_once(scores: list[float | None]) -> None:
    """A bin of all documents with the factor 1 changes nothing."""
    rows = apply(make_documents(scores), [(0, 1)])
    assert list(count(rows).values()) == [1] * len(scores)


@given(SCORES, bins(), st.data())
def test_a_higher_factor_takes_no_copy_away(
    scores: list[float | None], chosen: Bins, data: st.DataObject
) -> None:
    """Every document has at least as many copies as before."""
    documents = make_documents(scores)
    higher = [
        (start, data.draw(COPY_NUMBERS.filter(lambda number, low=low: number >= low)))
        for start, low in chosen
    ]
    before, after = count(apply(documents, chosen)), count(apply(documents, higher))
    assert all(after.get(doc_id, 0) >= number for doc_id, number in before.items())


@given(SCORES, bins(), st.randoms())
def test_the_order_of_documents_changes_nothing(
    scores: list[float | None], chosen: Bins, random: Any
) -> None:
    """A document has the same copies wherever it is read."""
    documents = make_documents(scores)
    order = list(range(len(scores)))
    random.shuffle(order)
    shuffled = documents.take(pa.array(order))
    assert count(apply(shuffled, chosen)) == count(apply(documents, chosen))


def test_percentiles_are_within_the_language() -> None:
    """The best document of each of two languages is in the best bin; equal scores are equal."""
    documents = make_documents(
        [1, 2, 3, 3, 100, 200], language=pa.array(["en"] * 4 + ["fr"] * 2)
    )
    rows = apply(documents, [(0, 1), (70, 3)])
    assert [row[MIX_PERCENTILE.name] for row in rows] == [12.5, 37.5, 75, 75, 25, 75]
    assert [row[NUM_COPIES.name] for row in rows] == [1, 1, 3, 3, 1, 3]
    assert [row[QUALITY_BIN.name] for row in rows][1:3] == ["0-70", "70-100"]


def test_low_scores_can_be_the_best() -> None:
    """As perplexities are."""
    rows = apply(make_documents([10, 20, 30, 40]), [(0, 0), (70, 2)], best="low")
    assert count(rows) == {0: 2}


def test_percentiles_are_within_the_topic() -> None:
    """The topic is the classifier with the highest score."""
    science, sports = [0.9, 0.8, 0.1, None], [0.1, 0.2, 0.7, 0.3]
    documents = make_documents(
        [1, 2, 3, 4],
        classifier_science=pa.array(science, pa.float64()),
        classifier_sports=pa.array(sports, pa.float64()),
    )
    rows = apply(documents, [(0, 1), (50, 5)], topics=("science", "sports"))
    assert [row[NUM_COPIES.name] for row in rows] == [1, 5, 1, 5]


def test_a_fraction_is_a_share_of_the_documents() -> None:
    """2.5 copies are two, and a third one for half of the documents."""
    copies = count_copies(np.full(10_000, 2.5), np.arange(10_000, dtype=np.uint64))
    assert set(copies.tolist()) == {2, 3}
    assert copies.mean() == pytest.approx(2.5, abs=0.02)


def test_choices_are_pinned() -> None:
    """Another hash would choose other documents, and needs another version of the stage."""
    drawn = draw_uniform(np.array([0, 1, 2**40], np.uint64), 1)
    assert drawn.tolist() == pytest.approx([0.338167, 0.858676, 0.615075], abs=1e-6)


def test_ids_of_copies_are_positive_in_63_bits() -> None:
    """Readers that store ids as int64 keep them."""
    largest = ((MAX_COPIES - 1) << COPY_SHIFT) + 2**COPY_SHIFT - 1
    assert largest < 2**63


@pytest.mark.parametrize("starts", [(10,), (0, 50, 50), (0, 90, 50)])
def test_bins_that_do_not_rise_from_zero_are_refused(starts: tuple[int, ...]) -> None:
    """The error lists the percentiles."""
    chosen = [{"from_percentile": start, "num_copies": 1} for start in starts]
    with pytest.raises(ValueError, match="must rise from 0"):
        MixSettings.model_validate({"by": "num_chars", "bins": chosen})
