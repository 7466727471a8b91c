"""An open shard: its index, the checks of its samples, and where their tokens are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from isal.isal_zlib import crc32  # four times as fast as zlib.crc32

from loader.order.permutation import BoolArray, Int64Array
from loader.reading.dataset_files import DatasetFiles
from loader.reading.lru_cache import LruCache
from loader.reading.rows import Source, Spans, Tokens
from loader.storage import ReadSettings
from shardwriter.format import REFETCH, ShardCorrupt, ShardIndex, sample_key, shard_file


@dataclass(eq=False)
class Shard:
    """An open shard with S samples. Safe for several threads.

    A local sample is checked when it is read for the first time. A remote sample is checked each
    time its block is fetched; if the checksum is wrong, the block is fetched once more.

    index:           the shard's index
    files:           the files of the dataset
    blocks:          (shard, block) -> tokens of fetched blocks, of all shards of the dataset
    settings:        how the shard is read
    checked:         (S,) bool, samples whose checksum was compared
    tar:             the mapped tar as an array of tokens, or None if the shard is remote
    other_crcs:      sample -> checksums that its tokens may have after a rewrite
    damaged:         (S,) bool, samples whose checksum is wrong
    token_offsets:   (S,) int64, start of each sample's tokens in the tar, counted in tokens
    sample_blocks:   (S,) int64, number of the block with which each sample is fetched
    """

    index: ShardIndex
    files: DatasetFiles
    blocks: LruCache[tuple[int, int], Tokens]
    settings: ReadSettings
    checked: BoolArray
    tar: Tokens | None
    other_crcs: dict[int, set[int]]
    damaged: BoolArray = field(init=False)
    token_offsets: Int64Array = field(init=False)
    sample_blocks: Int64Array = field(init=False)
    _block_first_samples: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.damaged = np.zeros_like(self.checked)
        # Raw tokens start at multiples of 128 bytes, so the division is exact.
        self.token_offsets = self.index.sample_offsets // self.index.token_dtype.itemsize
        # A sample belongs to the block in which it starts, so a block may be longer than
        # block_bytes. Blocks without a sample get no number.
        _, firsts, self.sample_blocks = np.unique(
            self.index.sample_offsets // self.settings.block_bytes,
            return_index=True,
            return_inverse=True,
        )
        # (blocks + 1,) first sample of each block
        self._block_first_samples = [*firsts.tolist(), self.index.num_samples]

    def check_local_samples(self, samples: Int64Array) -> None:
        """Check the samples of a local shard that were not checked yet.

        Raises:
            ShardCorrupt: a sample is damaged and `on_corrupt` is "stop".
        """
        # The file is mapped and does not change, so one check per sample is enough.
        for sample in samples[~self.checked[samples]].tolist():
            if not self._has_crc(sample, self.read_tokens(sample)):
                self._mark_damaged([sample])
            # Set last: if the check raises, the next read checks the sample again.
            self.checked[sample] = True

    def list_missing_blocks(self, samples: Int64Array) -> list[int]:
        """Return the blocks of remote samples that must be fetched."""
        blocks = np.unique(self.sample_blocks[samples]).tolist()
        return [block for block in blocks if (self.index.shard, block) not in self.blocks]

    def load_block(self, block: int) -> Tokens:
        """Return the bytes of a remote block as tokens, from its first sample to its last.

        Raises:
            ReadFailed: bytes cannot be read.
            ShardCorrupt: a sample is damaged and `on_corrupt` is "stop".
        """
        return self.blocks.get((self.index.shard, block), lambda: self._fetch_block(block))

    def read_tokens(self, sample: int) -> Tokens:
        """Return the (n,) tokens of a sample. Check or fetch it first."""
        start, num_tokens = int(self.token_offsets[sample]), self._count_tokens(sample)
        tokens = self.tar
        if tokens is None:
            block = int(self.sample_blocks[sample])
            tokens = self.load_block(block)
            start -= int(self.token_offsets[self._block_first_samples[block]])
        return tokens[start : start + num_tokens]

    def find_sources(self, spans: Spans) -> Iterator[Source]:
        """Yield the arrays that have the tokens of some spans: the tar, or the fetched blocks.

        Check or fetch their samples first.
        """
        if self.tar is not None:
            yield Source(
                self.tar, spans.offsets, spans.num_tokens, spans.rows, spans.columns
            )
            return
        blocks = self.sample_blocks[spans.samples]
        for block in np.unique(blocks).tolist():
            part = spans.select(blocks == block)
            start = int(self.token_offsets[self._block_first_samples[block]])
            tokens = self.load_block(block)
            yield Source(
                tokens, part.offsets - start, part.num_tokens, part.rows, part.columns
            )

    def make_error(self, sample: int) -> ShardCorrupt:
        """Return the error for a sample whose checksum is wrong."""
        start, stop = self._find_bytes(sample, sample)
        file = self.files.where(shard_file(self.index.shard))
        return ShardCorrupt(
            f"{file}, sample {sample_key(self.index.shard, sample)}, bytes {start}..{stop - 1}",
            "tokens with another crc32",
            f"{self.index.sample_crcs[sample]:08x}",
            REFETCH,
        )

    def _count_tokens(self, sample: int) -> int:
        starts = self.index.sample_starts
        return int(starts[sample + 1] - starts[sample])

    def _find_bytes(self, first: int, last: int) -> tuple[int, int]:
        """Return the bytes of the tar (start, stop) that hold the tokens of samples first..last."""
        last_bytes = self._count_tokens(last) * self.index.token_dtype.itemsize
        offsets = self.index.sample_offsets
        return int(offsets[first]), int(offsets[last]) + last_bytes

    def _has_crc(self, sample: int, tokens: Tokens) -> bool:
        """Whether the tokens of a sample have a checksum that they may have."""
        crc = crc32(tokens.data)
        is_original = crc == self.index.sample_crcs[sample]
        return bool(is_original) or crc in self.other_crcs.get(sample, ())

    def _fetch_block(self, block: int) -> Tokens:
        name = shard_file(self.index.shard)
        first, stop = self._block_first_samples[block : block + 2]
        start_byte, stop_byte = self._find_bytes(first, stop - 1)
        # The network or the disk cache may have damaged the bytes: then they are fetched from the
        # source again.
        for read in (self.files.fetch, self.files.refetch):
            data = read(name, start_byte, stop_byte)
            tokens: Tokens = np.frombuffer(data, self.index.token_dtype)
            damaged = self._find_damaged(tokens, range(first, stop))
            if not damaged:
                return tokens
        self._mark_damaged(damaged)
        return tokens

    def _find_damaged(self, tokens: Tokens, samples: range) -> list[int]:
        """Return the samples of a block whose CRC-32 differs from the index."""
        damaged: list[int] = []
        for sample in samples:
            start = int(self.token_offsets[sample] - self.token_offsets[samples.start])
            if not self._has_crc(
                sample, tokens[start : start + self._count_tokens(sample)]
            ):
                damaged.append(sample)
        return damaged

    def _mark_damaged(self, samples: list[int]) -> None:
        if self.settings.on_corrupt == "stop":
            raise self.make_error(samples[0])
        # A block that was evicted and fetched again must not count its samples twice.
        num_new = int((~self.damaged[samples]).sum())
        self.files.counters.add("damaged_samples", num_new)
        self.damaged[samples] = True
