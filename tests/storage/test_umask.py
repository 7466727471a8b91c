"""Permissions of new files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.local import private_umask, read_umask


@pytest.fixture(autouse=True)
def umask() -> Iterator[int]:
    """A umask that is neither private nor the usual 022."""
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def test_reading_the_umask_does_not_change_it(umask: int) -> None:
    """Two reads return the umask that was set."""
    assert [read_umask(), read_umask()] == [umask, umask]


def test_files_of_the_block_are_private(tmp_path: Path) -> None:
    """Files of this process and of a process that it starts."""
    with private_umask():
        (tmp_path / "ours").touch()
        subprocess.run(["touch", tmp_path / "theirs"], check=True)
    (tmp_path / "later").touch()
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"ours": 0o600, "theirs": 0o600, "later": 0o640}


def test_an_error_restores_the_umask(umask: int) -> None:
    """The error is raised."""
    with pytest.raises(OSError, match="full"), private_umask():
        raise OSError("full")
    assert read_umask() == umask
