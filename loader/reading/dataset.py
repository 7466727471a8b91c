"""Read rows and samples of one dataset by shard and number, with every byte checked.

For example:

    dataset = Dataset(manifest, settings=ReadSettings(), layout=PlainRows(seq_len=2048))
    loaded = LoadedRows(2, seq_len=2048, with_marks=False)
    # row 17 of shard 3 and row 4 of shard 0
    dataset.load(np.array([3, 0]), np.array([17, 4]), np.arange(2), loaded)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import BoolArray, Int64Array
from loader.reading.dataset_files import DatasetFiles
from loader.reading.lru_cache import LruCache
from loader.reading.manifest_columns import ManifestColumns
from loader.reading.packing import mark_document_starts
from loader.reading.row_pieces import PlainRows, RowLayout, RowPieces
from loader.reading.rows import LoadedRows, Spans, Tokens
from loader.reading.shard import Shard
from loader.retraction.tombstones import TokenRanges
from loader.storage import Buffer, Counters, ReadFailed, ReadSettings
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

# Blocks of remote shards that stay in memory or mapped from the cache.
MAX_OPEN_BLOCKS = 256

# Up to this many local shards, existence and size are checked before the first row. It
# takes 10 ms on a local disk.
MAX_SHARDS_CHECKED_EARLY = 4096

_OTHER_DATASET = "put the index and the tar that were written together in one folder, or copy the dataset again"


class Dataset:
    """Reads shards of one dataset. Safe for several threads.

    manifest: manifest of the dataset
    files:    its files
    counters: cache_hits, cache_misses, retries, refetches, damaged_samples, lost_shards, ...
    """

    def __init__(
        self,
        manifest: ManifestColumns,
        *,
        settings: ReadSettings,
        layout: RowLayout | None = None,
        counters: Counters | None = None,
        checks_files: bool = True,
    ) -> None:
        """Check the sizes of local shards, unless there are very many.

        Args:
            manifest: of the dataset.
            settings: how shards are read.
            layout: where the rows are; None: plain rows of one token, for readers of samples.
            counters: see above.
            checks_files: false for a dataset whose shards may be missing until they are read.

        Raises:
            ReadFailed: a shard or an index is missing.
            ShardCorrupt: a shard has another size, and `on_corrupt` is "stop".
        """
        self.manifest, self._settings = manifest, settings
        self._layout = layout or PlainRows(seq_len=1)
        self.counters = counters or Counters()
        self.files = DatasetFiles(
            manifest.address, manifest.digest, settings, self.counters
        )
        self._blocks = LruCache[tuple[int, int], Tokens](MAX_OPEN_BLOCKS)
        self._shards = LruCache[int, Shard](MAX_OPEN_SHARDS, on_evict=self._remember_checks)
        # Shard number -> packed bits of `Shard.checked`, of local shards that were closed.
        self._past_checks: dict[int, NDArray[np.uint8]] = {}
        self._lost: dict[int, ShardCorrupt] = {}
        # With skip_and_count, a damaged shard must not prevent the start.
        if checks_files and settings.on_corrupt == "stop":
            self._check_local_files()

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """uint16 or uint32."""
        return self.manifest.tokenizer.token_dtype

    def close(self) -> None:
        """Stop the threads and close the files. Rows that were read before stay valid."""
        self.files.close()
        self._shards.close()
        self._blocks.close()
        self._layout.close()

    # ---- rows ----

    def load(
        self, shards: Int64Array, rows: Int64Array, places: Int64Array, loaded: LoadedRows
    ) -> None:
        """Check the samples of n rows, and fetch their blocks if they are remote.

        Args:
            shards: (n,) shard of each row.
            rows: (n,) row in the shard.
            places: (n,) the place of each row in `loaded`.
            loaded: gets the rows.

        Raises:
            ReadFailed: bytes cannot be read.
            ShardCorrupt: bytes are damaged, and `on_corrupt` is "stop".
            FormatError: an index belongs to another dataset.
        """
        requests = self._load_requests(shards, rows)
        for request in requests:
            loaded.is_whole[places[request.out_rows]] = request.drop_damaged()
            if request.shard is not None:
                out_rows = places[request.out_rows]
                spans = request.spans._replace(rows=out_rows[request.spans.rows])
                loaded.sources += request.shard.find_sources(spans)
        seq_len = self._layout.seq_len
        pieces = _join_pieces(requests) if self._layout.is_packed else None
        if pieces is not None:
            for ignored in pieces.find_ignored(len(shards), seq_len + 1):
                loaded.ignored.append(ignored._replace(rows=places[ignored.rows]))
        if self.manifest.tombstones is not None:
            retracted = self._find_retracted(shards, rows, pieces)
            loaded.retracted.append(retracted._replace(rows=places[retracted.rows]))
        if loaded.doc_starts is not None:
            marks = self._mark_doc_starts(requests, len(shards), pieces)
            loaded.doc_starts[places] = marks

    def prefetch_rows(self, shards: Int64Array, rows: Int64Array) -> None:
        """Start fetching the blocks of remote rows; wait for the indexes only.

        Errors are not raised here. `load` of the same rows raises them.
        """
        for request in _group_by_shard(shards, rows):
            try:
                self._locate(request)
            except ReadFailed:
                # Probably the server does not answer: do not wait for it once per shard.
                return
            except FormatError:
                continue
            if request.shard is not None:
                blocks = request.shard.list_missing_blocks(request.list_samples())
                self.files.prefetch_all(request.shard.load_block, blocks)

    def list_inputs(self, number: int, row: int) -> list[tuple[int, int]]:
        """Return the tokens of a shard that are the inputs of a row, as (start, stop) of each piece.

        Raises as `open_shard`.
        """
        pieces = self._layout.find_pieces(self.load_index(number), np.array([row]))
        # The last place of a row is only a label.
        num_inputs = np.minimum(pieces.num_tokens, self._layout.seq_len - pieces.columns)
        stops = pieces.starts + num_inputs
        return list(zip(pieces.starts.tolist(), stops.tolist(), strict=True))

    def find_rows(self, number: int, first: int, stop: int) -> list[int]:
        """Return the rows of a shard that read some of its tokens first..stop - 1.

        Raises as `open_shard`.
        """
        return self._layout.find_rows(self.load_index(number), first, stop)

    def _load_requests(self, shards: Int64Array, rows: Int64Array) -> list[_ShardRequest]:
        """Open the shards of n rows, and load and check the samples that the rows touch."""
        requests = _group_by_shard(shards, rows)
        # Opening remote shards waits for the network, so it runs in parallel.
        self.files.run_all(self._locate, requests)
        missing_blocks: list[tuple[Shard, int]] = []
        for request in requests:
            if request.shard is not None:
                missing_blocks += _check_samples(request.shard, request.list_samples())
        self.files.run_all(lambda item: item[0].load_block(item[1]), missing_blocks)
        return requests

    def _locate(self, request: _ShardRequest) -> None:
        """Open the shard of a request and find the spans of its rows."""
        shard = self._open_unless_lost(request.number)
        if shard is not None:
            request.pieces = self._layout.find_pieces(shard.index, request.rows)
            request.spans = Spans.cut(request.pieces, shard.index)
        request.shard = shard

    def _find_retracted(
        self, shards: Int64Array, rows: Int64Array, pieces: RowPieces | None
    ) -> TokenRanges:
        """Return the retracted tokens of n rows of a dataset that has some."""
        tombstones, seq_len = self.manifest.tombstones, self._layout.seq_len
        assert tombstones is not None
        if pieces is None:
            return tombstones.find(shards, rows * seq_len, seq_len + 1)
        found = tombstones.find(shards[pieces.rows], pieces.starts, pieces.num_tokens)
        columns = pieces.columns[found.rows]
        return TokenRanges(
            pieces.rows[found.rows], found.firsts + columns, found.ends + columns
        )

    def _mark_doc_starts(
        self, requests: list[_ShardRequest], num_rows: int, pieces: RowPieces | None
    ) -> BoolArray:
        """Mark the tokens of n rows at which a document starts: (n, seq_len) bool.

        A row of a corrupt shard is marked as one document.
        """
        seq_len = self._layout.seq_len
        if pieces is not None:
            return pieces.mark_starts(num_rows, seq_len)
        marks = np.zeros((num_rows, seq_len), np.bool_)
        marks[:, 0] = True
        for request in requests:
            if request.shard is not None:
                marks[request.out_rows] = mark_document_starts(
                    request.shard.index.doc_starts, request.rows * seq_len, seq_len
                )
        return marks

    # ---- samples ----

    def load_index(self, number: int) -> ShardIndex:
        """Return the index of a shard. Raises as `open_shard`."""
        return self.open_shard(number).index

    def read_sample(self, number: int, sample: int) -> Tokens:
        """Return the (n,) checked tokens of one sample.

        The tokens of retracted documents are replaced by the end-of-document id.

        Raises:
            ReadFailed, FormatError: as `open_shard`.
            ShardCorrupt: the sample is damaged, regardless of `on_corrupt`.
        """
        shard = self.open_shard(number)
        for _, block in _check_samples(shard, np.array([sample])):
            shard.load_block(block)
        if shard.damaged[sample]:
            raise shard.make_error(sample)
        tokens = shard.read_tokens(sample)
        retracted = self.mark_retracted_in_sample(number, sample)
        if retracted is None:
            return tokens
        end = tokens.dtype.type(self.manifest.tokenizer.end_of_document)
        return np.where(retracted, end, tokens)

    def mark_retracted_in_sample(self, number: int, sample: int) -> BoolArray | None:
        """Mark the retracted tokens of a sample: (n,) bool, or None if there are none."""
        tombstones = self.manifest.tombstones
        if tombstones is None:
            return None
        start, stop = self.load_index(number).sample_starts[sample : sample + 2]
        num_tokens = int(stop - start)
        found = tombstones.find(np.array([number]), np.array([start]), num_tokens)
        return found.mark(1, num_tokens)[0] if len(found.rows) else None

    # ---- shards ----

    def open_shard(self, number: int) -> Shard:
        """Return a shard.

        Raises:
            ReadFailed: a file cannot be read.
            FormatError: the index belongs to another shard or dataset.
            ShardCorrupt: the shard is corrupt.
        """
        shard = self._open_unless_lost(number)
        if shard is None:
            raise self._lost[number]
        return shard

    def _open_unless_lost(self, number: int) -> Shard | None:
        """Return a shard, or None if it is corrupt and `on_corrupt` is "skip_and_count"."""
        if number in self._lost:
            return None
        try:
            return self._shards.get(number, lambda: self._open(number))
        except ShardCorrupt as error:
            if self._settings.on_corrupt == "stop":
                raise
            # Remember the shard, so that its other rows do not open it again.
            self._lost[number] = error
            self.counters.add("lost_shards")
            return None

    def _open(self, number: int) -> Shard:
        index = self._read_index(number)
        # Empty shards have no rows; their tar is not checked.
        if index.num_tokens:
            self._check_size(number)
        checked = np.zeros(index.num_samples, np.bool_)
        if number in self._past_checks:
            # A reopened shard would otherwise compute all its checksums again.
            checked[:] = np.unpackbits(self._past_checks[number], count=index.num_samples)
        tar = None
        if not self.files.is_remote:
            tar = np.frombuffer(self.files.map(shard_file(number)), index.token_dtype)
        other_crcs: dict[int, set[int]] = {}
        if number in self.manifest.rewritten:
            other_crcs = open_rewritten(self.files, number).accepted_crcs
        return Shard(
            index, self.files, self._blocks, self._settings, checked, tar, other_crcs
        )

    def _remember_checks(self, number: int, shard: Shard) -> None:
        # Only of local shards: bytes from a network are checked each time they arrive.
        if shard.tar is not None:
            # One bit per sample. Damaged samples are not remembered: the next check marks them
            # again.
            self._past_checks[number] = np.packbits(shard.checked & ~shard.damaged)

    def _check_local_files(self) -> None:
        """Check that all local shards and indexes exist and that the tars have the right size.

        Raises:
            ReadFailed: a file is missing.
            ShardCorrupt: a tar has another size.
        """
        num_tokens = self.manifest.num_tokens
        # A remote check would cost one request per file.
        if self.files.is_remote or len(num_tokens) > MAX_SHARDS_CHECKED_EARLY:
            return
        for number in np.flatnonzero(num_tokens).tolist():
            self._check_size(number)
            self.files.size(index_file(number))

    def _check_size(self, number: int) -> None:
        name = shard_file(number)
        found = self.files.size(name)
        wanted = int(self.manifest.shard_bytes[number])
        if found != wanted:
            raise ShardCorrupt(
                self.files.where(name), f"{found} bytes", f"{wanted} bytes", REFETCH
            )

    def _read_index(self, number: int) -> ShardIndex:
        """Read the index that the manifest names, and check it."""
        name = index_file(number)
        if not self.files.is_remote:
            return self._parse_index(number, self.files.map(name))
        num_bytes = self.files.size(name)
        try:
            return self._parse_index(number, self.files.fetch(name, 0, num_bytes))
        except FormatError:
            # The bytes may have been damaged on the way or in the cache: try once more.
            return self._parse_index(number, self.files.refetch(name, 0, num_bytes))

    def _parse_index(self, number: int, data: Buffer) -> ShardIndex:
        """Return the index in a file's bytes.

        Raises:
            ShardCorrupt: the bytes are damaged, or have another digest than in the manifest.
            FormatError: the index belongs to another shard or dataset, or its positions are
                impossible.
        """
        where = self.files.where(index_file(number))
        index = ShardIndex.from_bytes(data, where)
        # Before the digest, because these errors say what is different.
        self._compare_counts(index, number, where)
        self._check_token_dtype(index, where)
        found = hashlib.sha256(data).digest()
        wanted = self.manifest.index_sha256[number].tobytes()
        if found != wanted:
            wanted_text = f"{wanted.hex()} as in the manifest"
            raise ShardCorrupt(f"{where}: sha256", found.hex(), wanted_text, _OTHER_DATASET)
        # A dataset that is forged as a whole has matching digests.
        check_layout(index, where)
        return index

    def _compare_counts(self, index: ShardIndex, number: int, where: str) -> None:
        wanted_values: dict[str, Any] = {"shard": number}
        for column in ("shard_bytes", "num_samples", "num_docs", "num_tokens"):
            wanted_values[column] = int(getattr(self.manifest, column)[number])
        for column, wanted in wanted_values.items():
            found = getattr(index, column)
            if found != wanted:
                wanted_text = f"{wanted} as in the manifest"
                raise FormatError(
                    f"{where}: {column}", f"{found}", wanted_text, _OTHER_DATASET
                )

    def _check_token_dtype(self, index: ShardIndex, where: str) -> None:
        tokenizer = self.manifest.tokenizer
        if index.token_dtype != tokenizer.token_dtype:
            wanted = (
                f"{tokenizer.token_dtype.name}, because the manifest's tokenizer has "
                f"{tokenizer.vocab_size} ids"
            )
            raise FormatError(
                f"{where}: tokens", index.token_dtype.name, wanted, _OTHER_DATASET
            )


@dataclass(eq=False)
class _ShardRequest:
    """The m requested rows of one shard, and their k pieces. A plain row is one piece.

    number:   number of the shard
    out_rows: (m,) int64, place of each row in the request of all shards
    rows:     (m,) int64, number of each row in the shard
    shard:    the open shard, or None if it is corrupt and skipped
    pieces:   the pieces of the rows, which are numbered from 0 to m - 1
    spans:    the spans of the pieces, in the same rows
    """

    number: int
    out_rows: Int64Array
    rows: Int64Array
    shard: Shard | None = None
    pieces: RowPieces = field(default_factory=RowPieces.empty)
    spans: Spans = field(init=False)

    def list_samples(self) -> Int64Array:
        """Return each sample that some row touches, once."""
        assert self.shard is not None
        return self.spans.list_samples(self.shard.index.num_samples)

    def drop_damaged(self) -> BoolArray:
        """Drop the spans of rows that touch a damaged sample; return (m,) the other rows."""
        if self.shard is None:
            return np.zeros(len(self.rows), np.bool_)
        is_whole = np.ones(len(self.rows), np.bool_)
        if self.shard.damaged.any():
            rows = self.spans.rows
            is_whole[rows[self.shard.damaged[self.spans.samples]]] = False
            self.spans = self.spans.select(is_whole[rows])
        return is_whole


def _check_samples(shard: Shard, samples: Int64Array) -> list[tuple[Shard, int]]:
    """Check samples of a local shard; of a remote one, return the blocks that must be fetched.

    Raises:
        ShardCorrupt: a sample is damaged and `on_corrupt` is "stop".
    """
    if shard.tar is None:
        return [(shard, block) for block in shard.list_missing_blocks(samples)]
    shard.check_local_samples(samples)
    return []


def _group_by_shard(shards: Int64Array, rows: Int64Array) -> list[_ShardRequest]:
    if not len(shards):
        return []
    # Stable, so that rows of one shard stay in the order of the request.
    by_shard = np.argsort(shards, kind="stable")
    # Places in by_shard at which the next shard begins.
    bounds = np.flatnonzero(np.diff(shards[by_shard])) + 1
    requests: list[_ShardRequest] = []
    for out_rows in np.split(by_shard, bounds):
        number = int(shards[out_rows[0]])
        requests.append(_ShardRequest(number, out_rows, rows[out_rows]))
    return requests


def _join_pieces(requests: list[_ShardRequest]) -> RowPieces:
    """Return the pieces of all requests, with rows as numbered in the result."""
    parts: list[RowPieces] = []
    for request in requests:
        # A damaged shard that is skipped has no pieces: its rows are padding.
        if request.shard is not None:
            out_rows = request.out_rows[request.pieces.rows]
            parts.append(request.pieces._replace(rows=out_rows))
    return RowPieces.join(parts) if parts else RowPieces.empty()
