"""How documents, and what happened to them, travel through one task.

Promises: a phase's source, its stages and its sink become steps from tables to tables, so that the in-process engine
and Ray run the very same functions; a document that a stage dropped, or choked on, stays in the flow as a row with
its reason until the sink has written its fate; a fault of one unit never stops another.
Leaves to others: what is read, done and written (phases.py), and where the steps run (engine.py).

Beside the columns of the documents a flow table has FLOW: the reason a row was dropped for (null: alive), and `mark`,
set on the two rows that open and close a unit. The closing row collects what the steps have to say of the unit as a
whole:

    doc_id   text    language   reason                  mark
    0        null    null       null                    {"open": "000000-3fa9c1d2"}
    0        null    null       length.too_few_chars    null
    1        "..."   "en"       null                    null
    0        null    null       null                    {"close": "000000-3fa9c1d2", "report": {}, "seconds": {}, ...}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import TaskFailed
from pipeline.execution.task_stats import Stopwatch, peak_mb, reset_peak_memory, worker
from pipeline.planning.stage_spec import StageSpec
from stages.contract import DROPPED, DocumentCountError, Outcome, Stage

FLOW = pa.schema(
    [
        pa.field("reason", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("limit", pa.float64()),
        pa.field("detail", pa.string()),
        pa.field("dropped_chars", pa.int64()),  # of the text, when it was dropped
        pa.field("mark", pa.string()),
    ]
)

ERROR_KINDS: Mapping[type[Exception], str] = {
    UnicodeError: "unicode",
    MemoryError: "memory",
    ValueError: "value",
    RuntimeError: "runtime",
    Exception: "other",
}
"""A document that makes a stage raise is dropped as `<stage>.error_<kind>`: the first class here that fits."""

PANIC = "panic"
"""The kind of a bug in a library written in Rust, whose exception (pyo3's) is no `Exception`."""


class Sink(Protocol):
    """Where the rows of one unit end."""

    def add(self, kept: pa.Table, dropped: pa.Table) -> None:
        """Take the next rows: the kept ones in input order, the dropped ones as the stages let go of them."""
        ...

    def close(self, report: Mapping[str, Any]) -> None:
        """Finish the outputs; `report` is what the source returned at its end."""
        ...


Reader = Callable[[str], Generator[pa.Table, None, dict[str, Any]]]
Writer = Callable[[str], AbstractContextManager[Sink]]


@dataclass(frozen=True)
class Source:
    """First step: the name of a unit in, its documents out, between an opening and a closing row."""

    name: str
    schema: pa.Schema
    read: Reader
    attempt: Callable[[str], int]
    max_attempts: int

    @property
    def flow_schema(self) -> pa.Schema:
        """The columns that come out."""
        return pa.schema([*self.schema, *FLOW])

    def __call__(self, task_id: str) -> Iterator[pa.Table]:
        """The documents of one unit as flow tables."""
        schema = self.flow_schema
        watch = Stopwatch()
        reset_peak_memory()
        yield _mark(schema, {"open": task_id})
        try:
            check_attempts(self.max_attempts, self.attempt(task_id))
            documents = self.read(task_id)
            while True:
                try:
                    with watch:
                        table = next(documents)
                except StopIteration as end:
                    report: dict[str, Any] = end.value
                    break
                yield _conform(table, schema)
        except BaseException as error:
            if not _is_fault(error):
                raise
            yield _mark(schema, {"close": task_id, "failed": format_error(error)})
            return
        spent = {
            "seconds": {self.name: watch.seconds},
            "cpu_seconds": {self.name: watch.cpu_seconds},
        }
        yield _mark(schema, {"close": task_id, "report": report, **spent})


@dataclass(frozen=True)
class Handover:
    """First step of a later task, where a stage has tasks of its own: one unit as a whole in, its rows in batches out.

    Whoever runs the steps hands over a unit in one piece, since the steps behind this one learn from its opening and
    its closing row where it begins and ends.
    """

    name: str
    attempt: Callable[[str], int]
    max_attempts: int
    batch_bytes: int

    def __call__(self, split: pa.Table) -> Iterator[pa.Table]:
        """The same rows in the same order."""
        mark = split.column("mark")
        opening, closing = json.loads(mark[0].as_py() or "{}"), json.loads(mark[-1].as_py() or "{}")
        assert opening.get("open") == closing.get("close") is not None, (
            f"a unit came in pieces: {opening}, {closing}"
        )
        assert mark.null_count == len(mark) - 2, "two units came as one"
        try:
            check_attempts(self.max_attempts, self.attempt(f"{opening['open']}.{self.name}"))
        except TaskFailed as error:
            yield split.slice(0, 1)
            yield _mark(split.schema, {"close": opening["open"], "failed": format_error(error)})
            return
        rows = max(1, int(split.num_rows * self.batch_bytes / max(1, split.nbytes)))
        for start in range(0, split.num_rows, rows):
            yield split.slice(start, rows)


@dataclass
class StageStep:
    """A middle step: one stage over the rows that are still alive."""

    spec: StageSpec
    schema: pa.Schema  # of the flow after this step
    digests: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # of its models, where the run was planned
    _watch: Stopwatch = field(default_factory=Stopwatch)
    _failure: str | None = None

    @property
    def name(self) -> str:
        """The operator's name in Ray's plan and dashboard."""
        return self.spec.stage.name

    def __call__(self, table: pa.Table) -> pa.Table:
        """Annotate the living, note the fate of the dropped, pass everything else by."""
        alive = pc.and_(pc.is_null(table.column("reason")), pc.is_null(table.column("mark")))
        rest = _conform(table.filter(pc.invert(alive)), self.schema)
        is_opening = pc.fill_null(pc.starts_with(rest.column("mark"), '{"open"'), False)
        opening = rest.filter(is_opening)
        if opening.num_rows:
            self._watch, self._failure = Stopwatch(), None
        judged = self._judged(table.filter(alive))
        return pa.concat_tables(
            [opening, *judged, self._signed(rest.filter(pc.invert(is_opening)))]
        )

    def _judged(self, batch: pa.Table) -> list[pa.Table]:
        """The living after this stage, and the light rows of those it dropped; nothing once the unit has failed."""
        if not batch.num_rows or self._failure is not None:
            return []
        try:
            with self._watch:
                outcome = apply(self.spec.opened(self.digests), batch.drop_columns(FLOW.names))
                return [
                    _conform(outcome.kept, self.schema),
                    _decisions(batch, outcome.dropped, self.schema),
                ]
        except BaseException as error:
            if not _is_fault(error):
                raise
            self._failure = f"stage {self.name}: {format_error(error)}"
            return []

    def _signed(self, rows: pa.Table) -> pa.Table:
        """The same with this step's seconds, or its failure, in the closing row, if that is among these."""
        marks = rows.column("mark").to_pylist()
        if not marks or marks[-1] is None:
            return rows
        closing = json.loads(marks[-1])
        if "seconds" in closing:
            for key, spent in (
                ("seconds", self._watch.seconds),
                ("cpu_seconds", self._watch.cpu_seconds),
            ):
                closing[key][self.name] = closing[key].get(self.name, 0.0) + spent
        if self._failure is not None:
            closing.setdefault("failed", self._failure)
        index = rows.schema.get_field_index("mark")
        return rows.set_column(
            index, "mark", pa.array([*marks[:-1], json.dumps(closing)], pa.string())
        )


@dataclass
class SinkStep:
    """Last step: the rows of a unit into its outputs; only what the done-record says comes out."""

    name: str
    write: Writer
    max_error_share: float
    _open: AbstractContextManager[Sink] | None = None
    _sink: Sink | None = None
    _failure: str | None = None
    _first_error: str | None = None
    _rows: Counter[str] = field(default_factory=Counter[str])
    _watch: Stopwatch = field(default_factory=Stopwatch)

    def __call__(self, table: pa.Table) -> Iterator[dict[str, Any]]:
        """Take rows; at the closing one, commit and yield {"work", "seconds", ...} or {"work", "failed"}."""
        marks = [json.loads(m) for m in table.column("mark").drop_null().to_pylist()]
        for mark in marks:
            if "open" in mark:
                self._begin(mark["open"])
        with self._watch:
            rows = table.filter(pc.is_null(table.column("mark")))
            if rows.num_rows and self._failure is None:
                self._guarded(lambda: self._add(rows))
        for mark in marks:
            if "close" in mark:
                yield self._end(mark)

    def _begin(self, task_id: str) -> None:
        self._abandon()
        self._failure, self._watch = None, Stopwatch()
        self._rows.clear()
        self._first_error = None

        def enter() -> None:
            self._open = self.write(task_id)
            self._sink = self._open.__enter__()

        self._guarded(enter)

    def _add(self, rows: pa.Table) -> None:
        assert self._sink is not None
        reasons = rows.column("reason")
        kept = rows.filter(pc.is_null(reasons)).drop_columns(FLOW.names)
        dropped = rows.filter(pc.is_valid(reasons))
        errors = dropped.filter(pc.match_substring(dropped.column("reason"), ".error_"))
        self._rows.update(rows=rows.num_rows, errors=errors.num_rows)
        if errors.num_rows and self._first_error is None:
            self._first_error = f"{errors.column('reason')[0]}: {errors.column('detail')[0]}"
        self._sink.add(kept, dropped)

    def _end(self, mark: Mapping[str, Any]) -> dict[str, Any]:
        task_id, failure = mark["close"], self._failure or mark.get("failed")
        if failure is None and self._rows["errors"] > self.max_error_share * self._rows["rows"]:
            failure = (
                f"{self._rows['errors']} of {self._rows['rows']} documents made a stage raise an error, more than "
                f"engine.advanced.max_error_share allows; the first: {self._first_error}"
            )
        if failure is None:
            with self._watch:
                self._guarded(lambda: self._commit(mark))
            failure = self._failure
        if failure is not None:
            self._abandon(TaskFailed(failure))
            return {"task_id": task_id, "failed": failure}
        seconds = {**mark["seconds"], self.name: self._watch.seconds}
        return finished(
            task_id, seconds, {**mark["cpu_seconds"], self.name: self._watch.cpu_seconds}
        )

    def _commit(self, mark: Mapping[str, Any]) -> None:
        assert self._sink is not None
        assert self._open is not None
        self._sink.close(mark["report"])
        opened, self._open, self._sink = self._open, None, None
        opened.__exit__(None, None, None)

    def _abandon(self, error: Exception | None = None) -> None:
        """Throw away what an unfinished unit has written."""
        if self._open is not None:
            opened, self._open, self._sink = self._open, None, None
            cause = error or TaskFailed("the unit was begun again")
            try:
                opened.__exit__(type(cause), cause, None)
            except TaskFailed:
                return

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            if not _is_fault(error):
                raise
            self._failure = format_error(error)


def apply(stage: Stage[Any], batch: pa.Table) -> Outcome:
    """`stage.apply`, with its accounts checked; documents that make it raise are found by halving, and dropped."""
    try:
        outcome = stage.apply(batch)
    except BaseException as error:
        if isinstance(error, DocumentCountError) or not _is_fault(error):
            raise
        if batch.num_rows == 1:
            kind = next(
                (kind for cls, kind in ERROR_KINDS.items() if isinstance(error, cls)), PANIC
            )
            gone: dict[str, list[Any]] = {name: [None] for name in DROPPED.names}
            gone |= {"doc_id": batch.column("doc_id").to_pylist()}
            gone |= {"reason": [f"{stage.name}.error_{kind}"], "detail": [format_error(error)]}
            return Outcome(_after(stage, batch.slice(0, 0)), pa.table(gone, schema=DROPPED))
        middle = batch.num_rows // 2
        halves = [apply(stage, batch.slice(0, middle)), apply(stage, batch.slice(middle))]
        kept = [_conform(half.kept, _after(stage, batch.slice(0, 0)).schema) for half in halves]
        dropped = pa.concat_tables([half.dropped for half in halves])
        return Outcome(pa.concat_tables(kept), dropped, halves[0].counters + halves[1].counters)
    outcome.check(batch, stage.name)
    return outcome


def _after(stage: Stage[Any], empty: pa.Table) -> pa.Table:
    """An empty table as the stage would leave it."""
    return StageSpec(type(stage), stage.settings).output_schema(empty.schema).empty_table()


def _decisions(batch: pa.Table, dropped: pa.Table, schema: pa.Schema) -> pa.Table:
    """The dropped rows of `batch` without what is large in them, with their reasons."""
    gone = batch.take(pc.index_in(dropped.column("doc_id"), value_set=batch.column("doc_id")))
    if "text" in gone.column_names:
        chars = pc.cast(pc.utf8_length(gone.column("text")), pa.int64())
    elif "num_chars" in gone.column_names:
        chars = gone.column("num_chars")
    else:
        chars = pa.nulls(gone.num_rows, pa.int64())
    light = [
        f.name
        for f in schema
        if f.name in gone.column_names and not _is_large(f.type) and f.name not in FLOW.names
    ]
    columns = {name: gone.column(name) for name in light}
    columns |= {name: dropped.column(name) for name in ("reason", "value", "limit", "detail")}
    return _conform(pa.table({**columns, "dropped_chars": chars}), schema)


def _is_large(kind: pa.DataType) -> bool:
    return pa.types.is_large_string(kind) or pa.types.is_large_list(kind) or pa.types.is_list(kind)


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, in its order; those that are missing are null."""
    if table.schema.equals(schema):
        return table
    names = set(table.column_names)
    columns = [
        (
            table.column(f.name)
            if table.schema.field(f.name).type == f.type
            else table.column(f.name).cast(f.type)
        )
        if f.name in names
        else pa.nulls(table.num_rows, f.type)
        for f in schema
    ]
    return pa.table(columns, schema=schema)


def _mark(schema: pa.Schema, mark: Mapping[str, Any]) -> pa.Table:
    row = pa.table(
        {"doc_id": pa.array([0], pa.uint64()), "mark": pa.array([json.dumps(mark)], pa.string())}
    )
    return _conform(row, schema)


def finished(
    task_id: str, seconds: Mapping[str, float], cpu_seconds: Mapping[str, float]
) -> dict[str, Any]:
    """The result of a piece of work, with what it took by step, and the most memory that this process held in it."""
    return {
        "task_id": task_id,
        "seconds": seconds,
        "cpu_seconds": {step: round(spent, 6) for step, spent in cpu_seconds.items()},
        "peak_mb": peak_mb(),
        "worker": worker(),
    }


def check_attempts(max_attempts: int, attempt: int) -> None:
    """Raise `UnitFailed` when work is tried once too often: the tries before have each killed their process."""
    if attempt > max_attempts:
        raise TaskFailed(
            f"the process that worked on it died {attempt - 1} times; is a document or a model at fault?"
        )


def _is_fault(error: BaseException) -> bool:
    """Whether one document's or one unit's fault was raised, which must not stop the others; else: stop (Ctrl-C, exit).

    FastWARC, resiliparse, tokenizers and gigatoken are written in Rust: their panics come as `PanicException`, which
    derives from BaseException (docs of pyo3::panic).
    """
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"


def format_error(error: BaseException) -> str:
    """What the reader of a report needs of an exception."""
    return str(error) if isinstance(error, TaskFailed) else f"{type(error).__name__}: {error}"
