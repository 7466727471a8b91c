"""Signatures, bands and n-grams, compared with datasketch."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any

import datasketch
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.dedup.minhash import (
    SEED,
    UNSPACED,
    MinHash,
    MinHashFilter,
    MinHashSettings,
    compute_bands,
    flatten_lists,
    hash_bands_of_ngrams,
    ngram_sets,
    signatures,
    split_ngrams,
)
from stages.settings.base import Settings
from tests.stages.batches import make_batch

TEXT = st.text(
    st.sampled_from("aB .,\n\x00\x1c\u00a0é漢かกİΣσȺ😀'-")
    | st.characters(exclude_categories=["Cs"]),
    max_size=60,
)


def compute_reference(text: str, settings: MinHashSettings) -> datasketch.MinHash:
    sketch = datasketch.MinHash(num_perm=settings.num_permutations, seed=SEED)
    sketch.update_batch(
        [gram.encode() for gram in split_ngrams(text, settings.ngram_words)]
    )
    return sketch


@given(st.lists(TEXT, max_size=6), st.integers(1, 6), st.sampled_from([16, 64, 128]))
def test_signatures_equal_those_of_datasketch(
    texts: list[str], ngram_words: int, num_permutations: int
) -> None:
    """For any text, n-gram length and number of permutations.

    A text without words has none.
    """
    settings = MinHashSettings(
        num_permutations=num_permutations,
        ngram_words=ngram_words,
        bands=(num_permutations // 4, 4),
    )
    found, has_words = signatures(pa.array(texts, pa.large_string()), settings)
    assert found.tolist() == [
        compute_reference(text, settings).hashvalues.tolist() for text in texts
    ]
    assert has_words.tolist() == [bool(split_ngrams(text, ngram_words)) for text in texts]


@given(st.lists(TEXT, max_size=6), st.integers(1, 6))
def test_ngram_sets_are_those_of_the_rule(texts: list[str], ngram_words: int) -> None:
    """A set has the first 4 bytes of the SHA-1 of each n-gram, once and sorted."""
    found = ngram_sets(
        pa.array(texts, pa.large_string()), MinHashSettings(ngram_words=ngram_words)
    ).to_pylist()
    digests = [
        {
            hashlib.sha1(gram.encode(), usedforsecurity=False).digest()[:4]
            for gram in split_ngrams(text, ngram_words)
        }
        for text in texts
    ]
    assert found == [
        sorted(int.from_bytes(digest, "little") for digest in one) for one in digests
    ]


@given(
    st.lists(
        st.text(st.characters(max_codepoint=127) | st.sampled_from("ab ,é漢İ")), max_size=9
    )
)
def test_words_of_long_texts_follow_the_rule(pieces: list[str]) -> None:
    """They are split 64 bytes at a time, with characters other than ASCII between."""
    text = "".join(pieces * 5)
    (found,) = ngram_sets(pa.array([text]), MinHashSettings(ngram_words=1)).to_pylist()
    digests = [
        hashlib.sha1(word.encode(), usedforsecurity=False).digest()[:4]
        for word in set(split_ngrams(text, 1))
    ]
    assert found == sorted(int.from_bytes(digest, "little") for digest in digests)


@pytest.mark.parametrize("num_before", [0, 61, 62, 63, 64, 65, 127])
def test_every_ascii_character_follows_the_rule(num_before: int) -> None:
    """At any place of a block of 64 bytes, and with its word in two blocks."""
    texts = ["a" * num_before + chr(code) + "b c" + "d" * 99 for code in range(128)]
    found = ngram_sets(pa.array(texts), MinHashSettings(ngram_words=1)).to_pylist()
    for text, hashes in zip(texts, found, strict=True):
        words = {word.encode() for word in split_ngrams(text, 1)}
        digests = [hashlib.sha1(one, usedforsecurity=False).digest()[:4] for one in words]
        assert hashes == sorted(int.from_bytes(one, "little") for one in digests), text


def test_long_texts_with_repetitions_and_long_words_follow_the_rule() -> None:
    """They are sorted and hashed by other code than short ones."""
    rng = np.random.default_rng(1)
    words = [f"w{n}" for n in rng.integers(0, 90, 1_000)] + ["long" * n for n in range(400)]
    text, settings = " ".join(words), MinHashSettings(ngram_words=2)
    found = ngram_sets(pa.array([text, "short", text]), settings).to_pylist()
    grams = {gram.encode() for gram in split_ngrams(text, 2)}
    digests = [hashlib.sha1(gram, usedforsecurity=False).digest()[:4] for gram in grams]
    assert found[0] == found[2]
    assert found[0] == sorted(int.from_bytes(digest, "little") for digest in digests)


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
            ["der hund der", "hund der bellt", "der bellt beißt", "bellt beißt nicht"],
        ),
        ("two words", ["two words"]),
        ("...", []),
        ("", []),
        ("abc漢字。def", ["abc 漢 字", "漢 字 def"]),
        ("ΣΟΦΟΣ İ", ["σοφοσ i"]),
    ],
)
def test_ngrams_are_consecutive_words(text: str, expected: list[str]) -> None:
    """Words are in lower case, without accents and punctuation; some scripts count characters."""
    assert split_ngrams(text, 3) == expected


ALPHABETS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"])
    | st.sampled_from("aéÀñ\u0301 \n“”’–—…\"'-.€+ßőệǆΆй"),
)
# Kept as they are: Hangul has several parts, and these scripts have marks that are letters.
WITH_PARTS = re.compile(f"{UNSPACED.pattern}|[\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff]")


@given(ALPHABETS)
def test_copies_in_other_normal_forms_have_equal_words(text: str) -> None:
    """NFC and NFD, without letters that Unicode takes apart into several."""
    composed = unicodedata.normalize("NFC", text)
    letters = "".join(
        part
        for part in unicodedata.normalize("NFD", composed)
        if unicodedata.category(part) != "Mn"
    )
    assume(not WITH_PARTS.search(composed + letters))
    assume(len(letters) <= len(composed))
    assert split_ngrams(composed, 1) == split_ngrams(
        unicodedata.normalize("NFD", composed), 1
    )


@given(ALPHABETS)
def test_punctuation_makes_no_difference(text: str) -> None:
    """Each sign is replaced by another one: straight quotes by curly ones, hyphens by dashes."""
    table = str.maketrans({"“": '"', "”": '"', "’": "'", "–": "-", "—": "--", "…": "..."})
    assert split_ngrams(text.translate(table), 2) == split_ngrams(text, 2)


@given(st.floats(0.3, 0.95), st.floats(0.5, 0.999), st.sampled_from([64, 128, 256, 1024]))
def test_bands_reach_the_recall_with_the_most_rows(
    threshold: float, recall: float, num_permutations: int
) -> None:
    """One more row per band, or one band less, would miss the recall."""

    def share_found(bands: int, rows: int) -> float:
        return 1 - (1 - threshold**rows) ** bands

    try:
        settings = MinHashSettings(
            threshold=threshold, recall=recall, num_permutations=num_permutations
        )
    except ValidationError:
        assert share_found(num_permutations, 1) < recall
        return
    bands, rows = compute_bands(settings)
    assert bands * rows <= num_permutations
    assert share_found(bands, rows) >= recall - 1e-9
    assert share_found(bands - 1, rows) < recall + 1e-9
    assert share_found(num_permutations // (rows + 1), rows + 1) < recall + 1e-9


def test_given_bands_are_used_as_in_datasketchs_index() -> None:
    """On edited copies two documents share a band hash exactly where MinHashLSH finds the one by the other."""
    settings = MinHashSettings(num_permutations=64, ngram_words=2, bands=(9, 7))
    rng = np.random.default_rng(3)
    texts = []
    for _ in range(30):
        words = [f"w{n}" for n in rng.integers(0, 500, 60)]
        for num_edits in (0, 2, 4, 8, 16):
            edited = list(words)
            for i in rng.integers(0, 60, num_edits):
                edited[i] = f"x{rng.integers(0, 10**6)}"
            texts.append(" ".join(edited))
    index = datasketch.MinHashLSH(params=(9, 7), num_perm=64)
    sketches = [compute_reference(text, settings) for text in texts]
    for i, sketch in enumerate(sketches):
        index.insert(i, sketch)
    rows = [
        set(row)
        for row in MinHash(settings)
        .apply(make_batch(texts))
        .kept.column("minhash")
        .to_pylist()
    ]
    found = [{j for j, other in enumerate(rows) if other & row} for row in rows]
    assert found == [set(index.query(sketch)) for sketch in sketches]
    # some edited copies are candidates, and some are not
    assert 1 < np.mean([len(group) for group in found]) < 5


@given(st.lists(TEXT, max_size=6), st.integers(1, 6))
def test_stored_ngrams_give_the_same_bands_as_the_texts(
    texts: list[str], ngram_words: int
) -> None:
    """So fuzzy_dedup can compute the bands of a document again."""
    settings = MinHashSettings(ngram_words=ngram_words, num_permutations=64)
    batch = make_batch(texts)
    from_ngrams = MinHash(settings).apply(batch).kept.column("minhash").to_pylist()
    from_texts = MinHash(settings.model_copy(update={"store_ngrams": False})).apply(batch)
    assert from_ngrams == from_texts.kept.column("minhash").to_pylist()
    sets = ngram_sets(batch.column("text"), settings)
    hashes, has_words = hash_bands_of_ngrams(*flatten_lists(sets), settings)
    assert [row for row in from_ngrams if row is not None] == hashes[has_words].tolist()


@given(st.lists(TEXT, min_size=1, max_size=8), st.integers(0, 8))
def test_batches_change_nothing(texts: list[str], cut: int) -> None:
    """Any cut of the rows gives the same columns."""
    stage = MinHash(MinHashSettings(num_permutations=16, threshold=0.5, recall=0.9))
    stage.open()
    batch = make_batch(texts)
    parts = [stage.apply(part).kept for part in (batch.slice(0, cut), batch.slice(cut))]
    assert pa.concat_tables(parts).equals(stage.apply(batch).kept)


def test_documents_without_words_have_no_hashes() -> None:
    """Null and blank texts are compared with nothing."""
    kept = MinHash(MinHashSettings()).apply(make_batch(["some words", None, " ... "])).kept
    num_hashes = [row and len(row) for row in kept.column("minhash").to_pylist()]
    assert num_hashes == [16, None, None]
    assert list(map(len, kept.column("minhash_ngrams").to_pylist())) == [1, 0, 0]


def test_ngrams_are_added_only_where_they_are_stored() -> None:
    """Without them, no column is added for them."""
    stage = MinHash(MinHashSettings(store_ngrams=False))
    assert "minhash_ngrams" not in stage.apply(make_batch(["some words"])).kept.column_names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"threshold": 0.2, "num_permutations": 8},
            r"no bands of 8 permutations find 99.0% .* raise num_permutations",
        ),
        ({"bands": (20, 8)}, r"bands is \[20, 8\]; wanted .* at most num_permutations"),
        ({"bands": (0, 8)}, r"bands is \[0, 8\]; wanted at least 1 band of 1 row"),
    ],
)
def test_impossible_bands_are_refused(settings: dict[str, Any], message: str) -> None:
    """The message names the setting to change."""
    with pytest.raises(ValidationError, match=message):
        MinHashSettings(**settings)


def test_the_filter_drops_documents_with_a_representative() -> None:
    """The others pass. The drops keep the column for the decisions."""
    batch = pa.table(
        {
            "doc_id": pa.array([1, 2, 3], pa.uint64()),
            "representative": pa.array([None, 1, None], pa.uint64()),
        }
    )
    outcome = MinHashFilter(Settings()).apply(batch)
    outcome.check(batch, "minhash")
    assert outcome.kept.column("doc_id").to_pylist() == [1, 3]
    assert outcome.dropped.column("reason").to_pylist() == ["minhash.near_duplicate"]
