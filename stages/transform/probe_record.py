"""A record in the cache of this machine: gigatoken agrees with the reference library on a tokenizer.

Encoding the probe texts with both libraries takes 0.5 CPU seconds, and the result is the same in
each process.

    record = ProbeRecord(definition.sha256, fast.digest)
    record.write("gigatoken agrees with tokenizers on 251 probe texts")
    record.read()       # the same text, until a library, this code or the tokenizer changes
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import unicodedata
from functools import cache
from importlib import metadata
from pathlib import Path

from stages.cache_folder import cache_folder

_LIBRARIES = "gigatoken", "tokenizers"
# The code that determines the probe texts, and what each library reads.
_SOURCES = (
    "transform/encoders.py",
    "transform/probe_texts.py",
    "transform/tokenizer_files.py",
    "kernels/characters.py",
)


class ProbeRecord:
    """A small file whose name depends on all that the finding depends on."""

    def __init__(self, *tokenizer_digests: str) -> None:
        """Find the file.

        Args:
            tokenizer_digests: of the tokenizer's files, and of what is read from them.
        """
        # gigatoken has other instructions on other machines, which may share a cache.
        identity = [*tokenizer_digests, _digest_code(), platform.machine()]
        # The probe texts are samples of Python's Unicode tables.
        identity.append(unicodedata.unidata_version)
        identity += [metadata.version(library) for library in _LIBRARIES]
        self._key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        self.path = cache_folder() / "encoder-probes" / f"{self._key[:32]}.txt"

    def read(self) -> str | None:
        """Return the finding; None if there is none, or its file is damaged."""
        try:
            digest, finding = self.path.read_text(encoding="utf-8").split(" ", 1)
        except (OSError, ValueError):
            return None
        return finding if digest == self._seal(finding) else None

    def write(self, finding: str) -> None:
        """Store a finding. A cache that cannot be written only costs the time of the next probe."""
        # Not renamed into place: readers recognize a half-written file by its digest.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(f"{self._seal(finding)} {finding}", encoding="utf-8")

    def _seal(self, finding: str) -> str:
        return hashlib.sha256(f"{self._key} {finding}".encode()).hexdigest()


@cache
def _digest_code() -> str:
    folder = Path(__file__).parents[1]
    content = b"\0".join((folder / source).read_bytes() for source in _SOURCES)
    return hashlib.sha256(content).hexdigest()
