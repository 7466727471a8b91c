"""The plan of a run, as values: input splits, phases with their stages and fingerprints, previous runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.previous_runs import PreviousSplit, list_previous_splits
from pipeline.phases.stage_spec import StageSpec
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder
from storage import Store, open_store


@dataclass(frozen=True)
class PhasePlan:
    """One phase of a run."""

    name: str
    version: int
    parents: tuple[str, ...]
    stages: tuple[StageSpec, ...]
    fingerprint: str | None  # None: a model of this phase or of a parent is not made yet
    # those that are made
    model_digests: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class RunPlan:
    """The whole run."""

    config: RunConfig
    splits: tuple[InputSplit, ...]
    phases: tuple[PhasePlan, ...]
    previous: tuple[RunFolder, ...] = ()

    @cached_property
    def previous_splits(self) -> tuple[PreviousSplit, ...]:
        """The input splits of all previous runs, in order."""
        return tuple(list_previous_splits(self.previous))

    @property
    def run_dir(self) -> Store:
        """The run folder."""
        return open_store(self.config.run_dir, self.config.storage.to_settings())

    def phase(self, name: str) -> PhasePlan:
        """Return the plan of the phase with that name."""
        return next(phase for phase in self.phases if phase.name == name)

    def folder(self, name: str) -> PhaseFolder:
        """Return the folder of a phase's outputs.

        Raises:
            ValueError: the phase has no fingerprint yet.
        """
        fingerprint = self.phase(name).fingerprint
        if fingerprint is None:
            raise ValueError(
                f"phase {name} has no folder before its models are made; "
                f"make them with `python -m pipeline models fetch`"
            )
        return PhaseFolder(self.run_dir.child(f"{name}-{fingerprint}"))
