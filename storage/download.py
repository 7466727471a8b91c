"""Copying a remote file to this disk, resumed where a connection or process broke.

The name of the partial file contains a hash of the file's address and version. It never gets
bytes of two versions, also if a process is killed at any moment.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from storage.client import get_status
from storage.errors import StorageError
from storage.object_file import check_complete, get_version

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 10.0

# In messages of obstore: the server's file is shorter, or it has sent another part.
_WRONG_PART = re.compile("Wanted range|UnexpectedRange")


class FileDownload:
    """A file that is received in one or more attempts: `<target>.<version>.partial`.

    Attributes:
        received_at: When the last byte arrived, as `time.monotonic`; at first, the present time.
    """

    def __init__(self, address: str, key: str, target: Path) -> None:
        """Find what an earlier process received, if anything."""
        self._address, self._key, self._target = address, key, target
        self._unknown = target.with_name(f"{target.name}.{'0' * 16}.partial")
        self._partial = max(self._list_partial(), key=_get_num_bytes, default=None)
        self.received_at = time.monotonic()

    @property
    def num_received(self) -> int:
        """Number of bytes that were received."""
        return 0 if self._partial is None else _get_num_bytes(self._partial)

    def receive(self, client: Any) -> None:
        """Request what is missing, or all of it if the version differs; finish the file.

        Raises:
            IncompleteAnswer: the answer has too few or too many bytes.
            StorageError: the file cannot be written.
        """
        result, start = self._request_rest(client)
        num_bytes = int(result.meta["size"])
        resumed = f", from byte {start:,}" if start else ""
        log.info("fetching %s, %.1f MB%s", self._address, num_bytes / 1e6, resumed)
        try:
            with self._open(self._name(result.meta), start) as file:
                self._write(result, file)
            check_complete(self.num_received, num_bytes)
            self._finish()
        except OSError as error:
            raise StorageError(
                str(self._target), f"cannot be written: {error}", "correct the folder"
            ) from error

    def _request_rest(self, client: Any) -> tuple[Any, int]:
        """Return an answer, and the byte of the file at which it starts."""
        import obstore
        from obstore.exceptions import NotSupportedError

        start = 0 if self._partial == self._unknown else self.num_received
        if start:
            # There is no If-Match header: some servers ignore it, so the answer must be checked
            # in any case.
            options: Any = {"range": {"offset": start}}
            try:
                result = obstore.get(client, self._key, options=options)
                if self._name(result.meta) == self._partial:
                    return result, start
            except NotSupportedError:  # the server sends no parts of files
                pass
            except Exception as error:
                # No such part: the file is complete, or of another version.
                if get_status(error) != 416 and not _WRONG_PART.search(str(error)):
                    raise
        return obstore.get(client, self._key), 0

    def _write(self, result: Any, file: IO[bytes]) -> None:
        num_bytes, logged = int(result.meta["size"]), time.monotonic()
        # Smallest chunks: bytes in obstore's buffer are lost when the connection breaks.
        for chunk in result.stream(min_chunk_size=1):
            file.write(chunk)
            self.received_at = time.monotonic()
            if self.received_at - logged >= PROGRESS_INTERVAL_S:
                logged = self.received_at
                log.info("  %.1f of %.1f MB", file.tell() / 1e6, num_bytes / 1e6)

    def _open(self, partial: Path, start: int) -> IO[bytes]:
        """Open for writing from byte `start`: the end of the received bytes, or 0."""
        if start:
            return partial.open("ab")
        self._remove()
        self._partial = partial
        return partial.open("wb")

    def _finish(self) -> None:
        """Give the complete file its final name."""
        assert self._partial is not None
        with self._partial.open("rb") as file:
            # Without fsync, a power failure after the rename could leave a file with holes.
            os.fsync(file.fileno())
        self._partial.replace(self._target)
        self._remove()

    def _remove(self) -> None:
        """Remove the received bytes of all versions."""
        for path in self._list_partial():
            path.unlink(missing_ok=True)

    def _name(self, meta: Mapping[str, Any]) -> Path:
        """Return the partial file of a version, which address, ETag and size identify."""
        etag = get_version(meta)
        if not etag:
            return self._unknown
        identity = f"{self._address}\n{etag}\n{meta['size']}"
        version = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return self._target.with_name(f"{self._target.name}.{version}.partial")

    def _list_partial(self) -> list[Path]:
        pattern = f"{glob.escape(self._target.name)}.{'[0-9a-f]' * 16}.partial"
        return list(self._target.parent.glob(pattern))


def _get_num_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed by another process
        return 0
