"""Read rows of one dataset by shard and row number, with every byte checked.

For example:

    reader = ShardReader(manifest, seq_len=2048, settings=ReadSettings())
    tokens = np.empty((2, 2049), reader.token_dtype)
    # row 17 of shard 3 and row 4 of shard 0
    is_whole = reader.read_rows(np.array([3, 0]), np.array([17, 4]), tokens)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import Int64Array
from loader.reading.dataset_files import DatasetFiles
from loader.reading.manifest_columns import ManifestColumns
from loader.reading.open_shard import OpenShard, Tokens
from loader.reading.packing import BoolArray, mark_document_starts
from loader.reading.sample_reader import SampleReader
from loader.reading.shard_opener import ShardOpener
from loader.storage import Counters, ReadFailed, ReadSettings
from shardwriter.format import FormatError, ShardIndex


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
    ) -> None:
        """Check the sizes of local shards, unless there are very many.

        Raises:
            ReadFailed: a shard or an index is missing.
            ShardCorrupt: a shard has another size, and `on_corrupt` is "stop".
        """
        self.manifest, self.seq_len = manifest, seq_len
        self.counters = counters or Counters()
        self.files = DatasetFiles(manifest, settings, self.counters)
        self._opener = ShardOpener(manifest, self.files, settings, self.counters)
        self._samples = SampleReader(self.files, settings, self.counters)
        # With skip_and_count, a damaged shard must not prevent the start.
        if settings.on_corrupt == "stop":
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

    def read_rows(self, shards: Int64Array, rows: Int64Array, out: Tokens) -> BoolArray:
        """Read n rows into `out`.

        A row that touches a damaged sample is filled with the end-of-document id.

        Args:
            shards: (n,) shard of each row.
            rows: (n,) row in the shard.
            out: (n, seq_len + 1), contiguous, of the dataset's dtype.

        Returns:
            (n,) bool, false for damaged rows.

        Raises:
            ReadFailed: bytes cannot be read.
            ShardCorrupt: bytes are damaged, and `on_corrupt` is "stop".
            FormatError: an index belongs to another dataset.
        """
        is_whole = np.ones(len(shards), np.bool_)
        requests = self._group_by_shard(shards, rows)
        # Opening remote shards waits for the network, so it runs in parallel.
        self.files.run_all(self._locate, requests)
        wanted = [
            (request.shard, request.list_samples())
            for request in requests
            if request.shard is not None
        ]
        self._samples.load_samples(wanted)
        for request in requests:
            is_whole[request.out_rows] = self._copy_rows(request, out)
        if not is_whole.all():
            # Every rank that reads this row blanks it alike.
            out[~is_whole] = self.manifest.tokenizer.end_of_document
        return is_whole

    def prefetch_rows(self, shards: Int64Array, rows: Int64Array) -> None:
        """Start fetching the blocks of remote rows; wait for the indexes only.

        Errors are not raised here. `read_rows` of the same rows raises them.
        """
        for request in self._group_by_shard(shards, rows):
            try:
                self._locate(request)
            except ReadFailed:
                # Probably the server does not answer: do not wait for it once per shard.
                return
            except FormatError:
                continue
            if request.shard is not None:
                self._samples.prefetch_samples(request.shard, request.list_samples())

    def mark_document_starts(self, shards: Int64Array, rows: Int64Array) -> BoolArray:
        """Mark the tokens of n rows at which a document starts: (n, seq_len) bool.

        A row of a corrupt shard is marked as one document.
        """
        marks = np.zeros((len(shards), self.seq_len), np.bool_)
        marks[:, 0] = True
        for request in self._group_by_shard(shards, rows):
            shard = self._opener.open(request.number)
            if shard is not None:
                marks[request.out_rows] = mark_document_starts(
                    shard.index.doc_starts, request.starts, self.seq_len
                )
        return marks

    def load_index(self, number: int) -> ShardIndex:
        """Return the index of a shard. Raises as `read_rows`."""
        return self._opener.open_or_raise(number).index

    def read_sample(self, number: int, sample: int) -> Tokens:
        """Return the (n,) checked tokens of one sample.

        Raises:
            ReadFailed, FormatError: as `read_rows`.
            ShardCorrupt: the sample is damaged, regardless of `on_corrupt`.
        """
        shard = self._opener.open_or_raise(number)
        self._samples.load_samples([(shard, np.array([sample]))])
        if shard.damaged[sample]:
            raise self._samples.make_error(shard, sample)
        return self._samples.read_tokens(shard, sample)

    def _group_by_shard(self, shards: Int64Array, rows: Int64Array) -> list[_ShardRequest]:
        if not len(shards):
            return []
        # Stable, so that rows of one shard stay in the order of the request.
        by_shard = np.argsort(shards, kind="stable")
        # Places in by_shard at which the next shard begins.
        bounds = np.flatnonzero(np.diff(shards[by_shard])) + 1
        requests: list[_ShardRequest] = []
        for out_rows in np.split(by_shard, bounds):
            number = int(shards[out_rows[0]])
            requests.append(_ShardRequest(number, out_rows, rows[out_rows] * self.seq_len))
        return requests

    def _locate(self, request: _ShardRequest) -> None:
        """Open the shard of a request and find the samples that its rows touch."""
        request.shard = self._opener.open(request.number)
        if request.shard is not None:
            sample_starts = request.shard.index.sample_starts
            # A row reads seq_len + 1 tokens: its last token is at start + seq_len.
            last_tokens = request.starts + self.seq_len
            request.firsts = (
                np.searchsorted(sample_starts, request.starts, side="right") - 1
            )
            request.lasts = np.searchsorted(sample_starts, last_tokens, side="right") - 1

    def _copy_rows(self, request: _ShardRequest, out: Tokens) -> BoolArray:
        """Copy the whole rows of a request; return (m,) which rows those are."""
        shard = request.shard
        if shard is None:
            return np.zeros(len(request.out_rows), np.bool_)
        is_whole = np.ones(len(request.out_rows), np.bool_)
        if shard.damaged.any():
            # (S + 1,) damaged samples before each sample
            num_damaged = np.concatenate([np.zeros(1, np.int64), np.cumsum(shard.damaged)])
            # A row is whole if no sample from its first to its last is damaged.
            is_whole = num_damaged[request.lasts + 1] == num_damaged[request.firsts]
        is_in_one_sample = (request.firsts == request.lasts) & is_whole
        self._copy_rows_in_one_sample(shard, request, is_in_one_sample, out)
        for row in np.flatnonzero(is_whole & ~is_in_one_sample).tolist():
            self._copy_row_across_samples(
                shard, request, row, out[int(request.out_rows[row])]
            )
        return is_whole

    def _copy_rows_in_one_sample(
        self, shard: OpenShard, request: _ShardRequest, chosen: BoolArray, out: Tokens
    ) -> None:
        """Copy the rows that do not cross a sample boundary, many at once."""
        row_bytes = (self.seq_len + 1) * out.itemsize
        out_bytes = out.view(np.uint8)
        # (m,) first token of each row, counted in tokens from the start of the tar
        in_sample = request.starts - shard.index.sample_starts[request.firsts]
        tar_tokens = shard.token_offsets[request.firsts] + in_sample
        for base, base_offset, rows in self._find_bases(shard, request.firsts, chosen):
            # (bytes, row_bytes): a view with one row from every byte on. Bytes, not tokens, because
            # fetched blocks may start at odd addresses. One indexing operation copies all rows and
            # releases the GIL; a loop of copies would hold it.
            rows_from_each_byte = np.ndarray(
                (max(0, base.nbytes - row_bytes + 1), row_bytes),
                np.uint8,
                base.data,
                strides=(1, 1),
            )
            first_bytes = (tar_tokens[rows] - base_offset) * out.itemsize
            out_bytes[request.out_rows[rows]] = rows_from_each_byte[first_bytes]

    def _find_bases(
        self, shard: OpenShard, samples: Int64Array, chosen: BoolArray
    ) -> Iterator[tuple[Tokens, int, NDArray[Any]]]:
        """Yield the arrays that hold the chosen rows.

        Args:
            shard: an open shard.
            samples: (m,) sample of each row.
            chosen: (m,) bool, rows that do not cross a sample boundary.

        Yields:
            An array of tokens, its offset in the tar in tokens, and the indexes of the rows in it.
        """
        if shard.tar is not None:
            yield shard.tar, 0, np.flatnonzero(chosen)
            return
        blocks = shard.sample_blocks[samples]
        for block in np.unique(blocks[chosen]).tolist():
            offset = int(shard.token_offsets[shard.block_samples(block)[0]])
            rows = np.flatnonzero((blocks == block) & chosen)
            yield self._samples.load_block(shard, block), offset, rows

    def _copy_row_across_samples(
        self, shard: OpenShard, request: _ShardRequest, row: int, out: Tokens
    ) -> None:
        """Copy one row that crosses sample boundaries. `out` is (seq_len + 1,)."""
        start = int(request.starts[row])
        num_copied = 0
        for sample in range(int(request.firsts[row]), int(request.lasts[row]) + 1):
            # 0 from the second sample on, because the row continues at its first token.
            first = max(0, start - int(shard.index.sample_starts[sample]))
            stop = first + len(out) - num_copied
            tokens = self._samples.read_tokens(shard, sample)[first:stop]
            out[num_copied : num_copied + len(tokens)] = tokens
            num_copied += len(tokens)


@dataclass(eq=False)
class _ShardRequest:
    """The m requested rows of one shard.

    number:   number of the shard
    out_rows: (m,) int64, place of each row in the result
    starts:   (m,) int64, token position in the shard of each row's first token
    shard:    the open shard, or None if it is corrupt and skipped
    firsts:   (m,) int64, sample of each row's first token
    lasts:    (m,) int64, sample of each row's last token
    """

    number: int
    out_rows: Int64Array
    starts: Int64Array
    shard: OpenShard | None = None
    firsts: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    lasts: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def list_samples(self) -> Int64Array:
        """Return each sample that some row touches, once."""
        counts = self.lasts - self.firsts + 1
        counts_before = np.cumsum(counts) - counts
        # 0, 1, .., counts[0] - 1, 0, 1, .., counts[1] - 1, ...
        within_row = np.arange(counts.sum()) - np.repeat(counts_before, counts)
        return np.unique(np.repeat(self.firsts, counts) + within_row)
