"""Damaged files of a run: each is named, and made again where that is possible."""

from __future__ import annotations

import gc
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli import make_program
from pipeline.config import RunConfig
from pipeline.execution.engine import PhaseStarted, run
from pipeline.planning.plan import make_plan
from pipeline.runs.event_log import LOG, read_events
from pipeline.runs.phase_folder import DAMAGED
from pipeline.runs.run_folder import RunFolder
from pipeline.terminal import DONE, FAILED, WRONG_USAGE
from storage import open_store
from storage.errors import DamagedFile
from tests.conftest import wet_record
from tests.e2e.conftest import digests


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, lid_file: Path
) -> Iterator[RunConfig]:
    """The config of a finished run of two input splits, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    for name in "ab":
        pages = [
            wet_record(f"https://example.org/{name}/{word}", f"Title\n{name} {word}. " * 9)
            for word in ("alpha", "beta", "gamma")
        ]
        (folder / f"{name}.warc.wet").write_bytes(b"".join(pages))
    tree: dict[str, Any] = {
        "run_dir": str(folder / "run"),
        "input": {"files": [str(folder / "*.wet")]},
        "extract": {"length": {"min_chars": 10}},
        "annotate": {"language": {"model": str(lid_file)}},
        "select": {"language": None},
        "tokenize": {"tokenizer": str(tiny_tokenizer)},
        "engine": {"kind": "inline"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORPUSMILL_CACHE", str(folder / "cache"))
        config = RunConfig.model_validate(tree)
        list(run(make_plan(config)))
        yield config


@pytest.fixture
def copied(finished: RunConfig, tmp_path: Path) -> RunConfig:
    """The config of a copy of the finished run, which a test may damage."""
    shutil.copytree(finished.run_dir, tmp_path / "run", symlinks=True)
    return finished.model_copy(update={"run_dir": str(tmp_path / "run")})


def list_started(config: RunConfig) -> dict[str, tuple[int, int]]:
    """Run again; return phase -> its tasks, and how many of them were done."""
    started = [event for event in run(make_plan(config)) if isinstance(event, PhaseStarted)]
    return {event.phase: (event.num_tasks, event.num_done) for event in started}


def remove_aside(run_dir: str) -> dict[str, str]:
    """Return the digests of all outputs, without the files that were set aside."""
    return {k: v for k, v in digests(Path(run_dir)).items() if f"/{DAMAGED}/" not in k}


# ---- made again ----


@pytest.mark.parametrize("damage", [b"", b'{"counters"', b"[]"])
def test_a_task_with_a_damaged_record_is_not_done(
    copied: RunConfig, finished: RunConfig, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """In a phase that was interrupted, it runs again, and the bytes are the same."""
    folder = RunFolder.open(copied.run_dir).folder("extract")
    first, second, *_ = sorted(folder.list_done())
    folder.path("phase.json").unlink()
    folder.path(f"done/{first}.json").write_bytes(damage)
    with caplog.at_level(logging.WARNING, "pipeline"):
        assert list_started(copied)["extract"] == (2, 1)
    assert f"done/{first}.json: found" in caplog.text
    assert folder.path(f"{DAMAGED}/{first}.json").read_bytes() == damage
    assert remove_aside(copied.run_dir) == remove_aside(finished.run_dir)
    assert folder.record(second)["task_id"] == second


def test_the_record_of_another_task_is_damaged(copied: RunConfig) -> None:
    """A record that was copied to another name does not stand for that task."""
    folder = RunFolder.open(copied.run_dir).folder("extract")
    first, second, *_ = sorted(folder.list_done())
    shutil.copy(folder.path(f"done/{first}.json"), folder.path(f"done/{second}.json"))
    with pytest.raises(DamagedFile, match=rf"task_id: found '{first}', wanted '{second}'"):
        folder.record(second)


@pytest.mark.parametrize("damage", [b"", b'{"counters"', b'{"task_ids": "x"}'])
@pytest.mark.parametrize("phase", ["extract", "paragraph_dedup", "write_shards"])
def test_a_damaged_summary_is_added_up_again(
    copied: RunConfig, finished: RunConfig, phase: str, damage: bytes
) -> None:
    """From the done-records: no task runs again, and the bytes are the same."""
    folder = RunFolder.open(copied.run_dir).folder(phase)
    folder.path("phase.json").write_bytes(damage)
    started = list_started(copied)
    assert [*started] == [phase]
    num_tasks, num_done = started[phase]
    assert num_tasks == num_done
    assert digests(Path(copied.run_dir)) == digests(Path(finished.run_dir))


def test_damaged_lines_of_the_log_are_left_out_and_counted(
    copied: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """The other events are read. The warning names the first damaged line."""
    path = Path(copied.run_dir) / LOG
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 9
    damaged = [lines[0], b"\xff\xfe\n", lines[2][:30] + b"\n", b"3\n", *lines[4:]]
    path.write_bytes(b"".join(damaged) + b'{"event": "incompl')
    with caplog.at_level(logging.WARNING, "pipeline"):
        events = list(read_events(open_store(copied.run_dir)))
    assert len(events) == len(lines) - 3
    assert f"{path}:2: found 3 bytes that are not JSON" in caplog.text
    assert "left out: 3" in caplog.text
    assert list_started(copied) == {}


def test_a_damaged_run_json_is_written_again(copied: RunConfig) -> None:
    """Commands that need it name it; a run replaces it."""
    path = Path(copied.run_dir) / "run.json"
    path.write_bytes(b"{")
    with pytest.raises(DamagedFile, match=r"run\.json: found 1 bytes that are not JSON"):
        RunFolder.open(copied.run_dir)
    assert list_started(copied) == {}
    assert RunFolder.open(copied.run_dir).has_finished("write_shards")


# ---- commands ----

COMMANDS = {
    "status": [],
    "report": [],
    "explain": ["0"],
    "verify": [],
    "preview": ["--set", "select.length.min_chars=90"],
    "export": ["OUT"],
}
FILES = [
    "run.json",
    "log.jsonl",
    "extract-*/phase.json",
    "extract-*/done/000000-*.json",
    "select-*/phase.json",
    "tokenize-*/done/000001-*.json",
    "write_shards-*/phase.json",
    "write_shards-*/manifest.json",
    "write_shards-*/shard-000000.idx",
]


# webdataset leaves the last shard open.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [b"", b"{}", b'{"counters": 3}\n'])
def test_no_command_ends_with_a_traceback(
    copied: RunConfig, name: str, damage: bytes, tmp_path: Path
) -> None:
    """It works without the damaged file, or names what is damaged or missing."""
    (path,) = Path(copied.run_dir).glob(name)
    path.write_bytes(damage)
    for command, arguments in COMMANDS.items():
        words = [str(tmp_path / "out") if word == "OUT" else word for word in arguments]
        result = CliRunner().invoke(make_program(), [command, copied.run_dir, *words])
        assert result.exception is None or isinstance(result.exception, SystemExit), command
        assert result.exit_code in (DONE, FAILED, WRONG_USAGE), command
        assert result.exit_code == DONE or result.stderr, command
    gc.collect()
