"""What a run will do, as a value: units, phases, fingerprints, folders. Printable, comparable, made without Ray.

Promises: a phase's folder is named by a fingerprint of all that its output depends on (its version, its section of
the config, its stages' versions, the content of the models it loads, its parents' fingerprints, the input where it
works across units), so equal fingerprints mean equal bytes and a changed threshold renews only what hangs on it.
Leaves to others: doing any of it (engine.py, phases.py).

    plan = make_plan(load("ccnet.yaml"))
    plan.phase("select").fingerprint        # "5be0c1d29f3a7e46", or None while a model it needs is not made yet
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.config import RunConfig
from pipeline.execution.task import StageSpec
from pipeline.models import registry as assets
from pipeline.planning import previous_runs
from pipeline.planning.input_splits import InputSplit, files_per_split, list_input_splits
from pipeline.planning.previous_runs import PreviousSplit, splits_of_runs
from pipeline.runs.phase_folder import Location, PhaseFolder, parse_location
from pipeline.runs.run_folder import RunFolder
from stages.contract import Stage
from stages.dedup.exact_dedup import ExactDedupFilter
from stages.dedup.minhash import MinHash, MinHashFilter
from stages.dedup.paragraphs import ParagraphHashes, ParagraphRemoval
from stages.filters.classifiers import Classifiers, ClassifiersFilter
from stages.filters.decontamination import Decontamination, DecontaminationFilter
from stages.filters.language import Language, LanguageFilter
from stages.filters.length import Length
from stages.filters.lines import Lines
from stages.filters.perplexity import Perplexity, PerplexityFilter
from stages.filters.quality import Quality, QualityFilter
from stages.filters.reference import Reference, ReferenceFilter
from stages.filters.url import Url
from stages.transform.pii import Pii
from stages.transform.tokenize import Tokenize
from stages.transform.unicode import Unicode

PHASE_VERSIONS: Mapping[str, int] = {
    "extract": 2,
    "exact_dedup": 1,
    "paragraph_dedup": 1,
    "annotate": 2,
    "fuzzy_dedup": 2,
    "select": 1,
    "tokenize": 1,
    "write_shards": 1,
}
"""In the order they run. A version rises when equal input would give other output."""

PARENTS: Mapping[str, tuple[str, ...]] = {
    "extract": (),
    "exact_dedup": ("extract",),
    "paragraph_dedup": ("extract", "exact_dedup"),
    "annotate": ("extract", "exact_dedup", "paragraph_dedup"),
    "fuzzy_dedup": ("annotate",),
    "select": ("annotate", "fuzzy_dedup"),
    "tokenize": ("annotate", "select"),
    "write_shards": ("tokenize",),
}
"""Whose outputs a phase reads: those of copies and fuzzy_dedup only where they are on."""

CHAIN: Mapping[str, tuple[type[Stage[Any]], ...]] = {
    "extract": (Url, Unicode, Length, ParagraphHashes),
    "annotate": (
        ExactDedupFilter,
        ParagraphRemoval,
        Lines,
        Length,
        Language,
        Perplexity,
        Reference,
        Classifiers,
        Quality,
        Decontamination,
        MinHash,
    ),
    "select": (
        LanguageFilter,
        PerplexityFilter,
        ReferenceFilter,
        ClassifiersFilter,
        QualityFilter,
        DecontaminationFilter,
        MinHashFilter,
    ),
    "tokenize": (Pii, Tokenize),
}
"""The stages of every phase that has some, in the order they work; each has the config section of its own name."""

DECIDED_BY: Mapping[type[Stage[Any]], str] = {
    ExactDedupFilter: "exact_dedup",
    MinHashFilter: "fuzzy_dedup",
}
"""Stages that drop what a phase has found, and are off where it is."""

ACROSS_SPLITS = frozenset(
    {"exact_dedup", "paragraph_dedup", "fuzzy_dedup", "select", "write_shards"}
)
"""Phases in which one unit's output depends on the others (select: through the percentiles of the run)."""


@dataclass(frozen=True)
class PhasePlan:
    """One phase of a run."""

    name: str
    version: int
    parents: tuple[str, ...]
    stages: tuple[StageSpec, ...]
    fingerprint: str | None  # None: a model that it, or a parent, needs has still to be made


@dataclass(frozen=True)
class RunPlan:
    """A whole run."""

    config: RunConfig
    splits: tuple[InputSplit, ...]
    phases: tuple[PhasePlan, ...]
    previous: tuple[RunFolder, ...] = ()

    @cached_property
    def previous_splits(self) -> tuple[PreviousSplit, ...]:
        """The units of the runs before this one, in order."""
        return tuple(splits_of_runs(self.previous))

    @property
    def run_dir(self) -> Location:
        """Folder of the run."""
        return parse_location(self.config.run_dir, self.config.storage)

    def phase(self, name: str) -> PhasePlan:
        """The phase of that name."""
        return next(phase for phase in self.phases if phase.name == name)

    def folder(self, name: str) -> PhaseFolder:
        """Where a phase's outputs lie.

        Raises:
            ValueError: its fingerprint is not known yet.
        """
        if (fingerprint := self.phase(name).fingerprint) is None:
            raise ValueError(
                f"phase {name} has no folder before its models are made: `python -m pipeline models fetch`"
            )
        return PhaseFolder(self.run_dir / f"{name}-{fingerprint}")


def make_plan(config: RunConfig) -> RunPlan:
    """Plan a run. Lists the input, looks for models on this machine and for earlier runs; fetches and makes nothing.

    Raises:
        ConfigError: the input cannot be listed, or an earlier run cannot be compared with.
        ValueError: a stage does not find the columns that it needs.
    """
    return plan_splits(
        config, list_input_splits(config.input, config.storage), previous_runs.find(config)
    )


def plan_splits(
    config: RunConfig, splits: Sequence[InputSplit], previous: tuple[RunFolder, ...] = ()
) -> RunPlan:
    """The plan for units, and earlier runs, that are known already."""
    phases: dict[str, PhasePlan] = {}
    for name, version in PHASE_VERSIONS.items():
        specs = stages_of(name, config)
        fingerprint = _fingerprint(name, specs, config, splits, phases, previous)
        phases[name] = PhasePlan(name, version, parents_of(name, config), specs, fingerprint)
    return RunPlan(config, tuple(splits), tuple(phases.values()), previous)


def parents_of(phase: str, config: RunConfig) -> tuple[str, ...]:
    """The phases whose outputs a phase reads under this config."""
    return tuple(parent for parent in PARENTS[phase] if getattr(config, parent) is not None)


def stages_of(phase: str, config: RunConfig) -> tuple[StageSpec, ...]:
    """The stages of a phase that the config has not turned off, in their order.

    The perplexity filter of `select` is not among them: its cutoffs may come from the run itself (phases.py).
    """
    section = getattr(config, phase)
    specs: list[StageSpec] = []
    for stage in CHAIN.get(phase, ()):
        if stage in DECIDED_BY and getattr(config, DECIDED_BY[stage]) is None:
            continue
        if stage.name == phase:
            specs.append(StageSpec(stage, section))
        elif stage.name not in type(section).model_fields:
            specs.append(StageSpec(stage, stage.settings_class()()))  # it has nothing to set
        elif (
            settings := getattr(section, stage.name)
        ) is not None and stage is not PerplexityFilter:
            specs.append(StageSpec(stage, settings))
    return tuple(specs)


def fingerprint(value: Any) -> str:
    """16 hex digits that are equal for equal values of JSON's kinds, in any process and on any machine.

    Raises:
        TypeError: the value holds something whose text is not the same twice (a set, an object, a NaN).
    """
    text = json.dumps(
        _canonical(value, "value"), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical(value: Any, where: str) -> Any:
    if (
        value is None
        or isinstance(value, str | bool | int)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _canonical(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(inner, f"{where}[{i}]") for i, inner in enumerate(value)]
    raise TypeError(
        f"{where} is {value!r}: only strings, numbers, lists and mappings with string keys have a fingerprint; "
        f"turn it into one of these in a fixed order first"
    )


def _fingerprint(
    name: str,
    specs: Sequence[StageSpec],
    config: RunConfig,
    splits: Sequence[InputSplit],
    before: Mapping[str, PhasePlan],
    previous: Sequence[RunFolder],
) -> str | None:
    """The fingerprint of a phase, or None while one of its models has no content yet."""
    references = [
        reference for spec in specs for reference in spec.stage.required_files(spec.settings)
    ]
    cutoffs = (
        config.select.perplexity.cutoffs
        if name == "select" and config.select.perplexity
        else "none"
    )
    if cutoffs == "model" and config.annotate.perplexity:
        references += config.annotate.perplexity.models.values()
    elif cutoffs not in ("none", "model", "run"):
        references.append(cutoffs)
    files = {reference: assets.digest(reference) for reference in references}
    parents = {parent: before[parent].fingerprint for parent in parents_of(name, config)}
    if None in (*files.values(), *parents.values()):
        return None
    section = getattr(config, name)
    if section is not None:
        section = section.model_dump(
            mode="python"
        )  # so that sets are refused, not listed in any order
    shared = [
        share for run in previous if (share := previous_runs.shares(config, name, run)) is not None
    ]
    return fingerprint(
        {
            "phase": name,
            "version": PHASE_VERSIONS[name],
            "settings": section,
            "stages": [[spec.stage.name, spec.stage.version] for spec in specs],
            "files": files,
            "parents": parents,
            "splits": [split.key for split in splits] if name in ACROSS_SPLITS else None,
            "files_per_split": files_per_split(
                config.input, sum(len(split.files) for split in splits)
            )
            if name == "extract"
            else None,
            "order_seed": config.write_shards.seed if name == "tokenize" else None,
            **({"previous_runs": shared} if shared else {}),
        }
    )
