"""Run the benchmarks one after another, each in its own process.

    python -m benchmarks.all              # about 20 minutes, most of it for memory on 1 GB
    python -m benchmarks.all --quick      # two minutes: shows that they run; the figures mean nothing
    python -m benchmarks.all --save       # also writes benchmarks/results/<date>-<name>.json

Not included: decisions, which needs a finished run, and the benchmarks of the loader and the trainer.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.result_file import REPOSITORY

# Arguments of each benchmark for `--quick`. Without it, each benchmark uses its defaults.
QUICK_ARGUMENTS = {
    "runs.engine_overhead": ["--megabytes", "4", "--rounds", "1"],
    "stages.stages_table": ["--megabytes", "0.4", "--rounds", "1"],
    "runs.growth": ["--megabytes", "0.2"],
    "runs.calibrate": ["--documents", "160", "80", "--files", "2"],
    "runs.driver_scale": ["--splits", "8"],
    "stages.perplexity": ["--megabytes", "0.4", "--rounds", "1"],
    "stages.paragraph_hashing": ["--megabytes", "0.1", "--rounds", "1"],
    "stages.fasttext_kernel": ["--megabytes", "0.1", "--rounds", "1"],
    "stages.minhash": ["--megabytes", "0.1", "--rounds", "1"],
    "stages.reading": ["--megabytes", "0.4", "--rounds", "1"],
    "stages.document_time": ["--documents=100", "--tags=200", "--rounds=1", "--families=4"],
}


def run_benchmark(name: str, arguments: list[str]) -> bool:
    """Run one benchmark and return whether it succeeded."""
    print(f"\n{name}", flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode == 0


def main() -> None:
    """Run all benchmarks; the exit code is 1 if one of them fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="little text, one round")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    failed: list[str] = []
    for name, quick_arguments in QUICK_ARGUMENTS.items():
        arguments = list(quick_arguments) if args.quick else []
        if args.save:
            arguments.append("--save")
        if not run_benchmark(name, arguments):
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
