"""Score documents with fastText classifiers, and drop documents by their scores.

A classifier is any supervised fastText model: quality, educational value, toxicity, topics. The
config gives it a name; its score is stored in the column `classifier_<name>`.

    settings = ClassifiersSettings(hq={"model": "hq.bin", "label": "__label__hq"})
    classifiers = Classifiers(settings, {"hq.bin": path})
    classifiers.open()
    scored = classifiers.apply(batch).kept                            # classifier_hq 0.0312
    ClassifiersFilter(ClassifiersFilterSettings(hq={"min": 0.018})).apply(scored)

Classifiers of published datasets:

- `wikipedia_reference`: P(the page could be cited as a reference in Wikipedia), LLaMA's classifier
  (Touvron et al. 2023, arXiv:2302.13971, section 2.1). The score is `wiki_prob` of RedPajama-Data 1
  (`data_prep/cc/classifier/classify.py`), which keeps 0.25 and more (`data_prep/cc/README.md`).
  0.5 keeps the pages that are classified as references, as LLaMA did.
- DCLM's quality classifier (Li et al. 2024, arXiv:2406.11794, section 4.4): fasttext-oh-eli5,
  label `__label__hq`, min 0.018112 for the best tenth of its pages. For other pages or another
  model, `keep_top` is a share of the run's documents.
- toxicity and obscenity in Dolma (Soldaini et al. 2024, arXiv:2402.00159).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import DOCUMENT, Column, Outcome, Stage, chain, drop_where, keep_all
from stages.histograms import (
    NO_LANGUAGE,
    Histogram,
    RunLimit,
    find_top_cuts,
    list_run_limits,
)
from stages.kernels.fasttext import model as fasttext_model
from stages.kernels.fasttext.model import FastTextModel
from stages.settings.filters import (
    ClassifierSettings,
    ClassifiersFilterSettings,
    ClassifiersSettings,
)

# Name of the model in a folder that a setting refers to.
MODEL_FILE = "model.bin"

_LANGUAGE = pa.field("language", pa.string())


def score_column(name: str) -> str:
    """Return the column that holds the scores of a classifier."""
    return f"classifier_{name}"


class Classifiers(Stage[ClassifiersSettings]):
    """Adds `classifier_<name>` for each classifier. Drops nothing.

    The score is null where the text is blank or no model scores the document's language. A text is
    scored as one line (`to_line`), as DCLM and RedPajama do.
    """

    name = "classifiers"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([DOCUMENT.field("text"), _LANGUAGE])

    _models: Mapping[str, FastTextModel]

    @classmethod
    def required_files(cls, settings: ClassifiersSettings) -> tuple[str, ...]:
        """Return the models, without duplicates, sorted."""
        files: set[str] = set()
        for classifier in settings.by_name.values():
            for model, _ in classifier.model_languages():
                files.add(model)
        return tuple(sorted(files))

    @classmethod
    def added_columns(cls, settings: ClassifiersSettings) -> pa.Schema:
        """Return one column per classifier."""
        return pa.schema(
            [pa.field(score_column(name), pa.float64()) for name in settings.by_name]
        )

    def open(self) -> None:
        """Load each model file once, and check that it has the label.

        Raises:
            ValueError: a file is missing or is not a fastText model, or has no such label.
        """
        self._models = {model: load_model(path) for model, path in self.files.items()}
        for name, classifier in self.settings.by_name.items():
            for model, _ in classifier.model_languages():
                _check_label(
                    self._models[model], classifier.label, f"classifiers.{name}: {model}"
                )

    def apply(self, batch: pa.Table) -> Outcome:
        """Add the scores."""
        scores: dict[str, Column] = {}
        for name, classifier in self.settings.by_name.items():
            scores[score_column(name)] = self._score(batch, classifier)
        return keep_all(batch, scores)

    def _score(self, batch: pa.Table, classifier: ClassifierSettings) -> pa.Array:
        """(n,) float64: the scores of one classifier, null where a row has none."""
        scores = np.full(batch.num_rows, np.nan)
        has_text = pc.is_valid(batch.column("text"))
        for model, languages in classifier.model_languages():
            is_scored = has_text
            if languages is not None:
                is_scored = pc.and_(
                    is_scored, _is_member(batch.column("language"), languages)
                )
            texts = batch.column("text").filter(is_scored)
            if classifier.max_chars is not None:
                texts = pc.utf8_slice_codeunits(texts, 0, classifier.max_chars)
            lines = list(map(to_line, texts.to_pylist()))
            rows = np.flatnonzero(is_scored.to_numpy())
            scores[rows] = score_lines(self._models[model], classifier.label, lines)
        if classifier.decimals is not None:
            scores = np.round(scores, classifier.decimals)
        return pa.array(scores, pa.float64(), mask=np.isnan(scores))


def _is_member(values: Column, wanted: tuple[str, ...]) -> Column:
    return pc.is_in(values, value_set=pa.array(wanted, pa.string()))


def load_model(path: Path) -> FastTextModel:
    """Return the fastText model in a file, or in `model.bin` of a folder.

    Raises:
        ValueError: there is no such file, or it is not a fastText model.
    """
    return fasttext_model.load_model(path / MODEL_FILE if path.is_dir() else path)


def _check_label(model: FastTextModel, label: str, where: str) -> None:
    labels = model.labels
    if label in labels:
        return
    nearest = difflib.get_close_matches(label, labels, 3, cutoff=0.3) or sorted(labels)[:10]
    raise ValueError(
        f"{where} has no label {label!r}; the nearest of its {len(labels)} labels are "
        f"{', '.join(nearest)}"
    )


def to_line(text: str) -> str:
    """Return the text on one line: stripped, with a space for each line break of any kind.

    Source: `" ".join(content.strip().splitlines())` in RedPajama-Data 1, `classify.py` and
    `create_corpus.py`. Training texts must be written in the same way.
    """
    return " ".join(text.strip().splitlines())


def score_lines(model: FastTextModel, label: str, lines: list[str]) -> NDArray[np.float64]:
    """Return P(label) of every line; NaN for an empty line, 0 where fastText omits the label.

    Args:
        model: a model of `load_model`.
        label: one of its labels.
        lines: (n,) texts without line breaks, see `to_line`.

    Returns:
        (n,) float64 in 0..1.
    """
    scores = model.score_label(pa.array(lines, pa.large_string()), label)
    scores[[not line for line in lines]] = np.nan
    # fastText adds 1e-5 to each probability, so the largest ones are slightly above 1.
    return np.minimum(scores, 1.0)


class ClassifiersFilter(Stage[ClassifiersFilterSettings]):
    """Drops documents with a score outside its limits. Documents without a score are kept."""

    name = "classifiers"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "classifiers.score_too_low": "The score is below min of the classifier that the detail "
            "names.",
            "classifiers.score_too_high": "The score is above max of the classifier that the "
            "detail names.",
            "classifiers.not_in_top": "The score is below the best ones, of which keep_top of the "
            "classifier that the detail names gives the share, in this language.",
        }
    )

    @classmethod
    def required_columns(cls, settings: ClassifiersFilterSettings) -> pa.Schema:
        """Return the scores that have limits, and the language if a limit depends on it."""
        scores = [pa.field(score_column(name), pa.float64()) for name in settings.limits]
        return pa.schema([_LANGUAGE, *scores] if cls.histograms(settings) else scores)

    @classmethod
    def histograms(cls, settings: ClassifiersFilterSettings) -> tuple[Histogram, ...]:
        """Return the scores of the classifiers with `keep_top`."""
        return tuple(
            Histogram(f"classifier.{name}", score_column(name), "candidates")
            for name, limits in settings.limits.items()
            if limits.keep_top is not None
        )

    @cached_property
    def cuts(self) -> Mapping[str, Mapping[str, float]]:
        """Classifier -> language -> lowest score kept. Documents in other languages are kept."""
        return {
            name: find_top_cuts(self.run_counters, f"classifier.{name}", limits.keep_top)
            for name, limits in self.settings.limits.items()
        }

    def list_run_limits(self) -> Iterable[RunLimit]:
        """Yield the cuts."""
        for name, cuts in self.cuts.items():
            setting = f"select.classifiers.{name}.keep_top: from"
            family = f"classifier.{name}"
            yield from list_run_limits(setting, cuts, self.run_counters, family)

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows whose scores are all within their limits, or null."""
        outcome = keep_all(batch)
        for name, limits in self.settings.limits.items():
            if limits.min is not None:
                low = "classifiers.score_too_low"
                outcome = _drop_beyond(outcome, name, pc.less, low, limits.min)
            if limits.max is not None:
                high = "classifiers.score_too_high"
                outcome = _drop_beyond(outcome, name, pc.greater, high, limits.max)
            if self.cuts[name]:
                cuts = find_cuts(outcome.kept.column("language"), self.cuts[name])
                out = "classifiers.not_in_top"
                outcome = _drop_beyond(outcome, name, pc.less, out, cuts)
        return outcome


def find_cuts(languages: Column, cuts: Mapping[str, float]) -> Column:
    """(n,) float64: the cut of every row, null where its language has none.

    Args:
        languages: (n,) string, null for a document without language.
        cuts: language -> cut.
    """
    languages = pc.fill_null(languages, NO_LANGUAGE)
    rows = pc.index_in(languages, value_set=pa.array(cuts, pa.string()))
    return pc.take(pa.array(cuts.values(), pa.float64()), rows)


def _drop_beyond(
    outcome: Outcome,
    name: str,
    is_beyond: Callable[..., Column],
    reason: str,
    limit: float | Column,
) -> Outcome:
    """Drop the kept rows whose score is beyond a limit. A row without a limit is kept."""
    kept = outcome.kept
    score = kept.column(score_column(name))
    is_dropped = pc.fill_null(is_beyond(score, limit), False)
    detail = pa.repeat(pa.scalar(name), kept.num_rows)
    dropped = drop_where(kept, is_dropped, reason, value=score, limit=limit, detail=detail)
    return chain(outcome, dropped)
