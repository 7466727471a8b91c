"""What does Ray cost, beside a bare pool of processes that runs the very same functions?

    python -m benchmarks.engine_overhead --megabytes 100 --rounds 5

Entrants take turns, each a program of its own that runs the demo's whole chain with two workers: `ray` is the engine
of the project, `bare pool` a `ProcessPoolExecutor` under the same driver loop. Each also runs on a crawl too small to
matter, in as many files: that is its fixed cost (daemons, imports, models, compiling, a dataset per phase). What the
100 MB cost beyond that is the ratio that holds for a real crawl. CPU time is user + system time of the whole process
tree, Ray's daemons counted. Figures are medians over rounds; ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
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

from rich.console import Console
from rich.table import Table

from benchmarks.demo_chain import demo_config
from benchmarks.process_tree import ProcessTree
from benchmarks.result_file import REPOSITORY, save
from pipeline.config import EngineConfig
from pipeline.engine import Engine, PhaseFinished, do_here, engine_of, run
from pipeline.phases import PHASES, Phase
from pipeline.plan import make_plan

ENTRANTS = ("bare pool", "ray")
WORKERS = 2
SMALL_MB = 1.0
SAMPLE_S = 0.2
END = "end"

Figures = dict[str, dict[str, float]]  # step -> {"cpu_s", "wall_s"}


class BarePool(Engine):
    """The least that two processes need: a queue of work. Forked, so imports of the driver cost nothing again."""

    _pool: ProcessPoolExecutor | None = None

    def results(self, phase: Phase, works: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Do the work in the pool's processes."""
        if self._pool is None:
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(self.config.workers, mp_context=context)
        for done in as_completed([self._pool.submit(_work, phase, work, self.config) for work in works]):
            yield from done.result()

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def _work(phase: Phase, work: str, config: EngineConfig) -> list[dict[str, Any]]:
    return list(do_here(phase, work, config))


# ---- The program that is measured ----


def run_entrant(entrant: str, megabytes: float, run_dir: Path) -> None:
    """Run the chain; at the end of each step say so and wait, so that the meter is read while nothing moves."""
    plan = make_plan(demo_config(megabytes, run_dir, f"engine.workers={WORKERS}", "engine.kind=ray"))
    engine = BarePool(plan.config.engine) if entrant == "bare pool" else engine_of(plan.config.engine)
    _say_and_wait("imports and plan")
    engine.start()
    _say_and_wait("start")
    for event in run(plan, engine):
        if isinstance(event, PhaseFinished):
            _say_and_wait(event.phase)
    _say_and_wait(END)


def _say_and_wait(step: str) -> None:
    print(f"step {step}", flush=True)
    sys.stdin.readline()


# ---- The meter ----


def measure(entrant: str, megabytes: float) -> Figures:
    """CPU and wall seconds of each step of one run, and the sum of all of them, `whole`."""
    with tempfile.TemporaryDirectory(prefix="corpusmill-") as folder, ProcessTree() as tree:
        arguments = ["--entrant", entrant, "--megabytes", str(megabytes), "--run-dir", f"{folder}/run"]
        began = time.perf_counter()
        program = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engine_overhead", *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        steps = dict(_steps(program, tree, began))
        if program.wait() != 0 or END not in steps:
            raise RuntimeError(f"the run of {entrant} ended with exit code {program.returncode}; see its words above")
    return steps | {"whole": {unit: sum(step[unit] for step in steps.values()) for unit in ("cpu_s", "wall_s")}}


def _steps(
    program: subprocess.Popen[str], tree: ProcessTree, wall_before: float
) -> Iterator[tuple[str, dict[str, float]]]:
    assert program.stdin is not None
    assert program.stdout is not None
    cpu_before = tree.cpu_seconds()
    while True:
        while not select.select([program.stdout], [], [], SAMPLE_S)[0]:
            tree.cpu_seconds()  # a worker that ends between two steps is not forgotten
        line = program.stdout.readline()
        if not line:
            return
        if line.startswith("step "):
            cpu, wall = tree.cpu_seconds(), time.perf_counter()
            yield line.removeprefix("step ").strip(), {"cpu_s": cpu - cpu_before, "wall_s": wall - wall_before}
            cpu_before, wall_before = cpu, wall
            program.stdin.write("\n")


# ---- The comparison ----


def compare(megabytes: float, rounds: int) -> dict[str, Any]:
    """All entrants in turn, on the small crawl and on the large one."""
    sizes = {"small": SMALL_MB, "large": megabytes}
    runs: dict[tuple[str, str], list[Figures]] = {(e, s): [] for s in sizes for e in ENTRANTS}
    for i in range(rounds):
        for entrant, size in runs if i % 2 == 0 else reversed(runs):
            runs[entrant, size].append(figures := measure(entrant, sizes[size]))
            print(i, entrant, size, json.dumps(figures["whole"]), file=sys.stderr)
    return summarize({f"{entrant}, {size}": _median(figures) for (entrant, size), figures in runs.items()}, sizes)


def _median(runs: Sequence[Figures]) -> Figures:
    return {
        step: {unit: round(statistics.median(run[step][unit] for run in runs), 2) for unit in runs[0][step]}
        for step in runs[0]
    }


def summarize(medians: dict[str, Figures], sizes: dict[str, float]) -> dict[str, Any]:
    """Fixed cost, ratio with it, ratio without it, and the ratio of every phase."""
    pool, ray = ({size: medians[f"{entrant}, {size}"] for size in sizes} for entrant in ENTRANTS)

    def beyond_fixed(entrant: dict[str, Figures], step: str, unit: str) -> float:
        return entrant["large"][step][unit] - entrant["small"][step][unit]

    units = ("cpu_s", "wall_s")
    return {
        "megabytes": sizes,
        "fixed": {unit: {"bare pool": pool["small"]["whole"][unit], "ray": ray["small"]["whole"][unit]} for unit in units},
        "ratio_with_fixed": {u: round(ray["large"]["whole"][u] / pool["large"]["whole"][u], 3) for u in units},
        "ratio_without_fixed": {
            u: round(beyond_fixed(ray, "whole", u) / beyond_fixed(pool, "whole", u), 3) for u in units
        },
        "cpu_ratio_of_phases_without_fixed": {
            phase: round(beyond_fixed(ray, phase, "cpu_s") / beyond_fixed(pool, phase, "cpu_s"), 3)
            for phase in PHASES
            if beyond_fixed(pool, phase, "cpu_s") > 0.2  # seconds; less is noise
        },
        "medians": medians,
    }


def print_summary(figures: dict[str, Any]) -> None:
    """The table of steps, then the ratios."""
    table = Table("step", *(f"{name}: CPU s (wall s)" for name in figures["medians"]), box=None)
    for step in next(iter(figures["medians"].values())):
        cells = (run[step] for run in figures["medians"].values())
        table.add_row(step, *(f"{cell['cpu_s']:.2f} ({cell['wall_s']:.2f})" for cell in cells))
    console = Console()
    console.print(table)
    for name in ("ratio_with_fixed", "ratio_without_fixed", "cpu_ratio_of_phases_without_fixed"):
        console.print(f"ray / bare pool, {name.replace('_', ' ')}: {figures[name]}")


def main() -> None:
    """Read the command line, run, print, and save where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100, help="of WET text, uncompressed, of the large crawl")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--entrant", choices=ENTRANTS, help=argparse.SUPPRESS)  # the program that is measured
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.entrant is not None:
        run_entrant(args.entrant, args.megabytes, args.run_dir)
        return
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (SMALL_MB, args.megabytes):
            demo_config(megabytes, Path(folder))  # so that no round pays for making a crawl
    figures = compare(args.megabytes, args.rounds)
    print_summary(figures)
    if args.save:
        print(save("engine_overhead", figures))


if __name__ == "__main__":
    main()
