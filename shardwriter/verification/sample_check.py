"""Check the samples in a shard's tar, alone and against the index and the manifest."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwriter.format import (
    DOCS_DTYPE,
    DOCS_MEMBER,
    METADATA_MEMBER,
    NPY_HEADER_BYTES,
    REFETCH,
    REWRITE,
    TOKENS_MEMBER,
    ShardCorrupt,
    ShardEntry,
    ShardIndex,
    TokenizerEntry,
    npy_header,
    sample_key,
)
from shardwriter.verification.findings import File, Finding
from shardwriter.verification.tar_reader import MAX_SAMPLE_MEMBERS, Member, read_samples

MAX_SHOWN_STARTS = 8


def check_samples(
    path: File,
    entry: ShardEntry,
    tokenizer: TokenizerEntry,
    index: ShardIndex | None,
    findings: list[Finding],
) -> None:
    """Compare the samples of a tar with the index, if any, and their sums with the entry."""
    checker = _SampleChecker(path.name, entry.shard, tokenizer, index, findings)
    try:
        with path.open() as file:
            for members in read_samples(file, path.name):
                checker.check(members)
    except ShardCorrupt as error:
        findings.append(Finding.from_error(error))
    except OSError as error:
        findings.append(Finding.from_os_error(path.name, error, "a tar", REFETCH))
    for name in ("num_samples", "num_docs", "num_tokens"):
        found, wanted = getattr(checker, name), getattr(entry, name)
        if found != wanted:
            finding = Finding(
                f"{path.name}: {name}",
                f"{found} in the tar",
                f"{wanted} as in the manifest",
                REFETCH,
            )
            findings.append(finding)


@dataclass
class _SampleChecker:
    """Checks the samples of one tar in order, and counts samples, documents and tokens."""

    file: str
    shard: int
    tokenizer: TokenizerEntry
    index: ShardIndex | None
    findings: list[Finding]
    num_samples: int = 0
    num_docs: int = 0
    num_tokens: int = 0

    def check(self, members: list[Member]) -> None:
        """Check the next sample."""
        self._check_members(members, sample_key(self.shard, self.num_samples))
        self.num_samples += 1

    def _add(self, where: str, found: str, wanted: str, remedy: str = REFETCH) -> None:
        self.findings.append(Finding(where, found, wanted, remedy))

    def _check_members(self, members: list[Member], key: str) -> None:
        where = f"{self.file}, sample {key}"
        wanted = [
            f"{key}.{DOCS_MEMBER}",
            f"{key}.{METADATA_MEMBER}",
            f"{key}.{TOKENS_MEMBER}",
        ]
        names = [member.name for member in members]
        if names not in (wanted, [wanted[0], wanted[2]]):
            shown = f"{wanted} (the metadata may be absent)"
            self._add(where, f"the members {names}", shown, REWRITE)
            return
        starts = self._read_array(where, members[0], DOCS_DTYPE)
        tokens = self._read_array(where, members[-1], self.tokenizer.token_dtype)
        if starts is None or tokens is None:
            return
        self._check_tokens(where, tokens, starts)
        if len(members) == MAX_SAMPLE_MEMBERS:
            self._check_metadata(where, members[1], len(starts))
        if self.index is not None:
            offset = members[-1].offset + NPY_HEADER_BYTES
            place = f"{where}, byte {offset}"
            self._compare_with_index(place, offset, tokens, starts, self.index)
        self.num_docs += len(starts)
        self.num_tokens += len(tokens)

    def _read_array(
        self, where: str, member: Member, dtype: np.dtype[Any]
    ) -> NDArray[Any] | None:
        """Return the 1-D array of this dtype in a .npy member, or None if it is not one."""
        content = member.content
        num_elements = max(0, (len(content) - NPY_HEADER_BYTES) // dtype.itemsize)
        # Compare with the header that the writer would write: other spellings are valid NumPy, but
        # readers rely on exactly 128 bytes.
        header = npy_header(dtype, num_elements)
        num_bytes = len(header) + num_elements * dtype.itemsize
        if len(content) != num_bytes or not content.startswith(header):
            place = f"{where}, byte {member.offset} ({member.name})"
            found = f"{len(content)} bytes that begin with {content[:64]!r}"
            self._add(place, found, f"a 1-D .npy array of {dtype}")
            return None
        return np.frombuffer(content, dtype, offset=NPY_HEADER_BYTES)

    def _check_tokens(self, where: str, tokens: NDArray[Any], starts: NDArray[Any]) -> None:
        """Check document starts, token ids, and the last token of each document."""
        # (D + 1,) start of each document, then the number of tokens
        bounds = np.append(starts.astype(np.int64), len(tokens))
        if not len(starts) or bounds[0] != 0 or np.diff(bounds).min() < 1:
            shown = bounds[:-1][:MAX_SHOWN_STARTS].tolist()
            found = f"document starts {shown}... in {len(tokens)} tokens"
            self._add(where, found, "0 first, then rising, the last inside the sample")
            return
        highest = int(tokens.argmax())
        if tokens[highest] >= self.tokenizer.vocab_size:
            wanted = f"below vocab_size = {self.tokenizer.vocab_size}"
            self._add(f"{where}, token {highest}", f"{tokens[highest]}", wanted)
        end = self.tokenizer.end_of_document
        # (D,) the last token of each document is one before the start of the next
        docs_without_end = np.flatnonzero(tokens[bounds[1:] - 1] != end)
        if len(docs_without_end):
            doc = docs_without_end[0]
            last = bounds[doc + 1] - 1
            wanted = f"end_of_document = {end}, the last of document {doc}"
            self._add(f"{where}, token {last}", f"{tokens[last]}", wanted)

    def _check_metadata(self, where: str, member: Member, num_docs: int) -> None:
        place = f"{where}, byte {member.offset} ({member.name})"
        wanted = f"a JSON list of {num_docs} objects, one per document"
        try:
            value = json.loads(member.content)
        except (ValueError, RecursionError) as error:
            self._add(place, f"no JSON ({error})", wanted)
            return
        is_list = isinstance(value, list)
        if (
            not is_list
            or len(value) != num_docs
            or not all(isinstance(document, dict) for document in value)
        ):
            length = f" of {len(value)}" if is_list else ""
            self._add(place, f"a {type(value).__name__}{length}", wanted, REWRITE)

    def _compare_with_index(
        self,
        where: str,
        offset: int,
        tokens: NDArray[Any],
        starts: NDArray[Any],
        index: ShardIndex,
    ) -> None:
        """Compare the content of the tar with the index's entry of the same sample."""
        sample = self.num_samples
        # The tar may have more samples than the index. The counts are compared separately.
        if sample >= index.num_samples:
            self._add(
                where, f"sample {sample}", f"{index.num_samples} samples as in the index"
            )
            return
        start, stop = index.sample_starts[sample : sample + 2].tolist()
        first_doc, stop_doc = np.searchsorted(index.doc_starts, [start, stop])
        wanted_starts = index.doc_starts[first_doc:stop_doc] - start
        crc, wanted_crc = zlib.crc32(tokens.tobytes()), int(index.sample_crcs[sample])
        if crc != wanted_crc:
            found = f"tokens with crc32 {crc:08x}"
            self._add(where, found, f"{wanted_crc:08x} as in the index")
        if offset != index.sample_offsets[sample]:
            wanted = f"them at byte {index.sample_offsets[sample]} as in the index"
            self._add(where, "tokens", wanted)
        if len(tokens) != stop - start:
            self._add(where, f"{len(tokens)} tokens", f"{stop - start} as in the index")
        if not np.array_equal(starts, wanted_starts):
            found = f"documents that start at {starts[:MAX_SHOWN_STARTS].tolist()}..."
            wanted = f"{wanted_starts[:MAX_SHOWN_STARTS].tolist()}... as in the index"
            self._add(where, found, wanted)
