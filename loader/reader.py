"""Rows of tokens out of shards, by random access, checked.

Promises: the rows asked for, or an error that names the shard, the sample and its bytes: an index must belong to its
shard and manifest, a shard must have its size, and each sample is checked against its crc32 the first time that it is
read (each time that it is fetched, where it comes over a network; one that does not match is fetched once more). Memory
holds `MAX_OPEN_SHARDS` indexes and, of remote shards, `MAX_OPEN_BLOCKS` blocks. Threads may read at the same time.
Leaves to others: which rows (`order`), bytes by range and the cache (`storage`).

    reader = Reader(catalogue, seq_len=2048, settings=ReadSettings())
    tokens = np.empty((2, 2049), reader.token_dtype)
    is_whole = reader.read(np.array([3, 0]), np.array([17, 4]), tokens)       # row 17 of shard 3, row 4 of shard 0
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from isal.isal_zlib import crc32  # four times as fast as zlib's
from numpy.typing import NDArray

from loader.manifest_columns import Catalogue
from loader.order import Ints
from loader.packing import Flags, mark_starts
from loader.storage import Buffer, Cache, Counters, ReadFailed, ReadSettings, Remote, open_store
from shardwriter.format import (
    REFETCH,
    FormatError,
    ShardCorrupt,
    ShardIndex,
    index_file,
    sample_key,
    shard_file,
)

MAX_OPEN_SHARDS = 192
"""Each holds two memory maps, and with them two file descriptors, of which 1,024 is a usual limit."""

MAX_OPEN_BLOCKS = 256
MAX_SHARDS_LOOKED_AT_FIRST = 4096
"""Of so many local shards, existence and size are checked before the first row: 10 ms on a local disk."""

_OTHER_DATASET = "put the index and the tar beside each other that were written together, or copy the dataset again"

Tokens = NDArray[np.unsignedinteger[Any]]
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Reader:
    """Reads rows of one dataset. `counters` tells of cache_hits, cache_misses, retries, refetches, damaged_samples."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        seq_len: int,
        settings: ReadSettings,
        counters: Counters | None = None,
    ) -> None:
        """Looks at the shards' sizes where they are local and not too many.

        Raises:
            ReadFailed: a shard or index is missing.
            ShardCorrupt: one is cut off or too long, and `on_corrupt` is 'stop'.
        """
        self.catalogue, self.seq_len, self.counters = catalogue, seq_len, counters or Counters()
        self._settings = settings
        self._store = open_store(catalogue.address, settings, self.counters)
        self._shards = _Latest[int, "_Shard"](MAX_OPEN_SHARDS, on_drop=self._keep_checks)
        self._blocks = _Latest[tuple[int, int], "Tokens"](MAX_OPEN_BLOCKS)
        self._checks: dict[int, NDArray[np.uint8]] = {}
        self._lost: dict[int, ShardCorrupt] = {}
        self._cache, self._pool = None, None
        if isinstance(self._store, Remote):
            self._cache = Cache(settings, self.counters)
            self._pool = ThreadPoolExecutor(
                settings.fetch_threads, thread_name_prefix="loader-fetch"
            )
        elif (
            len(catalogue.num_tokens) <= MAX_SHARDS_LOOKED_AT_FIRST
            and settings.on_corrupt == "stop"
        ):
            for shard in np.flatnonzero(catalogue.num_tokens).tolist():
                self._check_size(shard)
                self._store.size(index_file(shard))

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """uint16 or uint32."""
        return self.catalogue.tokenizer.token_dtype

    def close(self) -> None:
        """End the threads; what was read before stays valid."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def read(self, shards: Ints, rows: Ints, out: Tokens) -> NDArray[np.bool_]:
        """Fill `out` (n, seq_len + 1) with rows (n,) of shards (n,); (n,) false where a row was damaged and blanked.

        A blanked row is the end-of-document id throughout. `out` must have the dataset's dtype and be
        contiguous.

        Raises:
            ReadFailed: bytes cannot be had.
            ShardCorrupt: bytes are damaged, and `on_corrupt` is 'stop'.
            FormatError: an index is not of this dataset.
        """
        is_whole = np.ones(len(shards), np.bool_)
        parts: list[_Part] = []
        for number, members in _groups(shards):
            parts.append(_Part(number, members, rows[members] * self.seq_len))
        self._each(self._locate, parts)
        found = [
            (part.number, part.shard, _ranges(part.firsts, part.lasts))
            for part in parts
            if part.shard is not None
        ]
        self._have(found)
        for part in parts:
            is_whole[part.members] = self._copy(part, out)
        if not is_whole.all():
            out[~is_whole] = self.catalogue.tokenizer.end_of_document
        return is_whole

    @property
    def is_remote(self) -> bool:
        """Whether blocks are fetched over a network."""
        return self._pool is not None

    def fetch_ahead(self, shards: Ints, rows: Ints) -> None:
        """Have blocks fetched that rows (n,) of shards (n,) will want; waits for indexes only.

        What cannot be had is not told here: whoever reads these rows asks again, and is told.
        """
        assert self._pool is not None
        for number, members in _groups(shards):
            part = _Part(number, members, rows[members] * self.seq_len)
            with contextlib.suppress(ReadFailed, FormatError, ShardCorrupt):
                self._locate(part)
            if (shard := part.shard) is not None:
                for block in np.unique(shard.blocks[_ranges(part.firsts, part.lasts)]).tolist():
                    if not self._blocks.has((number, block)):
                        self._pool.submit(self._block, number, shard, block)

    def mark_starts(self, shards: Ints, rows: Ints) -> Flags:
        """(n, seq_len) where documents begin in rows; a row of a lost shard is one document."""
        marks = np.zeros((len(shards), self.seq_len), np.bool_)
        marks[:, 0] = True
        for number, members in _groups(shards):
            shard = self._open(number)
            if shard is not None:
                marks[members] = mark_starts(
                    shard.index.doc_starts, rows[members] * self.seq_len, self.seq_len
                )
        return marks

    def index(self, number: int) -> ShardIndex:
        """The index of a shard; raises as `read` does."""
        shard = self._open(number)
        if shard is None:
            raise self._lost[number]
        return shard.index

    def sample(self, number: int, sample: int) -> Tokens:
        """(n,) the checked tokens of one sample; raises as `read` does, whatever `on_corrupt` is."""
        shard = self._open(number)
        if shard is None:
            raise self._lost[number]
        self._have([(number, shard, np.array([sample]))])
        if shard.damaged[sample]:
            raise self._corrupt(number, shard.index, sample)
        return self._tokens(number, shard, sample)

    def _each(self, act: Callable[[Any], Any], things: Sequence[Any]) -> None:
        """In threads where each has to wait for a network."""
        if self._pool is None or len(things) < 2:
            for thing in things:
                act(thing)
        else:
            list(self._pool.map(act, things))

    # ---------------------------------------------------------------------------------------------------------- shards

    def _locate(self, part: _Part) -> None:
        part.shard = self._open(part.number)
        if part.shard is not None:
            starts = part.shard.index.sample_starts
            part.firsts = np.searchsorted(starts, part.starts, side="right") - 1
            part.lasts = np.searchsorted(starts, part.starts + self.seq_len, side="right") - 1

    def _open(self, number: int) -> _Shard | None:
        """A shard, or None where it is lost and rows are skipped."""
        if number in self._lost:
            return None
        try:
            return self._shards.get(number, lambda: self._open_shard(number))
        except ShardCorrupt as error:
            if self._settings.on_corrupt == "stop":
                raise
            self._lost[number] = error
            self.counters.add("lost_shards")
            return None

    def _open_shard(self, number: int) -> _Shard:
        index = self._read_index(number)
        if index.num_tokens:
            self._check_size(number)
        checked = np.zeros(index.num_samples, np.bool_)
        if number in self._checks:
            checked[:] = np.unpackbits(self._checks[number], count=index.num_samples)
        tar = None
        if not isinstance(self._store, Remote):
            tar = np.frombuffer(self._store.map(shard_file(number)), index.token_dtype)
        return _Shard(index, checked, tar, self._settings.block_bytes)

    def _read_index(self, number: int) -> ShardIndex:
        name = index_file(number)
        if not isinstance(self._store, Remote):
            index = ShardIndex.from_bytes(self._store.map(name), self._store.where(name))
        else:
            index = self._fetch_index(self._store, number)
        found = {
            "shard": index.shard,
            "shard_bytes": index.shard_bytes,
            "num_samples": index.num_samples,
        }
        found |= {"num_docs": index.num_docs, "num_tokens": index.num_tokens}
        for field_name, value in found.items():
            wanted = (
                number
                if field_name == "shard"
                else int(getattr(self.catalogue, field_name)[number])
            )
            if value != wanted:
                where = f"{self._store.where(name)}: {field_name}"
                raise FormatError(
                    where, f"{value}", f"{wanted} as the manifest says", _OTHER_DATASET
                )
        if index.token_dtype != self.token_dtype:
            wanted = f"{self.token_dtype.name}, as the manifest's {self.catalogue.tokenizer.vocab_size} ids need"
            raise FormatError(
                f"{self._store.where(name)}: tokens", index.token_dtype.name, wanted, _OTHER_DATASET
            )
        return index

    def _fetch_index(self, store: Remote, number: int) -> ShardIndex:
        name = index_file(number)
        num_bytes = store.size(name)
        key = f"{self.catalogue.digest[:16]}-{name}"
        assert self._cache is not None
        try:
            data = self._cache.get(key, num_bytes, lambda: store.fetch(name, 0, num_bytes))
            return ShardIndex.from_bytes(data, store.where(name))
        except ShardCorrupt:
            self.counters.add("refetches")
            self._cache.drop(key)
            return ShardIndex.from_bytes(store.fetch(name, 0, num_bytes), store.where(name))

    def _check_size(self, number: int) -> None:
        found, wanted = (
            self._store.size(shard_file(number)),
            int(self.catalogue.shard_bytes[number]),
        )
        if found != wanted:
            raise ShardCorrupt(
                self._store.where(shard_file(number)), f"{found} bytes", f"{wanted} bytes", REFETCH
            )

    def _keep_checks(self, number: int, shard: _Shard) -> None:
        if shard.tar is not None:  # what came over a network is checked again when it comes again
            self._checks[number] = np.packbits(shard.checked & ~shard.damaged)

    # --------------------------------------------------------------------------------------------------------- samples

    def _have(self, wanted: list[tuple[int, _Shard, Ints]]) -> None:
        """Samples of open shards are at hand and checked afterwards."""
        blocks: list[tuple[int, _Shard, int]] = []
        for number, shard, samples in wanted:
            if shard.tar is not None:
                for sample in samples[~shard.checked[samples]].tolist():
                    self._check(number, shard, sample)
            else:
                found = np.unique(shard.blocks[samples]).tolist()
                blocks += [
                    (number, shard, block)
                    for block in found
                    if not self._blocks.has((number, block))
                ]
        self._each(lambda block: self._block(*block), blocks)

    def _check(self, number: int, shard: _Shard, sample: int) -> None:
        if crc32(self._tokens(number, shard, sample).data) != shard.index.sample_crcs[sample]:
            self._mark_damaged(number, shard, [sample])
        shard.checked[sample] = True

    def _mark_damaged(self, number: int, shard: _Shard, samples: list[int]) -> None:
        if self._settings.on_corrupt == "stop":
            raise self._corrupt(number, shard.index, samples[0])
        self.counters.add("damaged_samples", int((~shard.damaged[samples]).sum()))
        shard.damaged[samples] = True

    def _corrupt(self, number: int, index: ShardIndex, sample: int) -> ShardCorrupt:
        start, stop = _sample_bytes(index, sample, sample)
        where = f"{self._store.where(shard_file(number))}, sample {sample_key(number, sample)}, bytes {start}..{stop - 1}"
        return ShardCorrupt(
            where, "tokens with another crc32", f"{index.sample_crcs[sample]:08x}", REFETCH
        )

    def _block(self, number: int, shard: _Shard, block: int) -> Tokens:
        """The tokens of a remote shard's block, fetched, checked, and once more fetched where the check fails."""

        def load() -> Tokens:
            assert isinstance(self._store, Remote)
            assert self._cache is not None
            store, name = self._store, shard_file(number)
            first, last = shard.block_samples(block)
            start, stop = _sample_bytes(shard.index, first, last)
            key = f"{self.catalogue.digest[:16]}-{name}-{start}-{stop}"
            tokens = _as_tokens(
                self._cache.get(key, stop - start, lambda: store.fetch(name, start, stop)),
                shard.index,
            )
            bad = _damaged(tokens, shard.index, first, last)
            if bad:
                self.counters.add("refetches")
                self._cache.drop(key)
                tokens = _as_tokens(store.fetch(name, start, stop), shard.index)
                bad = _damaged(tokens, shard.index, first, last)
            if bad:
                self._mark_damaged(number, shard, bad)
            return tokens

        return self._blocks.get((number, block), load)

    def _tokens(self, number: int, shard: _Shard, sample: int) -> Tokens:
        if shard.tar is not None:
            base, offset = shard.tar, 0
        else:
            block = int(shard.blocks[sample])
            base, offset = (
                self._block(number, shard, block),
                int(shard.offsets[shard.block_samples(block)[0]]),
            )
        start = int(shard.offsets[sample]) - offset
        return base[
            start : start
            + int(shard.index.sample_starts[sample + 1] - shard.index.sample_starts[sample])
        ]

    # ------------------------------------------------------------------------------------------------------------ rows

    def _copy(self, part: _Part, out: Tokens) -> NDArray[np.bool_]:
        """(members,) which rows are whole; those are copied."""
        shard = part.shard
        if shard is None:
            return np.zeros(len(part.members), np.bool_)
        is_whole = np.ones(len(part.members), np.bool_)
        if shard.damaged.any():
            before = np.concatenate([np.zeros(1, np.int64), np.cumsum(shard.damaged)])
            is_whole = before[part.lasts + 1] == before[part.firsts]
        is_within = (part.firsts == part.lasts) & is_whole
        # (members,) token of the tar that each row begins with
        places = shard.offsets[part.firsts] + part.starts - shard.index.sample_starts[part.firsts]
        row_bytes, filled = (self.seq_len + 1) * out.itemsize, out.view(np.uint8)
        for base, offset, chosen in self._bases(part.number, shard, part.firsts, is_within):
            # (bytes, row_bytes), a row from each byte on, since what came over a network may lie at odd addresses.
            # One indexing for all rows gives the interpreter up meanwhile; copies row by row would hold it.
            windows = np.ndarray(
                (max(0, base.nbytes - row_bytes + 1), row_bytes),
                np.uint8,
                base.data,
                strides=(1, 1),
            )
            filled[part.members[chosen]] = windows[(places[chosen] - offset) * out.itemsize]
        for row in np.flatnonzero(is_whole & ~is_within).tolist():
            self._copy_across(part, row, out[int(part.members[row])])
        return is_whole

    def _bases(
        self, number: int, shard: _Shard, firsts: Ints, is_within: NDArray[np.bool_]
    ) -> Iterable[tuple[Tokens, int, NDArray[Any]]]:
        """Arrays that rows lie in, the token of the tar that each begins with, and which rows lie in it."""
        if shard.tar is not None:
            yield shard.tar, 0, np.flatnonzero(is_within)
            return
        blocks = shard.blocks[firsts]
        for block in np.unique(blocks[is_within]).tolist():
            offset = int(shard.offsets[shard.block_samples(block)[0]])
            yield (
                self._block(number, shard, block),
                offset,
                np.flatnonzero((blocks == block) & is_within),
            )

    def _copy_across(self, part: _Part, row: int, out: Tokens) -> None:
        """One row that lies in more than one sample."""
        assert part.shard is not None
        start, sample_starts, filled = int(part.starts[row]), part.shard.index.sample_starts, 0
        for sample in range(int(part.firsts[row]), int(part.lasts[row]) + 1):
            skipped = max(0, start - int(sample_starts[sample]))
            piece = self._tokens(part.number, part.shard, sample)[
                skipped : skipped + len(out) - filled
            ]
            out[filled : filled + len(piece)] = piece
            filled += len(piece)


@dataclass(eq=False)
class _Shard:
    """An open shard. checked, damaged: (S,) of its samples; offsets: (S,) token of the tar at which each begins.

    blocks: (S,) which block of a remote shard a sample is fetched with.
    """

    index: ShardIndex
    checked: NDArray[np.bool_]
    tar: Tokens | None
    block_bytes: int
    damaged: NDArray[np.bool_] = field(init=False)
    offsets: Ints = field(init=False)
    blocks: Ints = field(init=False)
    _block_firsts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.damaged = np.zeros_like(self.checked)
        self.offsets = self.index.sample_offsets // self.index.token_dtype.itemsize
        self.blocks = self.index.sample_offsets // self.block_bytes
        num_blocks = int(self.blocks.max(initial=-1)) + 1
        self._block_firsts = np.searchsorted(self.blocks, np.arange(num_blocks + 1)).tolist()

    def block_samples(self, block: int) -> tuple[int, int]:
        """First and last sample of a block."""
        return self._block_firsts[block], self._block_firsts[block + 1] - 1


@dataclass(eq=False)
class _Part:
    """The rows of one shard among those asked for.

    members: (m,) their places in the request; starts: (m,) their first tokens; firsts, lasts: (m,) their samples.
    """

    number: int
    members: Ints
    starts: Ints
    shard: _Shard | None = None
    firsts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    lasts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


class _Latest(Generic[_K, _V]):
    """The `num` things used last. Two threads that ask for a new thing at once wait for one that makes it."""

    def __init__(self, num: int, on_drop: Callable[[_K, _V], None] | None = None) -> None:
        self._num, self._on_drop = num, on_drop
        self._things: OrderedDict[_K, _V] = OrderedDict()
        self._making: dict[_K, threading.Lock] = {}
        self._lock = threading.Lock()

    def has(self, key: _K) -> bool:
        with self._lock:
            return key in self._things

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        with self._lock:
            if (found := self._things.get(key)) is not None:
                self._things.move_to_end(key)
                return found
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if (found := self._things.get(key)) is not None:
                    return found
            made = make()
            with self._lock:
                self._things[key] = made
                self._making.pop(key, None)
                old = [
                    self._things.popitem(last=False) for _ in range(len(self._things) - self._num)
                ]
        for dropped in old:
            if self._on_drop is not None:
                self._on_drop(*dropped)
        return made


def _groups(shards: Ints) -> Iterable[tuple[int, Ints]]:
    """Each shard that occurs, and the places where it does."""
    if not len(shards):
        return
    order = np.argsort(shards, kind="stable")
    bounds = np.flatnonzero(np.diff(shards[order])) + 1
    for members in np.split(order, bounds):
        yield int(shards[members[0]]), members


def _ranges(firsts: Ints, lasts: Ints) -> Ints:
    """Every number that lies in some first..last, once."""
    counts = lasts - firsts + 1
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.unique(np.repeat(firsts, counts) + places)


def _sample_bytes(index: ShardIndex, first: int, last: int) -> tuple[int, int]:
    """Byte of the tar where the tokens of the first sample begin, and the one behind those of the last."""
    num_tokens = int(index.sample_starts[last + 1] - index.sample_starts[last])
    return int(index.sample_offsets[first]), int(
        index.sample_offsets[last]
    ) + num_tokens * index.token_dtype.itemsize


def _as_tokens(data: Buffer, index: ShardIndex) -> Tokens:
    return np.frombuffer(data, index.token_dtype)


def _damaged(tokens: Tokens, index: ShardIndex, first: int, last: int) -> list[int]:
    """Samples of a block with another crc32 than the index says."""
    itemsize = index.token_dtype.itemsize
    bad: list[int] = []
    for sample in range(first, last + 1):
        start = int(index.sample_offsets[sample] - index.sample_offsets[first]) // itemsize
        stop = start + int(index.sample_starts[sample + 1] - index.sample_starts[sample])
        if crc32(tokens[start:stop].data) != index.sample_crcs[sample]:
            bad.append(sample)
    return bad
