"""Measure whether the CPU time per GB of text stays the same when the input grows.

    python -m benchmarks.runs.growth                    100 MB, 300 MB and 1 GB of WET text (three CPU minutes)
    python -m benchmarks.runs.growth --megabytes 100 3000           to 3 GB (six CPU minutes)

Each run is a separate process with the in-process engine. It runs a small crawl first, so imports, models and compiled
kernels are not counted. The sizes take turns, up and down again, because a busy machine changes with time; figures are
medians per size. CPU time is that of the whole process, driver and tasks; the figures of phases come from its events.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.demo_chain import load_demo_config
from benchmarks.result_file import save
from pipeline.config import RunConfig
from pipeline.execution.engine import PhaseFinished, run
from pipeline.execution.task_stats import peak_mb
from pipeline.planning.plan import make_plan

# Text per WARC file. Files keep this size, because a larger crawl has more files, not
# larger ones.
CRAWL_FILE_MB = 12.5

WARM_UP_MB = 2.0

TOTAL = "in total"

# Phase, or TOTAL -> CPU seconds per GB of text.
Costs = dict[str, float]


def load_config(megabytes: float, run_dir: Path) -> RunConfig:
    """Return the config of a run over that much text."""
    num_files = max(2, round(megabytes / CRAWL_FILE_MB))
    overrides = ["engine.kind=inline"]
    return load_demo_config(megabytes, run_dir, *overrides, num_files=num_files)


def measure_costs(megabytes: float, folder: Path) -> dict[str, float]:
    """Return the CPU seconds per GB of text of each phase, and the peak memory, of one run."""
    for _ in run(make_plan(load_config(WARM_UP_MB, folder / "warm-up"))):
        pass
    config = load_config(megabytes, folder / "run")
    costs: dict[str, float] = {}
    started = before = time.process_time()
    for event in run(make_plan(config)):
        if isinstance(event, PhaseFinished):
            now = time.process_time()
            costs[event.phase] = (now - before) * 1000 / megabytes
            before = now
    costs[TOTAL] = (time.process_time() - started) * 1000 / megabytes
    return {**costs, "peak_mb": peak_mb() or 0.0}


def measure_in_child(megabytes: float) -> dict[str, float]:
    """Return `measure_costs` of another process."""
    with tempfile.TemporaryDirectory(prefix="corpusmill-growth-") as folder:
        module = [sys.executable, "-m", "benchmarks.runs.growth"]
        command = [*module, "--child", str(megabytes), folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure_in_turns(sizes: Sequence[float], num_rounds: int) -> dict[float, list[Costs]]:
    """Return the costs of each run, by size. A round runs the sizes upwards, then downwards without the largest."""
    found: dict[float, list[Costs]] = {size: [] for size in sizes}
    for _ in range(num_rounds):
        for size in [*sizes, *reversed(sizes[:-1])]:
            found[size].append(measure_in_child(size))
            print(f"{size:g} MB: {found[size][-1][TOTAL]:.1f} CPU s per GB", flush=True)
    return found


def take_medians(found: Mapping[float, list[Costs]]) -> dict[str, Costs]:
    """Return the medians over the runs of each size."""
    medians: dict[str, Costs] = {}
    for size, runs in found.items():
        names = runs[0]
        medians[f"{size:g} MB"] = {
            name: round(statistics.median(costs[name] for costs in runs), 2)
            for name in names
        }
    return medians


def print_table(medians: Mapping[str, Costs]) -> None:
    """Print one line per phase: the cost per GB at each size, and the ratio of the largest to the smallest."""
    title = "CPU s per GB of text"
    table = Table("phase", *medians, "ratio", title=title, box=None)
    sizes = list(medians.values())
    for name in sizes[0]:
        values = [costs[name] for costs in sizes]
        ratio = f"{values[-1] / values[0]:.2f}" if values[0] else ""
        table.add_row(name, *(f"{value:,.1f}" for value in values), ratio)
    Console().print(table)


def main() -> None:
    """Measure all sizes, print the table, and save the figures with `--save`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--megabytes", type=float, nargs="+", default=(100, 300, 1000), help="of text"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        megabytes, folder = options.child
        print(json.dumps(measure_costs(float(megabytes), Path(folder))))
        return
    found = measure_in_turns(options.megabytes, options.rounds)
    medians = take_medians(found)
    print_table(medians)
    if options.save:
        runs = {f"{size:g} MB": costs for size, costs in found.items()}
        print(save("growth", {"load": os.getloadavg()[0], "median": medians, "runs": runs}))


if __name__ == "__main__":
    main()
