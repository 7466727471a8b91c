"""Measure what it costs to verify the outputs of a run.

    python -m benchmarks.runs.verification --megabytes 100 --rounds 9

The demo runs once in this process, and every range that its phases read of an output is recorded.
Then the same ranges are read again, in turns: as the phases read them, with the digests from the
done-records, and from plain files. The cost of reading is the difference of the CPU times, as a share
of the CPU time of the run. The cost of writing is the CPU time for the digests of all outputs. For
comparison, the time for their SHA-256 alone is printed. All files are in the cache of the system.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.demo_chain import load_demo_config
from benchmarks.result_file import save
from pipeline.execution.engine import run
from pipeline.planning.plan import make_plan
from pipeline.runs import phase_folder
from pipeline.runs.output_digests import OutputDigests
from pipeline.runs.phase_folder import PhaseFolder, read_digests
from pipeline.runs.verified_file import StoredOutput, VerifiedFile

# Of the CPU time of a run.
GOAL_SHARE = 0.03


@dataclass
class OpenedOutput:
    """An output that a phase has opened.

    Attributes:
        output: the file.
        ranges: position and number of bytes of each read.
    """

    output: StoredOutput
    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


@contextmanager
def record_reads() -> Generator[list[OpenedOutput]]:
    """Record what phases read in this process. The list grows while the block runs."""
    opened: list[OpenedOutput] = []

    class RecordedFile(VerifiedFile):
        def __init__(self, output: StoredOutput) -> None:
            super().__init__(output)
            self._reads = OpenedOutput(output)
            opened.append(self._reads)

        def read(self, num_bytes: int = -1) -> memoryview:
            start = self.tell()
            content = super().read(num_bytes)
            self._reads.ranges.append((start, len(content)))
            return content

        read_buffer = read

    phase_folder.VerifiedFile = RecordedFile
    try:
        yield opened
    finally:
        phase_folder.VerifiedFile = VerifiedFile


def read_verified(opened: Iterable[OpenedOutput]) -> None:
    """Read all ranges as the phases do."""
    read_digests.cache_clear()
    for each in opened:
        output = PhaseFolder(each.output.root).output(each.output.name)
        file = VerifiedFile(output)
        for start, num_bytes in each.ranges:
            file.seek(start)
            file.read(num_bytes)
        file.close()


def read_plain(opened: Iterable[OpenedOutput]) -> None:
    """Read all ranges without their digests."""
    for each in opened:
        with each.output.root.open(each.output.name) as file:
            file.seek(0, os.SEEK_END)
            for start, num_bytes in each.ranges:
                file.seek(start)
                file.read(num_bytes)


def list_outputs(run_dir: Path) -> list[Path]:
    """Return the outputs of all phases."""
    return [
        path
        for path in sorted(run_dir.glob("*-*/*"))
        if path.is_file() and not path.name.startswith((".", "phase.json"))
    ]


def compute_digests(paths: Iterable[Path]) -> None:
    """Compute the digests that the done-records hold."""
    for path in paths:
        with path.open("rb") as file:
            OutputDigests.compute(file)


def compute_sha256(paths: Iterable[Path]) -> None:
    """Compute the SHA-256 of files."""
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")


def measure(megabytes: float, rounds: int) -> dict[str, object]:
    """Return CPU seconds, and shares of the CPU time of a run."""
    with tempfile.TemporaryDirectory(prefix="corpusmill-") as folder:
        config = load_demo_config(megabytes, f"{folder}/first", "engine.kind=inline")
        list(run(make_plan(config)))  # compile, load models
        run_dir = Path(folder) / "run"
        plan = make_plan(load_demo_config(megabytes, run_dir, "engine.kind=inline"))
        with record_reads() as opened:
            run_s = _measure_cpu(lambda: list(run(plan)))
        outputs = list_outputs(run_dir)
        steps: dict[str, Callable[[], object]] = {
            "read verified": lambda: read_verified(opened),
            "read plain": lambda: read_plain(opened),
            "digests": lambda: compute_digests(outputs),
            "sha256": lambda: compute_sha256(outputs),
        }
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(rounds):
            for name in steps if number % 2 == 0 else reversed(steps):
                seconds[name].append(_measure_cpu(steps[name]))
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        read_s = medians["read verified"] - medians["read plain"]
        return {
            "megabytes": megabytes,
            "run_s": run_s,
            "seconds": seconds,
            "read_bytes": sum(size for each in opened for _, size in each.ranges),
            "num_reads": sum(len(each.ranges) for each in opened),
            "output_bytes": sum(path.stat().st_size for path in outputs),
            "read_share": read_s / run_s,
            "read_share_of_each_round": [
                (verified - plain) / run_s
                for verified, plain in zip(
                    seconds["read verified"], seconds["read plain"], strict=True
                )
            ],
            "write_share": medians["digests"] / run_s,
            "write_share_of_sha256": medians["sha256"] / run_s,
            "share": (read_s + medians["digests"]) / run_s,
        }


def _measure_cpu(act: Callable[[], object]) -> float:
    started = time.process_time()
    act()
    return time.process_time() - started


def main() -> None:
    """Measure, print, and save on request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=100, help="text of the crawl")
    parser.add_argument("--rounds", type=int, default=9, help="readings of every kind")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    figures = measure(args.megabytes, args.rounds)
    console = Console(markup=False)
    console.print(f"run: {figures['run_s']:.2f} CPU s; shares of it, goal {GOAL_SHARE:.0%}")
    for name, text in (
        ("read_share", "verification of what phases read"),
        ("write_share", "digests of what they write"),
        ("write_share_of_sha256", "  of these, SHA-256"),
        ("share", "together"),
    ):
        console.print(f"{text}: {figures[name]:.2%}")
    if args.save:
        console.print(f"written to {save('verification', figures)}")


if __name__ == "__main__":
    main()
