"""A phase of the pipeline: one class that declares everything about it.

The planner, the engines, the report and `status` iterate over `pipeline.phases.registry.PHASES` and
read the class attributes and class methods below. To add a phase, write one subclass in its own file, add it to the
registry, and add a section of the same name to `RunConfig`.

    class CountUrls(SplitPhase):
        name = "count_urls"
        version = 1
        parents = (Extract,)
        stages = (UrlCount,)
        counts = Artifact("counts.parquet", COUNTS)
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.artifact import Artifact, MergedArtifact
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.stage_spec import StageSpec
from pipeline.runs.damaged_outputs import list_reported
from pipeline.runs.exchange import write_places
from pipeline.runs.phase_folder import PendingOutput, PhaseFolder
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import SplitWriter
from pipeline.runs.verified_file import Damage
from stages.contract import Counters, Stage

T = TypeVar("T")


class Phase(ABC):
    """One phase. Subclass `SplitPhase` or `PartitionPhase`.

    Class attributes:
        name: the phase's name and the start of its folder's name.
        section: the name of its section of the config; by default the phase's name.
        version: raise it when equal input would give other output.
        parents: the phases whose outputs it reads. A parent that is off is left out.
        stages: the stages in the order in which they run; each has the config section of its name.
        depends_on_all_splits: whether the output of one task depends on other splits than its own.
        task_kind: what one task processes: "splits", "partitions" or "shards".
    """

    name: ClassVar[str]
    section: ClassVar[str]
    version: ClassVar[int]
    parents: ClassVar[tuple[type[Phase], ...]] = ()
    stages: ClassVar[tuple[type[Stage[Any]], ...]] = ()
    depends_on_all_splits: ClassVar[bool] = False
    task_kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls) and "section" not in vars(cls):
            cls.section = cls.name

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan

    # ---- Declarations that depend on the config ----

    @classmethod
    def is_enabled(cls, config: RunConfig) -> bool:
        """Return whether the phase is on: its section of the config is not null."""
        return getattr(config, cls.section) is not None

    @final
    @classmethod
    def enabled_parents(cls, config: RunConfig) -> tuple[type[Phase], ...]:
        """Return the parents that are on."""
        return tuple(parent for parent in cls.parents if parent.is_enabled(config))

    @classmethod
    def plan_stages(cls, config: RunConfig) -> tuple[StageSpec, ...]:
        """Return the stages that are on, in order, with their settings."""
        return plan_stages(config, cls.section, cls.stages)

    @classmethod
    def fingerprint_inputs(cls, config: RunConfig, num_files: int) -> dict[str, Any]:
        """Return values that the output depends on, beside the section of the config.

        The value of `settings` stands in place of the whole section.

        Args:
            config: the run's config.
            num_files: the number of input files.
        """
        del config, num_files
        return {}

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return the phases whose outputs in previous runs this phase reads."""
        del config
        return ()

    @classmethod
    def check_previous_run(cls, config: RunConfig, run: RunFolder) -> Iterator[str]:
        """Yield the reasons why this phase cannot compare the run with a previous run."""
        del config, run
        yield from ()

    # ---- Its files ----

    @final
    @classmethod
    def artifacts(cls) -> tuple[Artifact, ...]:
        """Return the files that each task writes, sorted by attribute name."""
        return tuple(cls._list_attributes(Artifact))

    @classmethod
    def _list_attributes(cls, kind: type[T]) -> Iterator[T]:
        """Yield the class attributes of a type, sorted by name."""
        for name in dir(cls):
            value = getattr(cls, name)
            if isinstance(value, kind):
                yield value

    @final
    @classmethod
    def find_artifact(cls, file_name: str) -> Artifact | None:
        """Return the artifact with that file name; None: it is written by `finish`."""
        for artifact in cls.artifacts():
            if file_name.endswith(f".{artifact.suffix}"):
                return artifact
        return None

    @classmethod
    def count_group_tasks(
        cls, config: RunConfig, num_splits: int, num_tasks: int, num_slots: int
    ) -> int | None:
        """Return how many consecutive tasks share one read of their input; None: each task reads alone.

        Args:
            config: the run's config.
            num_splits: the number of input splits.
            num_tasks: the tasks that are left.
            num_slots: tasks that can run at the same time.
        """
        del config, num_splits, num_tasks, num_slots
        return None

    # ---- Running ----

    @final
    @property
    def config(self) -> RunConfig:
        """The run's config."""
        return self.plan.config

    @final
    @property
    def folder(self) -> PhaseFolder:
        """The folder of this phase's outputs."""
        return self.plan.folder(self.name)

    @abstractmethod
    def task_ids(self) -> list[str]:
        """Return the ids of all tasks, in order. Call it when the phase is on and its parents are complete."""

    @final
    def measure_task(self, task_id: str) -> float:
        """Return the size of a task relative to the phase's other tasks: the bytes of its input split."""
        if self.task_kind != "splits":
            return 1.0
        index = int(task_id.split("-", maxsplit=1)[0])
        return max(1.0, self.plan.splits[index].num_bytes)

    def prepare_tasks(self) -> None:
        """Compute what all tasks share. Runs once, in the driver, when the parents are complete.

        Raises:
            TaskFailed, ValueError: no task of the phase can run.
        """

    @final
    def sum_records(self) -> Counters:
        """Return the sum of the counters of all done-records: of the tasks and of `finish`."""
        merged = {each.name for each in self._list_attributes(MergedArtifact)}
        done = merged & self.folder.list_done()
        return sum_counters(self.folder, [*self.task_ids(), *sorted(done)])

    @final
    def counters(self) -> Counters:
        """Return the same sum of a complete phase, from its summary."""
        return Counters.from_json(self.folder.summary()["counters"])

    def find_damage(self) -> Iterator[Damage]:
        """Yield the damaged files of a complete phase that can be found quickly.

        This is for files that no later phase reads: a phase verifies the files that it reads.
        """
        yield from list_reported(self.folder)

    def finish(self) -> None:
        """Merge the outputs of all tasks. Runs once, in the driver, when all tasks are done."""
        for artifact in self.artifacts():
            if artifact.has_segments:
                write_places(self.folder, artifact, self.task_ids())


class SplitPhase(Phase):
    """A phase with one task per input split: its documents pass through the stages."""

    task_kind = "splits"
    # Every such phase writes the decisions on the documents that its stages drop.
    decisions: ClassVar[Artifact]

    schema: ClassVar[pa.Schema]  # of the tables that `read` yields

    def task_ids(self) -> list[str]:
        """Return the keys of the input splits."""
        return [split.key for split in self.plan.splits]

    def stage_specs(self) -> tuple[StageSpec, ...]:
        """Return the stages between `read` and `write`. Call it when the parents are complete."""
        return self.plan.phase(self.name).stages

    @property
    def model_digests(self) -> Mapping[str, str]:
        """The digests of the models when the run was planned."""
        return self.plan.phase(self.name).model_digests

    def stage_schemas(self) -> list[tuple[StageSpec, pa.Schema]]:
        """Return the stages, each with the columns of the documents after it.

        Raises:
            ValueError: a column that a stage needs is missing.
        """
        schema = self.schema
        chain: list[tuple[StageSpec, pa.Schema]] = []
        for spec in self.stage_specs():
            schema = spec.output_schema(schema)
            chain.append((spec, schema))
        return chain

    def output_schema(self) -> pa.Schema:
        """Return the columns of the documents after the last stage."""
        chain = self.stage_schemas()
        return chain[-1][1] if chain else self.schema

    def prepare_tasks(self) -> None:
        """Compute the stages' settings and columns once, before the tasks are sent to workers."""
        self.stage_schemas()

    def split(self, task_id: str) -> InputSplit:
        """Return the input split of a task."""
        return self.plan.splits[self.split_number(task_id)]

    def split_number(self, task_id: str) -> int:
        """Return the number of a task's input split, from 0."""
        return int(task_id.split("-", maxsplit=1)[0])

    @abstractmethod
    def read(self, task_id: str, writer: Any) -> Generator[pa.Table]:
        """Yield the documents of a split in input order.

        Args:
            task_id: the id of the task.
            writer: the task's writer, for facts of the split beside its documents.
        """

    @abstractmethod
    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer of the documents that pass the stages."""


class PartitionPhase(Phase):
    """A phase whose tasks each read the files of many splits: a range of hashes, or of the shuffle order.

    Where it also reads previous runs, their splits come before the run's own in `sources`, because the first of
    several equal documents is kept. Ids in this order are internal; `doc_ids` converts them to stored ids.
    """

    task_kind = "partitions"
    depends_on_all_splits = True

    @abstractmethod
    def run(self, task_id: str) -> None:
        """Run one task and commit its outputs."""

    def run_each(self, task_ids: Sequence[str]) -> Generator[None]:
        """Run tasks in their order, and yield after the commit of each."""
        for task_id in task_ids:
            self.run(task_id)
            yield

    def sources(self, phase: str) -> list[tuple[PhaseFolder, str]]:
        """Return a parent's folder and the split's key, of all previous splits and then of all own splits."""
        previous = [
            (split.run.folder(phase), split.key) for split in self.plan.previous_splits
        ]
        return previous + [
            (self.plan.folder(phase), split.key) for split in self.plan.splits
        ]

    def counts(self, phase: str, name: str) -> list[int]:
        """Return a parent's counter per split, in the order of `sources`."""
        records = [
            run.folder(phase).records(split.key for split in run.splits)
            for run in self.plan.previous
        ]
        records.append(
            self.plan.folder(phase).records(split.key for split in self.plan.splits)
        )
        return [
            record["counters"]["counts"].get(name, 0)
            for record in itertools.chain(*records)
        ]

    def doc_ids(self, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Convert ids in the order of `sources` to stored ids: own splits first, previous ones behind them."""
        num_splits = len(self.plan.splits)
        num_sources = np.uint64(num_splits + len(self.plan.previous_splits))
        splits = ((ids >> np.uint64(32)) + np.uint64(num_splits)) % num_sources
        return splits << np.uint64(32) | ids & np.uint64(0xFFFF_FFFF)


def sum_counters(folder: PhaseFolder, task_ids: Iterable[str]) -> Counters:
    """Return the sum of the counters in the done-records of tasks."""
    records = folder.records(task_ids)
    return Counters.sum(
        Counters.from_json(record["counters"]) for record in records if "counters" in record
    )


def plan_stages(
    config: RunConfig, section: str, stages: Iterable[type[Stage[Any]]]
) -> tuple[StageSpec, ...]:
    """Return those of some stages that are on in a section of the config, with their settings."""
    specs: list[StageSpec] = []
    for stage in stages:
        settings = config.find_stage_settings(section, stage.name)
        if settings is not None:
            specs.append(StageSpec(stage, settings))
    return tuple(specs)


def list_model_references(specs: Iterable[StageSpec]) -> list[str]:
    """Return the models and files that stages load, each once, in their order."""
    found: dict[str, None] = {}
    for spec in specs:
        found |= dict.fromkeys(spec.stage.required_files(spec.settings))
    return list(found)
