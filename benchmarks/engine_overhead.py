"""What does Ray cost, beside a bare pool of processes that runs the very same functions?

    python -m benchmarks.engine_overhead --megabytes 100 --rounds 5

Entrants take turns, each a program of its own that runs the demo's whole chain with two workers: `ray` is the engine
of the project, `bare pool` a `ProcessPoolExecutor` under the same driver loop. CPU time is user + system time of the
whole process tree, Ray's daemons counted. Each entrant also runs on a fifth of the text, in as many files: the line
through the two points gives its fixed cost (daemons, imports, models, a dataset per phase), and its cost per MB, whose
ratio is the one that holds for a real crawl. Figures are medians over rounds, ratios are of medians; the ratio of each
round is told, too, for it scatters where the machine has other work.

The programs keep their compiled modules (`*.pyc`) in the cache, as an installed package does: where
PYTHONDONTWRITEBYTECODE is set, Ray's eight processes spend 10 s on compiling the same modules each. Ray's
workers run at the priority of the pool's (Ray's own choice is nice 15, which on a machine that others use, too, makes
them wait, while the daemons' clocks go on).
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

from rich.console import Console
from rich.table import Table

from benchmarks.demo_chain import demo_config
from benchmarks.process_tree import ProcessTree
from benchmarks.result_file import REPOSITORY, save
from pipeline.execution.choose_engine import make_engine
from pipeline.execution.engine import PhaseFinished, run
from pipeline.execution.inline import Engine
from pipeline.execution.task import TaskResult, run_task
from pipeline.models.registry import cache_folder
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.planning.plan import make_plan

ENTRANTS = ("bare pool", "ray")
WORKERS = 2
SMALL_SHARE = 0.2  # small enough to show the fixed cost, large enough that both workers take part in every phase
SAMPLE_S = 0.2
MIN_PHASE_CPU_S = 1.0  # on the large crawl; the ratio of less is noise
END = "end"

Figures = dict[str, dict[str, float]]  # step -> {"cpu_s", "wall_s"}


class BarePool(Engine):
    """The least that two processes need: a queue of work. Forked, so imports of the driver cost nothing again."""

    _pool: ProcessPoolExecutor | None = None

    def run_tasks(self, phase: Phase, task_ids: Sequence[str]) -> Iterator[TaskResult]:
        """Do the work in the pool's processes."""
        if self._pool is None:
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(self.config.workers, mp_context=context)
        for done in as_completed(
            [self._pool.submit(run_task, phase, task_id, self.config) for task_id in task_ids]
        ):
            yield done.result()

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()


# ---- The program that is measured ----


def run_entrant(entrant: str, megabytes: float, run_dir: Path) -> None:
    """Run the chain; at the end of each step say so and wait, so that the meter is read while nothing moves."""
    plan = make_plan(
        demo_config(megabytes, run_dir, f"engine.workers={WORKERS}", "engine.kind=ray")
    )
    engine = BarePool(plan.config.engine) if entrant == "bare pool" else make_engine(plan)
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
        arguments = [
            "--entrant",
            entrant,
            "--megabytes",
            str(megabytes),
            "--run-dir",
            f"{folder}/run",
        ]
        began = time.perf_counter()
        program = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engine_overhead", *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=_environment(),
        )
        steps = dict(_steps(program, tree, began))
        if program.wait() != 0 or END not in steps:
            raise RuntimeError(
                f"the run of {entrant} ended with exit code {program.returncode}; see its words above"
            )
    return steps | {
        "whole": {
            split: sum(step[split] for step in steps.values()) for split in ("cpu_s", "wall_s")
        }
    }


def _environment() -> dict[str, str]:
    rest = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return rest | {
        "PYTHONPYCACHEPREFIX": str(cache_folder() / "pycache"),
        "RAY_worker_niceness": "0",
    }


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
            yield (
                line.removeprefix("step ").strip(),
                {"cpu_s": cpu - cpu_before, "wall_s": wall - wall_before},
            )
            cpu_before, wall_before = cpu, wall
            program.stdin.write("\n")


# ---- The comparison ----


def compare(megabytes: float, rounds: int) -> dict[str, Any]:
    """All entrants in turn, on both crawls; a first run of each that is not counted fills the caches."""
    sizes = {"small": megabytes * SMALL_SHARE, "large": megabytes}
    runs: dict[tuple[str, str], list[Figures]] = {(e, s): [] for s in sizes for e in ENTRANTS}
    for entrant in ENTRANTS if rounds > 1 else ():
        measure(entrant, sizes["small"])
    for i in range(rounds):
        for entrant, size in runs if i % 2 == 0 else reversed(runs):
            runs[entrant, size].append(figures := measure(entrant, sizes[size]))
            print(
                f"round {i}: {entrant}, {size}: {figures['whole']['cpu_s']:.2f} CPU s",
                file=sys.stderr,
            )
    named = {f"{entrant}, {size}": figures for (entrant, size), figures in runs.items()}
    figures = summarize({name: _median(of_rounds) for name, of_rounds in named.items()}, sizes)
    for split in ("cpu_s", "wall_s"):
        each = [{name: of_rounds[i] for name, of_rounds in named.items()} for i in range(rounds)]
        figures[split]["ratio_per_mb_of_each_round"] = [
            round(_ratio_per_mb(one, sizes, split), 3) for one in each
        ]
        figures[split]["whole_of_each_round"] = {
            name: [round(one["whole"][split], 2) for one in of_rounds]
            for name, of_rounds in named.items()
        }
    return figures


def _median(runs: Sequence[Figures]) -> Figures:
    return {
        step: {
            split: round(statistics.median(run[step][split] for run in runs), 2)
            for split in runs[0][step]
        }
        for step in runs[0]
    }


def summarize(medians: dict[str, Figures], sizes: dict[str, float]) -> dict[str, Any]:
    """Ratios with and without the fixed cost, and what the fixed cost is."""
    figures: dict[str, Any] = {"megabytes": sizes, "medians": medians}
    for split in ("cpu_s", "wall_s"):
        whole = [medians[f"{entrant}, large"]["whole"][split] for entrant in ENTRANTS]
        lines = [_line(medians, sizes, entrant, "whole", split) for entrant in ENTRANTS]
        figures[split] = {
            "fixed": {
                entrant: round(fixed, 2)
                for entrant, (fixed, _) in zip(ENTRANTS, lines, strict=True)
            },
            "start_of_ray": medians["ray, large"]["start"][split],
            "ratio_with_fixed": round(whole[1] / whole[0], 3),
            "ratio_per_mb": round(_ratio_per_mb(medians, sizes, split), 3),
        }
    per_mb = {
        phase: [_line(medians, sizes, entrant, phase, "cpu_s")[1] for entrant in ENTRANTS]
        for phase in registry.list_phase_names()
    }
    figures["cpu_s"]["ratio_per_mb_by_phase"] = {
        phase: round(ray / pool, 3)
        for phase, (pool, ray) in per_mb.items()
        if pool * sizes["large"] > MIN_PHASE_CPU_S
    }
    return figures


def _ratio_per_mb(figures: dict[str, Figures], sizes: dict[str, float], split: str) -> float:
    pool, ray = (_line(figures, sizes, entrant, "whole", split)[1] for entrant in ENTRANTS)
    return ray / pool


def _line(
    medians: dict[str, Figures], sizes: dict[str, float], entrant: str, step: str, split: str
) -> tuple[float, float]:
    """Fixed seconds and seconds per MB: the line through the small and the large crawl."""
    small, large = (medians[f"{entrant}, {size}"][step][split] for size in sizes)
    per_mb = (large - small) / (sizes["large"] - sizes["small"])
    return large - per_mb * sizes["large"], per_mb


def print_summary(figures: dict[str, Any]) -> None:
    """The table of steps, then the ratios."""
    table = Table("step", *(f"{name}: CPU s (wall s)" for name in figures["medians"]), box=None)
    for step in next(iter(figures["medians"].values())):
        cells = (run[step] for run in figures["medians"].values())
        table.add_row(step, *(f"{cell['cpu_s']:.2f} ({cell['wall_s']:.2f})" for cell in cells))
    console = Console()
    console.print(table)
    for split in ("cpu_s", "wall_s"):
        for name, value in figures[split].items():
            if name != "whole_of_each_round":
                console.print(f"{split} {name.replace('_', ' ')}: {value}", highlight=False)


def main() -> None:
    """Read the command line, run, print, and save where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--megabytes", type=float, default=100, help="of WET text, uncompressed, of the large crawl"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument(
        "--entrant", choices=ENTRANTS, help=argparse.SUPPRESS
    )  # the program that is measured
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.entrant is not None:
        run_entrant(args.entrant, args.megabytes, args.run_dir)
        return
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (args.megabytes * SMALL_SHARE, args.megabytes):
            demo_config(megabytes, Path(folder))  # so that no round pays for making a crawl
    figures = compare(args.megabytes, args.rounds)
    print_summary(figures)
    if args.save:
        print(save("engine_overhead", figures))


if __name__ == "__main__":
    main()
