"""Windows of words, and cutting of repeated spans, compared with plain Python."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.dedup.minhash import split_ngrams
from stages.dedup.substring_dedup import (
    DROP,
    LINES,
    SPANS,
    RepeatedSpans,
    cut_spans,
    find_words,
    hash_windows,
)
from stages.settings.base import Settings

# Words with punctuation, capitals whose lower case is longer or shorter, scripts without
# blanks, characters without a lower case, and white space of all kinds.
PIECES = ["a", "b", "Ab", "a,", "(b)", "-", "Ⱥ", "İ", "漢", "字", "「漢", "ก", "x字y", "\0"]
SPACES = [" ", "  ", "\n", "\u3000", " \n "]
texts = st.lists(st.sampled_from(PIECES + SPACES), max_size=30).map("".join)


def large(values: list[str | None]) -> pa.Array:
    return pa.array(values, pa.large_string())


@given(st.lists(texts, max_size=4), st.integers(1, 6))
@example(["a", "a", "a"], 1)  # as many windows as bytes
def test_equal_windows_have_equal_hashes(values: list[str], num_words: int) -> None:
    """Windows are equal if and only if the normal forms of their words are."""
    offsets, hashes = hash_windows(large(list(values)), num_words)
    windows: list[str] = []
    for number, text in enumerate(values):
        words = split_ngrams(text, 1)
        ngrams = split_ngrams(text, num_words) if len(words) >= num_words else []
        assert offsets[number + 1] - offsets[number] == len(ngrams)
        windows += ngrams
    for lane in hashes:
        assert len(set(lane.tolist())) == len(set(windows))
        assert len(set(zip(windows, lane.tolist(), strict=True))) == len(set(windows))


def test_nulls_and_no_texts_have_no_windows() -> None:
    """A null counts as an empty text."""
    assert hash_windows(large([None, ""]), 1)[0].tolist() == [0, 0, 0]
    assert hash_windows(large([]), 1)[1].shape == (2, 0)


@given(texts)
def test_words_as_written_have_the_normal_forms_of_ngrams(text: str) -> None:
    """Each word as written is one word, and all together are those of near-duplicates."""
    words = find_words(text)
    forms = [form for word in words for form in split_ngrams(word, 1)]
    assert forms == split_ngrams(text, 1)
    assert len(forms) == len(words)


@st.composite
def texts_with_spans(draw: st.DrawFn) -> tuple[str, list[int]]:
    text = draw(texts)
    places = st.lists(st.integers(0, len(find_words(text))), unique=True).map(sorted)
    bounds = draw(places)
    return text, bounds[: len(bounds) // 2 * 2]


@given(st.lists(texts_with_spans(), max_size=4))
@example([("a b c d", [1, 3])])
def test_exactly_the_runs_are_cut(drawn: list[tuple[str, list[int]]]) -> None:
    """The other words stay as they are, line by line; lines without a word left are named."""
    values = [text for text, _ in drawn]
    spans = pa.array([bounds for _, bounds in drawn], pa.list_(pa.uint32()))
    cut = cut_spans(large(list(values)), spans)
    emptied: list[tuple[int, int]] = []
    for number, (text, bounds) in enumerate(drawn):
        new = cut.texts[number].as_py()
        is_cut = [
            any(
                start <= place < end for start, end in zip(*[iter(bounds)] * 2, strict=True)
            )
            for place in range(len(find_words(text)))
        ]
        kept = [
            word for word, gone in zip(find_words(text), is_cut, strict=True) if not gone
        ]
        assert [w for k in kept for w in split_ngrams(k, 1)] == split_ngrams(new, 1)
        assert cut.num_words[number] == sum(is_cut)
        assert new.count("\n") == text.count("\n")
        if not bounds:
            assert new == text
        for line, (old, left) in enumerate(
            zip(text.split("\n"), new.split("\n"), strict=True)
        ):
            if old.strip(" ") and not left.strip(" "):
                emptied.append((number, line))
    assert [(int(e) >> 32, int(e) & 0xFFFFFFFF) for e in cut.emptied] == emptied


def test_one_blank_is_left_around_a_span() -> None:
    """No blank is added, and none is doubled."""
    values = ["one two three", "one two\nthree four", "one two", "one two"]
    spans: list[list[int]] = [[1, 2], [1, 3], [0, 1], [1, 2]]
    cut = cut_spans(large(list(values)), pa.array(spans, pa.list_(pa.uint32())))
    assert cut.texts.to_pylist() == ["one three", "one \nfour", "two", "one "]


@pytest.mark.parametrize("bounds", [[0, 3], [1, 1], [1, 0], [0, 1, 0, 2]])
def test_runs_of_another_text_are_refused(bounds: list[int]) -> None:
    """Places beyond the text, or out of order, are an error that names them."""
    with pytest.raises(ValueError, match=r"text 0: repeated_spans is \["):
        cut_spans(large(["one two"]), pa.array([bounds], pa.list_(pa.uint32())))


def make_batch(
    text: str, spans: list[int], lines: list[int], *, drop: bool = False
) -> pa.Table:
    return pa.table(
        {
            "doc_id": pa.array([7], pa.uint64()),
            "text": large([text]),
            SPANS.name: pa.array([spans], SPANS.type),
            LINES.name: pa.array([lines], LINES.type),
            DROP.name: pa.array([drop]),
        }
    )


def test_emptied_lines_become_duplicate_lines() -> None:
    """The stage adds them to those that paragraph_dedup has found, and counts words."""
    batch = make_batch("one two\nthree\nfour five\nsix", [1, 4], [3])
    outcome = RepeatedSpans(Settings()).apply(batch)
    (row,) = outcome.kept.to_pylist()
    assert row["text"] == "one \n\nfive\nsix"
    assert (row[LINES.name], row["repeated_words"]) == ([1, 3], 3)
    assert outcome.counters.counts == {"repeated_words": 3, "repeated_chars": 13}


def test_documents_with_spans_are_dropped() -> None:
    """If they shall be, with the number of their repeated words."""
    stage = RepeatedSpans(Settings())
    outcome = stage.apply(make_batch("one two three", [0, 2], [], drop=True))
    (dropped,) = outcome.dropped.to_pylist()
    assert dropped["reason"] == "substring_dedup.repeated_span"
    assert (dropped["value"], dropped["limit"]) == (2, 0)
    assert stage.apply(make_batch("one two", [], [], drop=True)).kept.num_rows == 1
