"""Commits are whole or not there; what has a record is done."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.runs.phase_folder import PhaseFolder, write_atomically
from tests.conftest import REPOSITORY


@pytest.fixture
def folder(tmp_path: Path) -> PhaseFolder:
    made = PhaseFolder(tmp_path / "extract-00ff")
    made.begin()
    return made


def test_a_commit_moves_outputs_into_place_and_records_them(folder: PhaseFolder) -> None:
    """The record holds size and digest of every output, and what the task had to say."""
    with folder.commit("u0") as task:
        task.path("u0.txt").write_bytes(b"text")
        task.record = {"counters": {"documents": 1}}
        assert not folder.path("u0.txt").exists()
    assert folder.path("u0.txt").read_bytes() == b"text"
    assert folder.done() == {"u0"}
    assert folder.record("u0") == {
        "task_id": "u0",
        "outputs": {"u0.txt": {"bytes": 4, "sha256": hashlib.sha256(b"text").hexdigest()}},
        "counters": {"documents": 1},
    }


def test_a_task_that_raises_leaves_nothing(folder: PhaseFolder) -> None:
    """Neither outputs, nor a record, nor anything aside."""

    class Interrupted(Exception):
        pass

    def task_id() -> None:
        with folder.commit("u0") as task:
            task.path("u0.txt").write_bytes(b"half")
            raise Interrupted

    with pytest.raises(Interrupted):
        task_id()
    assert folder.done() == frozenset()
    assert not [path for path in folder.root.rglob("*") if path.is_file()]


def test_what_a_killed_task_left_is_cleared_and_never_taken_for_done(folder: PhaseFolder) -> None:
    """Kill -9 in the middle of writing: no record, and the next `begin` removes the remains."""
    code = (
        "import sys, time; from pathlib import Path; from pipeline.runs.phase_folder import PhaseFolder\n"
        f"with PhaseFolder(Path({str(folder.root)!r})).commit('u0') as task:\n"
        "    task.path('u0.txt').write_bytes(b'half'); print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    assert folder.done() == frozenset()
    assert list(folder.root.rglob("u0.txt"))
    folder.begin()
    assert not list(folder.root.rglob("u0.txt"))


def test_a_record_that_was_not_whole_when_its_writer_was_killed_is_cleared(
    folder: PhaseFolder,
) -> None:
    """What stands beside the records and the summary, waiting for its rename, is no record and does not stay."""
    for leftover in (folder.path("done") / ".u0.json-00ff", folder.path(".phase.json-00ff")):
        leftover.write_bytes(b"{")
    assert folder.done() == frozenset()
    folder.begin()
    assert not [path for path in folder.root.rglob("*") if path.is_file()]


def test_two_tasks_may_do_the_same_work(folder: PhaseFolder) -> None:
    """A worker that was thought lost and its replacement both commit; the outputs are whole."""
    with folder.commit("u0") as first, folder.commit("u0") as second:
        first.path("u0.txt").write_bytes(b"same")
        second.path("u0.txt").write_bytes(b"same")
    assert folder.path("u0.txt").read_bytes() == b"same"


def test_attempts_are_counted_until_the_next_begin(folder: PhaseFolder) -> None:
    """A unit that kills its process can be given up after a bound."""
    assert [folder.attempt("u0"), folder.attempt("u0"), folder.attempt("u1")] == [1, 2, 1]
    folder.begin()
    assert folder.attempt("u0") == 1


def test_a_small_file_is_replaced_whole(tmp_path: Path) -> None:
    """A reader sees the old content or the new one, never a mixture, and no leftovers beside it."""
    target = tmp_path / "run.json"
    for number in range(50):
        write_atomically(target, str(number).encode() * 1000)
        assert target.read_bytes() == str(number).encode() * 1000
    assert os.listdir(tmp_path) == ["run.json"]


def test_done_of_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """A phase that has never begun has done nothing."""
    assert PhaseFolder(tmp_path / "nowhere").done() == frozenset()


def test_a_folder_that_is_not_on_this_machine_is_told(tmp_path: Path) -> None:
    """What the driver made on its own machine alone: the worker says so, and makes no folder of its own."""
    elsewhere = PhaseFolder(tmp_path / "extract-00ff")
    with pytest.raises(
        FileNotFoundError, match=r"extract-00ff is not on \S+: .* storage that all machines share"
    ):
        elsewhere.attempt("u0")
    assert not elsewhere.root.exists()
