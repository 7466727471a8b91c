"""Run the chain and the loader in a loop with random kills, and measure whether anything grows.

    python -m benchmarks.soak --minutes 60 --save
    python -m benchmarks.soak --minutes 1 --no-ray

Two programs run the whole time: `chain` runs the pipeline again and again, `rows` reads its dataset.
Some runs are killed in separate processes first (the whole run, Ray's raylet, control store, agent or
worker; SIGTERM), and `chain` finishes them. Every run must have the same bytes, every epoch the same
rows. The exit code is 1 if one has not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.frame import finish, make_parser, print_table
from benchmarks.result_file import REPOSITORY
from benchmarks.soak.samples import summarize, take_sample
from pipeline.processes import list_descendants

SAMPLE_EVERY_S = 5.0


def soak(
    folder: Path, minutes: float, seed: int, *, with_ray: bool
) -> list[dict[str, float]]:
    """Run both programs for that time, and return the samples.

    Raises:
        RuntimeError: a program ended.
    """
    temp_folder = folder / "tmp"
    temp_folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(temp_folder), "RAY_TMPDIR": str(folder)}
    environment.pop("RAY_ADDRESS", None)
    flags = ["--seed", str(seed), *([] if with_ray else ["--no-ray"])]
    programs = {"chain": _start("chain", [str(folder), *flags], environment)}
    samples: list[dict[str, float]] = []
    try:
        _wait_for_dataset(folder / "chain.jsonl", programs["chain"])
        dataset = folder / "reference" / "dataset"
        arguments = [str(dataset), str(folder), "--seed", str(seed)]
        programs["rows"] = _start("rows", arguments, environment)
        started = time.monotonic()
        while (seconds := time.monotonic() - started) < minutes * 60:
            for name, program in programs.items():
                if program.poll() is not None:
                    raise RuntimeError(f"{name} ended with exit code {program.returncode}")
            pids = {name: program.pid for name, program in programs.items()}
            samples.append({"seconds": seconds, **take_sample(pids, temp_folder)})
            time.sleep(SAMPLE_EVERY_S)
    finally:
        for program in programs.values():
            for child in list_descendants(program.pid):
                child.kill()
            program.kill()
            program.wait()
    return samples


def _start(
    name: str, arguments: Sequence[str], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"benchmarks.soak.{name}", *arguments]
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment)


def _wait_for_dataset(results: Path, program: subprocess.Popen[bytes]) -> None:
    while not results.exists():
        if program.poll() is not None:
            raise RuntimeError(f"chain ended with exit code {program.returncode}")
        time.sleep(0.1)


def count_results(path: Path) -> dict[str, Any]:
    """Return how often each attack was tried, how often it ended with the same bytes, and the exit codes."""
    tries: Counter[str] = Counter()
    held: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        result = json.loads(line)
        tries[result["attack"]] += 1
        held[result["attack"]] += result["is_equal"]
        if "exit_code" in result:
            endings[f"{result['attack']}: exit code {result['exit_code']}"] += 1
    return {"tries": dict(tries), "held": dict(held), "endings": dict(endings)}


def print_tables(figures: dict[str, Any]) -> None:
    """Print the attacks and what held, and the growth of every value."""
    attacks: list[tuple[object, ...]] = []
    for program in ("chain", "rows"):
        for attack, tries in figures[program]["tries"].items():
            attacks.append((program, attack, tries, figures[program]["held"][attack]))
    print_table(("program", "attack", "tries", "held"), attacks)
    growth: list[tuple[object, ...]] = []
    for name, row in figures["growth"].items():
        numbers = [f"{row[key]:,.1f}" for key in ("mean", "peak", "growth_per_hour")]
        growth.append((name, *numbers, f"{row['growth_share']:+.1%}"))
    print_table(("value", "mean", "peak", "growth per hour", ""), growth)


def main() -> None:
    """Run, print the tables, and save the figures with `--save`."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-ray", action="store_true", help="no runs on Ray")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        samples = soak(folder, options.minutes, options.seed, with_ray=not options.no_ray)
        results = {
            name: count_results(folder / f"{name}.jsonl") for name in ("chain", "rows")
        }
    names = [name for name in samples[0] if name != "seconds"]
    figures: dict[str, Any] = {
        "minutes": samples[-1]["seconds"] / 60,
        **results,
        "growth": summarize(samples, names),
    }
    print_tables(figures)
    finish(options, "soak", {**figures, "samples": samples})
    if any(result["tries"] != result["held"] for result in results.values()):
        sys.exit("runs or epochs differ from the first one")


if __name__ == "__main__":
    main()
