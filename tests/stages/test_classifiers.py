"""Scores are fastText's own, limits are inclusive, and whatever has no score stays."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fasttext
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.filters.classifiers import (
    Classifiers,
    ClassifiersFilter,
    ClassifiersFilterSettings,
    ClassifiersSettings,
)
from stages.filters.reference import as_line
from tests.stages.examples import tiny_lid, tiny_reference

CITED = "the treaty was signed"
LABEL = "__label__reference"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model file, and a folder with one."""
    folder = tmp_path_factory.mktemp("classifiers")
    (folder / "reference").mkdir()
    return {
        "lid.bin": tiny_lid(folder / "lid.bin"),
        "reference": tiny_reference(folder / "reference"),
    }


def opened(files: dict[str, Path], **models: dict[str, Any]) -> Classifiers:
    """The stage, ready to work, after a journey to another process."""
    chosen = ClassifiersSettings.model_validate(models)
    needed = {reference: files[reference] for reference in Classifiers.required_files(chosen)}
    stage = pickle.loads(pickle.dumps(Classifiers(chosen, needed)))
    stage.open()
    return stage


def scores_of(
    stage: Classifiers, rows: Sequence[tuple[str | None, str | None]]
) -> list[dict[str, float | None]]:
    """The scores of every (language, text), after accounts and columns were checked."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(rows)), pa.uint64()),
            "text": pa.array([text for _, text in rows], pa.large_string()),
            "language": pa.array([language for language, _ in rows], pa.string()),
        }
    )
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    added = stage.added_columns(stage.settings)
    assert outcome.kept.schema.equals(pa.schema([*batch.schema, *added]))
    return outcome.kept.select(added.names).to_pylist()


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(
        st.none() | st.text(max_size=30) | st.sampled_from([CITED, "buy\ncheap shoes"]), max_size=6
    )
)
def test_equals_predict_one_by_one(files: dict[str, Path], texts: list[str | None]) -> None:
    """In any batch the score is what fastText's `predict` gives to that label, wherever it ranks."""
    stage = opened(
        files,
        hq={"model": "reference", "label": LABEL},
        en={"model": "lid.bin", "label": "__label__en"},
    )
    models = {
        "hq": (files["reference"] / "model.bin", LABEL),
        "en": (files["lid.bin"], "__label__en"),
    }
    wanted: list[dict[str, float | None]] = [{} for _ in texts]
    for name, (path, label) in sorted(models.items()):
        model = fasttext.load_model(str(path))
        for row, text in zip(wanted, texts, strict=True):
            labels, scores = model.predict([as_line(text or "")], k=-1)
            found = dict(zip(labels[0], scores[0], strict=True))
            row[f"classifier_{name}"] = (
                min(1.0, float(found[label])) if as_line(text or "") else None
            )
    assert scores_of(stage, [(None, text) for text in texts]) == wanted


def test_languages_and_max_chars_narrow_what_is_read(files: dict[str, Path]) -> None:
    """Other languages have no score; only the start of a text is read."""
    stage = opened(
        files,
        hq={"model": "reference", "label": LABEL, "languages": ["en"], "max_chars": len(CITED)},
    )
    rows = [
        ("en", CITED),
        ("en", f"{CITED} buy cheap shoes online"),
        ("fr", CITED),
        (None, CITED),
        ("en", " \n"),
    ]
    first, *others = (row["classifier_hq"] for row in scores_of(stage, rows))
    assert first is not None
    assert others == [first, None, None, None]


def test_an_unknown_label_is_refused_with_the_nearest(files: dict[str, Path]) -> None:
    """The model's own labels are told."""
    with pytest.raises(
        ValueError,
        match=r"classifiers.hq: reference has no label '__label__ref'; .*__label__reference",
    ):
        opened(files, hq={"model": "reference", "label": "__label__ref"})


@pytest.mark.parametrize("name", ["HQ", "a-b", "1st", "copy", "model_dump", ""])
def test_a_name_is_a_word(name: str) -> None:
    """It becomes the name of a column and a key of the config."""
    with pytest.raises(ValidationError, match="cannot name a classifier"):
        ClassifiersFilterSettings.model_validate({name: {"min": 0.5}})


def test_limits_are_inclusive_and_the_first_broken_by_name_is_the_reason() -> None:
    """Value, limit and the classifier's name stand beside the reason; a null score breaks no limit."""
    scores = {
        "classifier_hq": [0.2, 0.1, 0.1, None, 0.5],
        "classifier_toxic": [0.6, 0.6, 0.7, None, 0.7],
    }
    batch = pa.table({"doc_id": pa.array(range(5), pa.uint64()), **scores})
    limits = ClassifiersFilterSettings.model_validate(
        {"toxic": {"max": 0.6}, "hq": {"min": 0.2, "max": 0.9}}
    )
    outcome = ClassifiersFilter(limits).apply(batch)
    outcome.check(batch, "classifiers")
    assert outcome.kept["doc_id"].to_pylist() == [0, 3]
    low = {"reason": "classifiers.score_too_low", "value": 0.1, "limit": 0.2, "detail": "hq"}
    high = {"reason": "classifiers.score_too_high", "value": 0.7, "limit": 0.6, "detail": "toxic"}
    assert outcome.dropped.to_pylist() == [
        {"doc_id": 1} | low,
        {"doc_id": 2} | low,
        {"doc_id": 4} | high,
    ]


def test_an_empty_range_is_refused() -> None:
    """With both values."""
    with pytest.raises(ValidationError, match=r"min is 0.6, above max, which is 0.5"):
        ClassifiersFilterSettings.model_validate({"hq": {"min": 0.6, "max": 0.5}})
