"""Measure the speed of each loader against a bare memory map, and the restart at 90 % of an epoch.

    python benchmarks/loader/run.py --data DATA [--rounds 3] [--only ours,torchdata] [--workers 0,2] [--save]

Each measurement runs in a new process. It alternates between the loader and the memory map, so that other load on the
machine affects both. `same` counts the batches, of 20 after the restart, that equal those of an uninterrupted run;
`fresh` and `resumed` are the seconds from creating the loader to its first batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
BLOCK = 2049
LIBRARIES = (
    "torch", "numpy", "isal", "torchdata", "litdata", "grain", "webdataset", "datasets", "mosaicml-streaming"
)  # fmt: skip


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
    import torch
    from entrants import ENTRANTS

    torch.set_num_threads(1)
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
    import pickle

    from entrants import BATCH, ENTRANTS

    stop = int(os.path.getsize(data / "memmap/tokens.bin") // 2 // BLOCK // BATCH * 0.9)
    started = time.perf_counter()
    entrant = ENTRANTS[name](data, workers)
    batches = iter(entrant)
    next(batches)
    fresh_s = time.perf_counter() - started
    for _ in range(stop - 1):
        next(batches)
    state = entrant.state()
    following = [checksum(next(batches)) for _ in range(20)]
    state_file.write_bytes(pickle.dumps((state, stop, following)))
    return {"fresh_s": fresh_s, "state_bytes": len(pickle.dumps(state))}


def measure_resume(name: str, data: Path, workers: int, state_file: Path) -> dict[str, Any]:
    import pickle

    from entrants import ENTRANTS

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
    found += [checksum(next(batches)) for _ in range(19)]
    return {
        "resumed_s": resumed_s,
        "same_batches": sum(a == b for a, b in zip(found, following, strict=True)),
    }


def child(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE))
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "speed": lambda: measure_speed(
            args.only, args.data, int(args.workers), args.seconds
        ),
        "save": lambda: measure_save(args.only, args.data, int(args.workers), args.state),
        "resume": lambda: measure_resume(
            args.only, args.data, int(args.workers), args.state
        ),
    }
    print("RESULT " + json.dumps(measures[args.child]()), flush=True)
    _end_children()
    os._exit(0)  # worker processes of some loaders do not end


def _end_children() -> None:
    import psutil

    for process in psutil.Process().children(recursive=True):
        process.kill()


def run_in_process(
    what: str, name: str, workers: int, args: argparse.Namespace
) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--child",
        what,
        "--only",
        name,
        "--workers",
        str(workers),
    ]
    command += [
        "--data",
        str(args.data),
        "--seconds",
        str(args.seconds),
        "--state",
        str(args.state),
    ]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    try:
        out = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            cwd=HERE,
            timeout=300,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": "no result after 300 s"}
    for line in out.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    return {"error": (out.stderr.strip().splitlines() or ["no output"])[-1][:200]}


def compare(args: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for workers in map(int, args.workers.split(",")):
        speeds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(args.rounds):
            for name in names:
                speeds[name].append(run_in_process("speed", name, workers, args))
        for name in names:
            row: dict[str, Any] = {"entrant": name, "workers": workers}
            fine = [found for found in speeds[name] if "error" not in found]
            keys = list(fine[0]) if fine else []
            row |= {key: statistics.median(found[key] for found in fine) for key in keys}
            for what in ("save", "resume") if args.resume else ():
                row |= run_in_process(what, name, workers, args)
            row |= {} if fine else speeds[name][0]
            rows.append(row)
            print(show(row), flush=True)
    return rows


def show(row: dict[str, Any]) -> str:
    def number(key: str, form: str, scale: float = 1.0) -> str:
        return (
            format(row[key] if scale == 1 else row[key] / scale, form)
            if key in row
            else "-"
        )

    return (
        f"{row['entrant']:22} {row['workers']} workers  ratio {number('ratio', '.3f'):>6}  "
        f"by CPU time {number('cpu_ratio', '.3f'):>6}  "
        f"{number('tokens_per_s', ',.0f', 1e6):>6} M tokens/s  fresh {number('fresh_s', '.3f'):>7} s  "
        f"resumed {number('resumed_s', '.3f'):>7} s  same {number('same_batches', 'd'):>2}/20  "
        f"state {number('state_bytes', ',d'):>9} B  {row.get('error', '')}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", default="0,2")
    parser.add_argument("--resume", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument(
        "--state", type=Path, default=Path("loader-state.pkl"), help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    args.data, args.state = args.data.resolve(), args.state.resolve()
    if args.child:
        child(args)
        return
    sys.path.insert(0, str(HERE))
    from entrants import ENTRANTS

    rows = compare(args, args.only.split(",") if args.only else list(ENTRANTS))
    args.state.unlink(missing_ok=True)
    if args.save:
        # imported here: only this needs the repository on the path
        from benchmarks.result_file import save

        figures = {"rounds": args.rounds, "seconds": args.seconds, "rows": rows}
        # a partial run must not replace the full table
        print(save("loader_part" if args.only else "loader", figures, libraries=LIBRARIES))


if __name__ == "__main__":
    main()
