"""Measure the driver's own work in a run of many input splits.

    python -m benchmarks.runs.driver_scale                    90,000 splits: minutes, and a million small files
    python -m benchmarks.runs.driver_scale --splits 2000
    python -m benchmarks.runs.driver_scale --ray 90000
    python -m benchmarks.runs.driver_scale --slots 100

The plan, the phase folders, the done-records, the sums and the merges are real. The contents of the splits are not:
a few splits of two pages each are run for real, and their outputs are linked as the outputs of all other splits. So
the figures grow with the number of splits and not with the amount of text, and files are read from the page cache.
Rows that start with `task` are not work of the driver: they show how long one task takes to open the files of all
splits. `--ray` measures what the engine on Ray adds, with tasks that do nothing and the event log. `--slots N` starts a
Ray with N CPUs, and measures the time until a task runs on each CPU. There are three rounds; in the first one, Ray
starts the processes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.frame import finish, make_parser, print_table, run_apart
from benchmarks.runs.process_tree import ProcessTree
from pipeline.config import RunConfig, load
from pipeline.execution.engine import run
from pipeline.execution.on_ray.dispatch import map_groups
from pipeline.execution.on_ray.engine import RayEngine
from pipeline.execution.task_stats import peak_mb, reset_peak_memory
from pipeline.models import registry as model_registry
from pipeline.phases import registry
from pipeline.phases.dedup.fuzzy_clusters import FOREST, FuzzyClusters
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from pipeline.phases.histograms import Percentiles
from pipeline.phases.phase import PartitionPhase, Phase, SplitPhase
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.write_shards import WriteShards
from pipeline.planning.plan import make_plan
from pipeline.planning.prepare import prepare
from pipeline.planning.recorded_plan import record_plan
from pipeline.reporting import report
from pipeline.runs.done_records import dump_record
from pipeline.runs.event_log import open_log
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters

CRAWL = "CC-MAIN-2026-17"

# No server listens here: the snapshot's list of files is written into the cache beforehand.
BASE_URL = "http://127.0.0.1:1/"

# Splits that are run for real. Each stands for at most 65,000 / MAX_SEEDS others, because
# of ext4's limit of links.
MAX_SEEDS = 50

NUM_SEED_DOCS = 2 * MAX_SEEDS

# With `--slots`: long enough that Ray has started the processes in the meantime.
SLEEP_S = 10.0
NUM_ROUNDS = 3

# Above this number, tasks that read all splits are left out: they would take hours here.
MAX_SPLITS_OF_TASKS = 2_000

SETTINGS = ("engine.kind=inline", "write_shards.shard_tokens=100000000")
INPUT = {"common_crawl": {"crawl": CRAWL, "base_url": BASE_URL}, "files_per_split": 1}

Measured = dict[str, dict[str, float]]


@dataclass
class Stopwatch:
    """Seconds, CPU seconds and peak resident MB of named actions."""

    figures: Measured = field(default_factory=dict[str, dict[str, float]])

    def measure(self, name: str, action: Callable[[], Any]) -> Any:
        """Run the action and return its result."""
        reset_peak_memory()
        started, cpu_started = time.perf_counter(), time.process_time()
        result = action()
        self.figures[name] = {
            "seconds": round(time.perf_counter() - started, 2),
            "cpu_seconds": round(time.process_time() - cpu_started, 2),
            "peak_mb": peak_mb() or 0.0,
        }
        return result


def simulate(num_splits: int, folder: Path) -> Measured:
    """Run the driver's actions for so many splits, and return the figures of each action."""
    stopwatch = Stopwatch()
    seeds = run_seeds(folder / "seeds", min(MAX_SEEDS, num_splits))
    os.environ["CORPUSMILL_CACHE"] = str(create_cache(folder / "cache", num_splits))
    keep = "drop_all_copies" if num_splits <= MAX_SPLITS_OF_TASKS else "keep_all"
    overrides = [
        f"run_dir={folder / 'run'}",
        f"input={json.dumps(INPUT)}",
        f"paragraph_dedup.keep={keep}",
    ]
    config = load("ccnet", [*SETTINGS, *overrides])
    plan: RunPlan = stopwatch.measure("plan", lambda: make_plan(config))
    plan.run_dir.make_folder()
    stopwatch.measure("write run.json", lambda: record_plan(plan))
    for phase_class in registry.list_enabled(plan.config):
        for name, action in list_actions(phase_class(plan), seeds):
            stopwatch.measure(name, action)
    stopwatch.measure("report", lambda: report.make_report(RunFolder.open(plan.run_dir)))
    return stopwatch.figures


def list_actions(phase: Phase, seeds: RunPlan) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what `engine.run` does for a phase, in order. Between two actions the task outputs are put in place."""
    folder, name = phase.folder, phase.name
    yield f"{name}: begin", lambda: (folder.begin(), folder.list_done())
    if isinstance(phase, Percentiles):
        yield "percentiles: cutoffs", phase.prepare_tasks
    yield f"{name}: list tasks", phase.task_ids
    if isinstance(phase, SplitPhase):
        link_outputs(phase, seeds)
    elif isinstance(phase, WriteShards):
        yield f"task of {name}: read a millionth of the keys", lambda: read_keys(phase)
        return  # every document of the seeds occurs many times here, and a shard must not contain copies
    elif (
        isinstance(phase, PartitionPhase) and len(phase.plan.splits) <= MAX_SPLITS_OF_TASKS
    ):
        for task_id in phase.task_ids():
            yield f"task of {name}", partial(phase.run, task_id)
    elif isinstance(phase, FuzzyClusters):
        write_one_cluster(phase)
    yield f"{name}: list done tasks", folder.list_done
    yield f"{name}: sum up and merge", lambda: finish_phase(phase)
    yield from list_reading_actions(phase)


def list_reading_actions(phase: Phase) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what later phases read out of the outputs of a complete phase."""
    last_split = phase.plan.splits[-1]
    if isinstance(phase, ParagraphDedup) and phase.task_ids():
        read_lines = partial(phase.find_duplicate_lines, last_split)
        yield "task of annotate: read its duplicate lines", read_lines
    if isinstance(phase, FuzzyDedup):
        yield (
            "task of select: read its near-duplicates",
            partial(phase.find_near_duplicates, last_split),
        )


def finish_phase(phase: Phase) -> None:
    """Merge the outputs of all tasks and write the summary of the phase."""
    phase.finish()
    counters = phase.sum_records().to_json()
    phase.folder.finish({"task_ids": len(phase.task_ids()), "of": "", "counters": counters})


def write_one_cluster(phase: FuzzyClusters) -> None:
    """Write a task's output in which every document is a near-duplicate of the first: the largest possible forest."""
    first_ids = np.arange(len(phase.plan.splits), dtype=np.uint64) << np.uint64(32)
    documents = np.concatenate([first_ids + 1, first_ids + 2])
    scores = np.random.default_rng(0).random((2, len(documents)))
    places = np.zeros((2, len(documents)), np.uint64)
    columns = [np.ones_like(documents), documents, *scores, *places]
    task_id = phase.task_ids()[0]
    with phase.folder.commit(task_id) as output:
        with pa.ipc.new_file(output.path(f"{task_id}.forest.arrow"), FOREST) as file:
            file.write_batch(pa.record_batch(columns, schema=FOREST).slice(1))
        output.record = {"counters": Counters().to_json()}


def read_keys(phase: WriteShards) -> None:
    """Read a millionth of the keys of every split, as `WriteShards.run` does first."""
    for split in phase.plan.splits:
        phase._read(split, 0, 2**44)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def link_outputs(phase: SplitPhase, seeds: RunPlan) -> None:
    """Link the outputs of the seeds as the outputs of all splits, and write their done-records."""
    source, target = seeds.folder(phase.name), phase.folder
    for i, task_id in enumerate(phase.task_ids()):
        seed = seeds.splits[i % len(seeds.splits)].key
        record = source.record(seed)
        for output in record["outputs"]:
            os.link(source.path(output), target.path(output.replace(seed, task_id)))
        text = json.dumps({**record, "task_id": task_id}).replace(seed, task_id)
        linked = dump_record(json.loads(text), target.root.name)
        target.root.put(target.record_file(task_id), linked)


def run_seeds(run_dir: Path, num_seeds: int) -> RunPlan:
    """Run the pipeline over NUM_SEED_DOCS pages in that many splits."""
    docs_per_file = -(-NUM_SEED_DOCS // num_seeds)
    crawl = {
        "sample_crawl": {"documents": NUM_SEED_DOCS, "documents_per_file": docs_per_file},
        "max_quarantined_share": 1,
    }
    overrides = [*SETTINGS, f"run_dir={run_dir}", f"input={json.dumps(crawl)}"]
    config: RunConfig = load("ccnet", overrides)
    prepare(config)
    plan = make_plan(config)
    for _ in run(plan):
        pass
    return plan


def create_cache(cache: Path, num_splits: int) -> Path:
    """Create a cache folder with the models of the current cache and the file list of a snapshot of that size."""
    from pipeline.inputs.input_splits import locate_crawl_list

    cache.mkdir(parents=True)
    (cache / "assets").symlink_to(model_registry.cache_folder() / "assets")
    segment = f"crawl-data/{CRAWL}/segments/1775805908305"
    stem = "CC-MAIN-20260412001017-20260412031017"
    names = [
        f"{segment}.{i % 100}/wet/{stem}-{i:05d}.warc.wet.gz" for i in range(num_splits)
    ]
    before, os.environ["CORPUSMILL_CACHE"] = os.environ.get("CORPUSMILL_CACHE"), str(cache)
    path = locate_crawl_list(CRAWL, f"{BASE_URL}crawl-data/{CRAWL}/wet.paths.gz")
    if before is None:
        del os.environ["CORPUSMILL_CACHE"]
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join(names).encode()))
    return cache


class Nothing(PartitionPhase):
    """Tasks that do nothing, in the folder of `extract`: what remains is the work of the engine."""

    name = "extract"
    version = 0

    def task_ids(self) -> list[str]:
        """Return no ids: the benchmark makes them."""
        return []

    def run(self, task_id: str) -> None:
        """Do nothing."""


def measure_ray_tasks(num_tasks: int) -> dict[str, float]:
    """Measure the engine on Ray from the first task that it sends to the last result in the event log."""
    task_ids = [f"{number:06d}" for number in range(num_tasks)]
    failures: list[str | None] = []
    with (
        tempfile.TemporaryDirectory(prefix="corpusmill-driver-ray-") as folder,
        ProcessTree() as tree,
    ):
        crawl = {"sample_crawl": {"documents": 100, "documents_per_file": 100}}
        overrides = [f"run_dir={folder}", f"input={json.dumps(crawl)}"]
        config = load("ccnet", [*overrides, "engine.kind=ray", "engine.workers=2"])
        prepare(config)
        phase = Nothing(make_plan(config))
        phase.folder.begin()
        with RayEngine(config.engine) as engine, open_log(phase.plan.run_dir) as log:
            list(engine.run_tasks(phase, task_ids[:2]))  # starts Ray and its processes
            reset_peak_memory()
            started, cpu_started = time.perf_counter(), time.process_time()
            tree_started = tree.cpu_seconds()
            for result in engine.run_tasks(phase, task_ids):
                failures.append(result.failed)
                values = dict(vars(result))
                del values["damage"]
                log({"event": "TaskFinished", "phase": phase.name, **values})
            figures = {
                "seconds": time.perf_counter() - started,
                "cpu_seconds": time.process_time() - cpu_started,
                "cpu_seconds_of_ray": tree.cpu_seconds() - tree_started,
                "peak_mb": peak_mb() or 0.0,
            }
    assert failures == [None] * num_tasks
    return {name: round(figure, 2) for name, figure in figures.items()}


def sleep(task_ids: Sequence[str], _num_deaths: int) -> Iterator[str]:
    """Note the time, and sleep."""
    started = time.time()
    time.sleep(SLEEP_S)
    yield from [str(started)] * len(task_ids)


def measure_slots(num_slots: int) -> list[float]:
    """Return the seconds until a task ran on each slot, in each round."""
    import ray

    groups = [[f"{number:06d}"] for number in range(num_slots)]
    ray.init(
        num_cpus=num_slots,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    seconds: list[float] = []
    for _ in range(NUM_ROUNDS):
        began = time.time()
        tasks = map_groups("sleep", groups, sleep, {"num_cpus": 1})
        started = [float(text) for texts in tasks for text in texts]
        assert len(started) == num_slots
        seconds.append(round(max(started) - began, 2))
    ray.shutdown()
    return seconds


def add_up(actions: Measured) -> dict[str, float]:
    """Return the sums of all actions of the driver, and the largest peak."""
    driver = [figures for name, figures in actions.items() if not name.startswith("task ")]
    return {
        "seconds": round(sum(figures["seconds"] for figures in driver), 1),
        "cpu_seconds": round(sum(figures["cpu_seconds"] for figures in driver), 1),
        "peak_mb": max(figures["peak_mb"] for figures in driver),
    }


def print_actions(num_splits: int, rows: Measured) -> None:
    """Print one line per action."""
    print(f"{num_splits:,} input splits")
    cells = [
        (name, *(f"{figure:,.2f}" for figure in figures.values()))
        for name, figures in rows.items()
    ]
    print_table(("action", "s", "CPU s", "peak MB"), cells)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--splits", type=int, default=90_000, help="number of input splits")
    parser.add_argument(
        "--ray",
        type=int,
        default=0,
        metavar="TASKS",
        help="only measure the engine on Ray, with that many tasks that do nothing",
    )
    parser.add_argument(
        "--slots",
        type=int,
        default=0,
        help="only measure the time until a task runs on each of so many CPUs of Ray",
    )
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, print the figures, and save them with `--save`."""
    args = parse_arguments()
    if args.child:
        print(json.dumps(simulate(args.splits, Path(args.child))))
    elif args.slots:
        slots = {"slots": args.slots, "seconds": measure_slots(args.slots)}
        print(slots)
        finish(args, "driver_scale_slots", slots)
    elif args.ray:
        tasks = {"tasks": args.ray, **measure_ray_tasks(args.ray)}
        print(tasks)
        finish(args, "driver_scale_ray", tasks)
    else:
        # In another process, so that the peak memory is the driver's only.
        with tempfile.TemporaryDirectory(prefix="corpusmill-driver-") as folder:
            module = "benchmarks.runs.driver_scale"
            actions = run_apart(module, "--splits", args.splits, "--child", folder)
        driver = add_up(actions)
        print_actions(args.splits, {**actions, "driver in total": driver})
        figures = {"splits": args.splits, "driver": driver, "actions": actions}
        finish(args, "driver_scale", figures)


if __name__ == "__main__":
    main()
