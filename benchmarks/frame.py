"""What benchmarks share: arguments, entrants that take turns, texts, and runs in other processes.

    parser = make_parser(__doc__, rounds=5)
    args = parser.parse_args()
    seconds = take_turns({"ours": time_cpu(hash_all), "library": time_cpu(hash_each)}, args.rounds)
    figures = compare_with(seconds, "ours", num_bytes)
    finish(args, "hashing", figures)

It needs the standard library only, because some benchmarks run in environments of other programs.
Times are CPU seconds. The machines that we measure on are shared: only ratios within one round
mean something, so entrants take turns and ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.result_file import LIBRARIES, save

# Runs once and returns the CPU seconds that it took.
Entrant = Callable[[], float]

LINES_PER_DOCUMENT = 50


def make_parser(
    doc: str | None, *, rounds: int | None = None, saves: bool = True
) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring, with `--save`, and with `--rounds` if given."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if saves:
        parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def finish(
    args: argparse.Namespace,
    name: str,
    figures: dict[str, Any],
    libraries: Iterable[str] = LIBRARIES,
) -> None:
    """Save the figures if `--save` was given, and print the path of the file."""
    if args.save:
        print(save(name, figures, libraries=libraries))


def time_cpu(call: Callable[[], object]) -> Entrant:
    """Return an entrant that makes the call in this process."""

    def measure() -> float:
        started = time.process_time()
        call()
        return time.process_time() - started

    return measure


def take_turns(entrants: Mapping[str, Entrant], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each entrant by round.

    A first round is not counted, because it compiles kernels and fills caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in entrants}
    for _ in range(rounds + 1):
        for name, entrant in entrants.items():
            seconds[name].append(entrant())
    return {name: each[1:] for name, each in seconds.items()}


def compare_with(
    seconds: Mapping[str, Sequence[float]], reference: str, num_bytes: float
) -> dict[str, dict[str, Any]]:
    """Return the median time, the speed, and the time as a multiple of the reference's.

    Args:
        seconds: CPU seconds of each entrant by round.
        reference: the entrant that the others are compared with.
        num_bytes: of the text that each entrant reads.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name, each in seconds.items():
        ratios = [a / b for a, b in zip(each, seconds[reference], strict=True)]
        median = statistics.median(each)
        rows[name] = {
            "cpu_s": round(median, 4),
            "mb_per_s": round(num_bytes / 1e6 / median, 1),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_by_round": [round(ratio, 2) for ratio in ratios],
        }
    return rows


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table without lines; numbers, which are in all columns but the first, to the right."""
    lines = [tuple(columns), *(tuple(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]).rstrip())


def print_comparison(rows: Mapping[str, Mapping[str, Any]], reference: str) -> None:
    """Print what `compare_with` returns."""
    columns = ("entrant", "CPU seconds", "MB/s", f"times {reference}")
    cells = [
        (name, row["cpu_s"], row["mb_per_s"], row["ratio"]) for name, row in rows.items()
    ]
    print_table(columns, cells)


def run_apart(module: str, *arguments: object) -> Any:
    """Return the JSON in the last line that a module prints as a separate program."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# ---- texts ----


def read_records(path: Path) -> list[str]:
    """Return the text of every conversion record of a WET file, read with FastWARC."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    with path.open("rb") as file:
        records = ArchiveIterator(
            file, record_types=WarcRecordType.conversion, strict_mode=False
        )
        return [record.reader.read().decode("utf-8", "replace") for record in records]


def make_lines(num_lines: int) -> list[str]:
    """Return lines of random words, short words more often than long ones."""
    draw = random.Random(0)
    words = [
        "".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 9))) for _ in range(9999)
    ]
    words.sort(key=len)
    lines: list[str] = []
    for _ in range(num_lines):
        chosen = [words[int(len(words) * draw.random() ** 3)] for _ in range(12)]
        lines.append(" ".join(chosen))
    return lines


def read_documents(wet: Path | None, megabytes: float) -> list[str]:
    """Return pages of a WET file, drawn at random, or documents of random words."""
    if wet is not None:
        return truncate(read_records(wet), megabytes * 1e6)
    lines = truncate(make_lines(50_000), megabytes * 1e6)
    return [" ".join(part) for part in batched(lines, LINES_PER_DOCUMENT)]


def truncate(texts: Sequence[str], num_bytes: float) -> list[str]:
    """Return texts drawn at random, up to a number of bytes."""
    kept: list[str] = []
    for text in random.Random(0).sample(texts, len(texts)):
        num_bytes -= len(text.encode())
        if num_bytes < 0:
            break
        kept.append(text)
    return kept


def batched(texts: Sequence[str], size: int) -> list[Sequence[str]]:
    """Return parts of that many texts, in order."""
    return [texts[at : at + size] for at in range(0, len(texts), size)]


def count_bytes(texts: Iterable[str]) -> int:
    """Return the UTF-8 bytes of texts."""
    return sum(len(text.encode()) for text in texts)
