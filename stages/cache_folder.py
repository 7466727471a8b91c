"""The folder of this machine's cache of models and texts, and results that are stored in it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path


def cache_folder() -> Path:
    """Return $CORPUSMILL_CACHE, or $XDG_CACHE_HOME/corpusmill, or ~/.cache/corpusmill.

    The folder may not exist yet.
    """
    if own := os.environ.get("CORPUSMILL_CACHE"):
        return Path(own).expanduser().absolute()
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute()
    return home / "corpusmill"


class CachedResult:
    """A file for the result of a computation that is the same in each process.

    Its name depends on everything that the result depends on.
    """

    def __init__(self, prefix: str, inputs: Sequence[bytes]) -> None:
        """Find the file, which may not exist yet.

        Args:
            prefix: path in the cache that the name of the file begins with.
            inputs: what the result depends on.
        """
        digests = [hashlib.sha256(part).hexdigest() for part in inputs]
        self._key = hashlib.sha256(json.dumps(digests).encode()).digest()
        self.path = cache_folder() / f"{prefix}{self._key.hex()[:32]}"

    def read(self) -> bytes | None:
        """Return the result; None if there is none, or its file is damaged."""
        try:
            stored = self.path.read_bytes()
        except OSError:
            return None
        result = stored[hashlib.sha256().digest_size :]
        return result if stored == self._seal(result) else None

    def write(self, result: bytes) -> None:
        """Store the result. A cache that cannot be written only costs the time to compute it again."""
        # Not renamed into place: readers recognize a half-written file by its digest.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(self._seal(result))

    def _seal(self, result: bytes) -> bytes:
        """Return the result after a digest of itself and the key."""
        return hashlib.sha256(self._key + result).digest() + result
