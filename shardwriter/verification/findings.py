"""Findings of the verification, and the parts of a folder that it needs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shardwriter.format import REFETCH, FormatError


@dataclass(frozen=True)
class Finding:
    """One fault of a dataset.

    where:  file, sample and byte
    found:  what is there
    wanted: what should be there
    remedy: how to repair it
    """

    where: str
    found: str
    wanted: str
    remedy: str

    @classmethod
    def from_error(cls, error: FormatError) -> Finding:
        """Return the finding that a FormatError describes."""
        return cls(error.where, error.found, error.wanted, error.remedy)

    @classmethod
    def from_os_error(cls, name: str, error: OSError, wanted: str, remedy: str) -> Finding:
        """Return the finding for a file that cannot be read."""
        return cls(name, f"no readable file ({error.strerror or error})", wanted, remedy)

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}, wanted {self.wanted}; {self.remedy}"


class Folder(Protocol):
    """A folder that can be verified, on a disk or in an object store; `storage.Store` is one."""

    def open(self, name: str, /) -> Any:
        """Open a file of the folder as a seekable binary file."""
        ...

    def read_bytes(self, name: str, /) -> bytes:
        """Return the content of a file of the folder."""
        ...

    def list_names(self) -> list[str]:
        """Return the sorted names of the files directly in the folder."""
        ...


@dataclass(frozen=True)
class LocalFolder:
    """A folder on a disk."""

    path: Path

    def open(self, name: str) -> Any:
        """Open a file of the folder as a seekable binary file."""
        return (self.path / name).open("rb")

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a file of the folder."""
        return (self.path / name).read_bytes()

    def list_names(self) -> list[str]:
        """Return the sorted names of the files directly in the folder."""
        return sorted(path.name for path in self.path.iterdir())


@dataclass(frozen=True)
class File:
    """A file of a folder that is verified."""

    folder: Folder
    name: str

    def open(self) -> Any:
        """Open the file as a seekable binary file."""
        return self.folder.open(self.name)

    def read_bytes(self) -> bytes:
        """Return the content."""
        return self.folder.read_bytes(self.name)


def has_digest(path: File, sha256: str) -> bool:
    """Whether a file can be read and has this SHA-256."""
    try:
        with path.open() as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def check_file(path: File, num_bytes: int, sha256: str, findings: list[Finding]) -> bool:
    """Compare a file with its size and SHA-256; return whether the file can be read."""
    try:
        with path.open() as file:
            found_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            found_bytes = file.tell()
    except OSError as error:
        wanted = f"a file of {num_bytes} bytes"
        findings.append(Finding.from_os_error(path.name, error, wanted, REFETCH))
        return False
    if found_bytes != num_bytes:
        findings.append(
            Finding(path.name, f"{found_bytes} bytes", f"{num_bytes} bytes", REFETCH)
        )
    if found_sha256 != sha256:
        findings.append(Finding(path.name, f"sha256 {found_sha256}", sha256, REFETCH))
    return True
