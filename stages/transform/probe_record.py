"""A record in the cache of this machine: gigatoken agrees with the reference library on a tokenizer.

Encoding the probe texts with both libraries takes 0.5 CPU seconds, and the result is the same in
each process.

    record = ProbeRecord(definition.sha256, fast.digest)
    record.write("gigatoken agrees with tokenizers on 251 probe texts")
    record.read()       # the same text, until a library, this code or the tokenizer changes
"""

from __future__ import annotations

import hashlib
import platform
import unicodedata
from functools import cache
from importlib import metadata
from pathlib import Path

from stages.cache_folder import CachedResult

_LIBRARIES = "gigatoken", "tokenizers"
# The code that determines the probe texts, and what each library reads.
_SOURCES = (
    "transform/encoders.py",
    "transform/probe_texts.py",
    "transform/tokenizer_files.py",
    "kernels/characters.py",
)


class ProbeRecord:
    """A small file whose name depends on everything that the finding depends on."""

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
        self._file = CachedResult("encoder-probes/", [part.encode() for part in identity])
        self.path = self._file.path

    def read(self) -> str | None:
        """Return the finding; None if there is none, or its file is damaged."""
        finding = self._file.read()
        return None if finding is None else finding.decode()

    def write(self, finding: str) -> None:
        """Store a finding, where the cache can be written."""
        self._file.write(finding.encode())


@cache
def _digest_code() -> str:
    folder = Path(__file__).parents[1]
    content = b"\0".join((folder / source).read_bytes() for source in _SOURCES)
    return hashlib.sha256(content).hexdigest()
