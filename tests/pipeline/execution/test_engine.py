"""Tasks that fail are named, the others are committed, and the next run repeats only those that failed."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.errors import RunAborted
from pipeline.execution.engine import PhaseFinished, PhaseStarted, TaskFinished, run
from pipeline.execution.inline import Engine, InlineEngine
from pipeline.execution.task import TaskResult, run_task
from pipeline.phases import registry
from pipeline.phases.extract import Extract
from pipeline.phases.phase import Phase
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder
from storage.errors import StorageError
from tests.conftest import wet_record
from tests.faults._small_disk import PAGE_BYTES, find_missing_tmpfs, mount_disk
from tests.pipeline.conftest import Small
from tests.pipeline.execution.deadly import DEADLY_STAGES, KILL
from tests.processes import run_python
from tests.stages.examples import tiny_lm

TEXTS = (
    "first page",
    "second page, raise value",
    "third page",
    "fourth page, raise memory",
    "fifth, raise other",
)


def write_wet(path: Path, texts: Sequence[str]) -> Path:
    """Write a WET file with these pages and return its path."""
    url = f"https://example.org/{path.stem}"
    records = [
        wet_record(f"{url}/{i}", f"Title\n{path.stem}: {text}")
        for i, text in enumerate(texts)
    ]
    path.write_bytes(b"".join(records))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files. On some documents of the first file, a stage raises an error."""
    return [
        write_wet(tmp_path / f"{name}.warc.wet", texts)
        for name, texts in (
            ("a", TEXTS),
            ("b", ["sound page", "another page"]),
            ("c", ["last page"]),
        )
    ]


@pytest.fixture
def deadly_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let extract use the stage that raises."""
    monkeypatch.setattr(Extract, "stages", DEADLY_STAGES)


def read_decisions(folder: PhaseFolder, task_id: str) -> list[dict[str, Any]]:
    return pq.read_table(folder.path(f"{task_id}.decisions.parquet")).to_pylist()


def failure_lines(error: pytest.ExceptionInfo[RunAborted]) -> list[str]:
    """Return the lines of the message without the first (the count) and the last (the remedy)."""
    first, *lines, last = str(error.value).splitlines()
    assert "tasks failed; the others are done" in first
    assert last.startswith("fix the cause and run the same command again")
    return lines


def list_tasks(events: Sequence[object], phase: str = "extract") -> list[str]:
    return [
        e.task_id
        for e in events
        if isinstance(e, TaskFinished) and e.phase == phase and e.failed is None
    ]


# ---- documents ----


def test_documents_on_which_a_stage_raises_are_dropped(
    small: Small, files: list[Path], deadly_chain: None
) -> None:
    """The decision of such a document has the kind and the message of the error; the others are kept."""
    found, _ = small.run(
        input={"files": [str(path) for path in files]},
        engine={"advanced": {"max_error_share": 1}},
    )
    dropped = read_decisions(found.folder("extract"), found.splits[0].key)
    assert [
        (row["doc_id"] & 0xFFFFFFFF, row["decision"], row["detail"]) for row in dropped
    ] == [
        (1, "length.error_value", "ValueError: bad value"),
        (3, "length.error_memory", "MemoryError: "),
        (4, "length.error_other", "KeyError: 'key'"),
    ]
    assert found.folder("extract").summary()["counters"]["counts"]["documents_kept"] == 5


def test_a_task_with_too_many_of_these_documents_fails(
    small: Small, files: list[Path], deadly_chain: None
) -> None:
    """Above `max_error_share` no output of the task is committed, and the message counts the documents."""
    with pytest.raises(RunAborted) as caught:
        small.run(
            input={"files": [str(path) for path in files]},
            engine={"advanced": {"max_error_share": 0.5}},
        )
    (line,) = failure_lines(caught)
    assert line.startswith("  000000-")
    assert "3 of 5 documents made a stage raise an error" in line


# ---- tasks ----


def test_failed_tasks_are_named_and_only_they_are_repeated(
    small: Small, files: list[Path]
) -> None:
    """A file that cannot be read fails its task. After it is restored, the next run does this task only."""
    plan = small.plan(input={"files": [str(path) for path in files]})
    for path in (files[0], files[2]):
        path.rename(path.with_suffix(".away"))
    with pytest.raises(RunAborted) as caught:
        list(run(plan))
    assert str(caught.value).startswith("phase extract: 2 of 3 tasks failed")
    lines = failure_lines(caught)
    failed = [line.split(":")[0].strip() for line in lines]
    assert failed == [plan.splits[0].key, plan.splits[2].key]
    assert all(
        "No such file" in line and str(path) in line
        for line, path in zip(lines, files[::2], strict=True)
    )
    for path in (files[0], files[2]):
        path.with_suffix(".away").rename(path)
    events = list(run(plan))
    assert list_tasks(events) == [plan.splits[0].key, plan.splits[2].key]
    assert isinstance(events[-1], PhaseFinished)
    log = [
        json.loads(line)
        for line in (Path(plan.run_dir) / "log.jsonl").read_text().splitlines()
    ]
    assert [
        e["task_id"] for e in log if e["event"] == "TaskFinished" and e["failed"]
    ] == failed


def test_a_message_shows_ten_failures_and_counts_the_others(
    small: Small, tmp_path: Path
) -> None:
    """Of twelve failures, the message shows ten and says that there are two more."""
    paths = [
        write_wet(tmp_path / f"{i:02d}.warc.wet", ["a page of text"]) for i in range(12)
    ]
    plan = small.plan(input={"files": [str(path) for path in paths]})
    for path in paths:
        path.unlink()
    with pytest.raises(RunAborted) as caught:
        list(run(plan))
    assert len(failure_lines(caught)) == 11
    assert failure_lines(caught)[-1] == "  ... and 2 more"


@pytest.mark.skipif(find_missing_tmpfs() is not None, reason="needs a small disk")
def test_a_full_disk_ends_the_run_with_one_line(small: Small, tmp_path: Path) -> None:
    """Its other tasks would fail too, for the same cause."""
    paths = [
        write_wet(tmp_path / f"{i:02d}.warc.wet", ["a page of text"]) for i in range(12)
    ]
    plan = small.plan(input={"files": [str(path) for path in paths]})
    disk = Path(plan.config.run_dir)
    disk.mkdir()
    with (
        mount_disk(disk, 16 * PAGE_BYTES),
        pytest.raises((RunAborted, StorageError)) as caught,
    ):
        list(run(plan))
    assert str(caught.value).count("No space left on device") == 1
    assert len(str(caught.value).splitlines()) == 1


def test_a_partition_that_fails_is_named(small: Small) -> None:
    """A file of hashes that cannot be opened fails the partition that reads it, with the cause."""
    plan = small.plan()
    with contextlib.closing(run(plan)) as events:  # pyright: ignore[reportArgumentType] - it is a generator
        next(e for e in events if isinstance(e, PhaseFinished) and e.phase == "extract")
    hashes = plan.folder("extract").path(f"{plan.splits[0].key}.distinct_hashes.arrow")
    hashes.unlink()
    hashes.mkdir()
    message = (
        r"phase paragraph_dedup: 1 of 1 [^\n]+\n  g000-p000of001: StorageError: .*hashes"
    )
    with pytest.raises(RunAborted, match=message):
        list(run(plan))


def test_a_partition_whose_processes_died_too_often_fails(small: Small) -> None:
    """After `max_attempts` deaths, the task is not tried again."""
    plan = small.plan()
    list(run(plan))
    phase = registry.find_phase("paragraph_dedup")(plan)
    phase.folder.begin()
    attempt = partial(run_task, phase, "g000-p000of001", plan.config.engine)
    results = [attempt(num_deaths=number) for number in range(4)]
    assert [result.failed is None for result in results] == [True, True, True, False]
    assert [result.num_deaths for result in results] == [0, 1, 2, 3]
    assert "died 3 times" in (results[3].failed or "")


@pytest.mark.parametrize(
    ("cutoffs", "why"),
    [
        ("model", "records no cutoffs for percentiles"),
        ("{}/cutoff.csv", "no row for percentile 60, found 30"),
    ],
)
def test_a_phase_that_cannot_start_is_a_failure(
    small: Small, cutoffs: str, why: str
) -> None:
    """The message has the phase and the cause, here cutoffs that the model or the table lacks."""
    (small.folder / "lm").mkdir()
    (small.folder / "cutoff.csv").write_text(",en\n30,340\n")
    models = {"perplexity": {"models": {"en": str(tiny_lm(small.folder / "lm"))}}}
    select = {"perplexity": {"cutoffs": cutoffs.format(small.folder)}}
    with pytest.raises(RunAborted, match=rf"phase select cannot start: .*{why}"):
        small.run(annotate=models, select=select)


def test_a_task_without_a_result_is_a_failure(small: Small) -> None:
    """A phase is not complete when the engine returns nothing for one of its tasks."""
    plan = small.plan()
    inline = InlineEngine(plan.config.engine)

    class Forgetful(Engine):
        def run_tasks(self, phase: Phase, task_ids: Sequence[str]) -> Iterator[TaskResult]:
            return inline.run_tasks(phase, task_ids[1:])

    with pytest.raises(RunAborted, match="returned neither a result nor a failure"):
        list(run(plan, Forgetful(plan.config.engine)))
    assert not plan.folder("extract").is_complete()


def test_phases_start_in_order_and_complete_phases_are_skipped(small: Small) -> None:
    """A first run starts each phase that is on once; a second run finds all of them complete."""
    plan = small.plan()
    phases = [phase.name for phase in registry.list_enabled(plan.config)]
    started = [event.phase for event in run(plan) if isinstance(event, PhaseStarted)]
    assert started == phases
    assert "exact_dedup" not in phases
    again = list(run(plan, InlineEngine(plan.config.engine)))
    assert [(e.phase, e.was_complete) for e in again if isinstance(e, PhaseFinished)] == [
        (phase, True) for phase in phases
    ]
    assert len(again) == len(phases)


def test_a_run_with_more_or_fewer_files_reuses_extract(
    small: Small, files: list[Path]
) -> None:
    """Only an added file is extracted; the summary counts the documents of the files of this run."""
    two = {"files": [str(path) for path in files[1:]]}
    small.run(input=two)
    found, events = small.run(input={"files": [*two["files"], str(files[0])]})
    assert list_tasks(events) == [found.splits[2].key]
    counts = found.folder("extract").summary()["counters"]["counts"]
    assert counts["documents"] == 8
    found, events = small.run(input=two)
    assert list_tasks(events) == []
    assert found.folder("extract").summary()["counters"]["counts"]["documents"] == 3


# ---- Ray ----


def is_printed_by_ray(line: str) -> bool:
    """Return whether Ray reports a dead worker in this line. Ray has no switch for these reports."""
    return "(raylet" in line or "worker died" in line.lower() or "OOM" in line


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_a_process_that_dies_fails_only_its_task_on_ray(
    small: Small, files: list[Path], tmp_path: Path
) -> None:
    """A stage kills its process twice: the task fails by name, and the other tasks are committed.

    Apart from the report of Ray on the dead workers, the terminal shows our lines only.
    """
    log = tmp_path / "killed"
    write_wet(files[1], ["sound page", f"{KILL}{log}"])
    sections: dict[str, Any] = {"input": {"files": [str(path) for path in files]}}
    small.config(
        **sections,
        engine={
            "kind": "ray",
            "workers": 2,
            "advanced": {"max_attempts": 2, "max_error_share": 1},
        },
    )
    code = "from tests.pipeline.execution.deadly import main; main()"
    done = run_python(
        "-c", code, "run", str(small.path), env=os.environ | {"COLUMNS": "200"}, timeout=600
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = RunFolder.open(tmp_path / "run")
    assert log.read_bytes() == b".."
    assert found.folder("extract").list_done() == {found.splits[0].key, found.splits[2].key}
    why = f"{found.splits[1].key}: the process that ran this task died 2 times: a document or a model crashes it, or memory runs out (then lower engine.workers)"
    lines = [line for line in done.stdout.splitlines() if not is_printed_by_ray(line)]
    # Slow tasks may still report progress after it.
    lines.remove(f"extract {why.replace(':', ' failed:', 1)}")
    first, *progress = lines
    assert first == "extract: 3 tasks"
    for line in progress:
        assert re.fullmatch(r"extract: \d/3 tasks, .+", line), line
    assert done.stderr.splitlines() == [
        "phase extract: 1 of 3 tasks failed; the others are done",
        f"  {why}",
        "fix the cause and run the same command again: it runs the failed tasks and those after them",
    ]
    on_ray = read_decisions(found.folder("extract"), found.splits[0].key)
    assert [row["decision"] for row in on_ray] == [
        "length.error_value",
        "length.error_memory",
        "length.error_other",
    ]
    found, events = small.run(**sections)
    assert list_tasks(events) == [found.splits[1].key]


# ---- progress ----


def test_documents_are_reported_while_tasks_run_in_this_process(
    small: Small, files: list[Path]
) -> None:
    """Each task reports up to its number of documents; the shares of a phase add up to 1."""
    plan = small.plan(input={"files": [str(path) for path in files]})
    reported: list[tuple[str, float]] = []
    extracted: list[TaskFinished] = []
    for event in run(plan, on_documents=lambda *report: reported.append(report)):
        if isinstance(event, TaskFinished):
            if event.num_documents:
                assert reported == sorted(reported)
                assert reported[-1] == (event.task_id, event.num_documents)
            reported.clear()
            if event.phase == "extract":
                extracted.append(event)
    assert sum(event.num_documents for event in extracted) == len(TEXTS) + 3
    assert sum(event.share for event in extracted) == pytest.approx(1.0)
    smallest = min(extracted, key=lambda event: event.share)
    assert smallest.num_documents == 1  # the file with one page
