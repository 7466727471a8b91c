"""Compare the speed of paragraph hashing with CCNet's, which hashes one line at a time.

    python -m benchmarks.stages.paragraph_hashing --megabytes 4 --cc-net ~/cc_net --text crawl.txt.xz

Prints MB/s of UTF-8 per corpus and entrant, as medians over rounds in which the entrants take turns, and the ratio of
our speed to that of the entrant before it. All entrants must return equal hashes. Each starts from Python strings: our
time includes the creation of an Arrow array, which the pipeline does not need. `--save` writes the figures with
machine, commit and versions to `benchmarks/results/`.

Without `--text` the texts are the encyclopedia summaries of the demo, or random words where these are not installed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import json
import lzma
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))  # so that the file also runs as a script

from stages.dedup.paragraph_hashes import hash_paragraph, hash_paragraphs  # noqa: E402 - after the path is set

LINES_PER_TEXT = 20
ALPHABETS = {
    "latin": "etaoinshrdlu",
    "cyrillic": "оеаинтсрвлкм",
    "kana": "いうかしたてとなのはんを",
    "greek": "αεηικνοπρστυ",
}
Entrant = Callable[[Sequence[str]], NDArray[np.uint64]]


def main() -> None:
    """Measure all corpora, print the figures, and save them with `--save`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--megabytes", type=float, default=4, help="of UTF-8 per corpus, at most"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--cc-net",
        type=Path,
        help="a checkout of facebookresearch/cc_net: its own code takes part",
    )
    parser.add_argument(
        "--text", type=Path, nargs="*", default=[], help="text files, .gz or .xz allowed"
    )
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    entrants = load_entrants(args.cc_net)
    corpora = {path.name: read_corpus(path) for path in args.text} or default_corpora()
    figures: dict[str, Any] = {}
    for name, texts in corpora.items():
        figures[name] = measure(
            entrants, truncate(texts, round(args.megabytes * 1e6)), args.rounds
        )
        print(name, json.dumps(figures[name]))
    if args.save:
        print(save(figures))


def load_entrants(cc_net: Path | None) -> dict[str, Entrant]:
    """Return the entrants by name. Ours is the last one."""
    entrants: dict[str, Entrant] = {"hash_paragraph per line": hash_each_line}
    if cc_net is not None:
        entrants["cc_net compute_hashes"] = ccnet_entrant(cc_net)
    entrants["hash_paragraphs"] = ours
    return entrants


def hash_each_line(texts: Sequence[str]) -> NDArray[np.uint64]:
    return np.array(
        [hash_paragraph(line) for text in texts for line in text.split("\n")], np.uint64
    )


def ours(texts: Sequence[str]) -> NDArray[np.uint64]:
    return hash_paragraphs(pa.array(texts, pa.large_string()))[1]


def ccnet_entrant(checkout: Path) -> Entrant:
    """Return CCNet's `compute_hashes`, or the same loop around CCNet's normalizer if its other imports are missing."""
    sys.path.insert(0, str(checkout))
    try:
        compute_hashes = importlib.import_module("cc_net.dedup").compute_hashes
    except ImportError as error:
        print(
            f"cc_net.dedup cannot be imported ({error}); measuring its normalizer in our own loop"
        )
        normalize = importlib.import_module("cc_net.text_normalizer").normalize_for_dedup

        def compute_hashes(text: str) -> NDArray[np.uint64]:
            digests = (
                hashlib.sha1(normalize(line).encode(), usedforsecurity=False).digest()
                for line in text.split("\n")
            )
            return np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8")

    return lambda texts: np.concatenate([compute_hashes(text) for text in texts])


def read_corpus(path: Path) -> list[str]:
    """Return the file as documents of LINES_PER_TEXT lines."""
    opener = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8", errors="replace") as file:
        return group_lines(file.read().split("\n"))


def group_lines(lines: Sequence[str]) -> list[str]:
    return [
        "\n".join(lines[i : i + LINES_PER_TEXT])
        for i in range(0, len(lines), LINES_PER_TEXT)
    ]


def default_corpora() -> dict[str, list[str]]:
    """Return the demo's summaries in English and French, or random words if these are not installed."""
    try:
        demo_texts = importlib.import_module("pipeline.models.demo.texts")
    except ModuleNotFoundError:
        return {name: generate_texts(letters) for name, letters in ALPHABETS.items()}
    return {
        language: group_lines([text for _, text in demo_texts.summaries(language, "pages")])
        for language in ("en", "fr")
    }


def generate_texts(letters: str, num_lines: int = 20_000) -> list[str]:
    """Return random texts: lines of 1 to 40 words of these letters, capitalized, with digits and punctuation."""
    rng = random.Random(0)
    words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(2_000)] + [
        "1987",
        "–",
        "«",
        "12.",
    ]
    return group_lines(
        [
            " ".join(rng.choices(words, k=rng.randint(1, 40))).capitalize() + "."
            for _ in range(num_lines)
        ]
    )


def truncate(texts: Sequence[str], max_bytes: int) -> list[str]:
    ends = np.cumsum([len(text.encode()) for text in texts])
    return [
        text for text, end in zip(texts, ends, strict=True) if text and end <= max_bytes
    ]


def measure(
    entrants: dict[str, Entrant], texts: Sequence[str], rounds: int
) -> dict[str, Any]:
    """Measure the entrants in turns. The first round may compile code and only checks the hashes."""
    answers = [entrant(texts) for entrant in entrants.values()]
    for name, answer in zip(entrants, answers, strict=True):
        if not np.array_equal(answer, answers[-1]):
            raise AssertionError(
                f"{name} and hash_paragraphs differ in {np.sum(answer != answers[-1])} hashes"
            )
    seconds: dict[str, list[float]] = {name: [] for name in entrants}
    for _ in range(rounds):
        for name, entrant in entrants.items():
            start = time.perf_counter()
            entrant(texts)
            seconds[name].append(time.perf_counter() - start)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    speeds = {
        name: round(megabytes / statistics.median(taken), 1)
        for name, taken in seconds.items()
    }
    *_, reference, mine = speeds.values()
    return {
        "megabytes": round(megabytes, 2),
        "num_lines": len(answers[-1]),
        "ascii_share": round(
            sum(c < "\x80" for text in texts for c in text) / sum(map(len, texts)), 3
        ),
        "mb_per_s": speeds,
        "ratio": round(mine / reference, 2),
    }


def save(figures: dict[str, Any]) -> Path:
    """Write the figures with machine, commit and versions, and return the path of the file."""
    now = datetime.now(UTC)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    versions = {
        name: importlib.import_module(name).__version__
        for name in ("numba", "numpy", "pyarrow")
    }
    cpu = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    result = {
        "benchmark": "paragraph_hashing",
        "date": now.isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.executable).name, *sys.argv]),
        "commit": commit.stdout.strip() if commit.returncode == 0 else None,
        "machine": {
            "cpu": cpu[0].partition(": ")[2] if cpu else platform.machine(),
            "num_cpus": os.cpu_count(),
        },
        "versions": {"python": platform.python_version(), **versions},
        "figures": figures,
    }
    path = (
        REPOSITORY
        / "benchmarks"
        / "results"
        / f"{now:%Y-%m-%d-%H%M}-paragraph_hashing.json"
    )
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    return path


if __name__ == "__main__":
    main()
