"""Files on a disk, and the scratch folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import AccessRefused, StorageError
from storage.local import LocalStore, make_scratch_folder, put_file


def test_a_small_file_is_replaced_atomically(tmp_path: Path) -> None:
    """A reader sees the old content or the new one, and nothing is left beside the file."""
    target = tmp_path / "run.json"
    for number in range(50):
        content = str(number).encode() * 1000
        put_file(target, content)
        assert target.read_bytes() == content
    assert os.listdir(tmp_path) == ["run.json"]


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
