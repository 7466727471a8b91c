"""Runs the benchmarks one after another, each as a program of its own.

    python -m benchmarks.all              # about 20 minutes, most of it for memory on 1 GB
    python -m benchmarks.all --quick      # a minute: shows that they run; the figures mean nothing
    python -m benchmarks.all --save       # and writes benchmarks/results/<date>-<name>.json

Not among them: decisions, which wants a finished run, and the loader's, which have a door of their own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.result_file import REPOSITORY

QUICK_ARGUMENTS = {
    "engine_overhead": ["--megabytes", "4", "--rounds", "1"],
    "stages_table": ["--megabytes", "4", "--rounds", "1"],
    "memory": ["--megabytes", "4", "8"],
    "calibrate": ["--documents", "400", "200"],
    "driver_scale": ["--units", "60"],
    "paragraph_hashing": ["--megabytes", "0.2", "--rounds", "1"],
}
"""By benchmark; without `--quick` each has its own defaults."""


def main() -> None:
    """Run them all; the exit code is 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="little text, one round")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    failed: list[str] = []
    for name, quick_arguments in QUICK_ARGUMENTS.items():
        print(f"\n{name}", flush=True)
        arguments = [*(quick_arguments if args.quick else []), *(["--save"] if args.save else [])]
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", *arguments], cwd=REPOSITORY, check=False
        )
        if done.returncode != 0:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
