"""Pack the documents of a dataset into rows, and write the file with their places."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from loader.order.permutation import Int64Array
from loader.packed.best_fit import DEFAULT_WINDOW_TOKENS, pack_shard
from loader.packed.index_file import (
    PackingCounts,
    count_head_bytes,
    dump_head,
    dump_section,
    name_packing_file,
)
from loader.reading.dataset import Dataset
from loader.reading.manifest_columns import ManifestColumns
from loader.storage import ReadFailed, ReadSettings, open_dataset


def pack_dataset(
    manifest: ManifestColumns,
    *,
    seq_len: int,
    settings: ReadSettings,
    out: str | Path | None = None,
    window_tokens: int = DEFAULT_WINDOW_TOKENS,
) -> tuple[str, PackingCounts]:
    """Pack the documents of a dataset, shard by shard, and write the file.

    Equal arguments give equal bytes. Only the indexes of the shards are read, one at a time.

    Args:
        manifest: of the dataset.
        seq_len: tokens per row.
        settings: how the indexes are read.
        out: path or address of the file; None: beside the manifest.
        window_tokens: documents of about this many tokens are packed together.

    Returns:
        Path or address of the file, and its counts.

    Raises:
        ReadFailed: an index cannot be read, or the file cannot be written.
        FormatError, ShardCorrupt: an index is damaged.
        ValueError: an argument is below 1.
    """
    for name, value in (("seq_len", seq_len), ("window_tokens", window_tokens)):
        if value < 1:
            raise ValueError(f"{name} is {value}, must be at least 1")
    folder, name = manifest.address, name_packing_file(seq_len)
    if out is not None:
        folder, _, name = str(out).rpartition("/")
    store = open_dataset(folder or ".", settings)
    dataset = Dataset(manifest, settings=settings)
    try:
        with store.staging_folder("pack") as staging:
            counts = _write_packing(staging / name, dataset, seq_len, window_tokens)
            store.move_in(staging / name, name)
    except ReadFailed:
        raise
    except OSError as error:
        cause = error.strerror or str(error)
        remedy = "give a file in a folder that can be written with `out`"
        raise ReadFailed(store.locate(name), cause, remedy) from error
    finally:
        dataset.close()
    return store.locate(name), counts


def _write_packing(
    path: Path, dataset: Dataset, seq_len: int, window_tokens: int
) -> PackingCounts:
    """Write a packing to a local file."""
    manifest = dataset.manifest
    shards: list[tuple[int, int, bytes]] = []
    # num_cut_docs, num_cut_tokens, plain_num_cut_docs, plain_num_cut_tokens
    cuts = np.zeros(4, np.int64)
    with path.open("wb") as file:
        # The table comes first in the file, and is known last.
        file.seek(count_head_bytes(manifest.num_shards))
        for shard in range(manifest.num_shards):
            doc_starts = dataset.load_index(shard).doc_starts
            packed = pack_shard(doc_starts, seq_len, window_tokens)
            section = dump_section(packed)
            file.write(section)
            sha256 = hashlib.sha256(section).digest()
            num_rows, num_pieces = len(packed.row_starts) - 1, len(packed.piece_starts)
            shards.append((num_rows, num_pieces, sha256))
            cuts += [
                *_count_cuts(doc_starts, seq_len),
                *_count_plain_cuts(doc_starts, seq_len),
            ]
        counts = PackingCounts(
            manifest.num_shards,
            window_tokens,
            int(manifest.num_docs.sum()),
            int(manifest.num_tokens.sum()),
            sum(num_rows for num_rows, _, _ in shards),
            sum(num_pieces for _, num_pieces, _ in shards),
            *cuts.tolist(),
        )
        file.seek(0)
        file.write(dump_head(seq_len, manifest.digest, counts, shards))
    return counts


def _count_cuts(doc_starts: Int64Array, seq_len: int) -> tuple[int, int]:
    """Return the documents that packed rows cut, and their tokens after the first row."""
    tokens_after = np.maximum(np.diff(doc_starts) - (seq_len + 1), 0)
    return int(np.count_nonzero(tokens_after)), int(tokens_after.sum())


def _count_plain_cuts(doc_starts: Int64Array, seq_len: int) -> tuple[int, int]:
    """Return the same for plain rows, which start at each multiple of seq_len.

    The first token of a plain row is also the last label of the row before it, so a document that
    ends with this token is not cut.
    """
    # (D,) end of the row in which each document starts, as the position of its last token
    row_ends = (doc_starts[:-1] // seq_len + 1) * seq_len
    tokens_after = np.maximum(doc_starts[1:] - 1 - row_ends, 0)
    return int(np.count_nonzero(tokens_after)), int(tokens_after.sum())
