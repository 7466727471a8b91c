"""The interface of a folder on a disk or in an object store."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

from storage.settings import StorageSettings

Buffer = mmap.mmap | memoryview | bytes

K = TypeVar("K")
T = TypeVar("T")


class Store(ABC):
    """A folder of files or objects.

    Names are relative to the folder, with "/" between their parts. A file appears under its name
    when it is complete, and its content is only ever replaced as a whole. Methods that read raise
    NotFound for a name that does not exist. Stores can be pickled.
    """

    settings: StorageSettings

    @abstractmethod
    def __str__(self) -> str:
        """Return the path or address."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of the path or address."""

    @abstractmethod
    def locate(self, name: str) -> str:
        """Return the path or address of a file, for messages and for other programs."""

    @abstractmethod
    def get_local_path(self, name: str = "") -> Path | None:
        """Return the path of a file on this machine, or None if it is remote."""

    @property
    def is_remote(self) -> bool:
        """Whether files are read over a network."""
        return self.get_local_path() is None

    @abstractmethod
    def child(self, name: str) -> Self:
        """Return the folder of that name in this one, whether or not it exists."""

    @abstractmethod
    def check(self) -> None:
        """Fail early if the address or the credentials are wrong. Costs one request.

        Raises:
            StorageError: the folder cannot be listed.
        """

    # ---- reading ----

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. It can seek, and fetches only the ranges that are read."""

    @abstractmethod
    def map(self, name: str) -> Buffer:
        """Return the content of a file: a memory map on a disk, a copy of a remote file."""

    @abstractmethod
    def read_bytes(self, name: str) -> bytes:
        """Return the content of a small file."""

    @abstractmethod
    def read_range(
        self, name: str, start: int, stop: int, version: str | None = None
    ) -> memoryview:
        """Return bytes start..stop-1, of that version of the file if one is given."""

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return several ranges of one file, start..stop-1 each."""
        return [self.read_range(name, start, stop) for start, stop in ranges]

    @abstractmethod
    def read_version(self, name: str) -> tuple[bytes, str]:
        """Return the content of a small file, and the version that it has."""

    @abstractmethod
    def get_size(self, name: str) -> int:
        """Return the size of a file in bytes."""

    @abstractmethod
    def get_size_and_version(self, name: str) -> tuple[int, str]:
        """Return the size of a file in bytes, and the version that it has."""

    @abstractmethod
    def get_modified_time(self, name: str) -> datetime:
        """Return when a file was last written, by the clock of the server."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""

    @abstractmethod
    def list_names(self) -> list[str]:
        """Return the sorted names of the files in this folder.

        Names that begin with "." and files in subfolders are left out. A folder that does not
        exist is empty.
        """

    @abstractmethod
    def list_folders(self) -> list[str]:
        """Return the sorted names of the folders in this folder, without hidden ones."""

    @abstractmethod
    def read_each(self, items: Iterable[K], read: Callable[[K], T]) -> Iterator[T]:
        """Yield `read(item)` of each item, in order. Remote reads run several at a time."""

    # ---- writing ----

    @abstractmethod
    def make_folder(self) -> None:
        """Create this folder and its parents. Object stores need none."""

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Write a small file, or replace it, atomically."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> str | None:
        """Write a small file that does not exist yet; of several writers one succeeds.

        The content must be unique. Then a writer whose answer was lost, and which tries again,
        recognizes its own file.

        Returns:
            The version of the new file; None if there is another file of that name.
        """

    @abstractmethod
    def replace(self, name: str, content: bytes, version: str) -> str | None:
        """Replace a small file if it still has that version; the content must be unique.

        Returns:
            The new version; None if the file has another version.
        """

    @abstractmethod
    def staging_folder(self, name: str) -> AbstractContextManager[Path]:
        """Provide an empty local folder for files that `move_in` will store.

        It is removed at the end, with all that is left in it.
        """

    @abstractmethod
    def move_in(self, file: Path, name: str) -> None:
        """Store a file of a staging folder under a name, atomically. The file may be moved."""

    @abstractmethod
    def rename(self, name: str, new_name: str) -> None:
        """Give a file of this folder another name, also one in a folder that exists below it."""

    @abstractmethod
    def upload(self, file: Path, name: str) -> None:
        """Store a copy of a local file under a name, atomically."""

    @abstractmethod
    def set_latest_link(self, name: str, target: str) -> None:
        """Let a name lead to `target`, a folder beside it, in one step.

        On a disk this is a relative symbolic link. An object store has none: there it is an
        object that holds the folder's name, which the loader follows (docs/data-format.md).
        """

    @abstractmethod
    def delete(self, *names: str) -> None:
        """Delete files; those that do not exist are skipped."""

    @abstractmethod
    def delete_all(self) -> None:
        """Delete this folder with all that is in it."""

    @abstractmethod
    def delete_unfinished(self) -> None:
        """Delete what killed processes of this machine left in this folder while writing."""
