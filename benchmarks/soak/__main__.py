"""Run the chain and the loader in a loop with random kills, and measure whether anything grows.

    python -m benchmarks.soak --minutes 60 --save
    python -m benchmarks.soak --minutes 1 --no-ray

Two programs run the whole time: `chain` runs the pipeline again and again, `rows` reads its dataset.
Some runs are killed in separate processes first (the whole run, Ray's raylet, control store, agent or
worker; SIGTERM), and `chain` finishes them. Every run must have the same bytes, every epoch the same
rows. The exit code is 1 if one has not.
"""

from __future__ import annotations

import argparse
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

from rich.console import Console
from rich.table import Table

from benchmarks.ablation.chart import Panel, draw
from benchmarks.result_file import REPOSITORY, save
from benchmarks.soak.samples import Sample, summarize, take_sample
from pipeline.processes import list_descendants

SAMPLE_EVERY_S = 5.0

# Values of the chart: panel -> name of the curve -> name of the value.
PANELS = {
    "Memory (PSS), MB": {"chain": "chain_pss_mb", "rows": "rows_pss_mb"},
    "Open files": {"chain": "chain_open_files", "rows": "rows_open_files"},
}


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


def draw_chart(samples: Sequence[Sample]) -> str:
    """Return the curves of memory and open files over time, as SVG."""
    panels: list[Panel] = []
    for title, names in PANELS.items():
        curves = {
            label: [[(sample["seconds"] / 60, sample[name]) for sample in samples]]
            for label, name in names.items()
        }
        panels.append(Panel(title, curves))
    return draw("Soak: the programs that run the whole time", panels, x_label="minutes")


def print_tables(figures: dict[str, Any]) -> None:
    """Print the attacks and what held, and the growth of every value."""
    console = Console()
    attacks = Table("program", "attack", "tries", "held", box=None)
    for program in ("chain", "rows"):
        for attack, tries in figures[program]["tries"].items():
            held = figures[program]["held"][attack]
            attacks.add_row(program, attack, str(tries), str(held))
    console.print(attacks)
    growth = Table("value", "mean", "peak", "growth per hour", "", box=None)
    for name, row in figures["growth"].items():
        numbers = [f"{row[key]:,.1f}" for key in ("mean", "peak", "growth_per_hour")]
        growth.add_row(name, *numbers, f"{row['growth_share']:+.1%}")
    console.print(growth)


def main() -> None:
    """Run, print the tables, and save the figures and the chart with `--save`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-ray", action="store_true", help="no runs on Ray")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
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
    if options.save:
        path = save("soak", {**figures, "samples": samples})
        chart = path.with_suffix(".svg")
        chart.write_text(draw_chart(samples), encoding="utf-8")
        print(path, chart, sep="\n")
    if any(result["tries"] != result["held"] for result in results.values()):
        sys.exit("runs or epochs differ from the first one")


if __name__ == "__main__":
    main()
