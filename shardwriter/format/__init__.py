"""The on-disk contract of a dataset: names, members, the index beside each shard, the manifest; version 1.

Promises: what `docs/data-format.md` says in words is said here in code, once, for the writer, the verifier and every
reader; it needs the standard library and numpy only. Whatever is not as the format says is refused with an error that
names the place, what was found, what was wanted and how to mend it; nothing is guessed.
Leaves to others: making tar files (`writer`), joining shards and re-reading whole datasets (`manifest`), fetching bytes
from disk or network, caching, order and rows (the loader).

Reading a row's tokens takes the manifest, one index and one byte range:

    manifest = Manifest.loads(path.read_bytes(), where=str(path))
    index = read_index(folder / manifest.shards[3].index_file)
    start, stop = index.sample_starts[12:14]                     # tokens of sample 12, counted from the shard's start
    tar.seek(index.sample_offsets[12])
    raw = tar.read((stop - start) * index.token_dtype.itemsize)
    assert zlib.crc32(raw) == index.sample_crcs[12]
    tokens = np.frombuffer(raw, index.token_dtype)
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

FORMAT_NAME = "corpusmill-shards"
FORMAT_VERSION = 1
"""Rises whenever a reader of the version before could misread a dataset; readers refuse every other version."""

MANIFEST_FILE = "manifest.json"

DOCS_MEMBER = "docs.npy"
METADATA_MEMBER = "json"
TOKENS_MEMBER = "tokens.npy"
"""The members of a sample are `<key>.<one of these>`, in this (alphabetical) order; the metadata may be absent."""

DOCS_DTYPE = np.dtype("<u4")
"""Of the document starts in a sample. Always enough: 8 GiB, the most a member holds, are 2**32 tokens of uint16."""

NPY_HEADER_BYTES = 128
TAR_BLOCK_BYTES = 512
MAX_MEMBER_BYTES = 8**11 - 1
"""The size field of a ustar header has eleven octal digits (POSIX.1-1988, "ustar Interchange Format")."""

REFETCH = (
    "copy the file again from where it was written, or delete the shard and run the pipeline again"
)
_EDITED = "restore manifest.json as the pipeline wrote it; counts and names are not meant to be edited by hand"


class FormatError(ValueError):
    """What was read is not what this version of the format says.

    Args, all kept as attributes: `where` (file and place in it), `found`, `wanted`, `remedy` (an act, in words).
    """

    def __init__(self, where: str, found: str, wanted: str, remedy: str) -> None:
        super().__init__(
            where, found, wanted, remedy
        )  # all four, so that the error survives pickling
        self.where, self.found, self.wanted, self.remedy = where, found, wanted, remedy

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}, wanted {self.wanted}; {self.remedy}"


class ShardCorrupt(FormatError):
    """The bytes of a shard or index are damaged or cut off: fetching the file again can help."""


# ---------------------------------------------------------------------------------------------------------------- names


def shard_file(shard: int) -> str:
    """Name of a shard's tar, as in `shard-000003.tar`."""
    return f"shard-{shard:06d}.tar"


def index_file(shard: int) -> str:
    """Name of a shard's index, as in `shard-000003.idx`."""
    return f"shard-{shard:06d}.idx"


def sample_key(shard: int, sample: int) -> str:
    """Key of a sample, as in `000003-00012`: unique in the dataset, no dots, so that WebDataset groups its members."""
    return f"{shard:06d}-{sample:05d}"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """uint16 where every id below `vocab_size` fits, else uint32; always little-endian."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def npy_header(dtype: np.dtype[Any], num_elements: int) -> bytes:
    """The 128 bytes before a 1-D array in a `.npy` file, version 1.0 (numpy/lib/format.py, "Format Version 1.0").

    Written by hand because numpy's own padding has changed between releases, and shards promise equal bytes.
    """
    fields = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({num_elements},), }}"
    length = NPY_HEADER_BYTES - 10
    return (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", length)
        + fields.ljust(length - 1).encode("ascii")
        + b"\n"
    )


# ---------------------------------------------------------------------------------------------------------------- index

INDEX_MAGIC = b"\x93CMIDX\r\n"
"""The high bit and the line ending betray a transfer that was not binary, as in PNG's signature."""

INDEX_HEADER = struct.Struct("<8sIIQQQQI8xI")
"""magic, version, shard, shard_bytes, num_samples, num_docs, num_tokens, token_bytes, eight zeros, crc32: 64 bytes."""

_CHECKSUM = struct.Struct("<I")
_TOKEN_DTYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """Where each sample and each document of one shard lies.

    Positions are int64, never unsigned: numpy turns uint64 plus int64 into float64. S samples, D documents:

    sample_offsets: (S,) int64, byte in the tar at which the raw tokens of a sample start (behind the .npy header)
    sample_starts:  (S + 1,) int64, tokens of the shard before each sample; the last is `num_tokens`
    doc_starts:     (D + 1,) int64, tokens of the shard before each document; the last is `num_tokens`
    doc_ids:        (D,) uint64
    sample_crcs:    (S,) uint32, zlib's crc32 of the raw tokens of each sample
    """

    shard: int
    shard_bytes: int
    token_dtype: np.dtype[Any]
    sample_offsets: NDArray[np.int64]
    sample_starts: NDArray[np.int64]
    doc_starts: NDArray[np.int64]
    doc_ids: NDArray[np.uint64]
    sample_crcs: NDArray[np.uint32]

    @property
    def num_samples(self) -> int:
        """Blocks of whole documents in the shard."""
        return len(self.sample_offsets)

    @property
    def num_docs(self) -> int:
        """Documents in the shard."""
        return len(self.doc_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens in the shard."""
        return int(self.sample_starts[-1])

    def to_bytes(self) -> bytes:
        """The index file: header, then the arrays as they are declared, zeros up to a multiple of eight."""
        payload = b"".join(
            array.astype(dtype).tobytes()
            for array, dtype in [
                (self.sample_offsets, "<i8"),
                (self.sample_starts, "<i8"),
                (self.doc_starts, "<i8"),
                (self.doc_ids, "<u8"),
                (self.sample_crcs, "<u4"),
            ]
        )
        payload += bytes(-len(payload) % 8)
        counts = self.shard, self.shard_bytes, self.num_samples, self.num_docs, self.num_tokens
        header = INDEX_HEADER.pack(
            INDEX_MAGIC, FORMAT_VERSION, *counts, self.token_dtype.itemsize, 0
        )
        covered = header[: -_CHECKSUM.size]
        return covered + _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(covered))) + payload

    @classmethod
    def from_bytes(cls, data: bytes | memoryview | mmap.mmap, where: str) -> Self:
        """The index in `data`, checked against its own checksum; the arrays are views of `data`, nothing is copied.

        Args:
            data: one whole index file.
            where: what errors call it, usually its path or address.

        Raises:
            FormatError: not an index, or of another version.
            ShardCorrupt: cut off, too long, or changed since it was written.
        """
        view = memoryview(data)
        shard, shard_bytes, num_samples, num_docs, num_tokens, token_bytes = _checked_header(
            view, where
        )
        offset = INDEX_HEADER.size

        def take(dtype: str, count: int) -> NDArray[Any]:
            nonlocal offset
            array = np.frombuffer(view, dtype, count, offset)
            offset += array.nbytes
            return array

        sample_offsets, sample_starts = take("<i8", num_samples), take("<i8", num_samples + 1)
        doc_starts, doc_ids = take("<i8", num_docs + 1), take("<u8", num_docs)
        sample_crcs = take("<u4", num_samples)
        dtype = _TOKEN_DTYPES[token_bytes]
        index = cls(
            shard,
            shard_bytes,
            dtype,
            sample_offsets,
            sample_starts,
            doc_starts,
            doc_ids,
            sample_crcs,
        )
        for name, last in (
            ("sample_starts", index.num_tokens),
            ("doc_starts", int(doc_starts[-1])),
        ):
            if last != num_tokens:
                raise ShardCorrupt(
                    f"{where}: last of {name}", f"{last}", f"num_tokens = {num_tokens}", REFETCH
                )
        return index


def _checked_header(view: memoryview, where: str) -> tuple[int, int, int, int, int, int]:
    """shard, shard_bytes, num_samples, num_docs, num_tokens, token_bytes of an index that is whole."""
    if view.nbytes < INDEX_HEADER.size:
        raise ShardCorrupt(
            where, f"{view.nbytes} bytes", f"a header of {INDEX_HEADER.size} bytes", REFETCH
        )
    magic, version, *counts, token_bytes, checksum = INDEX_HEADER.unpack_from(view)
    if magic != INDEX_MAGIC:
        raise FormatError(
            f"{where}, byte 0",
            repr(magic),
            f"the magic {INDEX_MAGIC!r}",
            "give the .idx of a shard",
        )
    _refuse_other_version(f"{where}, byte 8", version)
    num_bytes = _index_bytes(num_samples=counts[2], num_docs=counts[3])
    if view.nbytes != num_bytes:
        wanted = f"{num_bytes} bytes for {counts[2]} samples and {counts[3]} documents"
        raise ShardCorrupt(where, f"{view.nbytes} bytes", wanted, REFETCH)
    covered = INDEX_HEADER.size - _CHECKSUM.size
    found = zlib.crc32(view[INDEX_HEADER.size :], zlib.crc32(view[:covered]))
    if found != checksum:
        raise ShardCorrupt(
            f"{where}, byte {covered}", f"crc32 {found:08x}", f"{checksum:08x}", REFETCH
        )
    if token_bytes not in _TOKEN_DTYPES:
        raise FormatError(
            f"{where}, byte 48", f"{token_bytes} bytes per token", "2 or 4", "write the shard again"
        )
    shard, shard_bytes, num_samples, num_docs, num_tokens = counts
    return shard, shard_bytes, num_samples, num_docs, num_tokens, token_bytes


def _index_bytes(*, num_samples: int, num_docs: int) -> int:
    return (
        INDEX_HEADER.size
        + 8 * (2 * num_samples + 1 + 2 * num_docs + 1)
        + 8 * ((num_samples + 1) // 2)
    )


def read_index(path: Path) -> ShardIndex:
    """The index at `path`, memory-mapped: nothing but its checksum reads it whole, and pages can be dropped again.

    Raises:
        OSError: it cannot be opened.
        FormatError: as `ShardIndex.from_bytes`.
    """
    with path.open("rb") as file:
        is_empty = not file.read(1)  # what mmap refuses
        data = b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return ShardIndex.from_bytes(data, where=str(path))


# ------------------------------------------------------------------------------------------------------------- manifest


@dataclass(frozen=True)
class Count:
    """How much of a shard or dataset has some label."""

    num_docs: int
    num_tokens: int

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """The inverse of `dataclasses.asdict`."""
        return cls(**_fields(value, where, {"num_docs": int, "num_tokens": int}))


@dataclass(frozen=True)
class TokenizerEntry:
    """What made the token ids.

    `vocab_size` counts every id, special ones included: ids are 0 .. vocab_size - 1. Each document's last token is
    `end_of_document`. `special_ids` names the other special tokens.
    """

    name: str
    sha256: str
    vocab_size: int
    end_of_document: int
    special_ids: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        if not 1 <= self.vocab_size <= 2**32:
            raise ValueError(
                f"tokenizer {self.name!r}: vocab_size is {self.vocab_size}, must lie in 1..{2**32}"
            )
        for name, token in {"end_of_document": self.end_of_document, **self.special_ids}.items():
            if not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"tokenizer {self.name!r}: the id of {name!r} is {token}, must lie in 0..{self.vocab_size - 1}; "
                    f"vocab_size counts special tokens too"
                )

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """What every token array in the dataset is made of."""
        return token_dtype(self.vocab_size)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str = "tokenizer") -> Self:
        """The inverse of `to_json`; raises FormatError."""
        kinds = {
            "name": str,
            "sha256": str,
            "vocab_size": int,
            "end_of_document": int,
            "special_ids": dict,
        }
        fields = _fields(value, where, kinds)
        special_ids = fields["special_ids"]
        _fields(special_ids, f"{where}.special_ids", dict.fromkeys(special_ids, int))
        try:
            return cls(**fields)
        except ValueError as error:
            raise FormatError(where, str(error), "ids inside the vocabulary", _EDITED) from error


_SHARD_KINDS: Mapping[str, type] = {
    "shard": int,
    "file": str,
    "shard_bytes": int,
    "sha256": str,
    "index_file": str,
    "index_bytes": int,
    "index_sha256": str,
    "num_samples": int,
    "num_docs": int,
    "num_tokens": int,
    "languages": dict,
    "buckets": dict,
}


@dataclass(frozen=True)
class ShardEntry:
    """What the manifest says of one shard. `languages` and `buckets` are empty, or every document is in one of each."""

    shard: int
    shard_bytes: int
    sha256: str
    index_bytes: int
    index_sha256: str
    num_samples: int
    num_docs: int
    num_tokens: int
    languages: Mapping[str, Count] = field(default_factory=dict[str, Count])
    buckets: Mapping[str, Count] = field(default_factory=dict[str, Count])

    @property
    def file(self) -> str:
        """Name of the tar, in the manifest's folder."""
        return shard_file(self.shard)

    @property
    def index_file(self) -> str:
        """Name of the index, in the manifest's folder."""
        return index_file(self.shard)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; names are bare, so that a dataset can be moved."""
        return {**asdict(self), "file": self.file, "index_file": self.index_file}

    @classmethod
    def from_json(cls, value: Any, where: str = "shard") -> Self:
        """The inverse of `to_json`; raises FormatError."""
        fields = _fields(value, where, _SHARD_KINDS)
        names = {"file": fields.pop("file"), "index_file": fields.pop("index_file")}
        for labels in ("languages", "buckets"):
            fields[labels] = _counts(fields[labels], f"{where}.{labels}")
        entry = cls(**fields)
        for key, name in names.items():
            wanted = getattr(entry, key)
            if name != wanted:
                raise FormatError(
                    f"{where}.{key}", repr(name), f"{wanted!r} for shard {entry.shard}", _EDITED
                )
        return entry


@dataclass(frozen=True)
class Totals:
    """Sums over the shards of a dataset."""

    num_shards: int
    shard_bytes: int
    index_bytes: int
    num_samples: int
    num_docs: int
    num_tokens: int
    languages: Mapping[str, Count]
    buckets: Mapping[str, Count]

    @classmethod
    def of(cls, shards: Sequence[ShardEntry]) -> Self:
        """Add up."""
        return cls(
            num_shards=len(shards),
            shard_bytes=sum(entry.shard_bytes for entry in shards),
            index_bytes=sum(entry.index_bytes for entry in shards),
            num_samples=sum(entry.num_samples for entry in shards),
            num_docs=sum(entry.num_docs for entry in shards),
            num_tokens=sum(entry.num_tokens for entry in shards),
            languages=_sum_counts(entry.languages for entry in shards),
            buckets=_sum_counts(entry.buckets for entry in shards),
        )

    @classmethod
    def from_json(cls, value: Any, where: str = "totals") -> Self:
        """The inverse of `dataclasses.asdict`; raises FormatError."""
        numbers = (
            "num_shards",
            "shard_bytes",
            "index_bytes",
            "num_samples",
            "num_docs",
            "num_tokens",
        )
        fields = _fields(
            value, where, {**dict.fromkeys(numbers, int), "languages": dict, "buckets": dict}
        )
        for labels in ("languages", "buckets"):
            fields[labels] = _counts(fields[labels], f"{where}.{labels}")
        return cls(**fields)


_DIGEST_START = b'{\n "digest": "'
_NO_DIGEST = b"0" * 64


@dataclass(frozen=True)
class Manifest:
    """The table of contents of a dataset: shard k is `shards[k]`.

    `fingerprint` identifies the run that made the dataset; `run` is that run's own account (sources, config, order of
    the documents), any JSON object, which readers of the format pass over.
    """

    tokenizer: TokenizerEntry
    shards: tuple[ShardEntry, ...]
    totals: Totals
    fingerprint: str
    run: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """What every token array in the dataset is made of."""
        return self.tokenizer.token_dtype

    @property
    def digest(self) -> str:
        """sha256 that stands for the whole dataset, since the manifest holds the sha256 of every file."""
        return _digest(self._layout())

    def to_json(self) -> dict[str, Any]:
        """A JSON object, without the digest, which belongs to the file's bytes."""
        return {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "tokenizer": self.tokenizer.to_json(),
            "token_dtype": self.token_dtype.name,
            "shards": [entry.to_json() for entry in self.shards],
            "totals": asdict(self.totals),
            "fingerprint": self.fingerprint,
            "run": self.run,
        }

    @classmethod
    def from_json(cls, value: Any, where: str = MANIFEST_FILE) -> Self:
        """The inverse of `to_json`; what it says may still contradict itself, see `faults`.

        Raises:
            FormatError: another format or version, a key missing, unknown or of the wrong type.
        """
        _refuse_other_format(value, where)
        kinds = {
            "tokenizer": dict,
            "token_dtype": str,
            "shards": list,
            "totals": dict,
            "fingerprint": str,
            "run": dict,
        }
        fields = _fields(value, where, {"format": str, "version": int, **kinds})
        tokenizer = TokenizerEntry.from_json(fields["tokenizer"], f"{where}: tokenizer")
        if fields["token_dtype"] != tokenizer.token_dtype.name:
            wanted = f"{tokenizer.token_dtype.name!r} for {tokenizer.vocab_size} ids"
            raise FormatError(f"{where}: token_dtype", repr(fields["token_dtype"]), wanted, _EDITED)
        shards = (
            ShardEntry.from_json(entry, f"{where}: shards[{k}]")
            for k, entry in enumerate(fields["shards"])
        )
        totals = Totals.from_json(fields["totals"], f"{where}: totals")
        return cls(tokenizer, tuple(shards), totals, fields["fingerprint"], fields["run"])

    def faults(self, where: str = MANIFEST_FILE) -> list[FormatError]:
        """Every place where the manifest contradicts itself."""
        faults: list[FormatError] = []

        def expect(place: str, found: object, wanted: object) -> None:
            if found != wanted:
                faults.append(FormatError(f"{where}: {place}", f"{found}", f"{wanted}", _EDITED))

        for k, entry in enumerate(self.shards):
            expect(f"shards[{k}].shard", entry.shard, k)
            for labels, counts in (("languages", entry.languages), ("buckets", entry.buckets)):
                if counts:
                    added = [
                        sum(c.num_docs for c in counts.values()),
                        sum(c.num_tokens for c in counts.values()),
                    ]
                    place = f"shards[{k}].{labels}, documents and tokens added up"
                    expect(place, added, [entry.num_docs, entry.num_tokens])
        found, wanted = asdict(self.totals), asdict(Totals.of(self.shards))
        for key in wanted:
            expect(f"totals.{key}", found[key], wanted[key])
        return faults

    def dumps(self) -> bytes:
        """The file's bytes: sorted keys, one space of indentation, ASCII, a line ending last, the digest first."""
        return self._layout().replace(_NO_DIGEST, self.digest.encode("ascii"), 1)

    @classmethod
    def inspect(cls, data: bytes, where: str = MANIFEST_FILE) -> tuple[Self, list[FormatError]]:
        """The manifest in a file's bytes, and every contradiction in it. Raises FormatError where it is none."""
        try:
            value = json.loads(data)
        except (
            ValueError,
            RecursionError,
        ) as error:  # what json raises on anything that is not JSON in UTF-8
            found = f"{len(data)} bytes that are not JSON ({error})"
            raise FormatError(where, found, "a JSON object", _EDITED) from error
        _refuse_other_format(value, where)
        stored = value.pop("digest", None)
        manifest = cls.from_json(value, where)
        faults = manifest.faults(where)
        if stored != _digest(data):
            faults.append(
                FormatError(f"{where}: digest of the file", _digest(data), repr(stored), _EDITED)
            )
        return manifest, faults

    @classmethod
    def loads(cls, data: bytes, where: str = MANIFEST_FILE) -> Self:
        """The inverse of `dumps`; raises FormatError on the first thing that is wrong with it."""
        manifest, faults = cls.inspect(data, where)
        if faults:
            raise faults[0]
        return manifest

    def _layout(self) -> bytes:
        value = {
            "digest": _NO_DIGEST.decode("ascii"),
            **self.to_json(),
        }  # sorts before every other key
        return json.dumps(value, sort_keys=True, indent=1, allow_nan=False).encode("ascii") + b"\n"


def _digest(data: bytes) -> str:
    """sha256 of a manifest file with zeros in the place of its digest."""
    start = len(_DIGEST_START)
    return hashlib.sha256(data[:start] + _NO_DIGEST + data[start + len(_NO_DIGEST) :]).hexdigest()


def _refuse_other_format(value: Any, where: str) -> None:
    if not isinstance(value, dict) or value.get("format") != FORMAT_NAME:
        found = repr(value.get("format") if isinstance(value, dict) else value)[:80]
        raise FormatError(
            f"{where}: format", found, repr(FORMAT_NAME), "give the manifest of a dataset"
        )
    _refuse_other_version(f"{where}: version", value.get("version"))


def _refuse_other_version(where: str, version: object) -> None:
    if version != FORMAT_VERSION:
        remedy = "read it with the release that wrote it, or write the dataset again with this one"
        raise FormatError(where, repr(version), repr(FORMAT_VERSION), remedy)


_SHA256 = re.compile("[0-9a-f]{64}")


def _fields(value: Any, where: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """A copy of the JSON object `value`, which has exactly the keys of `kinds`, of these types, no number below 0."""
    if not isinstance(value, dict):
        raise FormatError(where, repr(value)[:80], "a JSON object", _EDITED)
    if value.keys() != kinds.keys():
        missing, unknown = sorted(kinds.keys() - value.keys()), sorted(value.keys() - kinds.keys())
        raise FormatError(
            where,
            f"keys missing {missing} and unknown {unknown}",
            f"the keys {sorted(kinds)}",
            _EDITED,
        )
    for key, kind in kinds.items():
        found = value[key]
        if type(found) is not kind or (kind is int and found < 0):
            wanted = "a number of at least 0" if kind is int else f"a value of type {kind.__name__}"
            raise FormatError(f"{where}.{key}", repr(found)[:80], wanted, _EDITED)
        if key.endswith("sha256") and not _SHA256.fullmatch(found):
            raise FormatError(f"{where}.{key}", repr(found)[:80], "64 hexadecimal digits", _EDITED)
    return dict(value)


def _counts(value: dict[str, Any], where: str) -> dict[str, Count]:
    return {label: Count.from_json(count, f"{where}[{label!r}]") for label, count in value.items()}


def _sum_counts(parts: Iterable[Mapping[str, Count]]) -> dict[str, Count]:
    total: dict[str, Count] = {}
    for counts in parts:
        for label, count in counts.items():
            before = total.get(label, Count(0, 0))
            total[label] = Count(
                before.num_docs + count.num_docs, before.num_tokens + count.num_tokens
            )
    return dict(sorted(total.items()))
