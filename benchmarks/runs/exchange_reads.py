"""Count what each phase reads of a run folder with a latency.

    python -m benchmarks.runs.exchange_reads     # 200 splits, 8 partitions, 25 ms

The run folder is on this disk, and every request for it takes 25 ms more without using the CPU
(tests/bucket_like_store.py). All deduplication phases are on. One document in ten is similar to one of another split,
and documents share lines. The counts are those of the tasks and of the driver. To compare versions, run it in the
checkout of each: the shards must be the same.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.frame import finish, make_parser
from pipeline.config import RunConfig
from pipeline.execution.engine import PhaseFinished, TaskFinished, run
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import make_plan
from tests.bucket_like_store import read_like_a_bucket
from tests.conftest import wet_record, write_tiny_tokenizer

NUM_WORDS = 300


def make_crawl(folder: Path, num_splits: int, num_documents: int) -> RunPlan:
    """Write a crawl whose documents 1 and 2 of each split are similar to a document 0 of another one, and plan its run."""
    rng = random.Random(0)
    texts = [
        [
            [f"w{rng.randrange(10**6)}" for _ in range(NUM_WORDS)]
            for _ in range(num_documents)
        ]
        for _ in range(num_splits)
    ]
    for number in range(num_splits):
        for record in range(1, 1 + num_documents // 10):
            original = texts[(number + 77 * record) % num_splits][0]
            texts[number][record] = [*original[:-record], *(["other"] * record)]
    for number, split in enumerate(texts):
        pages = [
            f"Menu {number % 7}\nTitle\n{' '.join(words)}\nAll rights reserved."
            for words in split
        ]
        records = [
            wet_record("https://e.org/", page, number=i) for i, page in enumerate(pages)
        ]
        (folder / f"{number:04d}.warc.wet").write_bytes(b"".join(records))
    tree = {
        "run_dir": str(folder / "run"),
        "input": {"files": [str(folder / "*.warc.wet")]},
        "exact_dedup": {"by": "text"},
        "substring_dedup": {},
        "annotate": {"minhash": {}},
        "fuzzy_dedup": {"keep": "first"},
        "select": {"language": None},
        "tokenize": {"tokenizer": str(write_tiny_tokenizer(folder / "tokenizer.json"))},
        "write_shards": {"shard_tokens": 50_000},
        "engine": {"kind": "inline"},
    }
    return make_plan(RunConfig.model_validate(tree))


def measure(
    num_splits: int, num_documents: int, num_partitions: int, latency_s: float
) -> dict[str, Any]:
    """Return the figures of each phase, and a digest of the shards."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for module in list(sys.modules.values()):
            if module.__name__.startswith("pipeline.phases") and hasattr(
                module, "count_partitions"
            ):
                patch.setattr(module, "count_partitions", lambda *_: num_partitions)
        plan = make_crawl(Path(folder), num_splits, num_documents)
        seconds: list[float] = []
        with read_like_a_bucket(latency_s) as counts:
            for event in run(plan):
                if isinstance(event, TaskFinished):
                    seconds.append(sum(event.seconds.values()))
                elif isinstance(event, PhaseFinished):
                    figures[event.phase] = {
                        "tasks": len(seconds),
                        "longest_s": round(max(seconds, default=0.0), 2),
                        "requests": _add(counts, "requests of "),
                        "megabytes": round(_add(counts, "bytes of ") / 1e6, 2),
                    }
                    seconds.clear()
                    counts.clear()
        digest = hashlib.sha256()
        for shard in sorted(plan.folder("write_shards").root.list_names()):
            if shard.endswith(".tar"):
                digest.update(plan.folder("write_shards").path(shard).read_bytes())
    figures["shards"] = digest.hexdigest()[:16]
    return figures


def _add(counts: Counter[str], prefix: str) -> int:
    return sum(amount for name, amount in counts.items() if name.startswith(prefix))


def main() -> None:
    """Measure, print the figures and save them with `--save`."""
    parser = make_parser(__doc__)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--documents", type=int, default=20, help="per split")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--latency-ms", type=float, default=25)
    args = parser.parse_args()
    latency_s = args.latency_ms / 1000
    figures = measure(args.splits, args.documents, args.partitions, latency_s)
    print(json.dumps(figures, indent=1))
    finish(args, "exchange_reads", figures)


if __name__ == "__main__":
    main()
