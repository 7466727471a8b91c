"""Compare the CPU time of the Ray engine with a bare process pool that runs the same functions.

    python -m benchmarks.runs.engine_overhead --megabytes 100 --rounds 5

The entrants take turns. Each is a separate process that runs the demo with two workers: `ray` is the Ray engine,
`bare pool` a `ProcessPoolExecutor` with the same driver loop. CPU time is user + system time of the whole process tree,
with Ray's daemons. Each entrant also runs on a fifth of the text, in the same number of files. The line through the two
points gives the fixed cost (daemons, imports, models, one dataset per phase) and the cost per MB; the ratio of the costs
per MB applies to a real crawl. Figures are medians over rounds, and ratios are computed from medians. The ratio of
each round is printed as well, because it varies on a busy machine.

The processes keep their compiled modules (`*.pyc`), as for an installed package: with PYTHONDONTWRITEBYTECODE,
each of Ray's eight processes would compile the same modules, 10 s in total. Ray's workers run at the priority of the
pool's workers. Ray's default is nice 15: on a busy machine they would wait while the daemons use CPU time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.demo_chain import load_demo_config
from benchmarks.frame import finish, make_parser, print_table
from benchmarks.result_file import REPOSITORY
from benchmarks.runs.process_tree import ProcessTree
from pipeline.cli import postpone_garbage_collection
from pipeline.execution.engine import PhaseFinished, run
from pipeline.execution.inline import Engine
from pipeline.execution.on_ray.engine import RayEngine
from pipeline.execution.task import TaskResult, run_task
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.planning.plan import make_plan

ENTRANTS = ("bare pool", "ray")
WORKERS = 2
SMALL_SHARE = 0.2  # small enough to show the fixed cost, large enough to use both workers in every phase
SAMPLE_S = 0.2
MIN_PHASE_CPU_S = 1.0  # on the large crawl; ratios of shorter phases are noise
END = "end"
CLOCKS = ("cpu_s", "wall_s")

Figures = dict[str, dict[str, float]]  # step -> {"cpu_s", "wall_s"}


class BarePool(Engine):
    """A queue of tasks for forked processes, which inherit the imports of the driver."""

    _pool: ProcessPoolExecutor | None = None

    def run_tasks(self, phase: Phase, task_ids: Sequence[str]) -> Iterator[TaskResult]:
        """Run the tasks in the pool and yield results as they complete."""
        if self._pool is None:
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(self.config.workers, mp_context=context)
        futures = [
            self._pool.submit(run_task, phase, task_id, self.config) for task_id in task_ids
        ]
        for future in as_completed(futures):
            yield future.result()

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()


# ---- The measured process ----


def run_entrant(entrant: str, megabytes: float, run_dir: Path) -> None:
    """Run the demo. After each step, print its name and wait, because CPU time is read while nothing runs."""
    # As `python -m pipeline run` does.
    with postpone_garbage_collection():
        config = load_demo_config(
            megabytes, run_dir, f"engine.workers={WORKERS}", "engine.kind=ray"
        )
        plan = make_plan(config)
        _report_step("imports and plan")
        kind = BarePool if entrant == "bare pool" else RayEngine
        engine = kind(config.engine)
        engine.start()
    _report_step("start")
    for event in run(plan, engine):
        if isinstance(event, PhaseFinished):
            _report_step(event.phase)
    _report_step(END)


def _report_step(step: str) -> None:
    print(f"step {step}", flush=True)
    sys.stdin.readline()


# ---- The measuring process ----


def measure(entrant: str, megabytes: float) -> Figures:
    """Run an entrant once; return CPU and wall seconds of each step, and their sums as `whole`."""
    with tempfile.TemporaryDirectory(prefix="corpusmill-") as folder, ProcessTree() as tree:
        arguments = ["--entrant", entrant, "--megabytes", str(megabytes)]
        arguments += ["--run-dir", f"{folder}/run"]
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.runs.engine_overhead", *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=_environment(),
        ) as program:
            steps = dict(_steps(program, tree, began))
        if program.returncode != 0 or END not in steps:
            raise RuntimeError(
                f"{entrant}: the process ended with exit code {program.returncode}; its output is above"
            )
    whole = {clock: sum(step[clock] for step in steps.values()) for clock in CLOCKS}
    return {**steps, "whole": whole}


def _environment() -> dict[str, str]:
    environment = {**os.environ, "RAY_worker_niceness": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _steps(
    program: subprocess.Popen[str], tree: ProcessTree, wall_before: float
) -> Iterator[tuple[str, dict[str, float]]]:
    assert program.stdin is not None
    assert program.stdout is not None
    cpu_before = tree.cpu_seconds()
    while True:
        while not select.select([program.stdout], [], [], SAMPLE_S)[0]:
            tree.cpu_seconds()  # counts workers that end between two steps
        line = program.stdout.readline()
        if not line:
            return
        if line.startswith("step "):
            cpu, wall = tree.cpu_seconds(), time.perf_counter()
            yield (
                line.removeprefix("step ").strip(),
                {"cpu_s": cpu - cpu_before, "wall_s": wall - wall_before},
            )
            cpu_before, wall_before = cpu, wall
            program.stdin.write("\n")


# ---- The comparison ----


def compare(megabytes: float, rounds: int) -> dict[str, Any]:
    """Run all entrants in turns on both crawls. The first run of each fills the caches and is not counted."""
    sizes = {"small": megabytes * SMALL_SHARE, "large": megabytes}
    runs: dict[str, list[Figures]] = {
        f"{entrant}, {size}": [] for size in sizes for entrant in ENTRANTS
    }
    for entrant in ENTRANTS if rounds > 1 else ():
        measure(entrant, sizes["small"])
    for i in range(rounds):
        for name in runs if i % 2 == 0 else reversed(runs):
            entrant, size = name.split(", ")
            runs[name].append(measure(entrant, sizes[size]))
            cpu_s = runs[name][-1]["whole"]["cpu_s"]
            print(f"round {i}: {name}: {cpu_s:.2f} CPU s", file=sys.stderr)
    return summarize(runs, sizes)


def summarize(runs: dict[str, list[Figures]], sizes: dict[str, float]) -> dict[str, Any]:
    """Return the fixed cost of each entrant, and the ratios with and without it."""
    medians: dict[str, Figures] = {}
    for name, of_rounds in runs.items():
        medians[name] = {
            step: {
                clock: round(statistics.median(run[step][clock] for run in of_rounds), 2)
                for clock in CLOCKS
            }
            for step in of_rounds[0]
        }
    figures: dict[str, Any] = {"megabytes": sizes, "medians": medians}
    for clock in CLOCKS:
        (pool_s, pool_per_mb), (ray_s, ray_per_mb) = _fit(medians, sizes, "whole", clock)
        pool, ray = (medians[f"{entrant}, large"]["whole"][clock] for entrant in ENTRANTS)
        ratios: list[float] = []
        for number in range(len(runs["ray, large"])):
            of_round = {name: of_rounds[number] for name, of_rounds in runs.items()}
            (_, pool_of_round), (_, ray_of_round) = _fit(of_round, sizes, "whole", clock)
            ratios.append(round(ray_of_round / pool_of_round, 3))
        figures[clock] = {
            "fixed": dict(zip(ENTRANTS, (round(pool_s, 2), round(ray_s, 2)), strict=True)),
            "start_of_ray": medians["ray, large"]["start"][clock],
            "ratio_with_fixed": round(ray / pool, 3),
            "ratio_per_mb": round(ray_per_mb / pool_per_mb, 3),
            "ratio_per_mb_of_each_round": ratios,
            "whole_of_each_round": {
                name: [round(run["whole"][clock], 2) for run in of_rounds]
                for name, of_rounds in runs.items()
            },
        }
    by_phase: dict[str, float] = {}
    for phase in registry.list_phase_names():
        (_, pool), (_, ray) = _fit(medians, sizes, phase, "cpu_s")
        if pool * sizes["large"] > MIN_PHASE_CPU_S:
            by_phase[phase] = round(ray / pool, 3)
    figures["cpu_s"]["ratio_per_mb_by_phase"] = by_phase
    return figures


def _fit(
    figures: dict[str, Figures], sizes: dict[str, float], step: str, clock: str
) -> list[tuple[float, float]]:
    """Return fixed seconds and seconds per MB of each entrant: the line through both crawls."""
    lines: list[tuple[float, float]] = []
    for entrant in ENTRANTS:
        small, large = (figures[f"{entrant}, {size}"][step][clock] for size in sizes)
        per_mb = (large - small) / (sizes["large"] - sizes["small"])
        lines.append((large - per_mb * sizes["large"], per_mb))
    return lines


def print_summary(figures: dict[str, Any]) -> None:
    """Print the table of steps and the ratios."""
    medians = figures["medians"]
    rows: list[tuple[str, ...]] = []
    for step in next(iter(medians.values())):
        cells = [run[step] for run in medians.values()]
        texts = [f"{cell['cpu_s']:.2f} ({cell['wall_s']:.2f})" for cell in cells]
        rows.append((step, *texts))
    print_table(("step", *(f"{name}: CPU s (wall s)" for name in medians)), rows)
    for clock in CLOCKS:
        for name, value in figures[clock].items():
            if name != "whole_of_each_round":
                print(f"{clock} {name.replace('_', ' ')}: {value}")


def main() -> None:
    """Compare the entrants, print the summary, and save the figures with `--save`."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument(
        "--megabytes",
        type=float,
        default=100,
        help="uncompressed WET text of the large crawl",
    )
    # the program that is measured
    parser.add_argument("--entrant", choices=ENTRANTS, help=argparse.SUPPRESS)
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.entrant is not None:
        run_entrant(args.entrant, args.megabytes, args.run_dir)
        return
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (args.megabytes * SMALL_SHARE, args.megabytes):
            # creates the crawls before the first round
            load_demo_config(megabytes, Path(folder))
    figures = compare(args.megabytes, args.rounds)
    print_summary(figures)
    finish(args, "engine_overhead", figures)


if __name__ == "__main__":
    main()
