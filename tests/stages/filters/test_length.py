"""Lengths are counted in code points, and limits are inclusive."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.filters.length import Length, LengthSettings
from tests.stages.batches import make_batch


def list_kept_texts(stage: Length, texts: Sequence[str | None]) -> list[str | None]:
    """Check the outcome and return the kept texts."""
    batch = make_batch(texts)
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    return outcome.kept["text"].to_pylist()


def test_counts_code_points_and_includes_both_limits():
    """Three code points count as three with three or twelve bytes."""
    stage = Length(LengthSettings(min_chars=3, max_chars=4))
    assert list_kept_texts(stage, ["ab", "abc", "日本語", "😀😀😀😀", "a\nbcd"]) == [
        "abc",
        "日本語",
        "😀😀😀😀",
    ]


def test_drops_have_length_and_limit():
    """A drop has the reason, the length and the limit."""
    dropped = (
        Length(LengthSettings(min_chars=2, max_chars=3))
        .apply(make_batch(["é", "ok", "long", None]))
        .dropped
    )
    assert dropped.select(["doc_id", "reason", "value", "limit"]).to_pylist() == [
        {"doc_id": 0, "reason": "length.too_few_chars", "value": 1.0, "limit": 2.0},
        {"doc_id": 3, "reason": "length.too_few_chars", "value": 0.0, "limit": 2.0},
        {"doc_id": 2, "reason": "length.too_many_chars", "value": 4.0, "limit": 3.0},
    ]


def test_default_is_that_of_ccnet():
    """By default 300 code points are kept, 299 are not, and no text is too long."""
    stage = Length(LengthSettings())
    assert list_kept_texts(stage, ["x" * 299, "x" * 300, "x" * 1_000_000]) == [
        "x" * 300,
        "x" * 1_000_000,
    ]


@settings(deadline=None)
@given(
    st.lists(st.none() | st.text(max_size=12), max_size=8),
    st.integers(0, 8),
    st.none() | st.integers(8, 12),
)
def test_keeps_texts_whose_len_is_within_the_limits(
    texts: list[str | None], min_chars: int, max_chars: int | None
):
    """For any texts, batches and limits, in order."""
    stage = Length(LengthSettings(min_chars=min_chars, max_chars=max_chars))
    wanted = [text for text in texts if min_chars <= len(text or "") <= (max_chars or 99)]
    assert list_kept_texts(stage, texts) == wanted
    assert [text for one in texts for text in list_kept_texts(stage, [one])] == wanted


def test_refuses_limits_that_keep_nothing():
    """A max_chars below min_chars is refused with both values."""
    with pytest.raises(ValidationError, match="max_chars is 5, below min_chars 10"):
        LengthSettings(min_chars=10, max_chars=5)


def test_unopened_stage_pickles():
    """A stage can be pickled before it is opened."""
    stage = pickle.loads(pickle.dumps(Length(LengthSettings(min_chars=1), {})))
    assert list_kept_texts(stage, ["", "a"]) == ["a"]
