"""Count what the near-duplicate phases read of a run folder with a latency, by this code and another checkout's.

    git worktree add /tmp/other HEAD~5 && ln -s $PWD/.venv /tmp/other/.venv
    python -m benchmarks.runs.ngram_reads --other /tmp/other     # 200 splits, 8 partitions, 25 ms, in turn

The run folder is on this disk, and every request for it takes 25 ms more without using the CPU
(tests/bucket_like_store.py). One document in ten is similar to one of another split.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.result_file import REPOSITORY, save
from pipeline.config import RunConfig
from pipeline.execution.engine import PhaseFinished, run
from pipeline.phases.dedup import fuzzy_clusters
from pipeline.phases.dedup.fuzzy_clusters import FuzzyClusters
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.phase import PartitionPhase
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import make_plan
from tests.bucket_like_store import read_like_a_bucket
from tests.conftest import wet_record, write_tiny_tokenizer

# What another checkout needs to be measured.
OWN_FILES = ("benchmarks/runs/ngram_reads.py", "tests/bucket_like_store.py")

NUM_WORDS = 300


def annotate(folder: Path, num_splits: int, num_documents: int) -> RunPlan:
    """Write a crawl whose documents 1 and 2 of each split are similar to a document 0, and run it until annotate."""
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
        pages = [f"Title\n{' '.join(words)}" for words in split]
        records = [
            wet_record("https://e.org/", page, number=i) for i, page in enumerate(pages)
        ]
        (folder / f"{number:04d}.warc.wet").write_bytes(b"".join(records))
    tree = {
        "run_dir": str(folder / "run"),
        "input": {"files": [str(folder / "*.warc.wet")]},
        "paragraph_dedup": {"keep": "keep_all"},
        "annotate": {"minhash": {}},
        "fuzzy_dedup": {"keep": "first"},
        "select": {"language": None},
        "tokenize": {"tokenizer": str(write_tiny_tokenizer(folder / "tokenizer.json"))},
        "engine": {"kind": "inline"},
    }
    plan = make_plan(RunConfig.model_validate(tree))
    for event in run(plan):
        if isinstance(event, PhaseFinished) and event.phase == "annotate":
            break
    return plan


def run_phase(phase: PartitionPhase, latency_s: float) -> dict[str, Any]:
    """Run a phase's tasks; return the seconds of the longest one, and the requests of all by the kind of file."""
    phase.folder.begin()
    seconds: list[float] = []
    with read_like_a_bucket(latency_s) as counts:
        for task_id in phase.task_ids():
            begun = time.perf_counter()
            phase.run(task_id)
            seconds.append(time.perf_counter() - begun)
        read = {
            name: amount
            for name, amount in sorted(counts.items())
            if "arrow" in name or "bin" in name
        }
    phase.finish()
    return {"tasks": len(seconds), "longest_s": round(max(seconds), 2), **read}


def measure(
    num_splits: int, num_documents: int, num_partitions: int, latency_s: float
) -> dict[str, Any]:
    """Return the figures of both phases, and a digest of the decisions."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzzy_clusters, "count_partitions", lambda *_: num_partitions)
        plan = annotate(Path(folder), num_splits, num_documents)
        figures: dict[str, Any] = {
            phase.name: run_phase(phase(plan), latency_s)
            for phase in (FuzzyClusters, FuzzyDedup)
        }
        decided = FuzzyDedup(plan)
        rows = [decided.find_near_duplicates(split).to_pylist() for split in plan.splits]
    figures["decisions"] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    figures["near_duplicates"] = sum(map(len, rows))
    return figures


def measure_checkout(checkout: Path, arguments: list[str]) -> dict[str, Any]:
    """Run this script on the code of a checkout."""
    for name in OWN_FILES:
        if checkout != REPOSITORY:
            shutil.copyfile(REPOSITORY / name, checkout / name)
    command = [sys.executable, "-m", "benchmarks.runs.ngram_reads", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        command, cwd=checkout, env=environment, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure both checkouts in turn, print the figures and save them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--other", type=Path, help="a checkout; without it, print this code's figures"
    )
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--documents", type=int, default=20, help="per split")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--latency-ms", type=float, default=25)
    parser.add_argument("--runs", type=int, default=2)
    args = parser.parse_args()
    if args.other is None:
        found = measure(
            args.splits, args.documents, args.partitions, args.latency_ms / 1000
        )
        print(json.dumps(found))
        return
    same = [
        f"--{name}={getattr(args, name)}" for name in ("splits", "documents", "partitions")
    ]
    same.append(f"--latency-ms={args.latency_ms}")
    figures: dict[str, Any] = {"settings": same, "before": [], "after": []}
    for _ in range(args.runs):
        figures["before"].append(measure_checkout(args.other.resolve(), same))
        figures["after"].append(measure_checkout(REPOSITORY, same))
    figures["load"] = os.getloadavg()
    print(json.dumps(figures, indent=1))
    print(save("ngram_reads", figures))


if __name__ == "__main__":
    main()
