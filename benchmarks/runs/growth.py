"""Measure whether the CPU time per GB of text, and the memory of each phase, stay the same when the input grows.

    python -m benchmarks.runs.growth                    100 MB, 300 MB and 1 GB of WET text (three CPU minutes)
    python -m benchmarks.runs.growth --megabytes 100 3000           to 3 GB (six CPU minutes)

Each run is a separate process with the in-process engine. It runs a small crawl first, so imports, models and compiled
kernels are not counted. The sizes take turns, up and down again, because a busy machine changes with time; figures are
medians per size. CPU time is that of the whole process, driver and tasks; the figures of phases come from its events. The peak of resident
memory (VmHWM) is reset before each task; it includes Python, libraries and mapped pages of models, as in a worker.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.demo_chain import load_demo_config
from benchmarks.frame import finish, make_parser, print_table, run_apart
from pipeline.config import RunConfig
from pipeline.execution.engine import PhaseFinished, TaskFinished, run
from pipeline.execution.task_stats import peak_mb
from pipeline.planning.plan import make_plan

# Text per WARC file. Files keep this size, because a larger crawl has more files, not
# larger ones.
CRAWL_FILE_MB = 12.5

WARM_UP_MB = 2.0

# `engine.memory_mb` of the runs: half the default.
MEMORY_MB = 1000

TOTAL = "in total"

# Phase, or TOTAL -> CPU seconds per GB of text, or peak MB.
Figures = dict[str, float]


class Measured(NamedTuple):
    """The figures of one run."""

    cpu_s_per_gb: Figures
    peak_mb: Figures


def load_config(megabytes: float, run_dir: Path) -> RunConfig:
    """Return the config of a run over that much text."""
    num_files = max(2, round(megabytes / CRAWL_FILE_MB))
    overrides = ["engine.kind=inline", f"engine.memory_mb={MEMORY_MB}"]
    return load_demo_config(megabytes, run_dir, *overrides, num_files=num_files)


def measure(megabytes: float, folder: Path) -> Measured:
    """Run the pipeline over that much text in this process."""
    for _ in run(make_plan(load_config(WARM_UP_MB, folder / "warm-up"))):
        pass
    costs: Figures = {}
    peaks: Figures = {}
    started = before = time.process_time()
    for event in run(make_plan(load_config(megabytes, folder / "run"))):
        if isinstance(event, TaskFinished):
            peaks[event.phase] = max(peaks.get(event.phase, 0.0), event.peak_mb or 0.0)
        elif isinstance(event, PhaseFinished):  # it has merged the outputs of its tasks
            peaks[event.phase] = max(peaks.get(event.phase, 0.0), peak_mb() or 0.0)
            now = time.process_time()
            costs[event.phase] = (now - before) * 1000 / megabytes
            before = now
    costs[TOTAL] = (time.process_time() - started) * 1000 / megabytes
    peaks[TOTAL] = max(peaks.values())
    return Measured(costs, peaks)


def measure_in_turns(sizes: Sequence[float], num_rounds: int) -> dict[str, list[Measured]]:
    """Return the figures of each run, by size. A round runs the sizes upwards, then downwards without the largest."""
    found: dict[str, list[Measured]] = {f"{size:g} MB": [] for size in sizes}
    for size in [*sizes, *reversed(sizes[:-1])] * num_rounds:
        with tempfile.TemporaryDirectory(prefix="corpusmill-growth-") as folder:
            child = run_apart("benchmarks.runs.growth", "--child", size, folder)
        measured = Measured(*child)
        found[f"{size:g} MB"].append(measured)
        total = measured.cpu_s_per_gb[TOTAL]
        print(f"{size:g} MB: {total:.1f} CPU s per GB", flush=True)
    return found


def take_medians(found: Mapping[str, Sequence[Figures]]) -> dict[str, Figures]:
    """Return the medians over the runs of each size."""
    medians: dict[str, Figures] = {}
    for size, runs in found.items():
        medians[size] = {
            name: round(statistics.median(figures[name] for figures in runs), 2)
            for name in runs[0]
        }
    return medians


def print_medians(title: str, medians: Mapping[str, Figures]) -> None:
    """Print one line per phase: the figure at each size, and the ratio of the largest to the smallest."""
    rows: list[tuple[object, ...]] = []
    sizes = list(medians.values())
    for name in sizes[0]:
        values = [figures[name] for figures in sizes]
        ratio = f"{values[-1] / values[0]:.2f}" if values[0] else ""
        rows.append((name, *(f"{value:,.1f}" for value in values), ratio))
    print(f"\n{title}")
    print_table(("phase", *medians, "ratio"), rows)


def main() -> None:
    """Measure all sizes, print the tables, and save the figures with `--save`."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--megabytes", type=float, nargs="+", default=(100, 300, 1000), help="of text"
    )
    parser.add_argument("--turns", type=int, default=1, help="times through the sizes")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        megabytes, folder = args.child
        print(json.dumps(measure(float(megabytes), Path(folder))))
        return
    found = measure_in_turns(args.megabytes, args.turns)
    costs = take_medians(
        {size: [each.cpu_s_per_gb for each in runs] for size, runs in found.items()}
    )
    peaks = take_medians(
        {size: [each.peak_mb for each in runs] for size, runs in found.items()}
    )
    print_medians("CPU s per GB of text", costs)
    print_medians(f"Peak resident MB; engine.memory_mb is {MEMORY_MB}", peaks)
    finish(args, "growth", {"cpu_s_per_gb": costs, "peak_mb": peaks, "runs": found})


if __name__ == "__main__":
    main()
