"""Measure the speed of each loader against a bare memory map, and the restart at 90 % of an epoch.

    python -m benchmarks.loader.run --data DATA [--rounds 3] [--only ours,torchdata] [--workers 0,2] [--save]

Each measurement runs in a new process. It alternates between the loader and the memory map, so that other load on the
machine affects both. `same` counts the batches, of 20 after the restart, that equal those of an uninterrupted run;
`fresh` and `resumed` are the seconds from creating the loader to its first batch.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from benchmarks.frame import finish, make_parser, print_table
from benchmarks.loader.entrants import BATCH, BLOCK, ENTRANTS

LIBRARIES = (
    "torch", "numpy", "isal", "torchdata", "litdata", "grain", "webdataset", "datasets", "mosaicml-streaming"
)  # fmt: skip
NUM_BATCHES = 20  # that are compared after a restart
LIMIT_S = 300  # of a measurement; some loaders hang


def repeat_forever(make: Callable[[], Any]) -> Iterator[Any]:
    while True:
        yield from make()


class Speed(NamedTuple):
    """Tokens per second of wall time, and of CPU time of this process."""

    wall: float
    cpu: float


def measure_turn(batches: Iterator[Any], seconds: float) -> Speed:
    num, started, cpu_started = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - started) < seconds:
        num += next(batches).numel()
    return Speed(num / elapsed, num / (time.process_time() - cpu_started))


def measure_speed(name: str, data: Path, workers: int, seconds: float) -> dict[str, Any]:
    bare = repeat_forever(lambda: ENTRANTS["memmap"](data))
    ours = repeat_forever(lambda: ENTRANTS[name](data, workers))
    started = time.perf_counter()
    next(ours)
    first_s = time.perf_counter() - started
    measure_turn(ours, seconds)  # warm-up, not counted
    measure_turn(bare, seconds / 3)
    limits, found = [measure_turn(bare, seconds / 3)], []
    for _ in range(3):
        found.append(measure_turn(ours, seconds))
        limits.append(measure_turn(bare, seconds / 3))
    figures = {
        "tokens_per_s": statistics.median(speed.wall for speed in found),
        "memmap_tokens_per_s": statistics.median(limit.wall for limit in limits),
        "ratio": compare_turns(
            [speed.wall for speed in found], [limit.wall for limit in limits]
        ),
    }
    if not workers:
        # Processes of workers are not counted.
        limits_cpu = [limit.cpu for limit in limits]
        figures["cpu_ratio"] = compare_turns([speed.cpu for speed in found], limits_cpu)
    return {**figures, "first_s": first_s}


def compare_turns(found: list[float], limits: list[float]) -> float:
    """Return the median share of the limits that were measured before and after each turn."""
    return statistics.median(
        speed / ((before + after) / 2)
        for speed, (before, after) in zip(found, pairwise(limits), strict=True)
    )


def checksum(batch: Any) -> int:
    return zlib.crc32(batch.numpy().astype("uint16").tobytes())


def measure_save(name: str, data: Path, workers: int, state_file: Path) -> dict[str, Any]:
    stop = int(os.path.getsize(data / "memmap/tokens.bin") // 2 // BLOCK // BATCH * 0.9)
    started = time.perf_counter()
    entrant = ENTRANTS[name](data, workers)
    batches = iter(entrant)
    next(batches)
    fresh_s = time.perf_counter() - started
    for _ in range(stop - 1):
        next(batches)
    state = entrant.state()
    following = [checksum(next(batches)) for _ in range(NUM_BATCHES)]
    state_file.write_bytes(pickle.dumps((state, stop, following)))
    return {"fresh_s": fresh_s, "state_bytes": len(pickle.dumps(state))}


def measure_resume(name: str, data: Path, workers: int, state_file: Path) -> dict[str, Any]:
    state, stop, following = pickle.loads(state_file.read_bytes())  # noqa: S301 - written by this script
    started = time.perf_counter()
    entrant = ENTRANTS[name](data, workers)
    if state is not None:
        entrant.load(state)
    batches = iter(entrant)
    for _ in range(0 if state is not None else stop):
        next(batches)
    found = [checksum(next(batches))]
    resumed_s = time.perf_counter() - started
    found += [checksum(next(batches)) for _ in range(NUM_BATCHES - 1)]
    return {
        "resumed_s": resumed_s,
        "same_batches": sum(a == b for a, b in zip(found, following, strict=True)),
    }


def measure_here(args: argparse.Namespace) -> None:
    """Measure in this process, print the figures, and end it with all its workers."""
    torch.set_num_threads(1)
    entrant = args.only, args.data, int(args.workers)
    if args.child == "speed":
        found = measure_speed(*entrant, args.seconds)
    else:
        measure = measure_save if args.child == "save" else measure_resume
        found = measure(*entrant, args.state)
    print(json.dumps(found), flush=True)
    for process in psutil.Process().children(recursive=True):
        process.kill()
    os._exit(0)  # worker processes of some loaders do not end


def measure_apart(
    what: str, name: str, workers: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of a separate process, or its error."""
    command = [sys.executable, "-m", "benchmarks.loader.run", "--child", what]
    command += ["--only", name, "--workers", str(workers), "--data", str(args.data)]
    command += ["--seconds", str(args.seconds), "--state", str(args.state)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    try:
        out = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {LIMIT_S} s"}
    if out.returncode == 0:
        return json.loads(out.stdout.splitlines()[-1])
    return {"error": (out.stderr.strip().splitlines() or ["no output"])[-1][:200]}


def compare(args: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for workers in map(int, args.workers.split(",")):
        speeds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(args.rounds):
            for name in names:
                speeds[name].append(measure_apart("speed", name, workers, args))
        for name in names:
            row: dict[str, Any] = {"entrant": name, "workers": workers}
            fine = [found for found in speeds[name] if "error" not in found]
            keys = list(fine[0]) if fine else []
            row |= {key: statistics.median(found[key] for found in fine) for key in keys}
            for what in ("save", "resume") if args.resume else ():
                row |= measure_apart(what, name, workers, args)
            row |= {} if fine else speeds[name][0]
            rows.append(row)
            print(row, flush=True)
    return rows


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print a line per entrant and number of workers."""
    keys = ("ratio", "cpu_ratio", "tokens_per_s", "fresh_s", "resumed_s", "same_batches")
    cells: list[list[object]] = []
    for row in rows:
        figures = [f"{row[key]:.4g}" if key in row else "-" for key in keys]
        state = row.get("state_bytes", "-")
        error = row.get("error", "")
        cells.append([row["entrant"], row["workers"], *figures, state, error])
    print_table(("entrant", "workers", *keys, "state bytes", "error"), cells)


def main() -> None:
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", default="0,2")
    parser.add_argument("--resume", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument(
        "--state", type=Path, default=Path("loader-state.pkl"), help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    args.data, args.state = args.data.resolve(), args.state.resolve()
    if args.child:
        measure_here(args)
        return
    rows = compare(args, args.only.split(",") if args.only else list(ENTRANTS))
    print_rows(rows)
    args.state.unlink(missing_ok=True)
    figures = {"rounds": args.rounds, "seconds": args.seconds, "rows": rows}
    # a partial run must not replace the full table
    finish(args, "loader_part" if args.only else "loader", figures, LIBRARIES)


if __name__ == "__main__":
    main()
