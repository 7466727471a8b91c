"""Score documents by fastText classifiers of any kind, and drop what scores too low or too high.

Promises: `Classifiers` stores for each named model the probability that fastText's own `predict` gives to one label
(cut at 1, since fastText adds 1e-5); a document in a language that is not asked for, or without text, has no score and
is never dropped. `ClassifiersFilter` decides from the scores alone, so a limit can change without a model being run.
Leaves to others: training and fetching models. Any supervised model file will do: quality as in DCLM (Li et al. 2024,
arXiv:2406.11794, section 4.4: fasttext-oh-eli5, label __label__hq, min 0.018112 for the top tenth), educational value,
toxicity and obscenity as in Dolma (Soldaini et al. 2024, arXiv:2402.00159), adult content, topics.

    classifiers = Classifiers(ClassifiersSettings(hq={"model": "hq.bin", "label": "__label__hq"}), {"hq.bin": path})
    classifiers.open()
    scored = classifiers.apply(batch).kept                            # classifier_hq 0.0312
    ClassifiersFilter(ClassifiersFilterSettings(hq={"min": 0.018})).apply(scored)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.contract import DOCUMENT, Outcome, Settings, Stage, chain, drop_where, keep_all
from stages.filters.reference import MODEL_FILE, as_line


def column(name: str) -> str:
    """Where the scores of the model of that name stand."""
    return f"classifier_{name}"


class ClassifierSettings(Settings):
    """One model, and what is read of it."""

    model: str = Field(
        description="A fastText model file, or a folder with model.bin: a path, or a name of the asset registry."
    )
    label: str = Field(
        min_length=1,
        description="Whose probability is the score, as the model spells it, such as __label__hq.",
    )
    languages: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None, description="Languages whose documents are scored; null scores all."
    )
    max_chars: int | None = Field(
        default=None,
        ge=1,
        description="Read only this many code points from the start of a text; null reads all.",
    )


class ScoreLimits(Settings):
    """Which scores of one model are kept; both limits are inclusive."""

    min: float | None = Field(
        default=None, ge=0, le=1, description="Lowest score kept; null sets no limit."
    )
    max: float | None = Field(
        default=None, ge=0, le=1, description="Highest score kept; null sets no limit."
    )

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(
                f"min is {self.min}, above max, which is {self.max}: nothing could be kept; lower min"
            )
        return self


class _NamedSettings(Settings):
    """Settings whose keys are names that the user chooses."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _names_are_usable(self) -> Self:
        for name in self.model_extra or {}:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or hasattr(BaseModel, name):
                raise ValueError(
                    f"{name!r} cannot name a classifier: wanted small letters, digits and _, no word of pydantic's; "
                    f"try {re.sub('[^a-z0-9_]', '_', name.lower())}_score"
                )
        return self


class ClassifiersSettings(_NamedSettings):
    """Name -> model: the name is yours, and that of its column, `classifier_<name>`."""

    each: ClassVar[type[Settings]] = ClassifierSettings
    __pydantic_extra__: dict[str, ClassifierSettings] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def models(self) -> Mapping[str, ClassifierSettings]:
        """By name, sorted, so that the order of a config changes nothing."""
        return dict(sorted(self.__pydantic_extra__.items()))


class ClassifiersFilterSettings(_NamedSettings):
    """Name -> limits of its score."""

    each: ClassVar[type[Settings]] = ScoreLimits
    __pydantic_extra__: dict[str, ScoreLimits] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def limits(self) -> Mapping[str, ScoreLimits]:
        """By name, sorted: of several rules that a document breaks, the first is the reason."""
        return dict(sorted(self.__pydantic_extra__.items()))


class Classifiers(Stage[ClassifiersSettings]):
    """Adds `classifier_<name>` for each model: null where there is no text or the language is not asked for.

    A text is read as one line, as DCLM's enricher and RedPajama's do: `" ".join(text.strip().splitlines())`.
    """

    name = "classifiers"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema(
        [DOCUMENT.field("text"), pa.field("language", pa.string())]
    )

    _models: Mapping[str, Any]

    @classmethod
    def required_files(cls, settings: ClassifiersSettings) -> tuple[str, ...]:
        """The models, each once, sorted."""
        return tuple(sorted({one.model for one in settings.models.values()}))

    @classmethod
    def added_columns(cls, settings: ClassifiersSettings) -> pa.Schema:
        """One column per name."""
        return pa.schema([pa.field(column(name), pa.float64()) for name in settings.models])

    def open(self) -> None:
        """Load every model once, whatever number of labels is read of it.

        Raises:
            ValueError: a file is missing or is no fastText model, or has no such label.
        """
        models = {reference: _load(path) for reference, path in self.files.items()}
        for name, one in self.settings.models.items():
            labels: list[str] = models[one.model].get_labels()
            if one.label not in labels:
                near = (
                    difflib.get_close_matches(one.label, labels, 3, cutoff=0.3)
                    or sorted(labels)[:10]
                )
                raise ValueError(
                    f"classifiers.{name}: {one.model} has no label {one.label!r}; of its {len(labels)} labels the "
                    f"nearest are {', '.join(near)}"
                )
        self._models = {name: models[one.model] for name, one in self.settings.models.items()}

    def apply(self, batch: pa.Table) -> Outcome:
        """Annotate every row; nothing is dropped."""
        scores = {
            column(name): self._scored(batch, name, one)
            for name, one in self.settings.models.items()
        }
        return keep_all(batch, scores)

    def _scored(self, batch: pa.Table, name: str, one: ClassifierSettings) -> pa.Array:
        """(n,) the score of each row by one model."""
        is_asked = pc.is_valid(batch.column("text"))
        if one.languages is not None:
            is_asked = pc.and_(
                is_asked, pc.is_in(batch.column("language"), value_set=pa.array(one.languages))
            )
        text = batch.column("text").filter(is_asked)
        if one.max_chars is not None:
            text = pc.utf8_slice_codeunits(text, 0, one.max_chars)
        scores = np.full(batch.num_rows, np.nan)
        rows = np.flatnonzero(is_asked.to_numpy())
        scores[rows] = probabilities(
            self._models[name], one.label, [as_line(text) for text in text.to_pylist()]
        )
        return pa.array(scores, pa.float64(), mask=np.isnan(scores))


def _load(path: Path) -> Any:
    import fasttext

    return fasttext.load_model(str(path / MODEL_FILE if path.is_dir() else path))


def probabilities(model: Any, label: str, lines: list[str]) -> np.ndarray:
    """P(label) of every line, (n,) float64; NaN for an empty line, 0 where fastText leaves the label out.

    Args:
        model: what `fasttext.load_model` returns.
        label: one of its labels.
        lines: (n,) texts without line breaks.
    """
    # -1: all labels are asked for, so that the one wanted is among them wherever it ranks.
    all_labels, all_scores = model.f.multilinePredict(
        [line + "\n" for line in lines], -1, 0.0, "strict"
    )
    scores = np.full(len(lines), np.nan)
    for row, labels in enumerate(all_labels):
        if lines[row]:
            scores[row] = all_scores[row][labels.index(label)] if label in labels else 0.0
    return np.minimum(scores, 1.0)


class ClassifiersFilter(Stage[ClassifiersFilterSettings]):
    """Drops documents whose score of a classifier lies outside its limits; those without a score are kept."""

    name = "classifiers"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "classifiers.score_too_low": "The score of the classifier named in the detail is below its min.",
            "classifiers.score_too_high": "The score of the classifier named in the detail is above its max.",
        }
    )

    @classmethod
    def required_columns(cls, settings: ClassifiersFilterSettings) -> pa.Schema:
        """The columns that have limits."""
        return pa.schema([pa.field(column(name), pa.float64()) for name in settings.limits])

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows whose every score is within its limits, or null."""
        outcome = keep_all(batch)
        for name, limits in self.settings.limits.items():
            if limits.min is not None:
                outcome = chain(
                    outcome,
                    _judged(outcome.kept, name, pc.less, "classifiers.score_too_low", limits.min),
                )
            if limits.max is not None:
                high = "classifiers.score_too_high"
                outcome = chain(outcome, _judged(outcome.kept, name, pc.greater, high, limits.max))
        return outcome


def _judged(batch: pa.Table, name: str, outside: Any, reason: str, limit: float) -> Outcome:
    score = batch.column(column(name))
    is_dropped = pc.fill_null(outside(score, limit), False)
    detail = pa.repeat(pa.scalar(name), batch.num_rows)
    return drop_where(batch, is_dropped, reason, value=score, limit=limit, detail=detail)
