"""Read the tokens of samples and check them against the CRC-32 in the index."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from isal.isal_zlib import crc32  # four times as fast as zlib.crc32

from loader.order.permutation import Int64Array
from loader.reading.dataset_files import DatasetFiles
from loader.reading.lru_cache import LruCache
from loader.reading.open_shard import OpenShard, Tokens
from loader.reading.spans import Source, Spans
from loader.storage import Counters, ReadSettings
from shardwriter.format import REFETCH, ShardCorrupt, sample_key, shard_file

# Blocks of remote shards that stay in memory or mapped from the cache.
MAX_OPEN_BLOCKS = 256


class SampleReader:
    """Reads samples of open shards. Safe for several threads.

    A local sample is checked when it is read for the first time. A remote sample is checked each
    time its block is fetched; if the checksum is wrong, the block is fetched once more.
    """

    def __init__(
        self, files: DatasetFiles, settings: ReadSettings, counters: Counters
    ) -> None:
        self._files, self._counters = files, counters
        self._stops_on_corrupt = settings.on_corrupt == "stop"
        self._blocks = LruCache[tuple[int, int], Tokens](MAX_OPEN_BLOCKS)

    def load_samples(self, wanted: list[tuple[OpenShard, Int64Array]]) -> None:
        """Check the wanted samples of each shard, and fetch their blocks if they are remote.

        Raises:
            ReadFailed: bytes cannot be read.
            ShardCorrupt: a sample is damaged and `on_corrupt` is "stop".
        """
        missing_blocks: list[tuple[OpenShard, int]] = []
        for shard, samples in wanted:
            if shard.tar is None:
                missing_blocks += self._list_missing_blocks(shard, samples)
                continue
            # The file is mapped and does not change, so one check per sample is enough.
            for sample in samples[~shard.checked[samples]].tolist():
                self._check_local_sample(shard, sample)
        self._files.run_all(lambda block: self.load_block(*block), missing_blocks)

    def prefetch_samples(self, shard: OpenShard, samples: Int64Array) -> None:
        """Start fetching the blocks of remote samples; do not wait and do not raise."""
        blocks = self._list_missing_blocks(shard, samples)
        self._files.prefetch_all(lambda block: self.load_block(*block), blocks)

    def read_tokens(self, shard: OpenShard, sample: int) -> Tokens:
        """Return the (n,) tokens of a sample. Call `load_samples` for it first."""
        if shard.tar is not None:
            base, base_offset = shard.tar, 0
        else:
            block = int(shard.sample_blocks[sample])
            base = self.load_block(shard, block)
            base_offset = int(shard.token_offsets[shard.block_samples(block)[0]])
        start = int(shard.token_offsets[sample]) - base_offset
        return base[start : start + shard.sample_num_tokens(sample)]

    def find_sources(
        self, shard: OpenShard, spans: Spans, rows: Int64Array
    ) -> Iterator[Source]:
        """Yield the arrays that have the tokens of some spans: the tar, or the fetched blocks.

        Args:
            shard: an open shard.
            spans: spans of the shard. Call `load_samples` for their samples first.
            rows: (K,) the row of each span in the result.
        """
        if shard.tar is not None:
            yield Source(shard.tar, spans.offsets, spans.num_tokens, rows, spans.columns)
            return
        blocks = shard.sample_blocks[spans.samples]
        for block in np.unique(blocks).tolist():
            chosen = np.flatnonzero(blocks == block)
            start = int(shard.token_offsets[shard.block_samples(block)[0]])
            part = spans.select(chosen)
            tokens = self.load_block(shard, block)
            offsets = part.offsets - start
            yield Source(tokens, offsets, part.num_tokens, rows[chosen], part.columns)

    def load_block(self, shard: OpenShard, block: int) -> Tokens:
        """Return the bytes of a remote block as tokens, from its first sample to its last."""
        return self._blocks.get(
            (shard.number, block), lambda: self._fetch_block(shard, block)
        )

    def close(self) -> None:
        """Close the blocks that are not in use."""
        self._blocks.close()

    def make_error(self, shard: OpenShard, sample: int) -> ShardCorrupt:
        """Return the error for a sample whose checksum is wrong."""
        start, stop = shard.sample_bytes(sample, sample)
        file = self._files.where(shard_file(shard.number))
        key = sample_key(shard.number, sample)
        return ShardCorrupt(
            f"{file}, sample {key}, bytes {start}..{stop - 1}",
            "tokens with another crc32",
            f"{shard.index.sample_crcs[sample]:08x}",
            REFETCH,
        )

    def _list_missing_blocks(
        self, shard: OpenShard, samples: Int64Array
    ) -> list[tuple[OpenShard, int]]:
        blocks = np.unique(shard.sample_blocks[samples]).tolist()
        return [
            (shard, block) for block in blocks if (shard.number, block) not in self._blocks
        ]

    def _check_local_sample(self, shard: OpenShard, sample: int) -> None:
        tokens = self.read_tokens(shard, sample)
        if not shard.has_crc(sample, crc32(tokens.data)):
            self._mark_damaged(shard, [sample])
        # Set last: if the check raises, the next read checks the sample again.
        shard.checked[sample] = True

    def _fetch_block(self, shard: OpenShard, block: int) -> Tokens:
        name = shard_file(shard.number)
        first, last = shard.block_samples(block)
        start, stop = shard.sample_bytes(first, last)
        data = self._files.fetch(name, start, stop)
        tokens: Tokens = np.frombuffer(data, shard.index.token_dtype)
        damaged = _find_damaged_samples(tokens, shard, first, last)
        if damaged:
            # The network or the disk cache may have damaged the bytes: fetch them from the source again.
            data = self._files.refetch(name, start, stop)
            tokens = np.frombuffer(data, shard.index.token_dtype)
            damaged = _find_damaged_samples(tokens, shard, first, last)
        if damaged:
            self._mark_damaged(shard, damaged)
        return tokens

    def _mark_damaged(self, shard: OpenShard, samples: list[int]) -> None:
        if self._stops_on_corrupt:
            raise self.make_error(shard, samples[0])
        # A block that was evicted and fetched again must not count its samples twice.
        num_new = int((~shard.damaged[samples]).sum())
        self._counters.add("damaged_samples", num_new)
        shard.damaged[samples] = True


def _find_damaged_samples(
    tokens: Tokens, shard: OpenShard, first: int, last: int
) -> list[int]:
    """Return the samples of a block whose CRC-32 differs from the index."""
    damaged: list[int] = []
    for sample in range(first, last + 1):
        start = int(shard.token_offsets[sample] - shard.token_offsets[first])
        stop = start + shard.sample_num_tokens(sample)
        if not shard.has_crc(sample, crc32(tokens[start:stop].data)):
            damaged.append(sample)
    return damaged
