"""Does a phase's memory stay within its setting, however large the input?

    python -m benchmarks.memory                  100 MB and 1 GB of WET text (about ten minutes on two cores)
    python -m benchmarks.memory --megabytes 10 50

Each size is run once, in a process of its own, by the in-process engine: what one worker holds. The peak of resident
memory is read (VmHWM) and set back before each piece of work. What the process holds before the first phase (Python,
Arrow, numba, the models' pages as they are mapped) is part of it, as it is of a worker's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.demo_chain import demo_config
from benchmarks.result_file import save
from pipeline.execution.engine import PhaseFinished, TaskFinished, run
from pipeline.execution.task_stats import peak_mb
from pipeline.planning.plan import make_plan

CRAWL_FILE_MB = 12.5
"""Text per WARC file: the size of a unit is the crawl's affair; what grows is their number."""

MEMORY_MB = 1000
"""engine.memory_mb of the runs: half the default."""


def peaks(megabytes: float, run_dir: Path) -> dict[str, float]:
    """Peak resident MB of every phase, of a run over that much text in this process."""
    num_files = max(2, round(megabytes / CRAWL_FILE_MB))
    overrides = ["engine.kind=inline", f"engine.memory_mb={MEMORY_MB}"]
    plan = make_plan(demo_config(megabytes, run_dir, *overrides, num_files=num_files))
    found: dict[str, float] = {}
    for event in run(plan):
        if isinstance(event, TaskFinished):
            found[event.phase] = max(found.get(event.phase, 0.0), event.peak_mb or 0.0)
        elif isinstance(
            event, PhaseFinished
        ):  # its last act, the merge of what the pieces of work have found
            found[event.phase] = max(found.get(event.phase, 0.0), peak_mb() or 0.0)
    return found


def _in_a_process_of_its_own(megabytes: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--child", str(megabytes), folder]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--megabytes", type=float, nargs=2, default=(100, 1000), help="a small and a large crawl"
    )
    parser.add_argument(
        "--save", action="store_true", help="keep the figures in benchmarks/results"
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(peaks(float(options.child[0]), Path(options.child[1]))))
        return
    small, large = options.megabytes
    by_size = {f"{size:g} MB": _in_a_process_of_its_own(size) for size in (small, large)}
    table = Table(
        "phase",
        *by_size,
        "ratio",
        title=f"Peak resident MB; engine.memory_mb is {MEMORY_MB}",
        box=None,
    )
    for phase in by_size[f"{small:g} MB"]:
        figures = [found[phase] for found in by_size.values()]
        table.add_row(
            phase, *(f"{figure:,.0f}" for figure in figures), f"{figures[1] / figures[0]:.2f}"
        )
    Console().print(table)
    if options.save:
        print(save("memory", {"memory_mb": MEMORY_MB, "peak_mb": by_size}))


if __name__ == "__main__":
    main()
