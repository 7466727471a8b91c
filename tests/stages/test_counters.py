"""Counters are summed by addition, and each stage counts what it declares."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contract import chain, drop_where, evaluate_all_rules, keep_all
from stages.counters import Counters
from stages.dedup.minhash import MinHash, MinHashSettings, compute_bands
from stages.filters import perplexity
from stages.filters.decontamination import (
    CONTAMINATION,
    DecontaminationFilter,
    DecontaminationFilterSettings,
)
from stages.filters.language import Language
from stages.filters.lines import Lines, LinesSettings
from stages.transform.pii import Pii, PiiSettings

NAMES = st.sampled_from(["a", "b", "language.en", "language.fr"])
OBSERVATIONS = st.one_of(
    st.tuples(NAMES, st.integers(0, 5)), st.tuples(NAMES, st.lists(st.integers(0, 3)))
)


def count(observations: list[tuple[str, int | list[int]]]) -> Counters:
    """Return the counters of some observations: a number is added, a list is observed."""
    counters = Counters()
    for name, value in observations:
        if isinstance(value, int):
            counters.add(name, value)
        else:
            counters.observe(name, value)
    return counters


@given(batches=st.lists(st.lists(OBSERVATIONS, max_size=6), max_size=6), data=st.data())
def test_merging_is_independent_of_batch_size_and_order(
    batches: list[list[tuple[str, int | list[int]]]], data: st.DataObject
) -> None:
    """The sum over batches in any order equals the counters of one batch with all observations."""
    shuffled = data.draw(st.permutations(batches))
    whole = count([observation for batch in batches for observation in batch])
    assert Counters.sum(count(batch) for batch in shuffled) == whole
    assert Counters.from_json(whole.to_json()) == whole


@given(first=st.lists(OBSERVATIONS), second=st.lists(OBSERVATIONS))
def test_addition_changes_neither_operand(
    first: list[tuple[str, int | list[int]]], second: list[tuple[str, int | list[int]]]
) -> None:
    """`+` returns a new object; the two that were added keep their values."""
    left, right = count(first), count(second)
    total = left + right
    total.add("a", 7)
    total.observe("b", [1])
    assert (left, right) == (count(first), count(second))


def test_outcomes_carry_counters() -> None:
    """`keep_all`, `drop_where` and `chain` pass counters on, also while all rules are evaluated."""
    batch = pa.table({"doc_id": pa.array([0, 1], pa.uint64())})
    kept = keep_all(batch, counters=count([("a", 1)]))
    is_dropped = pa.array([True, False])
    dropped = drop_where(
        batch, is_dropped, "length.too_few_chars", counters=count([("b", 2)])
    )
    assert chain(kept, dropped).counters == count([("a", 1), ("b", 2)])
    with evaluate_all_rules():
        outcome = drop_where(batch, is_dropped, "x.y", counters=count([("b", 2)]))
    assert outcome.counters == count([("b", 2)])
    assert keep_all(batch).counters == Counters()


def test_display_names_cover_counters_and_families() -> None:
    """A family gives each member a display name; an undeclared name is an error."""
    assert Language.counter_display_name("language.en") == "Documents in the language: en"
    assert Pii.counter_display_name("pii_ip") == "IP addresses replaced"
    for undeclared in ("languages.en", "language"):
        with pytest.raises(KeyError):
            Language.counter_display_name(undeclared)


def test_lines_are_counted_for_kept_documents_only() -> None:
    """A document that the stage drops adds nothing to `lines_removed` and `chars_removed`."""
    texts = ["Home\nThe treaty was signed in Ghent.", "Home\nContact"]
    batch = pa.table(
        {
            "doc_id": pa.array([0, 1], pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
            "kept_lines": pa.nulls(2, pa.list_(pa.uint32())),
        }
    )
    outcome = Lines(LinesSettings(min_sentences=1)).apply(batch)
    assert outcome.kept.num_rows == 1
    assert outcome.counters.counts == {"lines_removed": 1, "chars_removed": len("Home\n")}


def test_placeholders_are_counted_per_kind() -> None:
    """The counters are the sums of the columns."""
    texts = ["a@x.org b@x.org", "8.8.8.200", None]
    batch = pa.table(
        {
            "doc_id": pa.array(range(3), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
        }
    )
    outcome = Pii(PiiSettings()).apply(batch)
    assert outcome.counters.counts == {"pii_email": 2, "pii_ip": 1}


def test_documents_dropped_for_an_evaluation_set_are_counted_per_set() -> None:
    """The set is the one that the drop names in its detail."""
    shared = [
        {"set": "mmlu", "words": 13, "share": 0.5},
        {"set": "gsm8k", "words": 1, "share": 0.0},
    ]
    batch = pa.table(
        {
            "doc_id": pa.array(range(3), pa.uint64()),
            CONTAMINATION.name: pa.array([shared, [], shared], CONTAMINATION.type),
        }
    )
    outcome = DecontaminationFilter(DecontaminationFilterSettings()).apply(batch)
    assert outcome.counters.counts == {"decontaminated.mmlu": 2}


def test_band_hashes_are_counted_for_documents_with_words() -> None:
    """A text without words has no band hashes."""
    settings = MinHashSettings()
    batch = pa.table(
        {
            "doc_id": pa.array(range(2), pa.uint64()),
            "text": pa.array(["some words", " ?"], pa.large_string()),
        }
    )
    stage = MinHash(settings)
    stage.open()
    assert stage.apply(batch).counters.counts == {"band_hashes": compute_bands(settings)[0]}


def test_a_perplexity_histogram_uses_the_bins_of_the_cutoffs() -> None:
    """Summed bins give the percentile from which cutoffs are taken."""
    counters = Counters()
    for part in ([100.0], [200.0, 300.0]):
        counters.observe("perplexity.en", perplexity.BINS.find(np.array(part)).tolist())
    assert perplexity.BINS.find_percentile(counters.histograms["perplexity.en"], 50) >= 200
