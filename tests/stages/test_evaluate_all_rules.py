"""Rules can be evaluated without dropping rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stages.contract import evaluate_all_rules
from stages.filters.language import LanguageFilter, LanguageFilterSettings
from stages.filters.length import Length, LengthSettings


def test_every_rule_sees_every_row_and_drops_none() -> None:
    """A row that breaks one rule is checked by the next, with values and limits."""
    batch = pa.table(
        {
            "doc_id": pa.array([0, 1], pa.uint64()),
            "language": ["fr", "en"],
            "language_score": [0.2, 0.9],
        }
    )
    stage = LanguageFilter(LanguageFilterSettings(min_score=0.5, keep=("en",)))
    with evaluate_all_rules() as results:
        kept = stage.apply(batch).kept
    assert kept.equals(batch)
    assert [
        (j.reason, pa.chunked_array(j.is_broken).to_pylist(), j.limit) for j in results
    ] == [
        ("language.score_too_low", [True, False], 0.5),
        ("language.not_wanted", [True, False], None),
    ]
    dropped = stage.apply(batch).dropped.to_pylist()
    assert [(row["doc_id"], row["reason"]) for row in dropped] == [
        (0, "language.score_too_low")
    ]


def test_rules_drop_again_afterwards() -> None:
    """Also after an error in between."""
    batch = pa.table(
        {"doc_id": pa.array([0], pa.uint64()), "text": pa.array(["x"], pa.large_string())}
    )
    with pytest.raises(ZeroDivisionError), evaluate_all_rules():
        1 / 0  # noqa: B018
    assert Length(LengthSettings(min_chars=2)).apply(batch).dropped.num_rows == 1
