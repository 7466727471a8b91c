"""A task reaches every document once, with one decision; a failure costs its own document or its own task."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fastwarc.warc import ArchiveIterator
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import EngineConfig
from pipeline.errors import TaskFailed
from pipeline.execution.task import TaskResult, apply_stage, check_deaths, run_task
from pipeline.phases.phase import SplitPhase
from pipeline.phases.stage_spec import StageSpec
from pipeline.runs.phase_folder import PendingOutput, PhaseFolder
from pipeline.runs.split_output import SplitWriter
from stages.contract import (
    DOCUMENT,
    DocumentCountError,
    Outcome,
    Settings,
    Stage,
    drop_where,
    keep_all,
    with_columns,
)
from storage import open_store

TASK = "000000-00ff00ff"


class Pipe(io.RawIOBase):
    """A stream that cannot seek. FastWARC panics on it."""

    def readable(self) -> bool:
        return True


def fault(kind: str) -> None:
    """Raise the error that a text asks for."""
    if kind == "unicode":
        b"\xff".decode()
    elif kind == "memory":
        raise MemoryError
    elif kind == "value":
        int("many")
    elif kind == "runtime":
        raise RuntimeError("out of order")
    elif kind == "other":
        _ = {}["absent"]
    elif kind == "panic":
        ArchiveIterator(Pipe())  # pyright: ignore[reportArgumentType] - what it cannot read is the point
    elif kind == "interrupt":
        raise KeyboardInterrupt


class NoSettings(Settings):
    """No settings."""


class Touchy(Stage[NoSettings]):
    """Count characters, drop `unwanted`, and raise if a text begins with `raise`."""

    name = "touchy"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([DOCUMENT.field("text")])
    adds: ClassVar[pa.Schema] = pa.schema([pa.field("num_chars", pa.int64())])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"touchy.unwanted": "The text says that it is unwanted."}
    )

    def apply(self, batch: pa.Table) -> Outcome:
        texts = batch.column("text")
        for text in texts.to_pylist():
            if text.startswith("raise "):
                fault(text.removeprefix("raise "))
        lengths = pc.cast(pc.utf8_length(texts), pa.int64())
        outcome = drop_where(
            with_columns(batch, {"num_chars": lengths}),
            pc.equal(texts, "unwanted"),
            "touchy.unwanted",
            value=lengths,
        )
        outcome.counters.add("seen", batch.num_rows)
        return outcome


class Later(Stage[NoSettings]):
    """Drop the remaining `unwanted` and `late` texts, and use a little time."""

    name = "later"
    version = 1
    needs: ClassVar[pa.Schema] = Touchy.adds
    adds: ClassVar[pa.Schema] = pa.schema([pa.field("num_chars_twice", pa.int64())])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"later.late": "The text was dropped late."}
    )

    def apply(self, batch: pa.Table) -> Outcome:
        time.sleep(0.001)
        is_late = pc.is_in(
            batch.column("text"),
            value_set=pa.array(["unwanted", "late"], pa.large_string()),
        )
        twice = pc.multiply(batch.column("num_chars"), 2)
        return drop_where(
            with_columns(batch, {"num_chars_twice": twice}), is_late, "later.late", limit=7
        )


class Losing(Stage[NoSettings]):
    """Lose the first document of every batch."""

    name = "losing"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([DOCUMENT.field("text")])

    def apply(self, batch: pa.Table) -> Outcome:
        return keep_all(batch.slice(1))


class Closed(Losing):
    """A stage that cannot be opened."""

    name = "closed"

    def open(self) -> None:
        raise ValueError("the model is of another make")


def documents(texts: Sequence[str], first: int = 0) -> pa.Table:
    """Return a batch as a reader yields it."""
    n = len(texts)
    columns: dict[str, Any] = {field.name: pa.nulls(n, field.type) for field in DOCUMENT}
    columns |= {
        "doc_id": pa.array(range(first, first + n), pa.uint64()),
        "text": pa.array(texts, pa.large_string()),
    }
    columns["url"] = pa.array([f"https://example.org/{i}" for i in range(first, first + n)])
    return pa.table(columns, schema=DOCUMENT)


class Recorder(SplitWriter):
    """A writer that keeps all batches in memory and can fail."""

    def __init__(self, output: PendingOutput, task_id: str, phase: RecordedPhase) -> None:
        super().__init__(output, task_id)
        self.phase = phase
        phase.fail_at("create")
        output.path("rows.txt").write_text("half")

    def add_dropped(self, batch: pa.Table, dropped: pa.Table) -> None:
        self.phase.fail_at("add")
        super().add_dropped(batch, dropped)

    def write_kept(self, batch: pa.Table) -> None:
        self.phase.fail_at("add")
        self.phase.kept.append(batch)

    def close(self) -> None:
        self.phase.fail_at("close")
        super().close()


class RecordedPhase(SplitPhase):
    """A phase with the batches and stages of a test, and a real phase folder."""

    name = "extract"
    schema = DOCUMENT

    def __init__(
        self,
        folder: PhaseFolder,
        batches: Sequence[pa.Table],
        stages: Sequence[type[Stage[Any]]] = (Touchy, Later),
        fails_at: str = "",
    ) -> None:
        self._folder = folder
        self.batches = batches
        self.specs = tuple(StageSpec(stage, NoSettings()) for stage in stages)
        self.fails_at = fails_at
        self.kept: list[pa.Table] = []

    @property
    def folder(self) -> PhaseFolder:
        return self._folder

    @property
    def model_digests(self) -> Mapping[str, str]:
        return {}

    def stage_specs(self) -> tuple[StageSpec, ...]:
        return self.specs

    def read(self, task_id: str, writer: SplitWriter) -> Generator[pa.Table]:
        del task_id
        yield from self.batches
        writer.counters.add("records", 7)
        self.fail_at("read")

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        return Recorder(output, task_id, self)

    def fail_at(self, place: str) -> None:
        if self.fails_at == place:
            raise OSError(f"no room to {place}")

    def run(self, max_error_share: float = 1.0, task_id: str = TASK) -> TaskResult:
        """Run one task."""
        return run_task(self, task_id, engine(max_error_share))

    def rows(self) -> list[dict[str, Any]]:
        """The kept documents."""
        return [row for table in self.kept for row in table.to_pylist()]

    def decisions(self, task_id: str = TASK) -> list[dict[str, Any]]:
        """The dropped documents, by id."""
        return pq.read_table(self.folder.path(f"{task_id}.decisions.parquet")).to_pylist()


def engine(max_error_share: float = 1.0) -> EngineConfig:
    """Return the settings of a task."""
    return EngineConfig.model_validate({"advanced": {"max_error_share": max_error_share}})


@pytest.fixture
def folder(tmp_path: Path) -> PhaseFolder:
    made = PhaseFolder(open_store(tmp_path / "extract-00ff"))
    made.begin()
    return made


def is_untouched(folder: PhaseFolder) -> bool:
    """Return whether no output, record or temporary file exists."""
    return not [path for path in Path(folder.root).rglob("*") if path.is_file()]


# ---- documents ----


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        (
            "unicode",
            "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
        ("memory", "MemoryError: "),
        ("value", "ValueError: invalid literal for int() with base 10: 'many'"),
        ("runtime", "RuntimeError: out of order"),
        ("other", "KeyError: 'absent'"),
        ("panic", "PanicException: "),
    ],
)
def test_a_document_on_which_a_stage_raises_is_dropped(
    folder: PhaseFolder, kind: str, detail: str
) -> None:
    """Its reason is `<stage>.error_<kind>` and its detail the exception; the rest of the batch is kept."""
    texts = ["a", "bb", f"raise {kind}", "ccc", "unwanted"]
    phase = RecordedPhase(folder, [documents(texts)])
    assert phase.run().failed is None
    kept = [(row["doc_id"], row["num_chars"]) for row in phase.rows()]
    assert kept == [(0, 1), (1, 2), (3, 3)]
    dropped = phase.decisions()
    assert [(row["doc_id"], row["decision"]) for row in dropped] == [
        (2, f"touchy.error_{kind}"),
        (4, "touchy.unwanted"),
    ]
    assert dropped[0]["detail"].startswith(detail)


def test_every_failing_document_of_a_batch_is_found(folder: PhaseFolder) -> None:
    """One, several or all documents of a batch fail, also the first and the last."""
    texts = ["raise value", "a", "raise memory", "raise other", "b", "raise value"]
    batches = [documents(texts), documents(["raise value"] * 3, first=6)]
    phase = RecordedPhase(folder, batches)
    phase.run()
    assert [row["doc_id"] for row in phase.rows()] == [1, 4]
    kinds = [row["decision"].removeprefix("touchy.error_") for row in phase.decisions()]
    assert kinds == [*("value", "memory", "other", "value"), *["value"] * 3]


def test_an_interrupt_is_not_the_fault_of_a_document(folder: PhaseFolder) -> None:
    """Ctrl-C is raised, and nothing is committed."""
    with pytest.raises(KeyboardInterrupt):
        RecordedPhase(folder, [documents(["a", "raise interrupt"])]).run()
    assert is_untouched(folder)


def test_a_dropped_document_has_its_decision_and_no_further_stage(
    folder: PhaseFolder,
) -> None:
    """Later stages do not see it. Its decision has reason, value, limit, url and the length of its text."""
    phase = RecordedPhase(folder, [documents(["unwanted", "late", "kept"])])
    phase.run()
    assert [row["text"] for row in phase.rows()] == ["kept"]
    early, late = phase.decisions()
    assert (early["decision"], early["value"], early["limit"]) == (
        "touchy.unwanted",
        8.0,
        None,
    )
    assert (late["decision"], late["value"], late["limit"]) == ("later.late", None, 7.0)
    for row, text in ((early, "unwanted"), (late, "late")):
        assert row["num_chars"] == len(text)
        assert row["url"].startswith("https://")
        assert text not in {value for name, value in row.items() if name != "decision"}


def test_kept_documents_have_the_columns_that_the_stages_declare(
    folder: PhaseFolder,
) -> None:
    """In the order of the stages."""
    phase = RecordedPhase(folder, [documents(["a"])])
    phase.run()
    assert phase.kept[0].schema.names == [*DOCUMENT.names, "num_chars", "num_chars_twice"]


# ---- tasks ----


def test_a_result_has_the_times_of_each_step(folder: PhaseFolder) -> None:
    """Wall and CPU seconds by step, in order; counters end in the done-record."""
    result = RecordedPhase(folder, [documents(["a"], first=i) for i in range(5)]).run()
    assert result.task_id == TASK
    assert sorted(result.seconds) == ["later", "read", "touchy", "write"]
    assert result.seconds["later"] >= 5 * 0.001
    assert result.cpu_seconds.keys() == result.seconds.keys()
    assert folder.list_done() == {TASK}
    counts = folder.record(TASK)["counters"]["counts"]
    assert counts == {"documents": 5, "documents_kept": 5, "records": 7, "seen": 5}


def test_counters_of_stages_are_summed_over_the_batches(folder: PhaseFolder) -> None:
    """A batch that is halved, because a document fails, is counted once."""
    texts = ["a", "raise value", "bb", "unwanted"]
    RecordedPhase(folder, [documents(texts), documents(["c"], first=4)]).run()
    counts = folder.record(TASK)["counters"]["counts"]
    assert counts["seen"] == 4
    assert counts["documents"] == 5
    assert counts["documents_kept"] == 3
    assert counts["dropped.touchy.unwanted"] == 1
    assert counts["dropped_chars.touchy.unwanted"] == 8


def test_a_result_survives_its_json(folder: PhaseFolder) -> None:
    """A result equals its copy that was sent as JSON from a Ray worker."""
    result = RecordedPhase(folder, [documents(["a"])]).run()
    assert TaskResult.from_json(result.to_json()) == result


def test_a_task_without_documents_is_done(folder: PhaseFolder) -> None:
    """No batch, or an empty one, is not a failure."""
    for number, batches in enumerate(([], [documents([])])):
        assert RecordedPhase(folder, batches).run(task_id=f"task-{number}").failed is None


def test_a_stage_that_loses_a_document_fails_its_task(folder: PhaseFolder) -> None:
    """The documents are counted at each call; nothing is committed, and the message names the stage."""
    stage = Losing(NoSettings())
    with pytest.raises(
        DocumentCountError,
        match="stage losing: 2 documents went in, 1 were kept and 0 dropped",
    ):
        apply_stage(stage, documents(["a", "b"]))
    batches = [documents(["a", "b"]), documents(["c"], first=2)]
    result = RecordedPhase(folder, batches, [Touchy, Losing, Later]).run()
    assert result.failed is not None
    assert result.failed.startswith(
        "stage losing: DocumentCountError: stage losing: 2 documents went in"
    )
    assert is_untouched(folder)


def test_a_stage_that_cannot_be_opened_fails_its_task(folder: PhaseFolder) -> None:
    """The message names the stage and the cause."""
    result = RecordedPhase(folder, [documents(["a"])], [Closed]).run()
    assert result.failed == "stage closed: ValueError: the model is of another make"


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize("place", ["create", "read", "add", "close"])
def test_a_task_that_fails_anywhere_commits_nothing(
    folder: PhaseFolder, place: str, batches: int
) -> None:
    """Before the first document or later: the result has the error, and no file is left."""
    tables = [documents(["a"], first=i) for i in range(batches)]
    phase = RecordedPhase(folder, tables, fails_at=place)
    result = phase.run()
    if place == "add" and not batches:
        assert result.failed is None
        return
    assert (result.task_id, result.failed) == (TASK, f"OSError: no room to {place}")
    assert is_untouched(folder)


def test_a_failed_task_leaves_no_trace_in_the_next(folder: PhaseFolder) -> None:
    """The same phase runs the next task as if it were the first."""
    phase = RecordedPhase(folder, [documents(["raise value", "a"])])
    assert phase.run(max_error_share=0.1, task_id="000000-aaaaaaaa").failed is not None
    phase.batches = [documents(["b"], first=9)]
    assert phase.run(max_error_share=0.1, task_id="000001-bbbbbbbb").failed is None
    assert folder.list_done() == {"000001-bbbbbbbb"}
    assert folder.record("000001-bbbbbbbb")["counters"]["counts"]["documents"] == 1


@pytest.mark.parametrize(
    ("share", "fails"), [(0.5, False), (0.49, True), (0.0, True), (1.0, False)]
)
def test_more_errors_than_the_share_fail_the_task(
    folder: PhaseFolder, share: float, fails: bool
) -> None:
    """The share is of all documents of the task, over all its batches."""
    batches = [
        documents(["raise value", "a"]),
        documents(["raise other", "unwanted"], first=2),
    ]
    failed = RecordedPhase(folder, batches).run(max_error_share=share).failed or ""
    assert failed.startswith("2 of 4 documents made a stage raise") == fails
    assert is_untouched(folder) == fails


def test_a_task_is_refused_after_its_last_attempt(folder: PhaseFolder) -> None:
    """Three attempts are allowed, and each has killed its process."""
    check_deaths(3, 2)
    with pytest.raises(TaskFailed, match="the process that ran this task died 3 times"):
        check_deaths(3, 3)


def test_a_worker_without_the_folder_of_the_driver_fails_the_task(tmp_path: Path) -> None:
    """It is named before the task reads anything, and nothing is created."""
    elsewhere = PhaseFolder(open_store(tmp_path / "extract-00ff"))
    result = RecordedPhase(elsewhere, [documents(["a"])]).run()
    assert "extract-00ff is not on" in (result.failed or "")
    assert not list(tmp_path.iterdir())


TEXTS = st.sampled_from(["kept", "a", "unwanted", "late", "raise value", "raise memory"])


@given(
    texts=st.lists(TEXTS, max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=6),
    loses=st.booleans(),
)
def test_batch_sizes_make_no_difference(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], cuts: list[int], loses: bool
) -> None:
    """The same documents in other batches have the same decisions and counters, or the task fails alike."""
    chain = (Touchy, Losing) if loses else (Touchy, Later)
    whole = documents(texts)
    phases: list[RecordedPhase] = []
    for ends in ([], sorted(cut for cut in cuts if cut <= len(texts))):
        bounds = itertools.pairwise([0, *ends, len(texts)])
        tables = [whole.slice(start, end - start) for start, end in bounds]
        folder = PhaseFolder(open_store(tmp_path_factory.mktemp("task")))
        phases.append(RecordedPhase(folder, tables, chain))
    results = [phase.run() for phase in phases]
    assert (results[0].failed is None) == (results[1].failed is None)
    if results[0].failed is None:
        one, other = phases
        assert one.rows() == other.rows()
        assert one.decisions() == other.decisions()
        assert one.folder.record(TASK)["counters"] == other.folder.record(TASK)["counters"]


# ---- opened stages ----


def test_a_file_that_is_edited_is_opened_again(tmp_path: Path) -> None:
    """A second run in the same process reads the changed block list."""
    from stages.filters.url import Url, UrlSettings

    (tmp_path / "list").write_text("a.example\n")
    spec = StageSpec(Url, UrlSettings(domains=(str(tmp_path / "list"),)))
    batch = pa.table(
        {
            "doc_id": pa.array([1, 2], pa.uint64()),
            "url": ["https://a.example/", "https://b.example/"],
        }
    )
    first = spec.opened()
    assert first.apply(batch).kept.num_rows == 1
    assert spec.opened() is first
    (tmp_path / "list").write_text("a.example\nb.example\n")
    assert spec.opened().apply(batch).kept.num_rows == 0


def test_a_model_with_another_digest_than_planned_is_refused(
    tmp_path: Path,
) -> None:
    """The error has both digests; the planned model opens."""
    from stages.filters.url import Url, UrlSettings

    (tmp_path / "list").write_text("a.example\n")
    spec = StageSpec(Url, UrlSettings(domains=(str(tmp_path / "list"),)))
    planned = spec.digests()
    assert spec.opened(planned).name == "url"
    (tmp_path / "list").write_text("b.example, longer\n")
    with pytest.raises(
        TaskFailed,
        match=r"is not what the run was planned with: sha256 \w{64}, wanted \w{64}; let all",
    ):
        spec.opened(planned)
