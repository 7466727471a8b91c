"""What all phases have in common: how they name their work, stream a unit through stages, and keep accounts.

Promises: whatever rows come into a sink are counted and, where they were dropped, written to the ledger, before the
phase sees them; Parquet files do not depend on how rows were batched on their way.
Leaves to others: what a phase reads and writes (the other files here), the fused steps (flow.py).
"""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.execution.task import StageSpec
from pipeline.planning.input_splits import InputSplit
from pipeline.planning.plan import RunPlan
from pipeline.runs.phase_folder import PendingOutput, PhaseFolder
from stages.contract import Counters

ROWS_PER_GROUP = 512
"""Rows of a Parquet row group: fixed, so that files do not depend on how rows were batched on their way."""

DECISION = pa.schema(
    [
        pa.field("doc_id", pa.uint64(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("decision", pa.string(), nullable=False),  # "kept", or the reason
        pa.field("value", pa.float64()),
        pa.field("limit", pa.float64()),
        pa.field("detail", pa.string()),
        pa.field("num_chars", pa.int64()),  # of the text when the fate was decided
        pa.field("language", pa.string()),
        pa.field("bucket", pa.string()),
        pa.field(
            "representative", pa.uint64()
        ),  # of a copy or near-duplicate: the doc_id of the one in its place
    ]
)


class Phase(ABC):
    """One phase of a plan."""

    name: ClassVar[str]

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan

    @property
    def config(self) -> RunConfig:
        """The run's config."""
        return self.plan.config

    @property
    def folder(self) -> PhaseFolder:
        """Where this phase commits."""
        return self.plan.folder(self.name)

    @abstractmethod
    def task_ids(self) -> list[str]:
        """Names of all the pieces of work, in order. To be asked when the parents are done."""

    def sum_of_records(self) -> Counters:
        """The sum of the tallies of all done-records."""
        return self.folder.counters(self.task_ids())

    def counters(self) -> Counters:
        """The same, of a phase that is complete."""
        return Counters.from_json(self.folder.summary()["counters"])

    def finish(self) -> None:
        """What is left to do, once, when all work is done."""


class SplitPhase(Phase):
    """A phase whose work is a unit's documents, streamed through stages."""

    schema: ClassVar[pa.Schema]  # of the tables that `read` yields

    def task_ids(self) -> list[str]:
        """One per unit."""
        return [split.key for split in self.plan.splits]

    def stages(self) -> tuple[StageSpec, ...]:
        """The stages between `read` and `write`."""
        return self.plan.phase(self.name).stages

    def split(self, task_id: str) -> InputSplit:
        """The unit behind a piece of work."""
        return self.plan.splits[int(task_id.split("-", maxsplit=1)[0])]

    @abstractmethod
    def read(self, task_id: str) -> Generator[pa.Table, None, dict[str, Any]]:
        """The unit's documents in input order; returns what there is to report of the unit as a whole."""

    @abstractmethod
    def sink(self, task_id: str, output: PendingOutput) -> SplitSink:
        """What takes the rows that have passed the stages."""

    @contextlib.contextmanager
    def write(self, task_id: str) -> Generator[SplitSink]:
        """The sink, within the commit that makes its outputs whole."""
        with self.folder.commit(task_id) as output:
            sink = self.sink(task_id, output)
            yield sink
            output.record = {"counters": sink.counters.to_json()}


class PartitionPhase(Phase):
    """A phase whose work is a range of a keyed space, over the whole crawl.

    Where it looks into earlier runs too, it puts their units before its own, in `places`: of what is equal the first
    stays, and they were there first. Ids by place are what it works with; `doc_ids` makes of them what others read.
    """

    @abstractmethod
    def run(self, task_id: str) -> None:
        """Do one piece of work and commit it."""

    def sources(self, phase: str) -> list[tuple[PhaseFolder, str]]:
        """A parent's folder and the unit's name, of all earlier units and then of all units."""
        previous = [(split.run.folder(phase), split.key) for split in self.plan.previous_splits]
        return previous + [(self.plan.folder(phase), split.key) for split in self.plan.splits]

    def counts(self, phase: str, name: str) -> list[int]:
        """What a parent has counted of each unit, in the same order."""
        folders = [
            run.folder(phase).records(split.key for split in run.splits)
            for run in self.plan.previous
        ]
        folders.append(self.plan.folder(phase).records(split.key for split in self.plan.splits))
        return [record["counters"]["counts"].get(name, 0) for record in itertools.chain(*folders)]

    def doc_ids(self, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Of ids by place: units of this run have their own numbers, those of earlier runs the numbers behind them."""
        num_splits = len(self.plan.splits)
        splits = ((ids >> np.uint64(32)) + np.uint64(num_splits)) % np.uint64(
            num_splits + len(self.plan.previous_splits)
        )
        return splits << np.uint64(32) | ids & np.uint64(0xFFFF_FFFF)


class SplitSink(ABC):
    """Common to all sinks: counts every row that comes in, and keeps the fates of those that were dropped."""

    def __init__(self, output: PendingOutput, task_id: str) -> None:
        self.output = output
        self.task_id = task_id
        self.counters: Counters = Counters()
        self._decisions: list[pa.Table] = []

    def add(self, kept: pa.Table, dropped: pa.Table) -> None:
        """Take the next rows."""
        self.counters.add("documents", kept.num_rows + dropped.num_rows)
        self.counters.add("documents_kept", kept.num_rows)
        if dropped.num_rows:
            reasons = dropped.group_by("reason", use_threads=False).aggregate(
                [("reason", "count"), ("dropped_chars", "sum")]
            )
            for row in reasons.to_pylist():
                self.counters.add(f"dropped.{row['reason']}", row["reason_count"])
                self.counters.add(f"dropped_chars.{row['reason']}", row["dropped_chars_sum"] or 0)
            self._decisions.append(
                decisions(dropped, dropped.column("reason"), dropped.column("dropped_chars"))
            )
        if kept.num_rows:
            self.take(kept)

    @abstractmethod
    def take(self, kept: pa.Table) -> None:
        """Take the next rows that are still alive."""

    def close(self, report: Mapping[str, Any]) -> None:
        """Finish the outputs."""
        del report
        table = pa.concat_tables([DECISION.empty_table(), *self._decisions]).sort_by("doc_id")
        write_parquet(table, self.output.path(f"{self.task_id}.decisions.parquet"))


def decisions(
    rows: pa.Table, decision: pa.ChunkedArray | pa.Array, num_chars: pa.ChunkedArray | pa.Array
) -> pa.Table:
    """The ledger's rows for documents whose fate is known."""
    given = {"decision": decision, "num_chars": num_chars}
    columns = [
        given.get(
            f.name,
            rows.column(f.name) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type),
        )
        for f in DECISION
    ]
    return pa.table(columns, schema=DECISION)


def write_parquet(table: pa.Table, path: Path) -> None:
    """One Parquet file in row groups of fixed size."""
    with RowGroups(path) as rows:
        rows.add(table)
        if not table.num_rows:
            rows.start(table.schema)


class RowGroups:
    """A Parquet file whose row groups have ROWS_PER_GROUP rows, however they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[pa.Table] = []
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, schema: pa.Schema) -> None:
        """Begin the file, if it is not begun."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path, schema, compression="zstd", compression_level=1
            )

    def add(self, table: pa.Table) -> None:
        """Append rows."""
        self.start(table.schema)
        self._pending.append(table)
        if sum(t.num_rows for t in self._pending) >= ROWS_PER_GROUP:
            rows = pa.concat_tables(self._pending).combine_chunks()
            whole = rows.num_rows - rows.num_rows % ROWS_PER_GROUP
            for start in range(0, whole, ROWS_PER_GROUP):
                self._writer.write_table(
                    rows.slice(start, ROWS_PER_GROUP), row_group_size=ROWS_PER_GROUP
                )
            self._pending = [rows.slice(whole)] if whole < rows.num_rows else []

    def close(self) -> None:
        """Write what is left and end the file."""
        if self._pending:
            self._writer.write_table(pa.concat_tables(self._pending).combine_chunks())
            self._pending = []
        if self._writer is not None:
            self._writer.close()


def row_groups(
    source: pa.NativeFile, columns: Sequence[str] | None = None, batch_mb: float = 0
) -> Iterator[pa.Table]:
    """A Parquet file's row groups, so many at a time that they hold `batch_mb` in memory, but one at least."""
    with source, pq.ParquetFile(source) as file:
        groups: list[pa.Table] = []
        for index in range(file.num_row_groups):
            groups.append(file.read_row_group(index, columns=columns))
            if sum(group.nbytes for group in groups) >= batch_mb * 2**20:
                yield pa.concat_tables(groups)
                groups = []
        if groups:
            yield pa.concat_tables(groups)


def flow_schema(phase: SplitPhase) -> pa.Schema:
    """The columns of a phase's documents after its last stage.

    Raises:
        ValueError: a stage does not find the columns that it needs.
    """
    schema = phase.schema
    for spec in phase.stages():
        schema = spec.output_schema(schema)
    return schema
