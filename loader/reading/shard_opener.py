"""Open shards: read their indexes, check them against the manifest, keep the recently used ones."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.reading.dataset_files import DatasetFiles
from loader.reading.lru_cache import LruCache
from loader.reading.manifest_columns import ManifestColumns
from loader.reading.open_shard import OpenShard
from loader.storage import Buffer, Counters, ReadSettings
from shardwriter.format import (
    REFETCH,
    FormatError,
    ShardCorrupt,
    ShardIndex,
    check_layout,
    index_file,
    open_rewritten,
    shard_file,
)

# An open local shard holds two memory maps and so two file descriptors; a process may
# usually open 1,024 files.
MAX_OPEN_SHARDS = 192

# Up to this many local shards, existence and size are checked before the first row. It
# takes 10 ms on a local disk.
MAX_SHARDS_CHECKED_EARLY = 4096

_OTHER_DATASET = "put the index and the tar that were written together in one folder, or copy the dataset again"


class ShardOpener:
    """Opens shards of one dataset. Safe for several threads."""

    def __init__(
        self,
        manifest: ManifestColumns,
        files: DatasetFiles,
        settings: ReadSettings,
        counters: Counters,
    ) -> None:
        self._manifest, self._files, self._counters = manifest, files, counters
        self._settings = settings
        self._shards = LruCache[int, OpenShard](
            MAX_OPEN_SHARDS, on_evict=self._remember_checks
        )
        # Shard number -> packed bits of `OpenShard.checked`, of local shards that were closed.
        self._past_checks: dict[int, NDArray[np.uint8]] = {}
        self._lost: dict[int, ShardCorrupt] = {}

    def check_local_files(self) -> None:
        """Check that all local shards and indexes exist and that the tars have the right size.

        Raises:
            ReadFailed: a file is missing.
            ShardCorrupt: a tar has another size.
        """
        num_tokens = self._manifest.num_tokens
        # A remote check would cost one request per file.
        if self._files.is_remote or len(num_tokens) > MAX_SHARDS_CHECKED_EARLY:
            return
        for number in np.flatnonzero(num_tokens).tolist():
            self._check_size(number)
            self._files.size(index_file(number))

    def open(self, number: int) -> OpenShard | None:
        """Return a shard, or None if it is corrupt and `on_corrupt` is "skip_and_count".

        Raises:
            ReadFailed: a file cannot be read.
            FormatError: the index belongs to another shard or dataset.
            ShardCorrupt: the shard is corrupt and `on_corrupt` is "stop".
        """
        if number in self._lost:
            return None
        try:
            return self._shards.get(number, lambda: self._open(number))
        except ShardCorrupt as error:
            if self._settings.on_corrupt == "stop":
                raise
            # Remember the shard, so that its other rows do not open it again.
            self._lost[number] = error
            self._counters.add("lost_shards")
            return None

    def open_or_raise(self, number: int) -> OpenShard:
        """Return a shard. Raises as `open`, and ShardCorrupt for a corrupt shard in every case."""
        shard = self.open(number)
        if shard is None:
            raise self._lost[number]
        return shard

    def close(self) -> None:
        """Close the shards that are not in use."""
        self._shards.close()

    def _open(self, number: int) -> OpenShard:
        index = self._read_index(number)
        # Empty shards have no rows; their tar is not checked.
        if index.num_tokens:
            self._check_size(number)
        checked = np.zeros(index.num_samples, np.bool_)
        if number in self._past_checks:
            # A reopened shard would otherwise compute all its checksums again.
            checked[:] = np.unpackbits(self._past_checks[number], count=index.num_samples)
        tar = None
        if not self._files.is_remote:
            tar = np.frombuffer(self._files.map(shard_file(number)), index.token_dtype)
        other_crcs: dict[int, set[int]] = {}
        if number in self._manifest.rewritten:
            other_crcs = open_rewritten(self._files, number).accepted_crcs
        return OpenShard(index, checked, tar, self._settings.block_bytes, other_crcs)

    def _remember_checks(self, number: int, shard: OpenShard) -> None:
        # Only of local shards: bytes from a network are checked each time they arrive.
        if shard.tar is not None:
            # One bit per sample. Damaged samples are not remembered: the next check marks them
            # again.
            self._past_checks[number] = np.packbits(shard.checked & ~shard.damaged)

    def _check_size(self, number: int) -> None:
        name = shard_file(number)
        found = self._files.size(name)
        wanted = int(self._manifest.shard_bytes[number])
        if found != wanted:
            raise ShardCorrupt(
                self._files.where(name), f"{found} bytes", f"{wanted} bytes", REFETCH
            )

    def _read_index(self, number: int) -> ShardIndex:
        """Read the index that the manifest names, and check it."""
        name = index_file(number)
        if not self._files.is_remote:
            return self._parse_index(number, self._files.map(name))
        num_bytes = self._files.size(name)
        try:
            return self._parse_index(number, self._files.fetch(name, 0, num_bytes))
        except FormatError:
            # The bytes may have been damaged on the way or in the cache: try once more.
            return self._parse_index(number, self._files.refetch(name, 0, num_bytes))

    def _parse_index(self, number: int, data: Buffer) -> ShardIndex:
        """Return the index in a file's bytes.

        Raises:
            ShardCorrupt: the bytes are damaged, or have another digest than in the manifest.
            FormatError: the index belongs to another shard or dataset, or its positions are
                impossible.
        """
        where = self._files.where(index_file(number))
        index = ShardIndex.from_bytes(data, where)
        # Before the digest, because these errors say what is different.
        self._compare_counts(index, number, where)
        self._check_token_dtype(index, where)
        found = hashlib.sha256(data).digest()
        wanted = self._manifest.index_sha256[number].tobytes()
        if found != wanted:
            wanted_text = f"{wanted.hex()} as in the manifest"
            raise ShardCorrupt(f"{where}: sha256", found.hex(), wanted_text, _OTHER_DATASET)
        # A dataset that is forged as a whole has matching digests.
        check_layout(index, where)
        return index

    def _compare_counts(self, index: ShardIndex, number: int, where: str) -> None:
        wanted_values: dict[str, Any] = {"shard": number}
        for column in ("shard_bytes", "num_samples", "num_docs", "num_tokens"):
            wanted_values[column] = int(getattr(self._manifest, column)[number])
        for column, wanted in wanted_values.items():
            found = getattr(index, column)
            if found != wanted:
                raise FormatError(
                    f"{where}: {column}",
                    f"{found}",
                    f"{wanted} as in the manifest",
                    _OTHER_DATASET,
                )

    def _check_token_dtype(self, index: ShardIndex, where: str) -> None:
        tokenizer = self._manifest.tokenizer
        if index.token_dtype != tokenizer.token_dtype:
            wanted = (
                f"{tokenizer.token_dtype.name}, because the manifest's tokenizer has "
                f"{tokenizer.vocab_size} ids"
            )
            raise FormatError(
                f"{where}: tokens", index.token_dtype.name, wanted, _OTHER_DATASET
            )
