"""Where a dataset comes from: when it was made, by which versions, models and config."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata

import yaml

from pipeline.config import RunConfig
from pipeline.models.registry import REGISTRY
from pipeline.phases import registry
from pipeline.phases.phase import list_model_references
from pipeline.runs.run_folder import RunFolder

LIBRARIES = ("corpusmill", "pyarrow", "numpy", "ray")


@dataclass(frozen=True)
class Model:
    """A model, tokenizer or list that a run has used.

    Attributes:
        name: of the registry, or a path. Nothing else is known of a path but its phases.
    """

    name: str
    phases: tuple[str, ...]
    version: str = ""
    description: str = ""
    licence: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Provenance:
    """Where a dataset comes from.

    Attributes:
        started, ended: the first and the last event of the run, in UTC; None: no event.
        wall_s: phase -> seconds from its start to its end, summed over all starts of the run.
        stages: phase -> its stages with their versions.
        libraries: library -> version, where the report is made.
        config: the config as YAML, with all defaults.
    """

    started: str | None
    ended: str | None
    wall_s: Mapping[str, float]
    models: tuple[Model, ...]
    stages: Mapping[str, str]
    libraries: Mapping[str, str]
    config: str


def read_provenance(run: RunFolder) -> Provenance:
    """Read where the dataset of a run comes from."""
    first = last = None
    wall_s: Counter[str] = Counter()
    started_s: dict[str, float] = {}
    for event in run.read_events():
        first = event["time"] if first is None else first
        last = event["time"]
        if event["event"] == "PhaseStarted":
            started_s[event["phase"]] = last
        elif event["event"] == "PhaseFinished" and event["phase"] in started_s:
            wall_s[event["phase"]] += last - started_s.pop(event["phase"])
    return Provenance(
        started=_format_time(first),
        ended=_format_time(last),
        wall_s=dict(wall_s),
        models=tuple(list_models(run.config)),
        stages=_list_stages(run),
        libraries=_list_libraries(),
        config=yaml.safe_dump(
            dict(run.recorded_config), sort_keys=False, allow_unicode=True
        ),
    )


def _format_time(seconds: float | None) -> str | None:
    """Return seconds since the epoch as `2026-11-22 20:15 UTC`."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def list_models(config: RunConfig) -> Iterator[Model]:
    """Yield the models, tokenizers and lists of a config, in the order of their use."""
    phases: dict[str, list[str]] = {}
    for phase in registry.PHASES:
        if phase.is_enabled(config):
            for name in list_model_references(phase.plan_stages(config)):
                phases.setdefault(name, []).append(phase.name)
    for name, used_by in phases.items():
        known: dict[str, str] = {}
        if asset := REGISTRY.get(name):
            fields = ("version", "description", "licence", "origin")
            known = {field: getattr(asset, field) for field in fields}
        yield Model(name, tuple(used_by), **known)


def _list_stages(run: RunFolder) -> dict[str, str]:
    listed: dict[str, str] = {}
    for phase, versions in run.stage_versions.items():
        stages = (f"{stage} {version}" for stage, version in versions.items())
        if text := ", ".join(stages):
            listed[phase] = text
    return listed


def _list_libraries() -> dict[str, str]:
    versions = {"Python": platform.python_version()}
    for library in LIBRARIES:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
    return versions
