"""What flows through a task: each document reaches the sink once, with its fate; a fault costs its own document."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fastwarc.warc import ArchiveIterator
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import TaskFailed
from pipeline.execution.task import FLOW, SinkStep, Source, StageStep, apply, check_attempts
from pipeline.planning.stage_spec import StageSpec
from pipeline.runs.phase_folder import PendingOutput, PhaseFolder
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

WORK = "000000-00ff00ff"


class Pipe(io.RawIOBase):
    """A stream that cannot be sought in, on which FastWARC panics."""

    def readable(self) -> bool:
        return True


def fault(kind: str) -> None:
    """Raise what a text asks for."""
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
    """Nothing to set."""


class Touchy(Stage[NoSettings]):
    """Counts characters, drops `unwanted`, and raises whenever a batch holds a text that begins with `raise`."""

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
        return drop_where(
            with_columns(batch, {"num_chars": lengths}),
            pc.equal(texts, "unwanted"),
            "touchy.unwanted",
            value=lengths,
        )


class Later(Stage[NoSettings]):
    """Drops what is left of `unwanted` and `late`, and takes a little time."""

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
            batch.column("text"), value_set=pa.array(["unwanted", "late"], pa.large_string())
        )
        twice = pc.multiply(batch.column("num_chars"), 2)
        return drop_where(
            with_columns(batch, {"num_chars_twice": twice}), is_late, "later.late", limit=7
        )


class Losing(Stage[NoSettings]):
    """Loses the first document of every batch."""

    name = "losing"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([DOCUMENT.field("text")])

    def apply(self, batch: pa.Table) -> Outcome:
        return keep_all(batch.slice(1))


class Closed(Losing):
    """Cannot be opened."""

    name = "closed"

    def open(self) -> None:
        raise ValueError("the model is of another make")


def documents(texts: Sequence[str], first: int = 0) -> pa.Table:
    """A batch as a reader yields it."""
    n = len(texts)
    columns: dict[str, Any] = {field.name: pa.nulls(n, field.type) for field in DOCUMENT}
    columns |= {
        "doc_id": pa.array(range(first, first + n), pa.uint64()),
        "text": pa.array(texts, pa.large_string()),
    }
    columns["url"] = pa.array([f"https://example.org/{i}" for i in range(first, first + n)])
    return pa.table(columns, schema=DOCUMENT)


@dataclass
class Recorder:
    """A sink within a real commit, which can be told where to fail."""

    folder: PhaseFolder
    fails_at: str = ""
    kept: list[pa.Table] = field(default_factory=list[pa.Table])
    dropped: list[pa.Table] = field(default_factory=list[pa.Table])
    report: Mapping[str, Any] | None = None
    _task: PendingOutput | None = None

    @contextlib.contextmanager
    def __call__(self, task_id: str) -> Generator[Recorder]:
        self._fail("enter")
        with self.folder.commit(task_id) as self._task:
            self._task.path("rows.txt").write_text("half")
            yield self
            self._fail("commit")

    def _fail(self, place: str) -> None:
        if self.fails_at == place:
            raise OSError(f"no room to {place}")

    def add(self, kept: pa.Table, dropped: pa.Table) -> None:
        self._fail("add")
        self.kept.append(kept)
        self.dropped.append(dropped)

    def close(self, report: Mapping[str, Any]) -> None:
        self._fail("close")
        self.report = report

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Kept rows as they came, dropped ones by document."""
        kept = [row for table in self.kept for row in table.to_pylist()]
        return kept, sorted(
            (row for table in self.dropped for row in table.to_pylist()),
            key=lambda row: row["doc_id"],
        )


@dataclass
class Flow:
    """A source of batches, stages, and a recorder as steps."""

    folder: PhaseFolder
    batches: Sequence[pa.Table]
    stages: Sequence[type[Stage[Any]]] = (Touchy, Later)
    max_error_share: float = 1.0
    source_fails: bool = False
    recorder: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.folder)

    def read(self, _: str) -> Generator[pa.Table, None, dict[str, Any]]:
        yield from self.batches
        if self.source_fails:
            raise OSError("the file ends here")
        return {"records": 7}

    def steps(self) -> list[Callable[[Any], Any]]:
        source = Source("read", DOCUMENT, self.read, self.folder.attempt, max_attempts=3)
        schema, steps = source.flow_schema, list[Callable[[Any], Any]]([source])
        for stage in self.stages:
            spec = StageSpec(stage, NoSettings())
            schema = spec.output_schema(schema)
            steps.append(StageStep(spec, schema))
        return [*steps, SinkStep("write", self.recorder, self.max_error_share)]

    def run(
        self, preview: Callable[[Iterator[pa.Table]], Iterable[pa.Table]] = iter
    ) -> list[dict[str, Any]]:
        """The results of one unit; `recut` cuts and merges the tables between any two steps."""
        source, *others = self.steps()
        flow: Iterator[Any] = iter(source(WORK))
        for step in others:
            flow = _through(step, preview(flow))
        return list(flow)


def _through(step: Callable[[Any], Any], tables: Iterable[Any]) -> Iterator[Any]:
    for table in tables:
        out = step(table)
        yield from [out] if isinstance(out, pa.Table) else out


@pytest.fixture
def folder(tmp_path: Path) -> PhaseFolder:
    made = PhaseFolder(open_store(tmp_path / "extract-00ff"))
    made.begin()
    return made


def is_untouched(folder: PhaseFolder) -> bool:
    """Nothing done, nothing in place, nothing left aside."""
    return not [
        path
        for path in Path(folder.root).rglob("*")
        if path.is_file() and ".attempts" not in path.parts
    ]


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
def test_a_document_that_makes_a_stage_raise_costs_itself_alone(
    folder: PhaseFolder, kind: str, detail: str
) -> None:
    """It is dropped as `<stage>.error_<kind>` with the exception's words; all others of the batch are kept."""
    texts = ["a", "bb", f"raise {kind}", "ccc", "unwanted"]
    flow = Flow(folder, [documents(texts)])
    (result,) = flow.run()
    assert "failed" not in result
    kept, dropped = flow.recorder.rows()
    assert [(row["doc_id"], row["num_chars"]) for row in kept] == [(0, 1), (1, 2), (3, 3)]
    assert [(row["doc_id"], row["reason"]) for row in dropped] == [
        (2, f"touchy.error_{kind}"),
        (4, "touchy.unwanted"),
    ]
    assert dropped[0]["detail"].startswith(detail)


def test_several_faults_in_a_batch_cost_their_documents(folder: PhaseFolder) -> None:
    """Every document that raises is found, wherever it stands, also when none is sound."""
    texts = ["raise value", "a", "raise memory", "raise other", "b", "raise value"]
    flow = Flow(folder, [documents(texts), documents(["raise value"] * 3, first=6)])
    flow.run()
    kept, dropped = flow.recorder.rows()
    assert [row["doc_id"] for row in kept] == [1, 4]
    assert [row["reason"].removeprefix("touchy.error_") for row in dropped] == [
        *("value", "memory", "other", "value"),
        *["value"] * 3,
    ]


def test_an_interruption_is_not_a_documents_fault(folder: PhaseFolder) -> None:
    """Ctrl-C goes through."""
    with pytest.raises(KeyboardInterrupt):
        Flow(folder, [documents(["a", "raise interrupt"])]).run()


def test_a_row_dropped_early_keeps_its_reason_and_no_text(folder: PhaseFolder) -> None:
    """Later stages do not see it; the sink gets its reason, value, limit, url and length, and nothing large."""
    flow = Flow(folder, [documents(["unwanted", "late", "kept"])])
    flow.run()
    kept, (early, late) = flow.recorder.rows()
    assert [row["text"] for row in kept] == ["kept"]
    assert (early["reason"], early["value"], early["limit"]) == ("touchy.unwanted", 8.0, None)
    assert (late["reason"], late["value"], late["limit"]) == ("later.late", None, 7.0)
    for row, text in ((early, "unwanted"), (late, "late")):
        assert row["dropped_chars"] == len(text)
        assert row["url"].startswith("https://")
        assert text not in {value for name, value in row.items() if name != "reason"}
        assert row["text"] is None
    assert late["num_chars"] == 4  # what was annotated before stays with it
    assert early["num_chars_twice"] is None


def test_kept_rows_have_the_stages_columns_and_no_others(folder: PhaseFolder) -> None:
    """The sink's kept rows are the documents without the flow's own columns."""
    flow = Flow(folder, [documents(["a"])])
    flow.run()
    assert flow.recorder.kept[0].schema.names == [*DOCUMENT.names, "num_chars", "num_chars_twice"]
    assert set(FLOW.names) <= set(flow.recorder.dropped[0].schema.names)


# ---- units ----


def test_the_closing_row_collects_seconds_and_the_report(folder: PhaseFolder) -> None:
    """Every step's time stands under its name in the one result; the source's report reaches the sink."""
    flow = Flow(folder, [documents(["a"], first=i) for i in range(5)])
    (result,) = flow.run()
    assert result["task_id"] == WORK
    assert list(result["seconds"]) == ["read", "touchy", "later", "write"]
    assert result["seconds"]["later"] >= 5 * 0.001
    assert result["cpu_seconds"].keys() == result["seconds"].keys()
    assert flow.recorder.report == {"records": 7}
    assert folder.done() == {WORK}


def test_a_unit_without_documents_is_done(folder: PhaseFolder) -> None:
    """No batches, or empty ones, are no fault."""
    for batches in ([], [documents([])]):
        assert "failed" not in Flow(folder, batches).run()[0]


def test_a_stage_that_loses_a_document_fails_its_unit(folder: PhaseFolder) -> None:
    """The accounts are checked at each call; nothing of the unit is committed, and the message names the stage."""
    stage = Losing(NoSettings())
    with pytest.raises(
        DocumentCountError, match="stage losing: 2 documents went in, 1 were kept and 0 dropped"
    ):
        apply(stage, documents(["a", "b"]))
    (result,) = Flow(
        folder, [documents(["a", "b"]), documents(["c"], first=2)], [Touchy, Losing, Later]
    ).run()
    assert result["failed"].startswith(
        "stage losing: DocumentCountError: stage losing: 2 documents went in"
    )
    assert is_untouched(folder)


def test_a_stage_that_cannot_be_opened_fails_its_unit(folder: PhaseFolder) -> None:
    """The message names the stage and the cause."""
    (result,) = Flow(folder, [documents(["a"])], [Closed]).run()
    assert result == {
        "task_id": WORK,
        "failed": "stage closed: ValueError: the model is of another make",
    }


@pytest.mark.parametrize("batches", [0, 2])
def test_a_source_that_fails_fails_its_unit(folder: PhaseFolder, batches: int) -> None:
    """At once or half-way: one result, nothing committed, nothing aside."""
    flow = Flow(folder, [documents(["a"], first=i) for i in range(batches)], source_fails=True)
    assert flow.run() == [{"task_id": WORK, "failed": "OSError: the file ends here"}]
    assert is_untouched(folder)


@pytest.mark.parametrize("place", ["enter", "add", "close", "commit"])
def test_a_sink_that_fails_fails_its_unit(folder: PhaseFolder, place: str) -> None:
    """Wherever it fails: one result, nothing committed, nothing aside."""
    flow = Flow(folder, [documents(["a"]), documents(["b"], first=1)])
    flow.recorder.fails_at = place
    assert flow.run() == [{"task_id": WORK, "failed": f"OSError: no room to {place}"}]
    assert is_untouched(folder)


def test_the_first_failure_is_told(folder: PhaseFolder) -> None:
    """A stage's failure is not hidden by that of a later stage."""
    (result,) = Flow(folder, [documents(["a"])], [Losing, Closed]).run()
    assert result["failed"].startswith("stage losing")


def test_a_failed_unit_leaves_no_trace_in_the_next(folder: PhaseFolder) -> None:
    """The same steps do the next unit as if they were new."""
    flow = Flow(folder, [documents(["raise value", "a"])], max_error_share=0.1)
    source, *others = flow.steps()

    def results(task_id: str) -> list[dict[str, Any]]:
        tables: Iterator[Any] = iter(source(task_id))
        for step in others:
            tables = _through(step, tables)
        return list(tables)

    (first,) = results("000000-aaaaaaaa")
    assert "failed" in first
    flow.batches = [documents(["b"], first=9)]
    (second,) = results("000001-bbbbbbbb")
    assert "failed" not in second
    assert folder.done() == {"000001-bbbbbbbb"}


@pytest.mark.parametrize(
    ("share", "fails"), [(0.5, False), (0.49, True), (0.0, True), (1.0, False)]
)
def test_more_errors_than_the_share_fail_the_unit(
    folder: PhaseFolder, share: float, fails: bool
) -> None:
    """The share is of all documents of the unit, over all its batches."""
    batches = [documents(["raise value", "a"]), documents(["raise other", "unwanted"], first=2)]
    (result,) = Flow(folder, batches, max_error_share=share).run()
    assert result.get("failed", "").startswith("2 of 4 documents made a stage raise") == fails
    assert is_untouched(folder) == fails


def test_a_unit_is_refused_after_its_last_attempt(folder: PhaseFolder) -> None:
    """Attempts that ended without a word have killed their process."""
    for _ in range(3):
        folder.attempt(WORK)
    (result,) = Flow(folder, [documents(["a"])]).run()
    assert result["failed"].startswith("the process that worked on it died 3 times")
    with pytest.raises(TaskFailed):
        check_attempts(2, 3)
    check_attempts(3, 3)


# ---- however tables are cut ----

TEXTS = st.sampled_from(["kept", "a", "unwanted", "late", "raise value", "raise memory"])


@given(
    batches=st.lists(st.lists(TEXTS, max_size=5), max_size=4),
    cuts=st.lists(st.lists(st.integers(0, 25), max_size=8), min_size=3, max_size=3),
    lost=st.booleans(),
)
def test_cuts_between_steps_make_no_difference(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[str]],
    cuts: list[list[int]],
    lost: bool,
) -> None:
    """Ray merges and cuts blocks as it likes, in the order of their rows: the sink gets the same, or the unit fails."""
    firsts = itertools.accumulate((len(texts) for texts in batches), initial=0)
    tables = [documents(texts, first) for texts, first in zip(batches, firsts, strict=False)]
    chain = (Touchy, Losing) if lost else (Touchy, Later)
    plain, preview = (
        Flow(PhaseFolder(open_store(tmp_path_factory.mktemp("flow"))), tables, chain)
        for _ in range(2)
    )
    turns = iter(cuts)
    (one,), (other,) = plain.run(), preview.run(lambda flow: _recut(flow, next(turns)))
    assert ("failed" in one) == ("failed" in other)
    assert one.get("seconds", {}).keys() == other.get("seconds", {}).keys()
    if "failed" not in one:
        assert plain.recorder.rows() == preview.recorder.rows()
        assert plain.recorder.report == preview.recorder.report


def _recut(flow: Iterator[pa.Table], cuts: Sequence[int]) -> Iterator[pa.Table]:
    """The same rows in other tables, some of them empty."""
    whole = pa.concat_tables(list(flow))
    ends = [*sorted(cut for cut in cuts if cut <= whole.num_rows), whole.num_rows]
    for start, end in zip([0, *ends], ends, strict=False):
        yield whole.slice(start, end - start)


def test_marks_are_json(folder: PhaseFolder) -> None:
    """The opening row names the unit; the closing one too, with the report."""
    source, *_ = Flow(folder, [documents(["a"])]).steps()
    tables = list(source(WORK))
    marks = [
        json.loads(mark) for table in tables for mark in table.column("mark").to_pylist() if mark
    ]
    assert marks[0] == {"open": WORK}
    assert marks[1].keys() == {"close", "report", "seconds", "cpu_seconds"}
    assert (marks[1]["close"], marks[1]["report"]) == (WORK, {"records": 7})


def test_a_file_that_is_edited_is_opened_again(tmp_path: Path) -> None:
    """Within one process too: a block list gains a line between two runs, and the second run knows it."""
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


def test_a_model_that_is_not_what_the_run_was_planned_with_is_refused(tmp_path: Path) -> None:
    """On another machine under the same path: its unit fails, with both digests; the planned one is taken."""
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
