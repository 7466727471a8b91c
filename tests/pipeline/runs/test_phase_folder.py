"""Phase folders: commits are atomic, and a task with a done-record is done."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.runs.phase_folder import PhaseFolder
from storage import StorageSettings, Store, open_store
from storage.object_store import ObjectStore
from tests.conftest import REPOSITORY
from tests.loader.faults import FaultProxy
from tests.pipeline.runs.waiting import wait_for
from tests.seaweed import Seaweed

COUNTERS = {"counts": {"documents": 1}, "histograms": {"scores": {"-3": 2}}}


@pytest.fixture(params=["disk", "bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> PhaseFolder:
    """A phase folder in which tasks may start."""
    run_folder: Store = open_store(tmp_path)
    if request.param == "bucket":
        settings = StorageSettings(scratch_dir=str(tmp_path))
        run_folder = replace(request.getfixturevalue("bucket_store"), settings=settings)
    made = PhaseFolder(run_folder.child("extract-00ff"))
    made.begin()
    return made


@pytest.fixture
def local_folder(tmp_path: Path) -> PhaseFolder:
    """A phase folder on a disk in which tasks may start."""
    made = PhaseFolder(open_store(tmp_path / "extract-00ff"))
    made.begin()
    return made


def test_a_commit_stores_outputs_and_then_the_record(folder: PhaseFolder) -> None:
    """The record holds size and digest of every output, and what the task adds."""
    with folder.commit("u0") as output:
        output.path("u0.txt").write_bytes(b"text")
        output.path("u0.empty").touch()
        output.record = {"counters": COUNTERS}
        assert not folder.root.exists("u0.txt")
    with folder.open("u0.txt") as file:
        assert (file.read(), file.size()) == (b"text", 4)
    assert folder.list_done() == {"u0"}
    assert folder.record("u0") == {
        "task_id": "u0",
        "outputs": {
            "u0.empty": {
                "bytes": 0,
                "sha256": hashlib.sha256(b"").hexdigest(),
                "block_crc32": "",
            },
            "u0.txt": {
                "bytes": 4,
                "sha256": hashlib.sha256(b"text").hexdigest(),
                # zlib.crc32(b"text") = 0x3b8ba7c7, little-endian, in Base64
                "block_crc32": "x6eLOw==",
            },
        },
        "counters": COUNTERS,
    }


def test_a_task_that_raises_leaves_nothing(folder: PhaseFolder, tmp_path: Path) -> None:
    """Neither outputs, nor a record, nor files on this machine."""

    class Interrupted(Exception):
        pass

    def run_task() -> None:
        with folder.commit("u0") as output:
            output.path("u0.txt").write_bytes(b"half")
            raise Interrupted

    with pytest.raises(Interrupted):
        run_task()
    assert (folder.list_done(), folder.root.list_names()) == (frozenset(), [])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_two_processes_may_commit_the_same_task(folder: PhaseFolder) -> None:
    """A worker that seemed lost and its replacement both commit; the outputs are complete."""
    with folder.commit("u0") as first, folder.commit("u0") as second:
        first.path("u0.txt").write_bytes(b"same")
        second.path("u0.txt").write_bytes(b"same")
    assert folder.root.read_bytes("u0.txt") == b"same"


def test_a_finished_phase_has_a_summary(folder: PhaseFolder) -> None:
    """It survives the next `begin`."""
    assert not folder.is_complete()
    with pytest.raises(FileNotFoundError):
        folder.summary()
    summary = {"task_ids": 1, "of": "0f3a", "counters": COUNTERS}
    folder.finish(summary)
    folder.begin()
    assert (folder.summary(), folder.is_complete()) == (summary, True)


def test_records_are_read_in_order(folder: PhaseFolder) -> None:
    """One that is missing is an error."""
    for task_id in ("b", "a"):
        with folder.commit(task_id):
            pass
    assert [record["task_id"] for record in folder.records(["b", "a"])] == ["b", "a"]
    with pytest.raises(FileNotFoundError):
        list(folder.records(["a", "c"]))


def test_a_folder_that_does_not_exist_has_no_done_tasks(tmp_path: Path) -> None:
    """Its phase has never begun."""
    assert PhaseFolder(open_store(tmp_path / "nowhere")).list_done() == frozenset()


# ---- on a disk ----


def test_outputs_of_a_killed_task_are_cleared_and_never_count_as_done(
    local_folder: PhaseFolder,
) -> None:
    """Kill -9 while writing: there is no record, and the next `begin` removes the remains."""
    root = local_folder.path("")
    code = (
        "import time; from storage import open_store\n"
        "from pipeline.runs.phase_folder import PhaseFolder\n"
        f"with PhaseFolder(open_store({str(root)!r})).commit('u0') as output:\n"
        "    output.path('u0.txt').write_bytes(b'half')\n"
        "    print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    assert local_folder.list_done() == frozenset()
    assert list(root.rglob("u0.txt"))
    local_folder.begin()
    assert not list(root.rglob("u0.txt"))


def test_a_partly_written_record_is_cleared(local_folder: PhaseFolder) -> None:
    """A file that waits for its rename is no record, and the next `begin` removes it."""
    for name in ("done/.u0.json-00ff", ".phase.json-00ff"):
        local_folder.path(name).write_bytes(b"{")
    assert local_folder.list_done() == frozenset()
    local_folder.begin()
    assert not [path for path in local_folder.path("").rglob("*") if path.is_file()]


def test_a_folder_that_is_not_on_this_machine_is_reported(tmp_path: Path) -> None:
    """The driver made it on its own disk: the worker names the cause and creates no folder."""
    elsewhere = PhaseFolder(open_store(tmp_path / "extract-00ff"))
    message = r"extract-00ff is not on \S+: .* storage that all machines share"
    with pytest.raises(FileNotFoundError, match=message):
        elsewhere.check_shared()
    assert not elsewhere.path("").exists()


# ---- in a bucket ----


@pytest.mark.parametrize("single_put_bytes", [1 << 30, 1 << 20])
def test_an_upload_of_a_killed_process_leaves_no_object(
    bucket_store: ObjectStore,
    seaweed: Seaweed,
    tmp_path: Path,
    single_put_bytes: int,
) -> None:
    """Killed while it uploads: no object and no record; hidden parts only of a multipart upload.

    The next task on the machine removes the files of the killed one.
    """
    num_open, proxy = len(seaweed.open_uploads()), FaultProxy(seaweed.port)
    proxy.deaf_after = 8 << 20
    code = (
        "from storage import StorageSettings, object_store, open_store\n"
        "from pipeline.runs.phase_folder import PhaseFolder\n"
        f"object_store.SINGLE_PUT_BYTES = {single_put_bytes}\n"
        "object_store.PART_BYTES = 5 << 20\n"
        f"settings = StorageSettings(endpoint='{proxy.url}', "
        f"scratch_dir={str(tmp_path)!r})\n"
        f"folder = PhaseFolder(open_store('{bucket_store}', settings))\n"
        "with folder.commit('u0') as output:\n"
        "    output.path('u0.bin').write_bytes(bytes(24 << 20)); print('ready', flush=True)\n"
    )
    try:
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        ) as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline() == "ready\n"
            # A multipart upload sends parts of 5 MiB, each on a connection.
            wait_for(lambda: proxy.num_deaf > 0)
            killed.send_signal(signal.SIGKILL)
    finally:
        proxy.close()
    settings = StorageSettings(scratch_dir=str(tmp_path))
    folder = PhaseFolder(replace(bucket_store, settings=settings))
    assert (folder.list_done(), folder.root.exists("u0.bin")) == (frozenset(), False)
    assert len(seaweed.open_uploads()) - num_open == (single_put_bytes == 1 << 20)
    assert list(tmp_path.rglob("u0.bin"))
    with folder.commit("u0") as output:
        output.path("u0.bin").write_bytes(b"whole")
    assert not list(tmp_path.rglob("u0.bin"))
    assert folder.root.read_bytes("u0.bin") == b"whole"


def test_items_are_read_from_any_one_on_and_returned_in_order(
    local_folder: PhaseFolder,
) -> None:
    """So that tasks which start at the same time do not read the same file first."""
    firsts: set[int] = set()
    for _ in range(100):
        read: list[int] = []

        def negate(item: int, read: list[int] = read) -> int:
            read.append(item)
            return -item

        assert local_folder.read_each(range(9), negate) == [-item for item in range(9)]
        assert sorted(read) == list(range(9))
        firsts.add(read[0])
    assert len(firsts) > 3
    assert local_folder.read_each([], int) == []
