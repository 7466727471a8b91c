"""Files on a disk, and the scratch folder."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.errors import AccessRefused, StorageError
from storage.local import LocalStore, make_scratch_folder, put_file
from tests.conftest import REPOSITORY


def test_a_small_file_is_replaced_atomically(tmp_path: Path) -> None:
    """A reader sees the old content or the new one, and nothing is left beside the file."""
    target = tmp_path / "run.json"
    for number in range(50):
        content = str(number).encode() * 1000
        put_file(target, content)
        assert target.read_bytes() == content
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_new_file_appears_with_its_content(tmp_path: Path) -> None:
    """A reader never finds an empty or incomplete file."""
    store, content = LocalStore(tmp_path), b"x" * 1_000_000
    found: set[bytes] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            for name in os.listdir(tmp_path):
                if not name.startswith("."):
                    found.add((tmp_path / name).read_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(100):
        assert store.create(str(number), content)
    is_over.set()
    watcher.join()
    assert found == {content}
    assert len(os.listdir(tmp_path)) == 100


def create_in_turn(folder: Path, writer: int) -> list[int]:
    """Try to create fifty files; return the numbers of those that were created."""
    store = LocalStore(folder)
    return [
        number
        for number in range(50)
        if store.create(str(number), f"{writer}".encode() * 1000) is not None
    ]


@pytest.mark.parametrize("has_hard_links", [True, False])
def test_of_several_writers_one_creates_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_hard_links: bool
) -> None:
    """Also on file systems without hard links, such as buckets that are mounted."""
    if not has_hard_links:

        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    with ThreadPoolExecutor(4) as threads:
        created = list(threads.map(lambda w: create_in_turn(tmp_path, w), range(4)))
    assert sorted(number for numbers in created for number in numbers) == list(range(50))
    for writer, numbers in enumerate(created):
        for number in numbers:
            assert (tmp_path / str(number)).read_bytes() == f"{writer}".encode() * 1000


# Ends the process before the n-th time that it touches a file of the folder.
KILLED = """
import os, signal, sys
from pathlib import Path
from storage.local import LocalStore

folder, events_left = sys.argv[1], int(sys.argv[2])

def kill_in_time(event, arguments):
    global events_left
    if event in ("open", "os.link", "os.rename", "os.remove") and str(arguments[0]).startswith(folder):
        events_left -= 1
        if not events_left:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill_in_time)
LocalStore(Path(folder)).create("attempt", b"content")
"""


def test_a_kill_leaves_the_whole_file_or_none(tmp_path: Path) -> None:
    """The process is killed before each step on a file."""
    outcomes: list[tuple[bool, bool]] = []  # killed, file exists
    while not outcomes or outcomes[-1][0]:
        folder = tmp_path / str(len(outcomes))
        folder.mkdir()
        command = [sys.executable, "-c", KILLED, str(folder), str(len(outcomes) + 1)]
        status = subprocess.run(command, cwd=REPOSITORY, check=False).returncode
        target = folder / "attempt"
        outcomes.append((status != 0, target.exists()))
        if target.exists():
            assert target.read_bytes() == b"content"
        LocalStore(folder).delete_unfinished()
        assert os.listdir(folder) == (["attempt"] if target.exists() else [])
    # Opening, linking and removing the temporary file; then nothing is killed.
    assert outcomes == [(True, False), (True, False), (True, True), (False, True)]


def test_the_latest_link_leads_to_its_newest_target(tmp_path: Path) -> None:
    """It is relative, so the folder can be moved."""
    store = LocalStore(tmp_path)
    for target in ("first", "second"):
        (tmp_path / target).mkdir()
        store.set_latest_link("dataset", target)
        assert os.readlink(tmp_path / "dataset") == target
    assert sorted(os.listdir(tmp_path)) == ["dataset", "first", "second"]


def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    """The error names the path and what to check."""
    if os.getuid() == 0:
        pytest.skip("root may read every file")
    (tmp_path / "secret").touch(mode=0o000)
    with pytest.raises(AccessRefused, match=r"secret: .*check the permissions"):
        LocalStore(tmp_path).read_bytes("secret")


def test_the_scratch_folder_is_private(tmp_path: Path) -> None:
    """Its mode is 700; a folder that others can read is refused."""
    with make_scratch_folder(str(tmp_path), "task") as folder:
        scratch = folder.parent
        assert scratch.stat().st_mode & 0o777 == 0o700
    scratch.chmod(0o755)
    with (
        pytest.raises(
            AccessRefused, match=r"mode 700; found user \d+, mode 755; .*scratch_dir"
        ),
        make_scratch_folder(str(tmp_path), "task"),
    ):
        pass
    scratch.rmdir()
    scratch.symlink_to(tmp_path)
    with pytest.raises(AccessRefused), make_scratch_folder(str(tmp_path), "task"):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_the_scratch_folder_of_another_user_is_refused(tmp_path: Path, mode: int) -> None:
    """The error names the folder, its owner and its mode; the folder is left alone."""
    scratch = tmp_path / f"corpusmill-scratch-{os.getuid()}"
    scratch.mkdir()
    scratch.chmod(mode)
    (scratch / f"task-1-{'0' * 32}").mkdir()
    os.chown(scratch, 12345, 12345)
    message = rf"{scratch}: .*must be a folder of user 0.*found user 12345, mode {mode:o}"
    with (
        pytest.raises(AccessRefused, match=message),
        make_scratch_folder(str(tmp_path), "task"),
    ):
        pass
    assert len(os.listdir(scratch)) == 1


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_another_thing_in_place_of_the_scratch_folder_is_refused(
    tmp_path: Path, kind: str
) -> None:
    """Another user can put it into /tmp."""
    scratch = tmp_path / f"corpusmill-scratch-{os.getuid()}"
    if kind == "file":
        scratch.touch()
    else:
        scratch.symlink_to(tmp_path / "nothing")
    with (
        pytest.raises(AccessRefused, match=rf"{scratch}: the scratch folder must be a"),
        make_scratch_folder(str(tmp_path), "task"),
    ):
        pass


def test_folders_of_dead_processes_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    """Folders of live processes and files of unknown origin are left alone."""
    with make_scratch_folder(str(tmp_path), "task") as folder:
        scratch = folder.parent
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        abandoned = scratch / f"task-{dead.pid}-{'0' * 32}"
        foreign = [scratch / "notes", scratch / "a-b-c", scratch / f"{dead.pid}"]
        for path in (abandoned, *foreign):
            path.mkdir()
        with make_scratch_folder(str(tmp_path), "other"):
            assert folder.exists()
        assert not abandoned.exists()
        assert all(path.exists() for path in foreign)
    assert not folder.exists()


# Every write to it fails as on a full disk (full(4)).
FULL_DEVICE = Path("/dev/full")


def write_to_full_disk(folder: Path) -> None:
    """Write a file of a staging folder as a library does that does not name it in its errors."""
    with LocalStore(folder).staging_folder("task"), FULL_DEVICE.open("wb") as file:
        file.write(b"content")


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_with_its_folder(tmp_path: Path) -> None:
    """The system's own error has no path, because the file was open already."""
    with pytest.raises(StorageError, match="No space left on device; free") as caught:
        write_to_full_disk(tmp_path)
    assert str(tmp_path) in caught.value.where
    assert "No space left" in str(caught.value.__cause__)
