"""Scores are P(reference) of the classifier of each document's language; no classifier, no score, no drop."""

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

from stages.filters.reference import (
    MODEL_FILE,
    NEGATIVE_LABEL,
    POSITIVE_LABEL,
    Reference,
    ReferenceFilter,
    ReferenceFilterSettings,
    ReferenceSettings,
    as_line,
    load_classifier,
)

CITED = "the treaty was signed in the museum of history"
CRAWLED = "buy cheap shoes online click here"


def trained(
    folder: Path, labels: tuple[str, str], cited: str = CITED, crawled: str = CRAWLED
) -> Path:
    """A folder with a classifier of the given labels."""
    folder.mkdir(exist_ok=True)
    lines = [f"{labels[0]} {cited}", f"{labels[1]} {crawled}"] * 50
    (folder / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # fastText 0.9.3 draws a tenth of the weights per thread and leaves the rest as malloc gave them: NaN, now and then.
    model = fasttext.train_supervised(
        str(folder / "train.txt"), dim=10, epoch=20, lr=0.5, thread=11, verbose=0
    )
    model.save_model(str(folder / MODEL_FILE))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reference -> folder of an English and a French classifier."""
    root = tmp_path_factory.mktemp("reference")
    labels = (POSITIVE_LABEL, NEGATIVE_LABEL)
    return {
        "r-en": trained(root / "en", labels),
        "r-fr": trained(
            root / "fr", labels, "le traité fut signé au musée", "achetez des chaussures ici"
        ),
    }


@pytest.fixture(scope="module")
def stage(folders: dict[str, Path]) -> Reference:
    """The stage with both classifiers loaded."""
    reference = Reference(ReferenceSettings(models={"en": "r-en", "fr": "r-fr"}), folders)
    reference.open()
    return reference


@pytest.fixture(scope="module")
def classifiers(folders: dict[str, Path]) -> dict[str, Any]:
    """Language -> its classifier, as fastText loads it."""
    return {
        language: fasttext.load_model(str(folders[f"r-{language}"] / MODEL_FILE))
        for language in ("en", "fr")
    }


def scores_of(
    stage: Reference, rows: Sequence[tuple[str | None, str | None]]
) -> list[float | None]:
    """The score of every (language, text)."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(rows)), pa.uint64()),
            "text": pa.array([text for _, text in rows], pa.large_string()),
            "language": pa.array([language for language, _ in rows], pa.string()),
        }
    )
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    assert outcome.kept.schema.field("reference_score").equals(
        Reference.adds.field("reference_score")
    )
    return outcome.kept["reference_score"].to_pylist()


def test_each_language_has_its_own_classifier(stage: Reference):
    """Text like the references scores high, text like the crawl low, in the language that the document is in."""
    cited, crawled, french = scores_of(
        stage, [("en", CITED), ("en", CRAWLED), ("fr", "le traité fut signé")]
    )
    assert cited is not None
    assert crawled is not None
    assert french is not None
    assert cited > 0.9 > 0.1 > crawled
    assert french > 0.9


def test_no_classifier_or_no_text_means_no_score(stage: Reference):
    """The score is null for other languages, for no language and for blank texts."""
    assert (
        scores_of(stage, [("de", CITED), (None, CITED), ("en", ""), ("en", None), ("en", " \n ")])
        == [None] * 5
    )


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["en", "fr", "de", None]),
            st.text(max_size=30) | st.sampled_from([CITED, CRAWLED]),
        ),
        max_size=6,
    )
)
def test_equals_predict_one_by_one(
    classifiers: dict[str | None, Any], stage: Reference, rows: list[tuple[str | None, str]]
):
    """In any batch the score is the probability that fastText's predict gives to the positive label of each line."""
    wanted: list[float | None] = []
    for language, text in rows:
        score = None
        if language in classifiers and as_line(text):
            labels, scores = classifiers[language].predict([as_line(text)], k=2)
            score = round(min(1.0, float(scores[0][labels[0].index(POSITIVE_LABEL)])), 4)
        wanted.append(score)
    assert scores_of(stage, rows) == wanted
    assert [score for row in rows for score in scores_of(stage, [row])] == wanted


def test_line_breaks_of_every_kind_become_spaces():
    """A text is stripped and put on one line."""
    assert as_line("\n a\nb\r\nc\u2028d\x85e \n") == "a b c d e"


def test_unopened_stage_pickles_and_names_its_files(folders: dict[str, Path]):
    """A stage travels to a worker process before it is opened; a folder used twice is named once."""
    settings = ReferenceSettings(models={"fr": "r-fr", "en": "r-en", "sco": "r-en"})
    stage = pickle.loads(pickle.dumps(Reference(settings, folders)))
    stage.open()
    assert stage.required_files(settings) == ("r-en", "r-fr")
    assert scores_of(stage, [("sco", CITED)]) == scores_of(stage, [("en", CITED)])


def test_other_labels_are_refused(tmp_path: Path):
    """A classifier of other labels is refused with what was found and what was wanted."""
    folder = trained(tmp_path / "wiki", ("__label__wiki", "__label__cc"))
    with pytest.raises(
        ValueError,
        match=r"'__label__cc', '__label__wiki'.*wanted \['__label__crawl', '__label__ref",
    ):
        load_classifier(folder / MODEL_FILE)


def test_filter_keeps_documents_without_a_score():
    """Only a score below the limit drops a document; the drop carries the score."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(4), pa.uint64()),
            "reference_score": pa.array([0.25, 0.2499, None, 1.0], pa.float64()),
        }
    )
    stage = ReferenceFilter(ReferenceFilterSettings())
    for part in (batch, batch.slice(0, 0)):
        stage.apply(part).check(part, stage.name)
    outcome = stage.apply(batch)
    assert outcome.kept["doc_id"].to_pylist() == [0, 2, 3]
    assert outcome.dropped.to_pylist() == [
        {
            "doc_id": 1,
            "reason": "reference.score_too_low",
            "value": 0.2499,
            "limit": 0.25,
            "detail": None,
        }
    ]
