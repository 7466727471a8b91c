"""Measure the merge of forests into clusters: in one task, and by ranges of documents.

    python -m benchmarks.stages.merge_clusters                            # 64 forests of 10^6 pairs: minutes
    python -m benchmarks.stages.merge_clusters --pairs 10000

The forests are made: clusters of two to eight documents, and each pair is in ten of 64 forests, as pairs have ten
bands in common. Each way is measured in a separate process. Both write the same clusters.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.frame import finish, make_parser, run_apart
from pipeline.config import RunConfig
from pipeline.execution.task import run_task
from pipeline.phases.dedup.fuzzy_clusters import FuzzyClusters
from pipeline.phases.dedup.merge_clusters import FuzzyMerge, FuzzyRanges
from pipeline.phases.dedup.merge_forests import FOREST, Components, list_stars
from pipeline.phases.phase import PartitionPhase
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import make_plan
from pipeline.runs.exchange import (
    SegmentWriter,
    name_partitions,
    write_by_hash,
    write_places,
)
from stages.contract import Counters
from tests.conftest import wet_record, write_tiny_tokenizer

NUM_FORESTS = 64
FORESTS_PER_PAIR = 10

NUM_SPLITS = 100

# Memory of a task in MiB: enough for one task to hold all pairs; and the default of the config.
ALL_MB = 2**20
DEFAULT_MB = 2000

MERGING = (FuzzyRanges, FuzzyMerge)


def make_clusters(num_pairs: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the pairs of clusters of two to eight documents, one array per size, shape (n, 2)."""
    rng = np.random.default_rng(0)
    sizes = np.arange(2, 9)
    num_clusters = num_pairs // np.sum(sizes - 1)
    numbers = rng.permutation(num_clusters * np.sum(sizes)).astype(np.uint64)
    per_split = np.uint64(len(numbers) // NUM_SPLITS + 1)
    ids = numbers // per_split << np.uint64(32) | numbers % per_split
    first = 0
    for size in sizes.tolist():
        members = ids[first : first + num_clusters * size].reshape(num_clusters, size)
        first += members.size
        # Pair each document with the one before it, so that a cluster is a chain.
        yield np.stack([members[:, :-1], members[:, 1:]], axis=2).reshape(-1, 2)


def make_forests(pairs_per_forest: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the pairs of each forest."""
    num_pairs = pairs_per_forest * NUM_FORESTS // FORESTS_PER_PAIR
    pairs = np.concatenate(list(make_clusters(num_pairs)))
    rng = np.random.default_rng(1)
    for _ in range(NUM_FORESTS):
        yield pairs[rng.random(len(pairs)) < FORESTS_PER_PAIR / NUM_FORESTS]


def write_forests(plan: RunPlan, forests: Iterator[NDArray[np.uint64]], num: int) -> None:
    """Write forests as the outputs of fuzzy_clusters. Scores and places are functions of the ids."""
    phase = FuzzyClusters(plan)
    phase.folder.begin()
    for task_id, pairs in zip(name_partitions(num), forests, strict=True):
        scores = (pairs * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(44)).astype(np.float64)
        forest = pairs, scores, pairs + np.uint64(1)
        stars = list_stars(Components.merge(lambda forest=forest: [forest]))
        counters = Counters()
        counters.add("pairs", stars.num_rows)
        with phase.folder.commit(task_id) as output:
            with SegmentWriter(output, phase.forest.file_name(task_id), FOREST) as file:
                write_by_hash(file, stars)
            output.record = {"counters": counters.to_json()}
    write_places(phase.folder, phase.forest, name_partitions(num))
    finish_phase(phase, num)


def finish_phase(phase: PartitionPhase, num_tasks: int) -> None:
    """Write the summary of a phase."""
    counters = Counters.sum(
        Counters.from_json(record["counters"])
        for record in phase.folder.records(name_partitions(num_tasks))
    )
    summary = {"task_ids": num_tasks, "of": "", "counters": counters.to_json()}
    phase.folder.finish(summary)


def merge(plan: RunPlan) -> dict[str, Any]:
    """Run the phases that merge forests; return their figures by phase."""
    figures: dict[str, Any] = {}
    for phase in (phase(plan) for phase in MERGING):
        phase.folder.begin()
        task_ids = phase.task_ids()
        begun = time.perf_counter()
        results = [run_task(phase, task_id, plan.config.engine) for task_id in task_ids]
        finish_phase(phase, len(task_ids))
        failures = {result.failed for result in results} - {None}
        assert not failures, failures
        figures[phase.name] = {
            "tasks": len(results),
            "seconds": round(time.perf_counter() - begun, 2),
            "cpu_s": round(sum(sum(r.cpu_seconds.values()) for r in results), 2),
            "longest_s": round(
                max((sum(r.seconds.values()) for r in results), default=0), 2
            ),
            "peak_mb": max((result.peak_mb or 0 for result in results), default=0),
            **phase.counters().counts,
        }
    return figures


def make_merge_plan(folder: Path, memory_mb: int) -> RunPlan:
    """Return a plan of one small file, whose phases before the merge are not run."""
    crawl = folder / "one.warc.wet"
    crawl.write_bytes(wet_record("https://example.org/", "Title\nText"))
    tree = {
        "run_dir": str(folder / "run"),
        "input": {"files": [str(crawl)]},
        "annotate": {"minhash": {}},
        "fuzzy_dedup": {"keep": "longest"},
        "select": {"language": None},
        "tokenize": {"tokenizer": str(write_tiny_tokenizer(folder / "tokenizer.json"))},
        "engine": {"kind": "inline", "memory_mb": memory_mb},
    }
    return make_plan(RunConfig.model_validate(tree))


def hash_clusters(plan: RunPlan) -> str:
    """Return the SHA-256 of the clusters."""
    phase = FuzzyMerge(plan)
    (task_id,) = phase.task_ids()
    path = phase.folder.path(phase.clusters.file_name(task_id))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def measure(pairs_per_forest: int, memory_mb: int, folder: Path) -> dict[str, Any]:
    """Return the figures of one way, after a small merge that compiles the kernels."""
    for name, pairs in (("warm", 100), ("measured", pairs_per_forest)):
        (folder / name).mkdir()
        plan = make_merge_plan(folder / name, memory_mb)
        write_forests(plan, make_forests(pairs), NUM_FORESTS)
        figures = merge(plan)
    phase = FuzzyMerge(plan)
    rows = [
        phase.read_clusters(i)["documents"]
        for i in range(phase.counters().counts["batches"])
    ]
    num_documents = sum(len(documents.flatten()) for documents in rows)
    forests = phase.plan.folder(FuzzyClusters.name).root
    forest_bytes = sum(forests.get_size(name) for name in forests.list_names())
    return {
        "memory_mb": memory_mb,
        "documents": num_documents,
        "forest_bytes": forest_bytes,
        "sha256": hash_clusters(plan),
        "phases": figures,
    }


def main() -> None:
    """Measure both ways in separate processes, and save the figures with `--save`."""
    parser = make_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000, help="of each forest")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        memory_mb, folder = args.child
        print(json.dumps(measure(args.pairs, int(memory_mb), Path(folder))))
        return
    ways: dict[str, Any] = {}
    for name, memory_mb in (("one task", ALL_MB), ("by ranges", DEFAULT_MB)):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["--pairs", args.pairs, "--child", memory_mb, folder]
            ways[name] = run_apart("benchmarks.stages.merge_clusters", *arguments)
        print(f"{name}: {json.dumps(ways[name], indent=1)}", flush=True)
    assert len({way["sha256"] for way in ways.values()}) == 1
    merged = ways["by ranges"]
    num_pairs = merged["phases"]["fuzzy_ranges"].get("pairs", 0)
    figures = {"pairs_per_forest": args.pairs, **ways}
    figures["pairs_at_the_end_per_document"] = round(num_pairs / merged["documents"], 3)
    print(f"pairs at the end per document: {figures['pairs_at_the_end_per_document']}")
    finish(args, "merge_clusters", figures)


if __name__ == "__main__":
    main()
