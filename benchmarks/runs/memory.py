"""Measure whether the memory of each phase stays below its setting when the input grows.

    python -m benchmarks.runs.memory                  100 MB and 1 GB of WET text (about ten minutes on two cores)
    python -m benchmarks.runs.memory --megabytes 10 50

Each size runs once, in a separate process, with the in-process engine: that is the memory of one worker. The peak of
resident memory (VmHWM) is reset before each task. It includes the memory of the process before the first phase (Python,
Arrow, numba, mapped pages of the models), as it does for a worker.
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

from benchmarks.demo_chain import load_demo_config
from benchmarks.result_file import save
from pipeline.execution.engine import PhaseFinished, TaskFinished, run
from pipeline.execution.task_stats import peak_mb
from pipeline.planning.plan import make_plan

# Text per WARC file. Files keep this size, because a larger crawl has more files, not
# larger ones.
CRAWL_FILE_MB = 12.5

# `engine.memory_mb` of the runs: half the default.
MEMORY_MB = 1000


def measure_peaks(megabytes: float, run_dir: Path) -> dict[str, float]:
    """Run the pipeline over that much text in this process, and return the peak resident MB of every phase."""
    num_files = max(2, round(megabytes / CRAWL_FILE_MB))
    overrides = ["engine.kind=inline", f"engine.memory_mb={MEMORY_MB}"]
    config = load_demo_config(megabytes, run_dir, *overrides, num_files=num_files)
    peaks: dict[str, float] = {}
    for event in run(make_plan(config)):
        if isinstance(event, TaskFinished):
            peaks[event.phase] = max(peaks.get(event.phase, 0.0), event.peak_mb or 0.0)
        elif isinstance(
            event, PhaseFinished
        ):  # after the phase has merged the outputs of its tasks
            peaks[event.phase] = max(peaks.get(event.phase, 0.0), peak_mb() or 0.0)
    return peaks


def measure_in_child(megabytes: float) -> dict[str, float]:
    """Return `measure_peaks` of another process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.runs.memory",
            "--child",
            str(megabytes),
            folder,
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def print_table(by_size: dict[str, dict[str, float]]) -> None:
    """Print one line per phase: the peak of both sizes and their ratio."""
    title = f"Peak resident MB; engine.memory_mb is {MEMORY_MB}"
    table = Table("phase", *by_size, "ratio", title=title, box=None)
    small, large = by_size.values()
    for phase, small_mb in small.items():
        large_mb = large[phase]
        table.add_row(
            phase, f"{small_mb:,.0f}", f"{large_mb:,.0f}", f"{large_mb / small_mb:.2f}"
        )
    Console().print(table)


def main() -> None:
    """Measure both sizes, print the table, and save the figures with `--save`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--megabytes",
        type=float,
        nargs=2,
        default=(100, 1000),
        help="a small and a large crawl",
    )
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure_peaks(float(options.child[0]), Path(options.child[1]))))
        return
    small, large = options.megabytes
    by_size = {f"{size:g} MB": measure_in_child(size) for size in (small, large)}
    print_table(by_size)
    if options.save:
        print(save("memory", {"memory_mb": MEMORY_MB, "peak_mb": by_size}))


if __name__ == "__main__":
    main()
