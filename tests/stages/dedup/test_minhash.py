"""Signatures, bands and n-grams, compared with datasketch."""

from __future__ import annotations

import hashlib

import datasketch
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.dedup.minhash import (
    SEED,
    MinHash,
    MinHashFilter,
    MinHashFilterSettings,
    MinHashSettings,
    compute_bands,
    ngram_sets,
    signatures,
    split_ngrams,
)

TEXT = st.text(
    st.sampled_from("aB .,\n\x1c\u00a0é漢かกİΣσȺ😀'-")
    | st.characters(exclude_categories=["Cs"]),
    max_size=60,
)


def judged(text: str, settings: MinHashSettings) -> datasketch.MinHash:
    sketch = datasketch.MinHash(num_perm=settings.num_permutations, seed=SEED)
    sketch.update_batch(
        [gram.encode() for gram in split_ngrams(text, settings.ngram_words)]
    )
    return sketch


def make_batch(*texts: str | None) -> pa.Table:
    return pa.table(
        {
            "doc_id": pa.array(range(len(texts)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
        }
    )


@given(st.lists(TEXT, max_size=6), st.integers(1, 6), st.sampled_from([16, 64, 128]))
def test_signatures_equal_those_of_datasketch(
    texts: list[str], ngram_words: int, num_permutations: int
) -> None:
    """For any text, n-gram length and number of permutations.

    A text without words has none.
    """
    settings = MinHashSettings(
        num_permutations=num_permutations, ngram_words=ngram_words, threshold=0.5
    )
    found, has_words = signatures(pa.array(texts, pa.large_string()), settings)
    assert found.tolist() == [judged(text, settings).hashvalues.tolist() for text in texts]
    assert has_words.tolist() == [bool(split_ngrams(text, ngram_words)) for text in texts]


@given(st.lists(TEXT, max_size=6), st.integers(1, 6))
def test_ngram_sets_are_those_of_the_rule(texts: list[str], ngram_words: int) -> None:
    """A set has the first 8 bytes of the SHA-1 of each n-gram, once and sorted."""
    found = ngram_sets(
        pa.array(texts, pa.large_string()), MinHashSettings(ngram_words=ngram_words)
    ).to_pylist()
    digests = [
        {
            hashlib.sha1(gram.encode(), usedforsecurity=False).digest()[:8]
            for gram in split_ngrams(text, ngram_words)
        }
        for text in texts
    ]
    assert found == [
        sorted(int.from_bytes(digest, "little") for digest in one) for one in digests
    ]


def test_a_signature_equals_its_recorded_value() -> None:
    """A datasketch with other hashes needs a new version of the stage."""
    (found,), _ = signatures(
        pa.array(["The quick brown fox jumps over the lazy dog"]), MinHashSettings()
    )
    assert found[:4].tolist() == [525945524, 412836237, 741861544, 729940982]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Der Hund, der\tbellt…\n  beißt NICHT!",
            ["der hund der", "hund der bellt…", "der bellt… beißt", "bellt… beißt nicht"],
        ),
        ("two words", ["two words"]),
        ("...", []),
        ("", []),
        ("abc漢字。def", ["abc 漢 字", "漢 字 。def"]),
        ("ΣΟΦΟΣ İ", ["σοφοσ İ"]),
    ],
)
def test_ngrams_are_consecutive_words(text: str, expected: list[str]) -> None:
    """Words are in lower case, without ASCII punctuation; some scripts count characters."""
    assert split_ngrams(text, 3) == expected


def test_bands_find_the_pairs_of_datasketchs_index() -> None:
    """Two edited copies share a band hash if and only if MinHashLSH finds them."""
    settings = MinHashSettings(num_permutations=64, ngram_words=2, threshold=0.6)
    rng = np.random.default_rng(3)
    texts = []
    for _ in range(30):
        words = [f"w{n}" for n in rng.integers(0, 500, 60)]
        for num_edits in (0, 2, 4, 8, 16):
            edited = list(words)
            for i in rng.integers(0, 60, num_edits):
                edited[i] = f"x{rng.integers(0, 10**6)}"
            texts.append(" ".join(edited))
    index = datasketch.MinHashLSH(threshold=0.6, num_perm=64)
    assert (index.b, index.r) == compute_bands(settings)
    sketches = [judged(text, settings) for text in texts]
    for i, sketch in enumerate(sketches):
        index.insert(i, sketch)
    rows = [
        set(row)
        for row in MinHash(settings)
        .apply(make_batch(*texts))
        .kept.column("minhash")
        .to_pylist()
    ]
    found = [{j for j, other in enumerate(rows) if other & row} for row in rows]
    assert found == [set(index.query(sketch)) for sketch in sketches]
    # some edited copies are candidates, and some are not
    assert 1 < np.mean([len(group) for group in found]) < 5


@given(st.lists(TEXT, min_size=1, max_size=8), st.integers(0, 8))
def test_batches_change_nothing(texts: list[str], cut: int) -> None:
    """The columns do not depend on how the rows are split."""
    stage = MinHash(
        MinHashSettings(num_permutations=16, threshold=0.5, verify="signatures")
    )
    stage.open()
    batch = make_batch(*texts)
    parts = [stage.apply(part).kept for part in (batch.slice(0, cut), batch.slice(cut))]
    assert pa.concat_tables(parts).equals(stage.apply(batch).kept)


def test_documents_without_words_have_no_hashes_and_signatures_only_to_verify() -> None:
    """Null and blank texts. The signature column exists if the settings verify pairs."""
    batch = make_batch("some words", None, " ... ")
    kept = MinHash(MinHashSettings()).apply(batch).kept
    assert [row and len(row) for row in kept.column("minhash").to_pylist()] == [
        9,
        None,
        None,
    ]
    assert kept.column("minhash_signature").null_count == 3
    kept = MinHash(MinHashSettings(verify="signatures")).apply(batch).kept
    assert [row and len(row) for row in kept.column("minhash_signature").to_pylist()] == [
        128,
        None,
        None,
    ]


def test_a_threshold_that_leaves_one_band_is_refused() -> None:
    """The error names a setting to change."""
    with pytest.raises(
        ValidationError,
        match=r"threshold is 0.97, too high for 64 permutations .* raise num_permutations",
    ):
        MinHashSettings(threshold=0.97, num_permutations=64)


def test_the_filter_drops_documents_with_a_representative() -> None:
    """The others pass. The drops keep the column for the decisions."""
    batch = pa.table(
        {
            "doc_id": pa.array([1, 2, 3], pa.uint64()),
            "representative": pa.array([None, 1, None], pa.uint64()),
        }
    )
    outcome = MinHashFilter(MinHashFilterSettings()).apply(batch)
    outcome.check(batch, "minhash")
    assert outcome.kept.column("doc_id").to_pylist() == [1, 3]
    assert outcome.dropped.column("reason").to_pylist() == ["minhash.near_duplicate"]
