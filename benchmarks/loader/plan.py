"""Measure a dataset of 100,000 shards with 10^13 tokens: opening it, and the time to the first batch.

    python -m benchmarks.loader.plan [--shards 100000] [--rounds 3] [--save]

The manifest has the size of a real one, but its shards do not exist. So `plan` measures reading the manifest and
locating the rows of a step. The first batch is measured on a small dataset on disk, at the start and at 90 % of an
epoch, including opening and checking the shards. Each measurement runs in a new process, so that only the disk cache
is warm.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import finish, make_parser
from benchmarks.result_file import REPOSITORY
from shardwriter import Documents, build_manifest, write_shard
from shardwriter.format import (
    MANIFEST_FILE,
    ShardEntry,
    TokenizerEntry,
    index_file,
    shard_file,
)

TOKENS_PER_SHARD = 100_000_000
TOKENIZER = TokenizerEntry("benchmark", "0" * 64, 50_257, 0)
ORDER = {"seq_len": 2048, "seed": 7}

PLAN = """
import json, sys, time
from pathlib import Path
import loader
from loader.storage import ReadSettings
from loader.row_stream import open_row_stream
import numpy as np

def peak_mb():
    # ru_maxrss would include the peak of the parent process.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024

given, before = json.loads(sys.argv[1]), peak_mb()
started = time.perf_counter()
stream = open_row_stream(given["folder"], settings=ReadSettings(), **given["order"])
stream.locate(np.arange(512))
plan_s = time.perf_counter() - started
started = time.perf_counter()
stream.locate(np.arange(512) + stream.orders[0].epoch_rows * 9 // 10)
at_90_s = time.perf_counter() - started
print(json.dumps({"plan_s": plan_s, "locate_at_90_s": at_90_s, "import_mb": before, "peak_mb": peak_mb(),
                  "rows": stream.orders[0].num_rows}))
"""

FIRST_BATCH = """
import json, sys, time
import torch
from loader import TokenLoader

given = json.loads(sys.argv[1])
order = {**given["order"], "global_batch_rows": 8, "rank": 0, "world_size": 1}
started = time.perf_counter()
loader = TokenLoader(given["folder"], **order)
if given["at_90"]:
    epoch_rows = loader._stream.orders[0].epoch_rows
    loader.load_state_dict({**loader.state_dict(), "position": epoch_rows * 9 // 10})
next(loader)
print(json.dumps({"first_batch_s": time.perf_counter() - started}))
"""


def write_manifest(folder: Path, num_shards: int) -> None:
    """Write the manifest of shards that do not exist."""
    entry = {
        "shard": 0, "file": shard_file(0), "shard_bytes": 204_000_000, "sha256": "ab" * 32, "index_file": index_file(0),
        "index_bytes": 400_000, "index_sha256": "cd" * 32, "num_samples": 1526, "num_docs": 100_000,
        "num_tokens": TOKENS_PER_SHARD,
    }  # fmt: skip
    first = ShardEntry.from_json(entry)
    manifest = build_manifest(
        (replace(first, shard=shard) for shard in range(num_shards)),
        tokenizer=TOKENIZER,
        fingerprint="",
    )
    (folder / MANIFEST_FILE).write_bytes(manifest.dumps())


def write_dataset(folder: Path, num_shards: int, shard_tokens: int) -> None:
    """Write a dataset of random tokens in documents of 1,000 tokens."""
    entries = []
    for shard in range(num_shards):
        tokens = (
            np.random.default_rng(shard).integers(1, 50_000, shard_tokens).astype(np.uint16)
        )
        lengths = np.full(shard_tokens // 1000, 1000)
        tokens[np.cumsum(lengths) - 1] = 0
        documents = Documents(tokens, lengths, np.arange(len(lengths), dtype=np.uint64))
        with (
            (folder / shard_file(shard)).open("wb") as tar,
            (folder / index_file(shard)).open("wb") as index,
        ):
            entries.append(
                write_shard(
                    tar, index, shard=shard, tokenizer=TOKENIZER, documents=documents
                )
            )
    (folder / MANIFEST_FILE).write_bytes(
        build_manifest(entries, tokenizer=TOKENIZER, fingerprint="").dumps()
    )


def run_in_process(code: str, **given: Any) -> dict[str, float]:
    """Run code in a new process and return the JSON object that it prints."""
    command = [sys.executable, "-c", code, json.dumps({**given, "order": ORDER})]
    return json.loads(
        subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout
    )


def compute_medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each key over the runs."""
    return {key: round(statistics.median(run[key] for run in runs), 4) for key in runs[0]}


def main() -> None:
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--shards", type=int, default=100_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        large, small = Path(scratch) / "large", Path(scratch) / "small"
        for folder in (large, small):
            folder.mkdir()
        write_manifest(large, args.shards)
        write_dataset(small, 20, 10_000_000)
        figures: dict[str, Any] = {
            "shards": args.shards, "tokens": args.shards * TOKENS_PER_SHARD, "rounds": args.rounds,
            "manifest_mb": round((large / MANIFEST_FILE).stat().st_size / 1e6, 1),
            "plan": compute_medians([run_in_process(PLAN, folder=str(large)) for _ in range(args.rounds)]),
        }  # fmt: skip
        pairs = [
            [
                run_in_process(FIRST_BATCH, folder=str(small), at_90=at_90)
                for at_90 in (False, True)
            ]
            for _ in range(args.rounds)
        ]
        for name, runs in zip(("fresh", "at_90"), zip(*pairs, strict=True), strict=True):
            figures[name] = compute_medians(list(runs))
    print(json.dumps(figures, indent=1))
    finish(args, "loader_plan", figures)


if __name__ == "__main__":
    main()
