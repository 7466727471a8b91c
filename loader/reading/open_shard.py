"""The data of an open shard: its index, and which of its samples were checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import Int64Array
from loader.reading.packing import BoolArray
from shardwriter.format import ShardIndex

Tokens = NDArray[np.unsignedinteger[Any]]


@dataclass(eq=False)
class OpenShard:
    """An open shard with S samples.

    index:           the shard's index
    checked:         (S,) bool, samples whose checksum was compared
    tar:             the mapped tar as an array of tokens, or None if the shard is remote
    block_bytes:     a remote shard is fetched in blocks of about this size
    other_crcs:      sample -> checksums that its tokens may have after a rewrite
    damaged:         (S,) bool, samples whose checksum is wrong
    token_offsets:   (S,) int64, start of each sample's tokens in the tar, counted in tokens
    sample_blocks:   (S,) int64, number of the block with which each sample is fetched
    """

    index: ShardIndex
    checked: BoolArray
    tar: Tokens | None
    block_bytes: int
    other_crcs: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
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
            self.index.sample_offsets // self.block_bytes,
            return_index=True,
            return_inverse=True,
        )
        # (blocks + 1,) first sample of each block
        self._block_first_samples = [*firsts.tolist(), self.index.num_samples]

    @property
    def number(self) -> int:
        """Number of the shard in the dataset."""
        return self.index.shard

    def has_crc(self, sample: int, crc: int) -> bool:
        """Whether the tokens of a sample may have this checksum."""
        is_original = crc == self.index.sample_crcs[sample]
        return bool(is_original) or crc in self.other_crcs.get(sample, ())

    def block_samples(self, block: int) -> tuple[int, int]:
        """Return the first and last sample of a block."""
        return self._block_first_samples[block], self._block_first_samples[block + 1] - 1

    def sample_bytes(self, first: int, last: int) -> tuple[int, int]:
        """Return the bytes of the tar (start, stop) that hold the tokens of samples first..last."""
        last_num_bytes = self.sample_num_tokens(last) * self.index.token_dtype.itemsize
        start = int(self.index.sample_offsets[first])
        return start, int(self.index.sample_offsets[last]) + last_num_bytes

    def sample_num_tokens(self, sample: int) -> int:
        """Return the number of tokens of a sample."""
        starts = self.index.sample_starts
        return int(starts[sample + 1] - starts[sample])
