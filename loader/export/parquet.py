"""Write Parquet files that Hugging Face datasets reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from loader.export.documents import create_file, read_sample_documents
from loader.reading.dataset import Dataset


def export_parquet(dataset: Dataset, folder: Path) -> int:
    """Write one Parquet file per shard, with the columns doc_id (uint64) and tokens (list).

    Each sample becomes a row group. `datasets.load_dataset("parquet", data_dir=folder)` reads the
    files. Empty shards are skipped, because datasets refuses files without a row group.

    Returns:
        The number of documents.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # File names count only shards with documents: `of` must be the number of files.
    shards = np.flatnonzero(dataset.manifest.num_docs).tolist()
    token_type = pa.uint16() if dataset.token_dtype.itemsize == 2 else pa.uint32()
    # large_list has 64-bit offsets, so a row group may hold more than 2**31 tokens.
    schema = pa.schema([("doc_id", pa.uint64()), ("tokens", pa.large_list(token_type))])
    num_docs = 0
    for number, shard in enumerate(shards):
        path = folder / f"train-{number:05d}-of-{len(shards):05d}.parquet"
        with (
            create_file(path) as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            for sample in read_sample_documents(dataset, shard):
                offsets = pa.array(sample.offsets, pa.int64())
                tokens = pa.array(sample.tokens, token_type)
                lists = pa.LargeListArray.from_arrays(offsets, tokens)
                doc_ids = pa.array(sample.doc_ids)
                writer.write_table(pa.Table.from_arrays([doc_ids, lists], schema=schema))
                num_docs += len(sample.doc_ids)
    return num_docs
