"""Score how much a document reads like a page that Wikipedia cites as a reference, and drop what does not.

Promises: `Reference` stores the probability that a linear fastText classifier gives to "is a reference"; documents in a
language without a classifier have no score and are never dropped. `ReferenceFilter` decides from the score alone.
Leaves to others: training. A trainer labels its lines with `POSITIVE_LABEL` and `NEGATIVE_LABEL` and writes each text
with `as_line`, so that training and scoring read the same words.

    reference = Reference(ReferenceSettings(models={"en": "reference-en"}), {"reference-en": folder})
    reference.open()                                          # folder / "model.bin"
    scored = reference.apply(batch).kept                      # reference_score 0.8123
    ReferenceFilter(ReferenceFilterSettings(min_score=0.25)).apply(scored)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from stages.contract import DOCUMENT, Outcome, Settings, Stage, drop_where, keep_all

POSITIVE_LABEL = "__label__reference"
"""Label of training lines made from pages cited as references in Wikipedia."""
NEGATIVE_LABEL = "__label__crawl"
"""Label of training lines made from pages drawn from the crawl at random."""
MODEL_FILE = "model.bin"
"""The classifier's name in the folder that a setting refers to."""


class ReferenceSettings(Settings):
    """Which classifier scores which language."""

    models: Mapping[str, str] = Field(
        description="Language code -> the folder that holds its model.bin: a name of the asset registry, or a path.",
    )


class Reference(Stage[ReferenceSettings]):
    """Adds `reference_score`: P(the page could be cited as a reference), four decimals.

    Null where the language has no classifier or the text is blank.
    Sources: the classifier of LLaMA (arXiv:2302.13971, section 2.1); RedPajama-Data 1,
    `data_prep/cc/classifier/classify.py`, whose `wiki_prob` this is.
    """

    name = "reference"
    version = 1
    needs = pa.schema([DOCUMENT.field("text"), pa.field("language", pa.string())])
    adds = pa.schema([pa.field("reference_score", pa.float64())])

    _classifiers: dict[str, Any]

    @classmethod
    def required_files(cls, settings: ReferenceSettings) -> tuple[str, ...]:
        """The folders, each once, sorted."""
        return tuple(sorted(set(settings.models.values())))

    def open(self) -> None:
        """Load every classifier.

        Raises:
            ValueError: a model is missing, is not a fastText model or has other labels than the two.
        """
        self._classifiers = {
            language: load_classifier(self.files[reference] / MODEL_FILE)
            for language, reference in self.settings.models.items()
        }

    def apply(self, batch: pa.Table) -> Outcome:
        """Annotate every row; nothing is dropped."""
        languages = batch.column("language").to_numpy()  # (n,) object
        text = batch.column("text")
        scores = np.full(batch.num_rows, np.nan)  # (n,) float64
        for language, classifier in self._classifiers.items():
            rows = np.flatnonzero(languages == language)
            scores[rows] = reference_scores(
                classifier, [as_line(one or "") for one in text.take(rows).to_pylist()]
            )
        return keep_all(
            batch, {"reference_score": pa.array(scores, pa.float64(), mask=np.isnan(scores))}
        )


def as_line(text: str) -> str:
    """The text on one line, line breaks of every kind turned into spaces: what the classifier is trained on and reads.

    Source: `" ".join(content.strip().splitlines())` in RedPajama-Data 1, `classify.py` and `create_corpus.py`.
    """
    return " ".join(text.strip().splitlines())


def load_classifier(path: Path) -> Any:
    """Load a fastText model and check that it tells references from crawl pages.

    Raises:
        ValueError: no fastText model can be read at `path`, or its labels are not the two of this module.
    """
    import fasttext

    model = fasttext.load_model(str(path))
    labels = set(model.get_labels())
    if labels != {POSITIVE_LABEL, NEGATIVE_LABEL}:
        raise ValueError(
            f"{path}: the classifier's labels are {sorted(labels)!r}, wanted {[NEGATIVE_LABEL, POSITIVE_LABEL]!r}; "
            f"train it on lines that begin with these two"
        )
    return model


def reference_scores(classifier: Any, lines: list[str]) -> np.ndarray:
    """P(reference) of every line, (n,) float64 rounded to four decimals; NaN for an empty line.

    Args:
        classifier: what `load_classifier` returns.
        lines: (n,) texts made by `as_line`.
    """
    # Both labels are asked for, so P(reference) is read rather than inferred as 1 - P(crawl).
    all_labels, all_scores = classifier.f.multilinePredict(
        [line + "\n" for line in lines], 2, 0.0, "strict"
    )
    scores = np.full(len(lines), np.nan)
    for row, labels in enumerate(all_labels):
        if lines[row] and POSITIVE_LABEL in labels:
            scores[row] = all_scores[row][labels.index(POSITIVE_LABEL)]
    # fastText adds 1e-5 to every probability, so a sure answer comes out just above 1.
    return np.round(np.minimum(scores, 1.0), 4)


class ReferenceFilterSettings(Settings):
    """How much like a reference a document has to read."""

    min_score: float = Field(
        default=0.25,
        ge=0.0,
        le=1.0,
        description="Lowest reference_score kept. RedPajama 1 keeps 0.25 and more; 0.5 keeps what is classified as a "
        "reference, as LLaMA did.",
    )


class ReferenceFilter(Stage[ReferenceFilterSettings]):
    """Drops documents that do not read like references; those without a score are kept.

    Source of the default: RedPajama-Data 1, `data_prep/cc/README.md`.
    """

    name = "reference"
    version = 1
    needs = Reference.adds
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"reference.score_too_low": "The probability of being a reference is below min_score."}
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows with a score of min_score and more, and those without a score."""
        score = batch.column("reference_score")
        is_low = pc.fill_null(pc.less(score, self.settings.min_score), False)
        return drop_where(
            batch, is_low, "reference.score_too_low", value=score, limit=self.settings.min_score
        )
