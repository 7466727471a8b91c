"""The log of retractions of a dataset: documents that readers must not give any more.

The log is the file `retractions.json` beside the manifest. It is absent from a dataset without
retractions. Each entry names a file of tombstones, which are the places of the retracted documents.
Entries are only ever appended. Each has the digest of the dataset before and after it, so the log
is a chain that begins with the digest of the manifest:

    log = RetractionLog.loads(store.read_bytes(RETRACTIONS_FILE))
    log.lineage[-1]                                     # identifies the dataset as it is now
    read_tombstones(store.read_bytes(log.entries[0].tombstones), log.entries[0])
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shardwriter.format.errors import FormatError
from shardwriter.format.json_fields import check_fields

RETRACTIONS_FILE = "retractions.json"
LOG_FORMAT = "corpusmill-retractions"
LOG_VERSION = 1

# The columns of a file of tombstones. Tokens are counted from the start of the shard.
TOMBSTONE_COLUMNS = ("shard", "doc_id", "first_token", "num_tokens")

_RESTORE = "copy the retractions again from where the dataset was retracted"

_LOG_TYPES: Mapping[str, type] = {
    "format": str,
    "version": int,
    "manifest_digest": str,
    "entries": list,
    "rewritten": list,
}

_ENTRY_TYPES: Mapping[str, type] = {
    "number": int,
    "recorded_at": str,
    "reason": str,
    "requested_by": str,
    "request_sha256": str,
    "num_docs": int,
    "num_tokens": int,
    "tombstones": str,
    "tombstones_sha256": str,
    "digest_before": str,
}


@dataclass(frozen=True)
class RetractionEntry:
    """One retraction of a dataset.

    number:            1, 2, 3, ...
    recorded_at:       when it was recorded, in UTC: "2026-11-22T21:40:07Z"
    reason:            why, in the words of the person who recorded it
    requested_by:      who asked for it
    request_sha256:    SHA-256 of the request, which names the URLs and domains
    num_docs:          documents that it added
    num_tokens:        their tokens
    tombstones:        name of the file of tombstones
    tombstones_sha256: SHA-256 of that file
    digest_before:     digest of the dataset before this entry
    """

    number: int
    recorded_at: str
    reason: str
    requested_by: str
    request_sha256: str
    num_docs: int
    num_tokens: int
    tombstones: str
    tombstones_sha256: str
    digest_before: str

    @property
    def digest_after(self) -> str:
        """Digest of the dataset from this entry on: SHA-256 of the entry."""
        content = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode("ascii")).hexdigest()


@dataclass(frozen=True)
class RetractionLog:
    """The retractions of one dataset, oldest first.

    manifest_digest: digest of the dataset's manifest
    entries:         one per retraction
    rewritten:       shards whose tars may have lost the retracted tokens (see rewritten.py), sorted
    """

    manifest_digest: str
    entries: tuple[RetractionEntry, ...] = ()
    rewritten: tuple[int, ...] = ()

    @property
    def lineage(self) -> tuple[str, ...]:
        """The digests that the dataset has had, oldest first; the last one is its digest now."""
        return self.manifest_digest, *(entry.digest_after for entry in self.entries)

    def append(
        self,
        tombstones: NDArray[np.uint64],
        *,
        recorded_at: str,
        reason: str,
        requested_by: str,
        request_sha256: str,
    ) -> tuple[Self, bytes]:
        """Return the log with one more entry, and the content of its file of tombstones.

        Write the tombstones first, and then the log.

        Args:
            tombstones: (D, 4) places of the documents that it adds, with TOMBSTONE_COLUMNS.
            recorded_at: see `RetractionEntry`.
            reason: see there.
            requested_by: see there.
            request_sha256: see there.
        """
        content = _dump_tombstones(tombstones)
        number = len(self.entries) + 1
        entry = RetractionEntry(
            number=number,
            recorded_at=recorded_at,
            reason=reason,
            requested_by=requested_by,
            request_sha256=request_sha256,
            num_docs=len(tombstones),
            num_tokens=int(tombstones[:, 3].sum()),
            tombstones=tombstones_file(number),
            tombstones_sha256=hashlib.sha256(content).hexdigest(),
            digest_before=self.lineage[-1],
        )
        return replace(self, entries=(*self.entries, entry)), content

    def add_rewritten(self, shard: int) -> Self:
        """Return the log with one more rewritten shard. Write the file of the shard first."""
        return replace(self, rewritten=tuple(sorted({*self.rewritten, shard})))

    def dumps(self) -> bytes:
        """Return the bytes of the file."""
        entries = [
            {**asdict(entry), "digest_after": entry.digest_after} for entry in self.entries
        ]
        value = {
            "format": LOG_FORMAT,
            "version": LOG_VERSION,
            "manifest_digest": self.manifest_digest,
            "entries": entries,
            "rewritten": list(self.rewritten),
        }
        return json.dumps(value, sort_keys=True, indent=1).encode("ascii") + b"\n"

    @classmethod
    def loads(cls, data: bytes, where: str = RETRACTIONS_FILE) -> Self:
        """Read the bytes that `dumps` returns.

        Raises:
            FormatError: the bytes are not such a log, or an entry was changed or is missing.
        """
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            found = f"{len(data)} bytes that are not JSON ({error})"
            raise FormatError(where, found, "a JSON object", _RESTORE) from error
        fields = check_fields(value, where, _LOG_TYPES)
        for key, wanted in (("format", LOG_FORMAT), ("version", LOG_VERSION)):
            if fields[key] != wanted:
                raise FormatError(
                    f"{where}: {key}", f"{fields[key]!r}", f"{wanted!r}", _RESTORE
                )
        log = cls(fields["manifest_digest"])
        for k, entry in enumerate(fields["entries"]):
            log = log._append_read(entry, f"{where}: entries[{k}]")
        for shard in fields["rewritten"]:
            if type(shard) is not int or shard < 0:
                wanted = "a number of a shard"
                raise FormatError(f"{where}: rewritten", repr(shard), wanted, _RESTORE)
            log = log.add_rewritten(shard)
        return log

    def _append_read(self, value: Any, where: str) -> Self:
        """Append an entry that was read from JSON, after checking its place in the chain."""
        fields = check_fields(value, where, {**_ENTRY_TYPES, "digest_after": str})
        digest_after = fields.pop("digest_after")
        entry = RetractionEntry(**fields)
        expected = {
            "number": (entry.number, len(self.entries) + 1),
            "tombstones": (entry.tombstones, tombstones_file(entry.number)),
            "digest_before": (entry.digest_before, self.lineage[-1]),
            "digest_after": (digest_after, entry.digest_after),
        }
        for key, (found, wanted) in expected.items():
            if found != wanted:
                raise FormatError(f"{where}.{key}", f"{found!r}", f"{wanted!r}", _RESTORE)
        return replace(self, entries=(*self.entries, entry))


def tombstones_file(number: int) -> str:
    """Return the name of the tombstones of a retraction, such as `retracted-000001.npy`."""
    return f"retracted-{number:06d}.npy"


def _dump_tombstones(tombstones: NDArray[np.uint64]) -> bytes:
    """Return (D, 4) tombstones, with TOMBSTONE_COLUMNS, as the content of an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(tombstones, "<u8"), allow_pickle=False)
    return buffer.getvalue()


def read_tombstones(
    data: bytes, entry: RetractionEntry, where: str = ""
) -> NDArray[np.uint64]:
    """Return the (D, 4) tombstones of an entry, with TOMBSTONE_COLUMNS.

    Raises:
        FormatError: the bytes are not those that the entry names.
    """
    where = where or entry.tombstones
    found = hashlib.sha256(data).hexdigest()
    if found != entry.tombstones_sha256:
        wanted = f"{entry.tombstones_sha256} as in {RETRACTIONS_FILE}"
        raise FormatError(f"{where}: sha256", found, wanted, _RESTORE)
    table = np.load(io.BytesIO(data), allow_pickle=False)
    wanted_shape = (entry.num_docs, len(TOMBSTONE_COLUMNS))
    if table.shape != wanted_shape or table.dtype != np.dtype("<u8"):
        raise FormatError(
            where, f"{table.dtype} {table.shape}", f"uint64 {wanted_shape}", _RESTORE
        )
    return table
