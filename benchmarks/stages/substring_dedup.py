"""Measure the CPU time of refinedweb.yaml with and without substring_dedup.

    python -m benchmarks.stages.substring_dedup                        # about ten minutes
    python -m benchmarks.stages.substring_dedup --documents 2000 --pairs 2

The two configs run one after the other, several times, each in this process. The result is the median ratio of the
pairs, so a slow moment of the machine affects both runs of a pair.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.result_file import save
from pipeline.config import load
from pipeline.execution.engine import PhaseFinished, PhaseStarted, run
from pipeline.planning.plan import make_plan
from pipeline.planning.prepare import prepare
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder

CONFIG = Path(__file__).parents[2] / "configs" / "refinedweb.yaml"

# The value of `substring_dedup` in each config.
OFF, ON = "null", "{}"

WARM_DOCUMENTS = 200


def measure(num_documents: int, value: str, run_dir: Path) -> dict[str, Any]:
    """Run the recipe with a value of `substring_dedup`, and return its CPU seconds by phase."""
    overrides = [
        f"run_dir={run_dir}",
        f"input.sample_crawl.documents={num_documents}",
        "engine.kind=inline",
        f"substring_dedup={value}",
    ]
    config = load(str(CONFIG), overrides)
    prepare(config)
    cpu_s: dict[str, float] = {}
    began = time.process_time()
    for event in run(make_plan(config)):
        if isinstance(event, PhaseStarted):
            began = time.process_time()
        elif isinstance(event, PhaseFinished):
            cpu_s[event.phase] = time.process_time() - began
            began = time.process_time()
    counters = make_report(RunFolder.open(run_dir)).counters
    return {
        "cpu_s": cpu_s,
        "text_mb": counters["extract"]["text_bytes"] / 1e6,
        "windows": counters.get("substring_hashes", {}).get("windows", 0),
        "repeated_words": counters["annotate"].get("repeated_words", 0),
    }


def compare(num_documents: int, num_pairs: int, folder: Path) -> dict[str, Any]:
    """Return the figures of all pairs of runs, and the median ratio."""
    pairs: list[dict[str, Any]] = []
    for number in range(num_pairs):
        off = measure(num_documents, OFF, folder / f"off{number}")
        on = measure(num_documents, ON, folder / f"on{number}")
        ratio = sum(on["cpu_s"].values()) / sum(off["cpu_s"].values())
        pairs.append({"off": off, "on": on, "ratio": ratio})
        print(f"pair {number + 1}: {ratio:.3f}", flush=True)
    ratios = [pair["ratio"] for pair in pairs]
    return {
        "documents": num_documents,
        "pairs": pairs,
        "median_ratio": statistics.median(ratios),
    }


def main() -> None:
    """Compare the two configs, and save the figures with `--save`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="substring-dedup-") as name:
        # The first runs compile kernels and load models.
        warm_documents = min(WARM_DOCUMENTS, arguments.documents)
        measure(warm_documents, OFF, Path(name) / "warm-off")
        measure(warm_documents, ON, Path(name) / "warm-on")
        found = compare(arguments.documents, arguments.pairs, Path(name))
    print(json.dumps(found, indent=1))
    if arguments.save:
        print(save("substring_dedup", found))


if __name__ == "__main__":
    main()
