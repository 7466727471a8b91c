"""Errors of storage, grouped by what a caller can do about them.

    OSError
    └── StorageError            `where`, `cause` and `remedy` of a failed operation
        ├── NotFound            there is no file or object of that name (also a FileNotFoundError)
        ├── AccessRefused       credentials or permissions are missing (also a PermissionError)
        ├── InvalidAddress      the address, the bucket or the settings cannot be used
        ├── ObjectChanged       the object is another version than expected, or is cut off
        ├── DamagedFile         the content is not what was written
        └── Unreachable         gave up after the retry limit; a later attempt may succeed

A plain StorageError, of no subclass, is a fault of the local disk.
"""

from __future__ import annotations

from typing import Self


class StorageError(OSError):
    """An operation on a file or object failed.

    Attributes:
        where: Path or address, with the byte range and the kind of request where they are known.
        cause: The answer of the server or of the operating system.
        remedy: What the user can do.
    """

    def __init__(self, where: str, cause: str, remedy: str) -> None:
        # OSError takes three arguments as errno, strerror and filename, and pickles them.
        super().__init__(where, cause, remedy)
        self.where, self.cause, self.remedy = where, cause, remedy

    def __str__(self) -> str:
        return f"{self.where}: {self.cause}; {self.remedy}"


class NotFound(StorageError, FileNotFoundError):
    """There is no file or object of that name."""


class AccessRefused(StorageError, PermissionError):
    """The server or the operating system does not allow the operation."""


class InvalidAddress(StorageError):
    """The address, the bucket or the settings cannot be used."""


class DamagedFile(StorageError):
    """The content of a file is not what was written.

    Attributes:
        found: what is there.
        wanted: what should be there.
    """

    def __init__(self, where: str, found: str, wanted: str, remedy: str) -> None:
        super().__init__(where, f"found {found}, wanted {wanted}", remedy)
        self.found, self.wanted = found, wanted

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, str, str]]:
        return type(self), (self.where, self.found, self.wanted, self.remedy)


class ObjectChanged(StorageError):
    """The object was replaced while it was read, or is shorter than expected."""


class Unreachable(StorageError):
    """A request failed until the retry limit was reached."""
