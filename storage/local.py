"""Folders on a disk, the private folder for files before they are uploaded, and the umask."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

from storage.base import Buffer, Store
from storage.errors import AccessRefused, NotFound, StorageError
from storage.settings import DEFAULT_SETTINGS, StorageSettings

STAGING = ".staging"

# A umask: only this user may read new files.
_PRIVATE = 0o077

# What to do when a disk is full, in the messages of all such errors.
DISK_FULL = "free some space, then run the same command again"

_STAGING_NAME = re.compile(r".+-(?P<pid>\d+)-[0-9a-f]{32}")

# Errors of os.link on file systems without hard links, such as buckets that are mounted.
_NO_HARD_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class LocalStore(Store):
    """A folder on a local or mounted disk."""

    path: Path
    settings: StorageSettings = DEFAULT_SETTINGS

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.name

    def locate(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return str(self.path / name)

    def get_local_path(self, name: str = "") -> Path:
        """Return the path of a file."""
        return self.path / name

    def child(self, name: str) -> Self:
        """Return the folder of that name in this one, whether or not it exists."""
        return type(self)(self.path / name, self.settings)

    def check(self) -> None:
        """Do nothing: a disk answers at once when it is used."""

    # ---- reading ----

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        with _translate_errors(self.path / name):
            return (self.path / name).open("rb")

    def map(self, name: str) -> Buffer:
        """Map a file into memory. Pages are read when they are touched."""
        with _translate_errors(self.path / name):
            return map_file(self.path / name)

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a file."""
        with _translate_errors(self.path / name):
            return (self.path / name).read_bytes()

    def read_range(
        self, name: str, start: int, stop: int, version: str | None = None
    ) -> memoryview:
        """Return bytes start..stop-1."""
        del version  # files are replaced by a rename, so an open file does not change
        with _translate_errors(self.path / name), (self.path / name).open("rb") as file:
            file.seek(start)
            return memoryview(file.read(stop - start))

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return several ranges of one file, which is opened once."""
        with _translate_errors(self.path / name), (self.path / name).open("rb") as file:
            descriptor = file.fileno()
            return [
                memoryview(os.pread(descriptor, stop - start, start))
                for start, stop in ranges
            ]

    def read_version(self, name: str) -> tuple[bytes, str]:
        """Return the content of a small file, and its SHA-256."""
        content = self.read_bytes(name)
        return content, hashlib.sha256(content).hexdigest()

    def get_size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        with _translate_errors(self.path / name):
            return (self.path / name).stat().st_size

    def get_size_and_version(self, name: str) -> tuple[int, str]:
        """Return the size of a file in bytes, and its time of change with its inode."""
        with _translate_errors(self.path / name):
            status = (self.path / name).stat()
        return status.st_size, f"{status.st_mtime_ns}-{status.st_ino}"

    def get_modified_time(self, name: str) -> datetime:
        """Return when a file was last written."""
        with _translate_errors(self.path / name):
            return datetime.fromtimestamp((self.path / name).stat().st_mtime, UTC)

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return (self.path / name).exists()

    def list_names(self) -> list[str]:
        """Return the sorted names of the files in this folder, without hidden ones."""
        return self._list(os.DirEntry.is_file)

    def list_folders(self) -> list[str]:
        """Return the sorted names of the folders in this folder, without hidden ones."""
        return self._list(os.DirEntry.is_dir)

    def _list(self, is_wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                names = [entry.name for entry in entries if is_wanted(entry)]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if not name.startswith("."))

    def read_each(self, items: Iterable[K], read: Callable[[K], T]) -> Iterator[T]:
        """Yield `read(item)` of each item, in order. A disk has no latency to hide."""
        return map(read, items)

    # ---- writing ----

    def make_folder(self) -> None:
        """Create this folder and its parents."""
        self.path.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, content: bytes) -> None:
        """Write a small file, or replace it, atomically."""
        put_file(self.path / name, content)

    def create(self, name: str, content: bytes) -> str | None:
        """Write a small file that does not exist yet; return its version, or None if it exists."""
        target = self.path / name
        with _write_aside(target, content) as aside, name_full_disk(target):
            is_new = _link_new(aside, target)
        return hashlib.sha256(content).hexdigest() if is_new else None

    def replace(self, name: str, content: bytes, version: str) -> str | None:
        """Replace a small file if it still has that version."""
        target = self.path / name
        with _locked(target):  # makes compare and replace one step among processes
            if self.read_version(name)[1] != version:
                return None
            put_file(target, content)
        return hashlib.sha256(content).hexdigest()

    @contextlib.contextmanager
    def staging_folder(self, name: str) -> Generator[Path]:
        """Provide an empty folder on the same disk, so that `move_in` is a rename."""
        with _new_folder(self.path / STAGING, name) as folder:
            yield folder

    def move_in(self, file: Path, name: str) -> None:
        """Move a file of a staging folder into this folder by a rename."""
        file.replace(self.path / name)

    def rename(self, name: str, new_name: str) -> None:
        """Give a file of this folder another name, atomically."""
        with _translate_errors(self.path / name):
            (self.path / name).replace(self.path / new_name)

    def upload(self, file: Path, name: str) -> None:
        """Store a copy of a local file, atomically. Creates the folder of the name."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = _name_aside(target)
        try:
            shutil.copyfile(file, aside)
            with aside.open("rb") as copied:
                # Without fsync, a power failure after the rename could leave an empty file under
                # the final name.
                os.fsync(copied.fileno())
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)

    def set_latest_link(self, name: str, target: str) -> None:
        """Let a relative symbolic link lead to `target`, in one step."""
        link = self.path / name
        aside = _name_aside(link)
        # A link cannot be changed in place. Renaming a new one over it is atomic.
        aside.symlink_to(target)
        aside.replace(link)

    def delete(self, *names: str) -> None:
        """Delete files; those that do not exist are skipped."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def delete_all(self) -> None:
        """Delete this folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def delete_unfinished(self) -> None:
        """Delete staging folders, and files of `put` that were not renamed yet."""
        shutil.rmtree(self.path / STAGING, ignore_errors=True)
        for unfinished in self.path.glob(".*"):
            if not unfinished.is_dir():
                unfinished.unlink(missing_ok=True)


def put_file(target: Path, content: bytes) -> None:
    """Write a small file, or replace it, atomically: a reader sees the old or the new content."""
    with _write_aside(target, content) as aside:
        aside.replace(target)


def map_file(path: Path) -> Buffer:
    """Map a file into memory for reading."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""  # mmap refuses an empty file
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextlib.contextmanager
def _write_aside(target: Path, content: bytes) -> Generator[Path]:
    """Write a temporary file beside the target, flush it to the disk, and yield its path."""
    aside = _name_aside(target)
    try:
        with name_full_disk(target), aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def _link_new(aside: Path, target: Path) -> bool:
    """Give a complete file its name in one step; return False if there is a file of that name.

    A reader finds no file, or the whole file. Of several writers one succeeds.
    """
    try:
        os.link(aside, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        with _locked(target):
            if target.exists():
                return False
            aside.replace(target)
    return True


@contextlib.contextmanager
def _locked(target: Path) -> Generator[None]:
    """Let one process at a time change a file. The lock is a hidden file beside it."""
    import filelock

    # fallback_to_soft=False: a soft lock would outlive a killed process.
    lock_file = target.with_name(f".{target.name}.lock")
    with filelock.FileLock(lock_file, fallback_to_soft=False):
        yield


def _name_aside(target: Path) -> Path:
    return target.with_name(f".{target.name}-{uuid.uuid4().hex}")


@contextlib.contextmanager
def name_full_disk(path: Path) -> Generator[None]:
    """Name a path in the error of a full disk. Writes to open files do not name theirs.

    Raises:
        StorageError: the disk, or the quota of the user, is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageError(str(path), os.strerror(error.errno), DISK_FULL) from error


def append_line(file: FileIO, line: bytes) -> None:
    """Append a line to an unbuffered file, completely or not at all.

    Raises:
        OSError: the disk is full.
    """
    start = file.seek(0, os.SEEK_END)
    # A write that fills the disk stores a part of the line. Only the next write raises.
    if file.write(line) != len(line):
        file.truncate(start)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _translate_errors(path: Path) -> Generator[None]:
    """Raise the errors of the operating system as those of storage/errors.py."""
    try:
        yield
    except FileNotFoundError as error:
        remedy = "correct the path, or copy the whole folder again"
        raise NotFound(str(path), "there is no such file", remedy) from error
    except PermissionError as error:
        cause = error.strerror or str(error)
        raise AccessRefused(
            str(path), cause, "check the permissions of the file"
        ) from error
    except OSError as error:
        cause = error.strerror or str(error)
        raise StorageError(str(path), cause, "check the disk and the file") from error


# ---- scratch folder ----


@contextlib.contextmanager
def make_scratch_folder(scratch_dir: str | None, name: str) -> Generator[Path]:
    """Provide an empty folder in this user's scratch folder; remove it at the end.

    Folders of processes that were killed are removed first. Other content is left alone.

    Raises:
        AccessRefused: another user can read or change the scratch folder.
    """
    scratch = (
        Path(scratch_dir or tempfile.gettempdir()) / f"corpusmill-scratch-{os.getuid()}"
    )
    make_private_folder(
        scratch,
        forbidden=0o077,
        wanted=f"the scratch folder must be a folder of user {os.getuid()}, mode 700",
        remedy="remove it, or set storage.scratch_dir to another folder",
    )
    _remove_abandoned(scratch)
    with _new_folder(scratch, name) as folder:
        yield folder


def make_private_folder(folder: Path, *, forbidden: int, wanted: str, remedy: str) -> None:
    """Create a folder with mode 700 if it does not exist, and its parents.

    Args:
        folder: Its path. A symbolic link in its place is refused.
        forbidden: Bits of the mode that a folder which exists must not have.
        wanted: Used in the error.
        remedy: Used in the error.

    Raises:
        AccessRefused: the folder belongs to another user, or has a forbidden mode.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Anybody can create a folder, a file or a link of this name in /tmp before us.
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # lstat: a symbolic link of another user must not pass for our folder.
    status = folder.lstat()
    mode = stat.S_IMODE(status.st_mode)
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_own or mode & forbidden:
        found = f"found user {status.st_uid}, mode {mode:o}"
        raise AccessRefused(str(folder), f"{wanted}; {found}", remedy)


def is_alive(pid: int) -> bool:
    """Whether this machine has a process with that id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True


@contextlib.contextmanager
def _new_folder(parent: Path, name: str) -> Generator[Path]:
    # The process id lets a later run recognize folders of killed processes; the uuid separates
    # threads.
    folder = parent / f"{name}-{os.getpid()}-{uuid.uuid4().hex}"
    with name_full_disk(folder):
        folder.mkdir(parents=True)
    try:
        with name_full_disk(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(scratch: Path) -> None:
    """Remove folders of processes that no longer run."""
    for path in scratch.iterdir():
        match = _STAGING_NAME.fullmatch(path.name)
        if match is not None and not is_alive(int(match["pid"])):
            shutil.rmtree(path, ignore_errors=True)


def read_umask() -> int:
    """Return the umask of this process, which Linux reports only when it is set."""
    umask = os.umask(_PRIVATE)
    os.umask(umask)
    return umask


@contextlib.contextmanager
def private_umask() -> Generator[None]:
    """Let only this user read the files that are created in the block.

    Processes that start in the block keep this umask. It holds for all threads of this
    process, so the block must be short.
    """
    umask = os.umask(_PRIVATE)
    try:
        yield
    finally:
        os.umask(umask)
