"""Read rows of one dataset by shard and row number, with every byte checked.

For example:

    reader = ShardReader(manifest, seq_len=2048, settings=ReadSettings())
    # row 17 of shard 3 and row 4 of shard 0
    tokens, marks = reader.read(np.array([3, 0]), np.array([17, 4]))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from loader.order.permutation import Int64Array
from loader.packed.packing_index import PackedRows, PackingIndex
from loader.packed.row_pieces import PlainRows, RowPieces
from loader.reading.dataset_files import DatasetFiles
from loader.reading.manifest_columns import ManifestColumns
from loader.reading.open_shard import OpenShard, Tokens
from loader.reading.packing import BoolArray, mark_document_starts
from loader.reading.sample_reader import SampleReader
from loader.reading.shard_opener import ShardOpener
from loader.reading.spans import Source, Spans, StoredRows
from loader.retraction.tombstones import TokenRanges
from loader.storage import Counters, ReadFailed, ReadSettings
from shardwriter.format import FormatError, ShardIndex


class RowMarks(NamedTuple):
    """The properties of n rows besides their tokens.

    is_whole:   (n,) bool, false for damaged rows
    doc_starts: (n, seq_len) bool, document starts, or None if they were not requested
    ignored:    tokens that must not be labels: of retracted documents, padding, and repeated tokens
                of packed rows; None if no source can have any
    """

    is_whole: BoolArray
    doc_starts: BoolArray | None
    ignored: TokenRanges | None


class LoadedRows(NamedTuple):
    """n rows whose samples were checked, and which are not copied yet.

    sources:   the spans of the rows in mapped files and fetched blocks; damaged rows have none
    retracted: tokens of retracted documents, or None if the dataset has none
    marks:     the other properties of the rows
    """

    sources: list[Source]
    retracted: TokenRanges | None
    marks: RowMarks


class ShardReader:
    """Reads rows of one dataset. Safe for several threads.

    manifest: manifest of the dataset
    files:    its files
    seq_len:  tokens per row; a row reads seq_len + 1
    counters: cache_hits, cache_misses, retries, refetches, damaged_samples, lost_shards, ...
    """

    def __init__(
        self,
        manifest: ManifestColumns,
        *,
        seq_len: int,
        settings: ReadSettings,
        counters: Counters | None = None,
        packing: PackingIndex | None = None,
        checks_files: bool = True,
    ) -> None:
        """Check the sizes of local shards, unless there are very many.

        Args:
            manifest: of the dataset.
            seq_len: tokens per row.
            settings: how shards are read.
            counters: see above.
            packing: read packed rows in place of plain ones.
            checks_files: false for a dataset whose shards may be missing until they are read.

        Raises:
            ReadFailed: a shard or an index is missing.
            ShardCorrupt: a shard has another size, and `on_corrupt` is "stop".
        """
        self.manifest, self.seq_len = manifest, seq_len
        self.counters = counters or Counters()
        self.files = DatasetFiles(
            manifest.address, manifest.digest, settings, self.counters
        )
        self._opener = ShardOpener(manifest, self.files, settings, self.counters)
        self._samples = SampleReader(self.files, settings, self.counters)
        self._is_packed = packing is not None
        self._layout: PlainRows | PackedRows = PlainRows(seq_len)
        if packing is not None:
            self._layout = PackedRows(packing, settings, self.counters)
        # With skip_and_count, a damaged shard must not prevent the start.
        if checks_files and settings.on_corrupt == "stop":
            self._opener.check_local_files()

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """uint16 or uint32."""
        return self.manifest.tokenizer.token_dtype

    @property
    def is_remote(self) -> bool:
        """Whether blocks are fetched over a network."""
        return self.files.is_remote

    def close(self) -> None:
        """Stop the threads and close the files. Rows that were read before stay valid."""
        self.files.close()
        self._opener.close()
        self._samples.close()
        self._layout.close()

    def read(
        self, shards: Int64Array, rows: Int64Array, *, with_marks: bool = False
    ) -> tuple[Tokens, RowMarks]:
        """Return the tokens of n rows, (n, seq_len + 1), and their marks.

        A row that touches a damaged sample is filled with the end-of-document id, and so are the
        tokens of retracted documents and padding.

        Args:
            shards: (n,) shard of each row.
            rows: (n,) row in the shard.
            with_marks: also mark the starts of documents.

        Raises:
            ReadFailed: bytes cannot be read.
            ShardCorrupt: bytes are damaged, and `on_corrupt` is "stop".
            FormatError: an index belongs to another dataset.
        """
        loaded = self.load(shards, rows, with_marks=with_marks)
        stored = StoredRows(
            loaded.sources,
            len(shards),
            row_tokens=self.seq_len + 1,
            dtype=self.token_dtype,
            blank=self.manifest.tokenizer.end_of_document,
            retracted=loaded.retracted,
        )
        return stored.join(slice(0, len(shards))), loaded.marks

    def load(
        self, shards: Int64Array, rows: Int64Array, *, with_marks: bool = False
    ) -> LoadedRows:
        """Check the samples of n rows, and fetch their blocks if they are remote.

        The arguments and errors are those of `read`.
        """
        requests = self._load_requests(shards, rows)
        is_whole = np.zeros(len(shards), np.bool_)
        for request in requests:
            is_whole[request.out_rows] = request.drop_damaged()
        pieces = _join_pieces(requests) if self._is_packed else None
        retracted = self._find_retracted(shards, rows, pieces)
        doc_starts = None
        if with_marks:
            doc_starts = self._mark_doc_starts(requests, len(shards), pieces)
        ignored = retracted
        if pieces is not None:
            ignored = pieces.find_ignored(len(shards), self.seq_len + 1)
            if retracted is not None:
                ignored = TokenRanges.join([ignored, retracted])
        marks = RowMarks(is_whole, doc_starts, ignored)
        return LoadedRows(self._find_sources(requests), retracted, marks)

    def _load_requests(self, shards: Int64Array, rows: Int64Array) -> list[_ShardRequest]:
        """Open the shards of n rows, and load and check the samples that the rows touch."""
        requests = _group_by_shard(shards, rows)
        # Opening remote shards waits for the network, so it runs in parallel.
        self.files.run_all(self._locate, requests)
        wanted = [
            (request.shard, request.list_samples())
            for request in requests
            if request.shard is not None
        ]
        self._samples.load_samples(wanted)
        return requests

    def _find_sources(self, requests: list[_ShardRequest]) -> list[Source]:
        sources: list[Source] = []
        for request in requests:
            if request.shard is not None:
                rows = request.out_rows[request.pieces.rows[request.spans.pieces]]
                sources += self._samples.find_sources(request.shard, request.spans, rows)
        return sources

    def _find_retracted(
        self, shards: Int64Array, rows: Int64Array, pieces: RowPieces | None
    ) -> TokenRanges | None:
        """Return the retracted tokens of n rows, or None if the dataset has none."""
        tombstones = self.manifest.tombstones
        if tombstones is None:
            return None
        if pieces is None:
            return tombstones.find(shards, rows * self.seq_len, self.seq_len + 1)
        found = tombstones.find(shards[pieces.rows], pieces.starts, pieces.num_tokens)
        columns = pieces.columns[found.rows]
        return TokenRanges.join(
            [
                TokenRanges(
                    pieces.rows[found.rows], found.firsts + columns, found.ends + columns
                )
            ]
        )

    def prefetch_rows(self, shards: Int64Array, rows: Int64Array) -> None:
        """Start fetching the blocks of remote rows; wait for the indexes only.

        Errors are not raised here. `read` of the same rows raises them.
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
                self._samples.prefetch_samples(request.shard, request.list_samples())

    def _mark_doc_starts(
        self, requests: list[_ShardRequest], num_rows: int, pieces: RowPieces | None
    ) -> BoolArray:
        """Mark the tokens of n rows at which a document starts: (n, seq_len) bool.

        A row of a corrupt shard is marked as one document.
        """
        if pieces is not None:
            return pieces.mark_starts(num_rows, self.seq_len)
        marks = np.zeros((num_rows, self.seq_len), np.bool_)
        marks[:, 0] = True
        for request in requests:
            if request.shard is not None:
                marks[request.out_rows] = mark_document_starts(
                    request.shard.index.doc_starts,
                    request.rows * self.seq_len,
                    self.seq_len,
                )
        return marks

    def list_inputs(self, number: int, row: int) -> list[tuple[int, int]]:
        """Return the tokens of a shard that are the inputs of a row, as (start, stop) of each piece.

        Raises as `read`.
        """
        pieces = self._layout.find_pieces(self.load_index(number), np.array([row]))
        # The last place of a row is only a label.
        num_inputs = np.minimum(pieces.num_tokens, self.seq_len - pieces.columns)
        stops = pieces.starts + num_inputs
        return list(zip(pieces.starts.tolist(), stops.tolist(), strict=True))

    def find_rows(self, number: int, first: int, stop: int) -> list[int]:
        """Return the rows of a shard that read some of its tokens first..stop - 1.

        Raises as `read`.
        """
        return self._layout.find_rows(self.load_index(number), first, stop)

    def load_index(self, number: int) -> ShardIndex:
        """Return the index of a shard. Raises as `read`."""
        return self._opener.open_or_raise(number).index

    def read_sample(self, number: int, sample: int) -> Tokens:
        """Return the (n,) checked tokens of one sample.

        The tokens of retracted documents are replaced by the end-of-document id.

        Raises:
            ReadFailed, FormatError: as `read`.
            ShardCorrupt: the sample is damaged, regardless of `on_corrupt`.
        """
        shard = self._opener.open_or_raise(number)
        self._samples.load_samples([(shard, np.array([sample]))])
        if shard.damaged[sample]:
            raise self._samples.make_error(shard, sample)
        tokens = self._samples.read_tokens(shard, sample)
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

    def _locate(self, request: _ShardRequest) -> None:
        """Open the shard of a request and find the spans of its rows."""
        shard = self._opener.open(request.number)
        if shard is not None:
            request.pieces = self._layout.find_pieces(shard.index, request.rows)
            request.spans = Spans.cut(request.pieces, shard)
        request.shard = shard


@dataclass(eq=False)
class _ShardRequest:
    """The m requested rows of one shard, and their k pieces. A plain row is one piece.

    number:   number of the shard
    out_rows: (m,) int64, place of each row in the result
    rows:     (m,) int64, number of each row in the shard
    shard:    the open shard, or None if it is corrupt and skipped
    pieces:   the pieces of the rows
    spans:    the spans of the pieces
    """

    number: int
    out_rows: Int64Array
    rows: Int64Array
    shard: OpenShard | None = None
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
            rows = self.pieces.rows[self.spans.pieces]
            is_whole[rows[self.shard.damaged[self.spans.samples]]] = False
            self.spans = self.spans.select(is_whole[rows])
        return is_whole


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
