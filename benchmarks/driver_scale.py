"""What does a run of 90,000 units cost its driver, whatever is in the units?

    python -m benchmarks.driver_scale                    90,000 units (minutes, and a million small files for a while)
    python -m benchmarks.driver_scale --units 2000

The plan, folders, done-records, sums and merges are the real ones, over a list of as many WET files. What the units
hold is not: a few units of a few pages each are run for real, and their outputs stand, as hard links, for all the
others. So what grows with the number of units is measured, what grows with the text is not; and files are read from
the page cache. Rows marked `task` are no driver's work: what one task across units takes for opening so many files.
Ray is measured by itself, with tasks that do nothing (`--ray`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.result_file import save
from pipeline.config import RunConfig, load
from pipeline.execution.engine import run
from pipeline.execution.task_stats import peak_mb, reset_peak_memory
from pipeline.models import registry as model_registry
from pipeline.phases import registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.fuzzy_dedup import FOREST, FuzzyDedup
from pipeline.phases.paragraph_dedup import ParagraphDedup
from pipeline.phases.phase import Phase, SplitPhase
from pipeline.phases.select import Select
from pipeline.phases.write_shards import WriteShards
from pipeline.planning.plan import make_plan
from pipeline.planning.prepare import prepare
from pipeline.planning.recorded_plan import record_plan
from pipeline.planning.run_plan import RunPlan
from pipeline.reporting import report
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters

CRAWL = "CC-MAIN-2026-17"
BASE_URL = "http://127.0.0.1:1/"
"""Of a snapshot that nobody serves: its list of files is put where a fetched one would lie."""

NUM_SEEDS = 50
"""Units that are really run: each stands for at most 65,000 / NUM_SEEDS others (ext4's limit of links)."""

MAX_UNITS_OF_TASKS = 2_000
"""Above it the tasks across units are left out: their time grows with units times ranges of hashes, to hours here."""

Measured = dict[str, dict[str, float]]


def simulate(num_splits: int, folder: Path) -> Measured:
    """Seconds, seconds of CPU and peak memory of each of the driver's acts."""
    found: Measured = {}

    def timed(name: str, act: Callable[[], Any]) -> Any:
        reset_peak_memory()
        started, cpu = time.perf_counter(), time.process_time()
        out = act()
        spent = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        found[name] = {**{k: round(v, 2) for k, v in spent.items()}, "peak_mb": peak_mb() or 0.0}
        return out

    seeds = _seeds(folder / "seeds")
    os.environ["CORPUSMILL_CACHE"] = str(_cache_with_list(folder / "cache", num_splits))
    keep = "drop_all_copies" if num_splits <= MAX_UNITS_OF_TASKS else "keep_all"
    overrides = [
        f"run_dir={folder / 'run'}",
        f"input={json.dumps(_INPUT)}",
        f"paragraph_dedup.keep={keep}",
    ]
    config = load("ccnet", [*_SETTINGS, *overrides])
    plan: RunPlan = timed("plan", lambda: make_plan(config))
    plan.run_dir.mkdir()
    timed("write run.json", lambda: record_plan(plan))
    for make_phase in registry.PHASES:
        for act, what in _acts(make_phase(plan), seeds):
            timed(act, what)
    timed("report", lambda: report.make_report(RunFolder.open(plan.run_dir)))
    return found


def _acts(phase: Phase, seeds: RunPlan) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What engine.run does for a phase, one after another, and what stands for its tasks in between."""
    folder, name = phase.folder, phase.name

    def finish() -> None:
        phase.finish()
        folder.finish(
            {
                "task_ids": len(phase.task_ids()),
                "of": "",
                "counters": phase.sum_of_records().to_json(),
            }
        )

    yield f"{name}: begin", lambda: (folder.begin(), folder.done())
    yield f"{name}: list work", phase.task_ids
    if isinstance(phase, SplitPhase):
        _fill(phase, seeds)
    elif isinstance(phase, WriteShards):
        yield f"task of {name}: reading a millionth of the keys", lambda: _read_keys(phase)
        return  # the seeds' documents stand there many times, which no shard may hold
    elif len(phase.plan.splits) <= MAX_UNITS_OF_TASKS:
        for task_id in phase.task_ids():  # one, or none where the phase is off
            yield f"task of {name}", partial(phase.run, task_id)
    elif isinstance(phase, FuzzyDedup):
        _join_all(phase)
    yield f"{name}: look for what is done", folder.done
    yield f"{name}: sum up, merge", finish
    if isinstance(phase, ParagraphDedup) and phase.task_ids():
        yield (
            "task of annotate: its part of the repeats",
            lambda: phase.find_duplicate_lines(phase.plan.splits[-1]),
        )
    if isinstance(phase, FuzzyDedup):
        yield "task of select: its part", lambda: phase.find_near_duplicates(phase.plan.splits[-1])
    if isinstance(phase, Annotate):
        yield "select: percentiles", lambda: Select(phase.plan)._buckets  # noqa: SLF001


def _join_all(phase: FuzzyDedup) -> None:
    """The forest in which every document is the first one's near-duplicate: what the task finds where all are links."""
    splits = np.arange(len(phase.plan.splits), dtype=np.uint64) << np.uint64(32)
    documents = np.concatenate([splits + 1, splits + 2])
    pairs = [
        np.ones_like(documents),
        documents,
        *np.random.default_rng(0).random((2, len(documents))),
    ]
    with phase.folder.commit(phase.task_ids()[0]) as task:
        with pa.ipc.new_file(task.path(f"{phase.task_ids()[0]}.forest.arrow"), FOREST) as file:
            file.write_batch(pa.record_batch(pairs, schema=FOREST).slice(1))
        task.record = {"counters": Counters().to_json()}


def _read_keys(phase: WriteShards) -> None:
    for split in phase.plan.splits:
        phase._read(split, 0, 2**44, np.dtype(np.uint16))  # noqa: SLF001 - what `run` does first


def _fill(phase: SplitPhase, seeds: RunPlan) -> None:
    """Outputs and records of all units, from those of the seeds."""
    source, target = seeds.folder(phase.name), phase.folder
    for i, task_id in enumerate(phase.task_ids()):
        seed = seeds.splits[i % len(seeds.splits)].key
        record = source.record(seed)
        for output in record["outputs"]:
            os.link(source.path(output), target.path(output.replace(seed, task_id)))
        text = json.dumps({**record, "task_id": task_id}).replace(seed, task_id)
        target.root.put(f"done/{task_id}.json", text.encode())


_SETTINGS = ("engine.kind=inline", "write_shards.shard_tokens=100000000")
_INPUT = {"common_crawl": {"crawl": CRAWL, "base_url": BASE_URL}, "files_per_split": 1}


def _seeds(run_dir: Path) -> RunPlan:
    """A real run over NUM_SEEDS units of two pages."""
    crawl = {
        "sample_crawl": {"documents": 2 * NUM_SEEDS, "documents_per_file": 2},
        "max_quarantined_share": 1,
    }
    config: RunConfig = load(
        "ccnet", [*_SETTINGS, f"run_dir={run_dir}", f"input={json.dumps(crawl)}"]
    )
    prepare(config)
    plan = make_plan(config)
    for _ in run(plan):
        pass
    return plan


def _cache_with_list(cache: Path, num_splits: int) -> Path:
    """A cache with this one's models, and the list of a snapshot of so many files."""
    from pipeline.planning.input_splits import locate_crawl_list

    cache.mkdir(parents=True)
    (cache / "assets").symlink_to(model_registry.cache_folder() / "assets")
    segment, name = (
        f"crawl-data/{CRAWL}/segments/1775805908305",
        "CC-MAIN-20260412001017-20260412031017",
    )
    names = (f"{segment}.{i % 100}/wet/{name}-{i:05d}.warc.wet.gz" for i in range(num_splits))
    before, os.environ["CORPUSMILL_CACHE"] = os.environ.get("CORPUSMILL_CACHE"), str(cache)
    path = locate_crawl_list(CRAWL, f"{BASE_URL}crawl-data/{CRAWL}/wet.paths.gz")
    if before is None:
        del os.environ["CORPUSMILL_CACHE"]
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join(names).encode()))
    return cache


def ray_tasks(num_tasks: int) -> dict[str, float]:
    """What Ray Data takes for so many tasks that do nothing, from engine's own kind of dataset to the last result."""
    import ray
    import ray.data

    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=200 * 2**20, log_to_driver=False
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    reset_peak_memory()
    started, cpu = time.perf_counter(), time.process_time()
    flow = ray.data.from_items(
        [{"task_id": f"{i:06d}"} for i in range(num_tasks)], override_num_blocks=num_tasks
    )
    made = time.perf_counter() - started
    flow = flow.map_batches(
        lambda table: table, batch_size=None, batch_format="pyarrow", num_cpus=1
    )
    count = sum(
        batch.num_rows for batch in flow.iter_batches(batch_size=None, batch_format="pyarrow")
    )
    assert count == num_tasks
    figures = {"seconds": time.perf_counter() - started, "of these to make blocks": made}
    figures |= {"cpu_seconds": time.process_time() - cpu, "peak_mb": peak_mb() or 0.0}
    ray.shutdown()
    return {name: round(figure, 2) for name, figure in figures.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, default=90_000)
    parser.add_argument(
        "--ray",
        type=int,
        default=0,
        metavar="TASKS",
        help="measure Ray Data with so many tasks too",
    )
    parser.add_argument(
        "--save", action="store_true", help="keep the figures in benchmarks/results"
    )
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(simulate(options.splits, Path(options.child))))
        return
    with tempfile.TemporaryDirectory(prefix="corpusmill-driver-") as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.driver_scale",
            "--units",
            str(options.splits),
            "--child",
            folder,
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    acts: Measured = json.loads(done.stdout.splitlines()[-1])
    driver = [figures for name, figures in acts.items() if not name.startswith("task ")]
    whole = {
        "seconds": round(sum(figures["seconds"] for figures in driver), 1),
        "cpu_seconds": round(sum(figures["cpu_seconds"] for figures in driver), 1),
        "peak_mb": max(figures["peak_mb"] for figures in driver),
    }
    table = Table("act", "s", "CPU s", "peak MB", title=f"{options.splits:,} units", box=None)
    for name, figures in {**acts, "the driver in all": whole}.items():
        table.add_row(
            name, *(f"{figures[key]:,.2f}" for key in ("seconds", "cpu_seconds", "peak_mb"))
        )
    Console().print(table)
    result: dict[str, Any] = {
        "splits": options.splits,
        "load": os.getloadavg()[0],
        "driver": whole,
        "acts": acts,
    }
    if options.ray:
        result["ray"] = {"tasks": options.ray, **ray_tasks(options.ray)}
        print(result["ray"])
    if options.save:
        print(save("driver_scale", result))


if __name__ == "__main__":
    main()
