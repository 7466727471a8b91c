"""The SHA-256 of local input files, which is remembered from run to run.

A digest is remembered together with size, times and inode of its file, as in git's index. The
file is read again when one of them differs. A program can set the modification time back, but the
time of the last change of the inode (ctime) is set by the operating system.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from pipeline.models import registry as model_registry
from pipeline.runs.done_records import to_json
from storage.json_schema import OpenJsonObject, Sha256, parse_json
from storage.local import put_file

log = logging.getLogger(__name__)

# The digest of a file that changed less than this ago is not remembered: it may change
# again with the same times, because some file systems store them in steps of two seconds.
# Git calls such entries "racy".
SETTLED_S = 2.0

# The memory, in the user's cache.
MEMORY_FILE = "input-files.json"


class _Entry(OpenJsonObject):
    sha256: Sha256
    # Times can be before 1970, and inodes are unsigned.
    state: list[Annotated[int, Field(ge=-(2**63), lt=2**64)]]


# By the file's resolved path.
_ENTRIES = TypeAdapter(dict[str, _Entry])


def compute_digests(paths: Sequence[Path]) -> list[tuple[int, str]]:
    """Return the size and the digest of each file. Only changed and new files are read."""
    entries = _read_memory()
    found: list[tuple[int, str]] = []
    is_changed = False
    for path in paths:
        key, status = str(path.resolve()), path.stat()
        state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        if key in entries and entries[key]["state"] == state:
            sha256 = entries[key]["sha256"]
        else:
            sha256 = _compute_sha256(path)
            changed_s = max(status.st_mtime, status.st_ctime)
            if time.time() - changed_s > SETTLED_S:
                entries[key] = {"sha256": sha256, "state": state}
                is_changed = True
        found.append((status.st_size, sha256))
    if is_changed:
        _write_memory(entries)
    return found


def forget_digest(path: Path) -> None:
    """Forget the digest of a file, so that the next run reads it again."""
    entries = _read_memory()
    if entries.pop(str(path.resolve()), None) is not None:
        _write_memory(entries)


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _locate_memory() -> Path:
    return model_registry.cache_folder() / MEMORY_FILE


def _read_memory() -> dict[str, Any]:
    path = _locate_memory()
    try:
        return parse_json(
            path.read_bytes(), _ENTRIES, str(path), "all input files are read again"
        )
    except FileNotFoundError:
        return {}
    except OSError as error:  # damaged, or not readable
        log.warning("%s", error)
        return {}


def _write_memory(entries: dict[str, Any]) -> None:
    """Store the digests of the files that still exist."""
    path = _locate_memory()
    present = {file: entry for file, entry in entries.items() if Path(file).exists()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put_file(path, to_json(present))
    except OSError as error:
        log.warning(
            "%s cannot be written: %s; the next run reads new files again", path, error
        )
