"""Scores are fastText's own, limits are inclusive, and documents without a score are kept."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
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
    load_model,
    score_lines,
    to_line,
)
from tests.stages.examples import tiny_classifier, tiny_lid, tiny_reference

CITED = "the treaty was signed"
LABEL = "__label__reference"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two model files, and two folders with one."""
    folder = tmp_path_factory.mktemp("classifiers")
    for name in ("reference", "reference-fr"):
        (folder / name).mkdir()
    french = {LABEL: "le traité fut signé", "__label__crawl": "achetez des chaussures ici"}
    return {
        "reference-fr": tiny_classifier(folder / "reference-fr", french),
        "lid.bin": tiny_lid(folder / "lid.bin"),
        "reference": tiny_reference(folder / "reference"),
    }


def opened(files: dict[str, Path], **models: dict[str, Any]) -> Classifiers:
    """Return the stage, pickled and opened."""
    chosen = ClassifiersSettings.model_validate(models)
    needed = {
        reference: files[reference] for reference in Classifiers.required_files(chosen)
    }
    stage = pickle.loads(pickle.dumps(Classifiers(chosen, needed)))
    stage.open()
    return stage


def compute_scores(
    stage: Classifiers, rows: Sequence[tuple[str | None, str | None]]
) -> list[dict[str, float | None]]:
    """Check the outcome of the stage and return the scores of each (language, text)."""
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
        st.none() | st.text(max_size=30) | st.sampled_from([CITED, "buy\ncheap shoes"]),
        max_size=6,
    )
)
def test_equals_predict_one_by_one(files: dict[str, Path], texts: list[str | None]) -> None:
    """In any batch the score is the probability that fastText's `predict` gives to the label."""
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
            labels, scores = model.predict([to_line(text or "")], k=-1)
            found = dict(zip(labels[0], scores[0], strict=True))
            row[f"classifier_{name}"] = (
                min(1.0, float(found[label])) if to_line(text or "") else None
            )
    assert compute_scores(stage, [(None, text) for text in texts]) == wanted


WIKIPEDIA_REFERENCE: dict[str, Any] = {
    "models": {"en": "reference", "fr": "reference-fr", "sco": "reference"},
    "label": LABEL,
    "decimals": 4,
}


def test_each_language_has_its_own_model(files: dict[str, Path]) -> None:
    """Text like the references scores high, text like the crawl low."""
    stage = opened(files, wikipedia_reference=WIKIPEDIA_REFERENCE)
    assert stage.required_files(stage.settings) == ("reference", "reference-fr")
    rows = [
        ("en", CITED),
        ("en", "buy cheap shoes"),
        ("fr", "le traité fut signé"),
        ("sco", CITED),
    ]
    scores = [row["classifier_wikipedia_reference"] for row in compute_scores(stage, rows)]
    cited, crawled, french, scots = scores
    assert cited is not None
    assert crawled is not None
    assert french is not None
    assert cited > 0.9 > 0.1 > crawled
    assert french > 0.9
    assert scots == cited


def test_a_language_without_a_model_and_a_blank_text_have_no_score(
    files: dict[str, Path],
) -> None:
    """The score is null for other languages, for no language and for blank texts."""
    stage = opened(files, wikipedia_reference=WIKIPEDIA_REFERENCE)
    rows = [("de", CITED), (None, CITED), ("en", ""), ("en", None), ("en", " \n ")]
    assert compute_scores(stage, rows) == [{"classifier_wikipedia_reference": None}] * 5


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["en", "fr", "de", None]),
            st.text(max_size=30) | st.sampled_from([CITED, "buy cheap shoes"]),
        ),
        max_size=6,
    )
)
def test_scores_are_rounded_to_decimals(
    files: dict[str, Path], rows: list[tuple[str | None, str]]
) -> None:
    """With `decimals: 4` a score is the rounded probability, at most 1, in any batch."""
    stage = opened(files, wikipedia_reference=WIKIPEDIA_REFERENCE)
    models: dict[str | None, Any] = {
        "en": fasttext.load_model(str(files["reference"] / "model.bin")),
        "fr": fasttext.load_model(str(files["reference-fr"] / "model.bin")),
    }
    wanted: list[dict[str, float | None]] = []
    for language, text in rows:
        score = None
        if language in models and to_line(text):
            labels, scores = models[language].predict([to_line(text)], k=2)
            score = round(min(1.0, float(scores[0][labels[0].index(LABEL)])), 4)
        wanted.append({"classifier_wikipedia_reference": score})
    assert compute_scores(stage, rows) == wanted
    assert [score for row in rows for score in compute_scores(stage, [row])] == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give either model or models; found neither"),
        ({"model": "a", "models": {"en": "b"}}, "give either model or models; found both"),
        ({"models": {"en": "b"}, "languages": ["en"]}, "remove languages"),
    ],
)
def test_a_classifier_has_one_model_or_one_per_language(
    given: dict[str, Any], message: str
) -> None:
    """`model` and `models` exclude each other, and `languages` belongs to `model`."""
    with pytest.raises(ValidationError, match=message):
        ClassifiersSettings.model_validate({"hq": {"label": LABEL, **given}})


def test_a_label_that_fasttext_omits_has_probability_zero(files: dict[str, Path]) -> None:
    """An empty line has no score at all."""
    model = load_model(files["reference"])
    scores = score_lines(model, "__label__other", [CITED, ""])
    assert scores[0] == 0
    assert np.isnan(scores[1])


def test_line_breaks_of_every_kind_become_spaces() -> None:
    """A text is stripped and put on one line."""
    assert to_line("\n a\nb\r\nc\u2028d\x85e \n") == "a b c d e"


def test_languages_and_max_chars_narrow_what_is_read(files: dict[str, Path]) -> None:
    """Other languages have no score; only the start of a text is read."""
    stage = opened(
        files,
        hq={
            "model": "reference",
            "label": LABEL,
            "languages": ["en"],
            "max_chars": len(CITED),
        },
    )
    rows = [
        ("en", CITED),
        ("en", f"{CITED} buy cheap shoes online"),
        ("fr", CITED),
        (None, CITED),
        ("en", " \n"),
    ]
    first, *others = (row["classifier_hq"] for row in compute_scores(stage, rows))
    assert first is not None
    assert others == [first, None, None, None]


def test_an_unknown_label_is_refused_with_the_nearest(files: dict[str, Path]) -> None:
    """The error names the classifier, the model and the nearest labels."""
    message = r"classifiers.hq: reference has no label '__label__ref'; .*__label__reference"
    for models in ({"model": "reference"}, {"models": {"en": "reference"}}):
        with pytest.raises(ValueError, match=message):
            opened(files, hq={"label": "__label__ref", **models})


@pytest.mark.parametrize("name", ["HQ", "a-b", "1st", "copy", "model_dump", ""])
def test_a_name_is_a_word(name: str) -> None:
    """A name is part of a column name and a key of the config."""
    with pytest.raises(ValidationError, match="cannot name a classifier"):
        ClassifiersFilterSettings.model_validate({name: {"min": 0.5}})


def test_limits_are_inclusive_and_the_first_broken_by_name_is_the_reason() -> None:
    """A drop has the score, the limit and the classifier's name; a null score breaks no limit."""
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
    low = {
        "reason": "classifiers.score_too_low",
        "value": 0.1,
        "limit": 0.2,
        "detail": "hq",
    }
    high = {
        "reason": "classifiers.score_too_high",
        "value": 0.7,
        "limit": 0.6,
        "detail": "toxic",
    }
    assert outcome.dropped.to_pylist() == [
        {"doc_id": 1} | low,
        {"doc_id": 2} | low,
        {"doc_id": 4} | high,
    ]


def test_an_empty_range_is_refused() -> None:
    """The error names both values."""
    with pytest.raises(ValidationError, match=r"min is 0.6, above max, which is 0.5"):
        ClassifiersFilterSettings.model_validate({"hq": {"min": 0.6, "max": 0.5}})
