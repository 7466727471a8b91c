"""Write the same synthetic documents in the format of every loader.

    python -m benchmarks.loader.generate --out DATA --tokens 150000000 [--only shards,memmap]

Documents have 200 to 3,000 tokens of two bytes, drawn from a Zipf distribution, and end with token 0. Equal arguments
give equal files. Packed formats contain blocks of 2,049 tokens.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.frame import make_parser
from benchmarks.shards import write_dataset
from loader.packed.pack import pack_dataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadSettings
from shardwriter import Documents
from shardwriter.format import TokenizerEntry

BLOCK = 2049
SHARD_BYTES = 64 << 20
VOCABULARY = 50_257


def generate_documents(num_tokens: int) -> Iterator[NDArray[np.uint16]]:
    """Yield documents until they have `num_tokens` tokens."""
    rng = np.random.default_rng(1)
    num_generated = 0
    while num_generated < num_tokens:
        document = np.minimum(
            rng.zipf(1.2, int(rng.integers(200, 3001))), VOCABULARY - 1
        ).astype(np.uint16)
        document[-1] = 0
        num_generated += len(document)
        yield document


def write_memmap(folder: Path, num_tokens: int) -> None:
    starts = [0]
    with (folder / "tokens.bin").open("wb") as file:
        for document in generate_documents(num_tokens):
            file.write(document.tobytes())
            starts.append(starts[-1] + len(document))
    np.save(folder / "starts.npy", np.array(starts, np.int64))


def write_shards(
    folder: Path, tokens: NDArray[np.uint16], starts: NDArray[np.int64]
) -> None:
    tokenizer = TokenizerEntry("benchmark", "0" * 64, VOCABULARY, 0)
    cuts = [
        *np.searchsorted(starts, np.arange(0, len(tokens), SHARD_BYTES // 2)).tolist(),
        len(starts) - 1,
    ]
    parts = (
        Documents(
            tokens[starts[first] : starts[last]],
            np.diff(starts[first : last + 1]),
            np.arange(first, last, dtype=np.uint64),
        )
        for first, last in pairwise(cuts)
    )
    write_dataset(folder, tokenizer, parts)
    settings = ReadSettings()
    manifest = read_manifest_columns(folder, settings)
    pack_dataset(manifest, seq_len=BLOCK - 1, settings=settings)


def write_webdataset(folder: Path, items: Iterator[NDArray[np.uint16]]) -> None:
    import webdataset

    with webdataset.ShardWriter(
        f"{folder}/shard-%05d.tar", maxsize=SHARD_BYTES, maxcount=10**9, verbose=0
    ) as writer:
        for number, item in enumerate(items):
            writer.write({"__key__": f"{number:09d}", "tok": item.tobytes()})


def write_mds(folder: Path, blocks: NDArray[np.uint16]) -> None:
    from benchmarks.loader.entrants import import_streaming

    import_streaming()
    from streaming import MDSWriter

    folder.rmdir()  # MDSWriter creates it
    columns = {"tokens": f"ndarray:uint16:{BLOCK}"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=SHARD_BYTES) as writer:
        for block in blocks:
            writer.write({"tokens": np.array(block)})


def litdata_documents(_: int) -> Iterator[Any]:
    """Yield the documents. litdata pickles this function, so it is at module level."""
    import torch

    root = Path(os.environ["BENCHMARK_DATA"])
    tokens = np.memmap(root / "memmap/tokens.bin", np.uint16, mode="r")
    starts = np.load(root / "memmap/starts.npy")
    for start, stop in pairwise(starts):
        yield torch.from_numpy(np.array(tokens[start:stop]))


def write_litdata(folder: Path) -> None:
    import litdata
    from litdata.streaming.item_loader import TokensLoader

    folder.rmdir()
    litdata.optimize(
        fn=litdata_documents, inputs=[0], output_dir=str(folder), chunk_bytes="64MB",
        item_loader=TokensLoader(block_size=BLOCK), num_workers=1, verbose=False,
    )  # fmt: skip


def write_parquet(folder: Path, blocks: NDArray[np.uint16]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    per_file = SHARD_BYTES // (BLOCK * 2)
    for number, first in enumerate(range(0, len(blocks), per_file)):
        part = blocks[first : first + per_file]
        offsets = pa.array(np.arange(0, part.size + 1, BLOCK, dtype=np.int32))
        lists = pa.ListArray.from_arrays(offsets, pa.array(part.reshape(-1)))
        pq.write_table(
            pa.table({"tokens": lists}),
            folder / f"shard-{number:05d}.parquet",
            row_group_size=1000,
        )


def main() -> None:
    parser = make_parser(__doc__, saves=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=150_000_000)
    parser.add_argument(
        "--only", default="memmap,shards,packed,documents,mds,litdata,parquet"
    )
    args = parser.parse_args()
    root = args.out.resolve()
    os.environ["BENCHMARK_DATA"] = str(root)

    def make_empty_folder(name: str) -> Path:
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
        return root / name

    chosen = args.only.split(",")
    if "memmap" in chosen:
        write_memmap(make_empty_folder("memmap"), args.tokens)
    tokens = np.memmap(root / "memmap/tokens.bin", np.uint16, mode="r")
    starts = np.load(root / "memmap/starts.npy")
    blocks = tokens[: len(tokens) // BLOCK * BLOCK].reshape(-1, BLOCK)
    writers = {
        "shards": lambda folder: write_shards(folder, tokens, starts),
        "packed": lambda folder: write_webdataset(folder, iter(blocks)),
        "documents": lambda folder: write_webdataset(
            folder, iter(np.split(tokens, starts[1:-1]))
        ),
        "mds": lambda folder: write_mds(folder, blocks),
        "litdata": write_litdata,
        "parquet": lambda folder: write_parquet(folder, blocks),
    }
    for name, write in writers.items():
        if name in chosen:
            write(make_empty_folder(name))
            num_bytes = sum(
                path.stat().st_size for path in (root / name).rglob("*") if path.is_file()
            )
            print(
                f"{name:10} {num_bytes / 1e6:9.1f} MB, {num_bytes / (2 * len(tokens)):.3f} of the raw tokens"
            )
    print(f"{len(tokens):,} tokens, {len(starts) - 1:,} documents")


if __name__ == "__main__":
    main()
