"""Running one task of a phase: read, apply the stages, write, commit. Both engines call `run_task`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import pyarrow as pa

from pipeline.config import EngineConfig
from pipeline.errors import TaskFailed
from pipeline.execution.document_timeout import DocumentTimeout
from pipeline.execution.task_stats import StepTimer, peak_mb, reset_peak_memory, worker_name
from pipeline.phases.phase import PartitionPhase, Phase, SplitPhase
from pipeline.phases.stage_spec import StageSpec
from pipeline.runs.verified_file import Damage, DamagedOutput
from stages.contract import DROPPED, Counters, DocumentCountError, Outcome, Stage
from terminal_output import format_count

# A document on which a stage raises is dropped as `<stage>.error_<kind>`. The first
# matching class counts.
ERROR_KINDS: Mapping[type[Exception], str] = {
    UnicodeError: "unicode",
    MemoryError: "memory",
    ValueError: "value",
    RuntimeError: "runtime",
    Exception: "other",
}

# A document that took longer than engine.document_timeout_s is dropped as `<stage>.too_slow`.
TOO_SLOW = "too_slow"

# The kind of a panic in a library written in Rust: its exception is not an `Exception`.
PANIC = "panic"


# Called with the id of a running task, and the number of documents that it has processed so far.
# A batch that has passed one of k stages counts as a k-th of its documents.
OnDocuments = Callable[[str, float], None]


@dataclass(frozen=True)
class TaskResult:
    """What a task took, or why it failed. It is small: the outputs are files.

    Attributes:
        task_id: the id of the task.
        seconds: wall time per step: `read`, the names of the stages, `write`; or the name of the phase.
        cpu_seconds: CPU time of this process per step.
        peak_mb: peak of the resident memory (MiB); None where the system does not report it.
        worker: host and process that ran it.
        num_documents: documents that it read; 0 for a task that is no input split.
        num_deaths: how often a process that ran it has died.
        failed: the error, if it failed; nothing is committed then.
        damage: the damaged output of another task that made it fail.
    """

    task_id: str
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    cpu_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    peak_mb: float | None = None
    worker: str = ""
    num_documents: int = 0
    num_deaths: int = 0
    failed: str | None = None
    damage: Damage | None = None

    def to_json(self) -> str:
        """Return the result as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the result that `to_json` wrote."""
        values = json.loads(text)
        damage = values.pop("damage")
        return cls(**values, damage=None if damage is None else Damage(**damage))


def run_task(
    phase: Phase,
    task_id: str,
    settings: EngineConfig,
    on_documents: OnDocuments | None = None,
    runs: Iterator[None] | None = None,
    num_deaths: int = 0,
) -> TaskResult:
    """Run one task and commit its outputs.

    Faults of the task's own data or models come back as `TaskResult.failed`, so that the other tasks can go on.

    Args:
        phase: the phase.
        task_id: the id of the task.
        settings: the engine's section of the config.
        on_documents: called after each stage of each batch.
        runs: runs the task, as the next of several.
        num_deaths: how often a process that ran the task has died.
    """
    timer, num_documents = StepTimer(), 0
    reset_peak_memory()
    try:
        phase.folder.check_shared()
        timeout = DocumentTimeout(phase, task_id, settings)
        check_deaths(settings.advanced.max_attempts, num_deaths - timeout.num_notes)
        if isinstance(phase, PartitionPhase):
            with timer.step(phase.name):
                next(runs or phase.run_each([task_id]))
        else:
            assert isinstance(phase, SplitPhase)
            num_documents = _run_stages(
                phase, task_id, settings, timer, timeout, on_documents or _ignore
            )
    except BaseException as error:
        if not is_data_fault(error):
            raise
        return TaskResult(
            task_id,
            worker=worker_name(),
            num_deaths=num_deaths,
            failed=format_error(error),
            damage=error.damage if isinstance(error, DamagedOutput) else None,
        )
    times = timer.seconds, timer.cpu_seconds
    peak, worker = peak_mb(), worker_name()
    return TaskResult(task_id, *times, peak, worker, num_documents, num_deaths)


def _run_stages(
    phase: SplitPhase,
    task_id: str,
    settings: EngineConfig,
    timer: StepTimer,
    timeout: DocumentTimeout,
    on_documents: OnDocuments,
) -> int:
    """Run a task of a phase with stages, and return the number of documents."""
    chain = phase.stage_schemas()
    errors = _ErrorCount(settings.advanced.max_error_share)
    with timer.wrap("write", phase.folder.commit(task_id)) as output:
        with timer.step("write"):
            writer = phase.create_writer(task_id, output)
            writer.page_timeout = timeout.limit_pages()
        with contextlib.closing(phase.read(task_id, writer)) as batches:
            for read in timer.iterate("read", batches):
                batch = conform(read, phase.schema)
                num_before, num_rows = errors.num_documents, batch.num_rows
                errors.num_documents += num_rows
                for position, (spec, schema) in enumerate(chain, start=1):
                    if not batch.num_rows:
                        break
                    with timer.step(spec.stage.name), _naming(spec):
                        stage = spec.opened(phase.model_digests)
                        outcome = _apply_watched(stage, batch, timeout)
                    with timer.step("write"):
                        errors.add(outcome.dropped)
                        writer.add_dropped(batch, outcome.dropped)
                        writer.counters += outcome.counters
                    batch = conform(outcome.kept, schema)
                    on_documents(task_id, num_before + num_rows * position / len(chain))
                with timer.step("write"):
                    writer.add_kept(batch)
                on_documents(task_id, errors.num_documents)
        errors.check()
        with timer.step("write"):
            writer.close()
            output.record = {"counters": writer.counters.to_json()}
    return errors.num_documents


def _ignore(_task_id: str, _number: float) -> None:
    """Report no progress."""


@contextlib.contextmanager
def _naming(spec: StageSpec) -> Generator[None]:
    """Put the name of the stage in front of an error."""
    try:
        yield
    except BaseException as error:
        if not is_data_fault(error):
            raise
        raise TaskFailed(f"stage {spec.stage.name}: {format_error(error)}") from error


@dataclass
class _ErrorCount:
    """Counts the documents on which a stage raised."""

    max_share: float
    num_documents: int = 0
    num_errors: int = 0
    first: str = ""

    def add(self, dropped: pa.Table) -> None:
        for reason, detail in zip(
            *dropped.select(["reason", "detail"]).columns, strict=True
        ):
            if ".error_" in reason.as_py():
                self.first = self.first or f"{reason}: {detail}"
                self.num_errors += 1

    def check(self) -> None:
        """Raise `TaskFailed` if there were more than the share that the config allows."""
        if self.num_errors > self.max_share * self.num_documents:
            raise TaskFailed(
                f"{self.num_errors} of {self.num_documents} documents made a stage raise an "
                f"error, more than engine.advanced.max_error_share ({self.max_share:g}) allows; "
                f"the first: {self.first}"
            )


def apply_stage(stage: Stage[Any], batch: pa.Table) -> Outcome:
    """Apply a stage to a batch, and drop the documents on which it raises.

    A batch on which the stage raises is halved until the failing document is alone.

    Raises:
        DocumentCountError: the stage lost, doubled or reordered documents.
    """
    try:
        outcome = stage.apply(batch)
    except BaseException as error:
        if isinstance(error, DocumentCountError) or not is_data_fault(error):
            raise
        if batch.num_rows == 1:
            return _drop_failing(stage, batch, error)
        return _apply_to_halves(stage, batch)
    outcome.check(batch, stage.name)
    return outcome


def _drop_failing(stage: Stage[Any], batch: pa.Table, error: BaseException) -> Outcome:
    """Drop the only document of a batch, on which the stage raised."""
    kinds = [kind for cls, kind in ERROR_KINDS.items() if isinstance(error, cls)]
    kind = kinds[0] if kinds else PANIC
    return _drop(stage, batch, f"error_{kind}", detail=format_error(error))


def _drop(stage: Stage[Any], batch: pa.Table, fault: str, **columns: Any) -> Outcome:
    """Drop the only document of a batch, with the reason `<stage>.<fault>`."""
    row: dict[str, Any] = dict.fromkeys(DROPPED.names) | {
        "doc_id": batch.column("doc_id")[0].as_py(),
        "reason": f"{stage.name}.{fault}",
        **columns,
    }
    dropped = pa.Table.from_pylist([row], schema=DROPPED)
    return Outcome(_output_schema(stage, batch).empty_table(), dropped)


def _apply_to_halves(stage: Stage[Any], batch: pa.Table) -> Outcome:
    middle = batch.num_rows // 2
    first = apply_stage(stage, batch.slice(0, middle))
    second = apply_stage(stage, batch.slice(middle))
    return _join(stage, batch, [first, second])


def _apply_watched(stage: Stage[Any], batch: pa.Table, timeout: DocumentTimeout) -> Outcome:
    """Apply a stage with a limit on its time, without documents that exceeded it before."""
    outcomes: list[Outcome] = []
    for part in timeout.divide(stage.name, batch):
        first, last = (part.column("doc_id")[row].as_py() for row in (0, -1))
        limit_s = timeout.find_limit(stage.name, first)
        if limit_s is not None:
            outcomes.append(_drop(stage, part, TOO_SLOW, limit=float(limit_s)))
            continue
        with timeout.watch(stage.name, first, last):
            outcomes.append(apply_stage(stage, part))
    return outcomes[0] if len(outcomes) == 1 else _join(stage, batch, outcomes)


def _join(stage: Stage[Any], batch: pa.Table, outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome for a batch from those for its parts."""
    # A part whose documents were all dropped has the declared columns, maybe in another order.
    schema = _output_schema(stage, batch)
    kept = pa.concat_tables([conform(outcome.kept, schema) for outcome in outcomes])
    dropped = pa.concat_tables([outcome.dropped for outcome in outcomes])
    counters = sum((outcome.counters for outcome in outcomes), Counters())
    return Outcome(kept, dropped, counters)


def _output_schema(stage: Stage[Any], batch: pa.Table) -> pa.Schema:
    return StageSpec(type(stage), stage.settings).output_schema(batch.schema)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of `schema`, in its order and types. Columns that are missing become null."""
    if table.schema.equals(schema):
        return table
    columns: list[pa.ChunkedArray | pa.Array] = []
    for wanted in schema:
        if wanted.name in table.column_names:
            columns.append(table.column(wanted.name).cast(wanted.type))
        else:
            columns.append(pa.nulls(table.num_rows, wanted.type))
    return pa.table(columns, schema=schema)


def check_deaths(max_attempts: int, num_deaths: int) -> None:
    """Raise `TaskFailed` if as many attempts as are allowed have killed the process of the task."""
    if num_deaths >= max_attempts:
        raise TaskFailed(
            f"the process that ran this task died {format_count(num_deaths, 'time')}: "
            f"a document or a model crashes it, or memory runs out (then lower engine.workers)"
        )


def is_data_fault(error: BaseException) -> bool:
    """Return whether an error is the fault of one document or task; else (Ctrl-C, exit) the run must stop.

    FastWARC, resiliparse, tokenizers and gigatoken are written in Rust. Their panics arrive as `PanicException`,
    which derives from BaseException (docs of pyo3::panic).
    """
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"


def format_error(error: BaseException) -> str:
    """Return an error as one line for reports."""
    return (
        str(error) if isinstance(error, TaskFailed) else f"{type(error).__name__}: {error}"
    )
