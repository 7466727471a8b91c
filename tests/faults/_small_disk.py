"""A small disk in memory, for attacks by a full disk. Mounting it needs root."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@functools.cache
def find_missing_tmpfs() -> str | None:
    """Return why no small disk can be mounted here, or None."""
    if os.geteuid() != 0:
        return "mounting a small disk needs root"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mount_disk(Path(folder), PAGE_BYTES):
                return None
        except subprocess.CalledProcessError as error:
            return f"mount: {error.stderr.decode().strip()}"


@contextlib.contextmanager
def mount_disk(folder: Path, num_bytes: int) -> Generator[None]:
    """Mount an empty disk of this size."""
    _call("mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "faults", str(folder))
    try:
        yield
    finally:
        _call("umount", "--lazy", str(folder))


def enlarge_disk(folder: Path, num_bytes: int) -> None:
    """Give a mounted disk another size. Its files stay."""
    _call("mount", "-o", f"remount,size={num_bytes}", str(folder))


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
