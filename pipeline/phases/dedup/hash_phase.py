"""What the phases have in common that compare rows of all splits by their hashes.

A task reads one partition of hash space from the files of all splits, part by part (pipeline/runs/exchange.py). Most of
them find something for each split:

    class ExactDedup(FindingPhase):
        compared, bytes_per_row = (ExactHashes.contents, "contents"), 64
        found = Artifact("found.arrow", COPIES, has_segments=True)

        def find(self, part):                # -> the rows of each own split
            ...
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.artifact import Artifact
from pipeline.phases.phase import PartitionPhase
from pipeline.runs.exchange import (
    ExchangedFiles,
    Partition,
    SegmentWriter,
    count_partitions,
    join_batches,
    name_partitions,
    read_parts,
)
from pipeline.runs.phase_folder import PhaseFolder
from stages.contract import Counters

# Called with the index and the rows of each file; returns the rows to use.
Prepare: TypeAlias = Callable[[int, pa.RecordBatch], pa.RecordBatch]


class SplitHashes(PartitionPhase):
    """A phase that writes the hashes of each split, which a `HashPhase` compares."""

    task_kind = "splits"
    depends_on_all_splits = False

    def task_ids(self) -> list[str]:
        """Return the keys of the splits."""
        return [split.key for split in self.plan.splits]


class HashPhase(PartitionPhase):
    """A phase with one task per partition of hash space.

    Class attributes:
        compared: the files by hash that it reads, of this run and of previous runs, and
            the counter of their rows.
        bytes_per_row: memory that a row takes.
    """

    compared: ClassVar[tuple[Artifact, str]]
    bytes_per_row: ClassVar[int]

    def task_ids(self) -> list[str]:
        """Return the names of all partitions."""
        return name_partitions(self.num_partitions)

    @cached_property
    def num_partitions(self) -> int:
        """The number of partitions; as many as there were, once the phase is complete."""
        if self.folder.is_complete():
            return self.folder.summary()["task_ids"]
        artifact, counter = self.compared
        counts = self.counts(artifact.phase, counter)
        memory_mb = self.config.engine.get_memory_mb(self.name)
        return count_partitions(sum(counts), self.bytes_per_row, memory_mb, len(counts))

    def list_sources(self) -> list[tuple[PhaseFolder, list[str]]]:
        """Return the folder of the files and the keys of the splits, of each previous run and then of this run."""
        name = self.compared[0].phase
        previous = [
            (run.folder(name), [split.key for split in run.splits])
            for run in self.plan.previous
        ]
        return [*previous, (self.plan.folder(name), [s.key for s in self.plan.splits])]

    def choose_files(self, task_id: str) -> tuple[ExchangedFiles, Prepare | None]:
        """Return the files that a task reads, and what is done with the rows of each."""
        del task_id
        return ExchangedFiles(self.list_sources(), self.compared[0]), None

    def read_parts(self, task_id: str) -> Iterator[Partition]:
        """Yield the partition of a task, part by part; see `exchange.read_parts`."""
        files, prepare = self.choose_files(task_id)
        return read_parts(
            files,
            task_id.rpartition("-")[2],
            bytes_per_row=self.bytes_per_row,
            memory_mb=self.config.engine.get_memory_mb(self.name),
            scratch=lambda: self.folder.scratch(task_id),
            prepare=prepare,
        )


class FindingPhase(HashPhase):
    """A phase that finds something for each split.

    Class attributes:
        found: the files that the tasks write, with one segment per split.
    """

    found: ClassVar[Artifact]

    @abstractmethod
    def find(self, part: Partition) -> Sequence[pa.RecordBatch]:
        """Return what is found in a part of a partition, as `found`, for each split of this run."""

    def count(self, segment: pa.RecordBatch) -> dict[str, int]:
        """Return counters of what was found for a split."""
        del segment
        return {}

    def run(self, task_id: str) -> None:
        """Read one partition of all splits, and write what is found for each split."""
        per_part = [self.find(part) for part in self.read_parts(task_id)]
        counters = Counters()
        with self.folder.commit(task_id) as output:
            assert self.found.schema is not None
            name = self.found.file_name(task_id)
            with SegmentWriter(output, name, self.found.schema) as file:
                for of_split in zip(*per_part, strict=True):
                    segment = join_batches(self.found.schema, of_split)
                    file.write(segment)
                    for counter, number in self.count(segment).items():
                        counters.add(counter, number)
            output.record = {"counters": counters.to_json()}

    def read_found(self, split: InputSplit) -> pa.RecordBatch:
        """Return what was found for a split, in the order of the tasks."""
        files = ExchangedFiles([(self.folder, self.task_ids())], self.found)
        rows = files.read_rows(files.find(split.index, split.index + 1))
        return join_batches(files.schema, list(rows))


def mask_rows(
    part: Partition, find: Callable[[Sequence[slice]], NDArray[np.bool_]]
) -> list[NDArray[np.bool_]]:
    """Return a value for each row of each file of a part, from those of each chunk."""
    masks = [np.zeros(rows.num_rows, np.bool_) for rows in part.files]
    for chunk in part.chunks():
        part.place(masks, chunk, find(chunk))
    return masks
