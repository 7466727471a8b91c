"""Open the packing of a dataset, and find the pieces of documents in its rows.

packing = open_packing(True, manifest, seq_len=2048, settings=ReadSettings())
packing.head.shard_rows                                   # what the order of rows needs
rows = PackedRows(packing, ReadSettings(), Counters())
rows.find_pieces(shard_index, np.array([17, 4]))          # of two rows of a shard
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from loader.order.permutation import Int64Array
from loader.packed.best_fit import PackedShard, cut_documents
from loader.packed.index_file import (
    REPACK,
    PackingHead,
    count_head_bytes,
    name_packing_file,
    parse_head,
    parse_section,
)
from loader.reading.dataset_files import DatasetFiles
from loader.reading.lru_cache import LruCache
from loader.reading.manifest_columns import ManifestColumns
from loader.reading.row_pieces import RowLayout, RowPieces
from loader.storage import Buffer, Counters, ReadSettings, open_dataset
from shardwriter.format import FormatError, ShardCorrupt, ShardIndex
from storage.errors import NotFound
from terminal_output import format_command

# Path or address of a packing, or True for the file beside the manifest.
PackingSource = Literal[True] | str | Path

# As many as shards stay open (reading/dataset.py).
_MAX_OPEN_SECTIONS = 192


@dataclass(frozen=True, eq=False)
class PackingIndex:
    """The packing of a dataset, without its sections.

    folder:  path or address of the folder
    name:    name of the file in it
    seq_len: tokens per row
    head:    header and table
    """

    folder: str
    name: str
    seq_len: int
    head: PackingHead


def open_packing(
    source: PackingSource,
    manifest: ManifestColumns,
    *,
    seq_len: int,
    settings: ReadSettings,
) -> PackingIndex:
    """Read header and table of a packing, and check that it belongs to a dataset.

    Raises:
        ReadFailed: the file cannot be read.
        FormatError: it is damaged, or belongs to another dataset or seq_len.
    """
    folder, name = manifest.address, name_packing_file(seq_len)
    if source is not True:
        folder, _, name = str(source).rpartition("/")
        folder = folder or "."
    store = open_dataset(folder, settings)
    where = store.locate(name)
    try:
        num_bytes = store.get_size(name)
    except NotFound as error:
        command = f"{format_command('loader')} pack {manifest.address} --seq-len {seq_len}"
        raise NotFound(where, "there is no packing", f"run `{command}`") from error
    head_bytes = min(num_bytes, count_head_bytes(manifest.num_shards))
    head = parse_head(
        store.read_range(name, 0, head_bytes),
        where,
        seq_len=seq_len,
        manifest_digest=manifest.digest,
    )
    if head.num_bytes != num_bytes:
        raise ShardCorrupt(where, f"{num_bytes} bytes", f"{head.num_bytes}", REPACK)
    return PackingIndex(folder, name, seq_len, head)


class PackedRows(RowLayout):
    """Packed rows, by the sections of a packing."""

    is_packed = True

    def __init__(
        self, packing: PackingIndex, settings: ReadSettings, counters: Counters
    ) -> None:
        super().__init__(packing.seq_len)
        self._packing = packing
        self._files = DatasetFiles(packing.folder, packing.head.digest, settings, counters)
        self._mapped: memoryview | None = None
        if not self._files.is_remote:
            self._mapped = memoryview(self._files.map(packing.name))
        self._shards = LruCache[int, PackedShard](_MAX_OPEN_SECTIONS)

    def find_pieces(self, index: ShardIndex, rows: Int64Array) -> RowPieces:
        """Return the pieces of some rows of a shard; rows are numbered as in the request.

        Raises:
            ReadFailed: the section of the shard cannot be read.
            FormatError: it is damaged, or does not fit the shard.
        """
        packed = self.open_shard(index)
        firsts, stops = packed.row_starts[rows], packed.row_starts[rows + 1]
        counts = stops - firsts
        counts_before = np.cumsum(counts) - counts
        # (k,) the pieces of the rows, row by row
        pieces = np.arange(counts.sum()) + np.repeat(firsts - counts_before, counts)
        starts = packed.piece_starts[pieces]
        docs = np.searchsorted(index.doc_starts, starts, side="right") - 1
        num_tokens = np.minimum(index.doc_starts[docs + 1] - starts, self.seq_len + 1)
        return RowPieces.place(
            np.repeat(np.arange(len(rows)), counts),
            starts,
            num_tokens,
            starts != index.doc_starts[docs],
        )

    def find_rows(self, index: ShardIndex, first: int, stop: int) -> list[int]:
        """Return the rows of a document, whose tokens in the shard are first..stop - 1.

        Raises as `find_pieces`.
        """
        packed = self.open_shard(index)
        starts = packed.piece_starts
        pieces = np.flatnonzero((starts >= first) & (starts < stop))
        rows = np.searchsorted(packed.row_starts, pieces, side="right") - 1
        return np.unique(rows).tolist()

    def open_shard(self, index: ShardIndex) -> PackedShard:
        """Return the rows of a shard. Raises as `find_pieces`."""
        return self._shards.get(index.shard, lambda: self._open_shard(index))

    def close(self) -> None:
        """Stop the threads and drop the sections."""
        self._files.close()
        self._shards.close()

    def _open_shard(self, index: ShardIndex) -> PackedShard:
        where = self._files.where(self._packing.name)
        head = self._packing.head
        start, stop = head.locate_section(index.shard)
        if self._mapped is not None:
            packed = parse_section(self._mapped[start:stop], head, index.shard, where)
        else:
            packed = self._fetch_section(start, stop, index.shard)
        _check_section(packed, index, self.seq_len, where)
        return packed

    def _fetch_section(self, start: int, stop: int, shard: int) -> PackedShard:
        name = self._packing.name

        def parse(data: Buffer) -> PackedShard:
            return parse_section(data, self._packing.head, shard, self._files.where(name))

        try:
            return parse(self._files.fetch(name, start, stop))
        except ShardCorrupt:
            # The bytes may have been damaged on the way or in the cache: try once more.
            return parse(self._files.refetch(name, start, stop))


def _check_section(
    packed: PackedShard, index: ShardIndex, seq_len: int, where: str
) -> None:
    """Raise FormatError unless the rows have each piece of the shard's documents once.

    A packing that is forged as a whole has matching digests.
    """
    wanted = cut_documents(index.doc_starts, seq_len)
    row_starts, piece_starts = packed.row_starts, packed.piece_starts
    by_start = np.argsort(piece_starts, kind="stable")
    is_exact = np.array_equal(piece_starts[by_start], wanted.starts)
    is_rising = row_starts[0] == 0 and (np.diff(row_starts) > 0).all()
    fits = False
    if is_exact and is_rising and row_starts[-1] == len(piece_starts):
        num_tokens = np.empty_like(piece_starts)
        num_tokens[by_start] = wanted.num_tokens
        sums = np.add.reduceat(num_tokens, row_starts[:-1]) if len(num_tokens) else 0
        fits = bool(np.max(sums) <= seq_len + 1)
    if not fits:
        raise FormatError(
            f"{where}, shard {index.shard}",
            "rows with other pieces of documents, or with too many tokens",
            f"each piece in one row, and at most {seq_len + 1} tokens in a row",
            REPACK,
        )
