"""Joins shards into a dataset, and re-reads a dataset to say everything that is wrong with it.

Promises: `verify` reads every byte of every file that the manifest names, finds any bit that changed since it was
written, and never raises on broken data: each fault is a `Finding` with its place, what was found, what was wanted and
how to mend it. Memory holds one sample, one index, and `DOC_IDS_IN_MEMORY` document ids.
Leaves to others: writing the manifest's bytes (`Manifest.dumps`) where the run keeps its outputs, mending.

    manifest = join(entries, tokenizer=tokenizer, fingerprint="9f2c...", run={"config": "ccnet.yaml"})
    (folder / MANIFEST_FILE).write_bytes(manifest.dumps())
    for finding in verify(folder):
        print(finding)
    # shard-000000.tar, sample 000000-00012, byte 1574528: found tokens with crc32 5d1c9f00, wanted 8a2be7c1; copy ...
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwriter.format import (
    DOCS_DTYPE,
    DOCS_MEMBER,
    MANIFEST_FILE,
    METADATA_MEMBER,
    NPY_HEADER_BYTES,
    REFETCH,
    TAR_BLOCK_BYTES,
    TOKENS_MEMBER,
    FormatError,
    Manifest,
    ShardCorrupt,
    ShardEntry,
    ShardIndex,
    TokenizerEntry,
    Totals,
    npy_header,
    sample_key,
)

DOC_IDS_IN_MEMORY = 2**26
"""How many document ids the search for doubles holds at a time (about 2 GiB while it sorts); more take more passes."""

_REWRITE = "delete the shard and run the pipeline again; the file is whole but was not written by this format's rules"


def join(
    entries: Iterable[ShardEntry],
    *,
    tokenizer: TokenizerEntry,
    fingerprint: str,
    run: Mapping[str, Any] | None = None,
) -> Manifest:
    """The manifest of a dataset, from what `write_shard` said of each shard.

    Args:
        entries: one per shard, in any order, numbered 0, 1, 2, ... without a gap.
        tokenizer: as given to every `write_shard`.
        fingerprint: of the run.
        run: what else the run has to say of itself; any JSON object.

    Raises:
        ValueError: a shard is missing or occurs twice, or an entry contradicts itself.
    """
    shards = tuple(sorted(entries, key=lambda entry: entry.shard))
    numbers = [entry.shard for entry in shards]
    if numbers != list(range(len(numbers))):
        missing = sorted(set(range(max(numbers) + 1)) - set(numbers))
        twice = sorted({b for a, b in pairwise(numbers) if a == b})
        raise ValueError(
            f"shards to join: {missing[:10]} missing, {twice[:10]} given twice; wanted each of 0, 1, 2, ..."
        )
    manifest = Manifest(tokenizer, shards, Totals.from_shards(shards), fingerprint, run or {})
    if faults := manifest.find_faults():
        raise faults[0]
    return manifest


@dataclass(frozen=True)
class Finding:
    """One fault of a dataset: the place (file, sample, byte), what is there, what should be, and what to do."""

    where: str
    found: str
    wanted: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}, wanted {self.wanted}; {self.remedy}"


class _File(Protocol):
    @property
    def name(self) -> str: ...

    def read_bytes(self) -> bytes: ...

    def open(self, mode: Literal["rb"], /) -> Any: ...  # a seekable binary file


class Folder(Protocol):
    """What `verify` needs of a folder: as much of pathlib.Path's interface as a bucket can have too."""

    def __truediv__(self, name: str, /) -> _File: ...

    def iterdir(self) -> Iterable[_File]:
        """What lies right below."""
        ...


def verify(dataset: Folder | str) -> list[Finding]:
    """Everything that is wrong with a dataset; an empty list says that it is whole.

    Rehashes every file, walks every tar, recounts samples, documents and tokens, checks each sample's crc32 and offset,
    that ids are in the vocabulary and documents end with their end, that no doc_id occurs twice, and that no shard lies
    about that the manifest does not name.

    Args:
        dataset: the folder: a local path, or whatever else has files below it that can be opened and sought in.
            Of a local one also the manifest in it.
    """
    folder = Path(dataset) if isinstance(dataset, str) else dataset
    if isinstance(folder, Path) and not folder.is_dir():
        return list(_verify_dataset(folder.parent, folder))
    return list(_verify_dataset(folder, folder / MANIFEST_FILE))


def _verify_dataset(folder: Folder, path: _File) -> Iterator[Finding]:
    manifest = yield from _verify_manifest(path)
    if manifest is None:
        return
    yield from _unnamed_files(folder, manifest)
    doc_ids = _DocIds()
    for entry in manifest.shards:
        index = yield from _verify_index(folder / entry.index_file, entry, manifest.tokenizer)
        if (yield from _verify_file(folder / entry.file, entry.shard_bytes, entry.sha256)):
            yield from _verify_samples(folder / entry.file, entry, manifest.tokenizer, index)
        if index is not None:
            doc_ids.files.append((folder / entry.index_file, index.num_docs))
    yield from doc_ids.doubles()


def _verify_manifest(path: _File) -> Generator[Finding, None, Manifest | None]:
    try:
        manifest, faults = Manifest.inspect(path.read_bytes(), path.name)
    except OSError as error:
        yield Finding(
            path.name, _reason(error), "a manifest", "give the folder that holds manifest.json"
        )
        return None
    except FormatError as error:
        yield _finding(error)
        return None
    yield from map(_finding, faults)
    return manifest


def _unnamed_files(folder: Folder, manifest: Manifest) -> Iterator[Finding]:
    named = {name for entry in manifest.shards for name in (entry.file, entry.index_file)}
    for name in sorted(path.name for path in folder.iterdir()):
        if name.startswith("shard-") and name not in named:
            remedy = (
                "move the file away; a reader that takes every shard in the folder would read it"
            )
            yield Finding(
                name, "a file that the manifest does not name", "only files that it names", remedy
            )


def _verify_file(path: _File, num_bytes: int, sha256: str) -> Generator[Finding, None, bool]:
    """Compare with size and sha256; returns whether there is a file to read."""
    try:
        with path.open("rb") as file:
            found_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            found_bytes = file.tell()
    except OSError as error:
        yield Finding(path.name, _reason(error), f"a file of {num_bytes} bytes", REFETCH)
        return False
    if found_bytes != num_bytes:
        yield Finding(path.name, f"{found_bytes} bytes", f"{num_bytes} bytes", REFETCH)
    if found_sha256 != sha256:
        yield Finding(path.name, f"sha256 {found_sha256}", sha256, REFETCH)
    return True


def _reason(error: OSError) -> str:
    return f"no readable file ({error.strerror or error})"


def _finding(error: FormatError) -> Finding:
    return Finding(error.where, error.found, error.wanted, error.remedy)


# ---------------------------------------------------------------------------------------------------------------- index


def _verify_index(
    path: _File, entry: ShardEntry, tokenizer: TokenizerEntry
) -> Generator[Finding, None, ShardIndex | None]:
    if not (yield from _verify_file(path, entry.index_bytes, entry.index_sha256)):
        return None
    try:
        index = ShardIndex.from_bytes(path.read_bytes(), path.name)
    except OSError as error:
        yield Finding(path.name, _reason(error), "an index", REFETCH)
        return None
    except FormatError as error:
        yield _finding(error)
        return None
    if index.shard != entry.shard:
        yield Finding(
            path.name, f"the index of shard {index.shard}", f"that of shard {entry.shard}", REFETCH
        )
        return None  # every comparison with this shard's tar would fail
    yield from _compare_counts(path.name, index, entry)
    if index.token_dtype != tokenizer.token_dtype:
        yield Finding(
            path.name, f"tokens of {index.token_dtype}", f"{tokenizer.token_dtype}", _REWRITE
        )
    yield from _verify_order(path.name, index)
    return index


def _compare_counts(where: str, index: ShardIndex, entry: ShardEntry) -> Iterator[Finding]:
    for name in ("shard_bytes", "num_samples", "num_docs", "num_tokens"):
        found, wanted = getattr(index, name), getattr(entry, name)
        if found != wanted:
            yield Finding(
                f"{where}: {name}", f"{found} in the index", f"{wanted} as in the manifest", REFETCH
            )


def _verify_order(where: str, index: ShardIndex) -> Iterator[Finding]:
    """Starts rise from 0 without a pause, and every sample begins with a document."""
    for name, starts in (("sample_starts", index.sample_starts), ("doc_starts", index.doc_starts)):
        steps = np.diff(starts, prepend=-1)
        if starts[0] != 0 or steps.min() < 1:
            at = int(steps.argmin()) if steps.min() < 1 else 0
            yield Finding(
                f"{where}: {name}[{at}]", f"{starts[at]}", "0 first, then rising numbers", _REWRITE
            )
    inside = np.flatnonzero(~np.isin(index.sample_starts, index.doc_starts))
    if len(inside):
        found = f"token {index.sample_starts[inside[0]]}, inside a document"
        yield Finding(
            f"{where}: sample_starts[{inside[0]}]", found, "the start of a document", _REWRITE
        )


@dataclass
class _DocIds:
    """Which indexes there are, with their numbers of documents; no document id may occur twice in them."""

    files: list[tuple[_File, int]] = field(default_factory=list[tuple[_File, int]])

    def doubles(self) -> Iterator[Finding]:
        """One finding for each index that repeats ids, and each index that had them first."""
        num_passes = -(-sum(num_docs for _, num_docs in self.files) // DOC_IDS_IN_MEMORY)
        pairs: dict[
            tuple[str, str], tuple[int, int]
        ] = {}  # (first, later) file -> how many, the lowest id
        for remainder in range(num_passes):
            ids, owners = self._gather(num_passes, remainder)
            order = np.argsort(ids, kind="stable")  # equal ids stay in the order of the shards
            ids, owners = ids[order], owners[order]
            for at in np.flatnonzero(ids[1:] == ids[:-1]):
                pair = self.files[owners[at]][0].name, self.files[owners[at + 1]][0].name
                num_doubles, lowest = pairs.get(pair, (0, int(ids[at])))
                pairs[pair] = num_doubles + 1, min(lowest, int(ids[at]))
        for (first, later), (num_doubles, doc_id) in sorted(pairs.items()):
            found = f"{num_doubles} doc_ids that {first} has already, {doc_id} among them"
            yield Finding(later, found, "each doc_id once in the dataset", _REWRITE)

    def _gather(
        self, num_passes: int, remainder: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """(n,) the ids with this remainder, and (n,) which of `files` each is in."""
        ids, owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)]
        for owner, (path, _) in enumerate(self.files):
            own = ShardIndex.from_bytes(path.read_bytes(), path.name).doc_ids
            own = own[own % np.uint64(num_passes) == remainder]
            ids.append(own)
            owners.append(np.full(len(own), owner, np.int32))
        return np.concatenate(ids), np.concatenate(owners)


# -------------------------------------------------------------------------------------------------------------- samples


class _Member(NamedTuple):
    name: str
    offset: int  # of the content in the tar
    content: bytes


@dataclass
class _Recount:
    num_samples: int = 0
    num_docs: int = 0
    num_tokens: int = 0


def _verify_samples(
    path: _File, entry: ShardEntry, tokenizer: TokenizerEntry, index: ShardIndex | None
) -> Iterator[Finding]:
    """Walk the tar; compare each sample with the index, where there is one, and their sums with the manifest."""
    recount = _Recount()
    try:
        with path.open("rb") as file:
            for members in _samples(_members(file, path.name)):
                where = f"{path.name}, sample {sample_key(entry.shard, recount.num_samples)}"
                yield from _verify_sample(where, members, entry.shard, tokenizer, index, recount)
                recount.num_samples += 1
    except ShardCorrupt as error:
        yield _finding(error)
    except OSError as error:
        yield Finding(path.name, _reason(error), "a tar", REFETCH)
    for name, found in vars(recount).items():
        if found != (wanted := getattr(entry, name)):
            yield Finding(
                f"{path.name}: {name}",
                f"{found} in the tar",
                f"{wanted} as in the manifest",
                REFETCH,
            )


def _samples(members: Iterator[_Member]) -> Iterator[list[_Member]]:
    """Members up to the tokens, which are a sample's last; so a sample is complete before the next member is read."""
    pending: list[_Member] = []
    for member in members:
        pending.append(member)
        if member.name.endswith(f".{TOKENS_MEMBER}") or len(pending) == 3:
            yield pending
            pending = []
    if pending:
        yield pending


def _members(file: BinaryIO, name: str) -> Iterator[_Member]:
    """The members of a tar, read with `tarfile`'s parser of headers; raises ShardCorrupt where they break off.

    Not with TarFile itself: it takes a block of zeros for the end, follows extension headers, and believes any size.
    """
    file_bytes = file.seek(0, 2)
    file.seek(0)
    while True:
        offset = file.tell()
        block = file.read(TAR_BLOCK_BYTES)
        if block + file.read(TAR_BLOCK_BYTES) == bytes(2 * TAR_BLOCK_BYTES):
            break
        file.seek(offset + TAR_BLOCK_BYTES)
        where = f"{name}, byte {offset}"
        try:
            header = tarfile.TarInfo.frombuf(block, "ascii", "backslashreplace")
        except tarfile.HeaderError as error:
            raise ShardCorrupt(
                where, f"no tar header ({error})", "a member or the end", REFETCH
            ) from error
        if header.type != tarfile.REGTYPE or not 0 <= header.size <= file_bytes - file.tell():
            found = f"type {header.type!r}, {header.size} bytes"
            raise ShardCorrupt(where, found, "a regular file that ends inside the tar", REFETCH)
        yield _Member(header.name, file.tell(), file.read(header.size))
        file.seek(-header.size % TAR_BLOCK_BYTES, 1)
    if file.tell() != file_bytes:
        found = f"the end of the archive, but {file_bytes - file.tell()} bytes behind it"
        raise ShardCorrupt(
            f"{name}, byte {offset}", found, "nothing behind two blocks of zeros", REFETCH
        )


def _verify_sample(
    where: str,
    members: list[_Member],
    shard: int,
    tokenizer: TokenizerEntry,
    index: ShardIndex | None,
    recount: _Recount,
) -> Iterator[Finding]:
    """Check one sample by itself and against the index, and add it to the recount."""
    key = sample_key(shard, recount.num_samples)
    wanted = [f"{key}.{DOCS_MEMBER}", f"{key}.{METADATA_MEMBER}", f"{key}.{TOKENS_MEMBER}"]
    names = [member.name for member in members]
    if names not in (wanted, [wanted[0], wanted[2]]):
        yield Finding(
            where, f"the members {names}", f"{wanted} (the metadata may be absent)", _REWRITE
        )
        return
    starts = yield from _array(where, members[0], DOCS_DTYPE)
    tokens = yield from _array(where, members[-1], tokenizer.token_dtype)
    if starts is None or tokens is None:
        return
    yield from _verify_tokens(where, tokens, starts, tokenizer)
    if len(members) == 3:
        yield from _verify_metadata(where, members[1], len(starts))
    if index is not None:
        offset = members[-1].offset + NPY_HEADER_BYTES
        yield from _compare_sample(
            f"{where}, byte {offset}", offset, tokens, starts, index, recount.num_samples
        )
    recount.num_docs += len(starts)
    recount.num_tokens += len(tokens)


def _array(
    where: str, member: _Member, dtype: np.dtype[Any]
) -> Generator[Finding, None, NDArray[Any] | None]:
    """The 1-D array in a .npy member, if it is one of this dtype."""
    num_elements = (len(member.content) - NPY_HEADER_BYTES) // dtype.itemsize
    header = npy_header(dtype, max(num_elements, 0))
    if len(member.content) != len(header) + max(
        num_elements, 0
    ) * dtype.itemsize or not member.content.startswith(header):
        found = f"{len(member.content)} bytes that begin with {member.content[:64]!r}"
        yield Finding(
            f"{where}, byte {member.offset} ({member.name})",
            found,
            f"a 1-D .npy array of {dtype}",
            REFETCH,
        )
        return None
    return np.frombuffer(member.content, dtype, offset=NPY_HEADER_BYTES)


def _verify_tokens(
    where: str, tokens: NDArray[Any], starts: NDArray[Any], tokenizer: TokenizerEntry
) -> Iterator[Finding]:
    bounds = np.append(starts.astype(np.int64), len(tokens))
    if not len(starts) or bounds[0] != 0 or np.diff(bounds).min() < 1:
        found = f"document starts {bounds[:-1][:8].tolist()}... in {len(tokens)} tokens"
        yield Finding(where, found, "0 first, then rising, the last inside the sample", REFETCH)
        return
    highest = int(tokens.argmax())
    if tokens[highest] >= tokenizer.vocab_size:
        wanted = f"below vocab_size = {tokenizer.vocab_size}"
        yield Finding(f"{where}, token {highest}", f"{tokens[highest]}", wanted, REFETCH)
    for doc in np.flatnonzero(tokens[bounds[1:] - 1] != tokenizer.end_of_document)[:1]:
        last = bounds[doc + 1] - 1
        wanted = f"end_of_document = {tokenizer.end_of_document}, the last of document {doc}"
        yield Finding(f"{where}, token {last}", f"{tokens[last]}", wanted, REFETCH)


def _verify_metadata(where: str, member: _Member, num_docs: int) -> Iterator[Finding]:
    place = f"{where}, byte {member.offset} ({member.name})"
    wanted = f"a JSON list of {num_docs} objects, one per document"
    try:
        value = json.loads(member.content)
    except (ValueError, RecursionError) as error:
        yield Finding(place, f"no JSON ({error})", wanted, REFETCH)
        return
    if (
        not isinstance(value, list)
        or len(value) != num_docs
        or not all(isinstance(each, dict) for each in value)
    ):
        length = f" of {len(value)}" if isinstance(value, list) else ""
        yield Finding(place, f"a {type(value).__name__}{length}", wanted, _REWRITE)


def _compare_sample(
    where: str,
    offset: int,
    tokens: NDArray[Any],
    starts: NDArray[Any],
    index: ShardIndex,
    sample: int,
) -> Iterator[Finding]:
    """Compare what the tar holds with what the index says of the same sample."""
    if sample >= index.num_samples:
        yield Finding(
            where, f"sample {sample}", f"{index.num_samples} samples as in the index", REFETCH
        )
        return
    start, stop = index.sample_starts[sample : sample + 2].tolist()
    first, last = np.searchsorted(index.doc_starts, [start, stop])
    indexed_starts = index.doc_starts[first:last] - start
    crc = zlib.crc32(tokens.tobytes())
    indexed_crc = int(index.sample_crcs[sample])
    if crc != indexed_crc:
        yield Finding(
            where, f"tokens with crc32 {crc:08x}", f"{indexed_crc:08x} as in the index", REFETCH
        )
    if offset != index.sample_offsets[sample]:
        yield Finding(
            where, "tokens", f"them at byte {index.sample_offsets[sample]} as in the index", REFETCH
        )
    if len(tokens) != stop - start:
        yield Finding(where, f"{len(tokens)} tokens", f"{stop - start} as in the index", REFETCH)
    if not np.array_equal(starts, indexed_starts):
        found = f"documents that start at {starts[:8].tolist()}..."
        yield Finding(where, found, f"{indexed_starts[:8].tolist()}... as in the index", REFETCH)
