"""A file that is being downloaded.

The name of the partial file contains a hash of the file's address and version. It never gets
bytes of two versions, also if a process is killed at any moment.
"""

from __future__ import annotations

import glob
import hashlib
import os
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Self

# The key of a version that cannot be recognized again.
_NO_KEY = "0" * 16

# `Last-Modified` identifies a version only if it is this old: it has a resolution of 1 s.
MIN_MODIFIED_AGE_S = 60.0


@dataclass(frozen=True)
class Version:
    """What tells one version of a remote file from others.

    Attributes:
        validator: An ETag or a time of change; "" if the server sends nothing that is different
            for every version. Then a download cannot be resumed.
        num_bytes: The size; None if the server does not say it.
    """

    validator: str
    num_bytes: int | None

    @classmethod
    def from_headers(cls, headers: Message) -> Self:
        """Return the version that an HTTP server sends, all of it or a part."""
        # Of a part, Content-Length is the size of the part: Content-Range has the whole size.
        _, _, total = headers.get("Content-Range", "").rpartition("/")
        num_bytes = total or headers.get("Content-Length", "")
        return cls(
            _get_validator(headers), int(num_bytes) if num_bytes.isdecimal() else None
        )


class PartialFile:
    """The bytes of a file that were received so far: `<target>.<key>.partial`."""

    def __init__(self, url: str, target: Path) -> None:
        """Find what an earlier process received, if anything."""
        self.url, self.target = url, target
        self._path: Path | None = max(self._list(), key=_get_num_bytes, default=None)

    @property
    def is_resumable(self) -> bool:
        """Whether there are bytes of a version that can be recognized again."""
        return self.num_bytes > 0 and self._path != self._name(Version("", None))

    @property
    def num_bytes(self) -> int:
        """Number of bytes that were received."""
        return 0 if self._path is None else _get_num_bytes(self._path)

    def has_version(self, version: Version) -> bool:
        """Whether the received bytes belong to this version."""
        return self.is_resumable and self._path == self._name(version)

    def open(self, version: Version, start: int) -> IO[bytes]:
        """Open for writing from byte `start`: the end of the received bytes, or 0."""
        if start:
            assert self.has_version(version)
            assert start == self.num_bytes
            return self._name(version).open("ab")
        self.remove()
        self._path = self._name(version)
        return self._path.open("wb")

    def remove(self) -> None:
        """Remove the received bytes of all versions."""
        for path in self._list():
            path.unlink(missing_ok=True)
        self._path = None

    def finish(self) -> None:
        """Give the complete file its final name."""
        assert self._path is not None
        with self._path.open("rb") as file:
            # Without fsync, a power failure after the rename could leave a file with holes.
            os.fsync(file.fileno())
        self._path.replace(self.target)
        self.remove()

    def _name(self, version: Version) -> Path:
        identity = f"{self.url}\n{version.validator}\n{version.num_bytes}"
        key = hashlib.sha256(identity.encode()).hexdigest()[:16]
        if not version.validator:
            key = _NO_KEY
        return self.target.with_name(f"{self.target.name}.{key}.partial")

    def _list(self) -> list[Path]:
        pattern = f"{glob.escape(self.target.name)}.{'[0-9a-f]' * 16}.partial"
        return list(self.target.parent.glob(pattern))


def _get_validator(headers: Message) -> str:
    """Return what is different for every version of the file; "" if there is nothing.

    A weak ETag may stand for two different contents (RFC 9110 section 8.8.1). So may a time of
    change, which has no fractions of a second, unless it was a minute ago (section 8.8.2.2).
    """
    etag = headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        return etag
    modified, now = headers.get("Last-Modified", ""), headers.get("Date", "")
    try:
        age = parsedate_to_datetime(now) - parsedate_to_datetime(modified)
    except (TypeError, ValueError):  # no date, or one without a time zone
        return ""
    return modified if age.total_seconds() >= MIN_MODIFIED_AGE_S else ""


def _get_num_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed by another process
        return 0
