"""Compare the kernel of fastText models with the library on the same texts.

    python -m benchmarks.stages.fasttext_kernel --model lid.176.ftz --text sentences.tsv.xz --rounds 5
    python -m benchmarks.stages.fasttext_kernel --model lid.176.ftz --wet pages.warc.wet.gz

Prints MB/s of both, the ratio of their CPU times and the number of texts with another label or another bit of the score,
for single lines and for documents: 50 lines, or the pages of a WET file. Both take turns; the ratio is the median over the rounds. Each round of the
kernel starts with an empty cache of words. Without `--text` the lines are made of random words.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import fasttext
import pyarrow as pa

from benchmarks.result_file import save
from benchmarks.stages.table.bare_calls import read_records
from stages.kernels.fasttext.model import LibraryModel, load_model

LINES_PER_DOCUMENT = 50


def main() -> None:
    """Measure lines and documents, print the figures, and save them with `--save`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="without: a small model is trained")
    parser.add_argument(
        "--text", type=Path, help="a text per line, .xz; of columns the last is taken"
    )
    parser.add_argument("--wet", type=Path, help="pages instead of lines")
    parser.add_argument("--megabytes", type=float, default=4, help="of text, at most")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    if args.wet:
        pages = truncate(read_records(args.wet), args.megabytes * 1e6)
        lines = [line for page in pages for line in page.split("\n")]
        documents = [page.replace("\n", " ") for page in pages]
    else:
        lines = read_lines(args.text) if args.text else make_lines(100_000)
        lines = truncate(lines, args.megabytes * 1e6)
        documents = [" ".join(part) for part in batched(lines, LINES_PER_DOCUMENT)]
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or train_model(Path(folder))
        figures = {
            "lines": measure(model, lines, args.rounds),
            "documents": measure(model, documents, args.rounds),
        }
    print(json.dumps(figures, indent=1))
    if args.save:
        name = "fasttext_kernel_pages" if args.wet else "fasttext_kernel"
        print(save(name, figures, libraries=("fasttext", "numba")))


def batched(lines: list[str], size: int) -> list[list[str]]:
    """Return parts of that many lines, in order."""
    return [lines[at : at + size] for at in range(0, len(lines), size)]


def read_lines(path: Path) -> list[str]:
    """Return the last column of each line."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n").rpartition("\t")[2] for line in file]


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


def truncate(lines: list[str], num_bytes: float) -> list[str]:
    """Return lines drawn at random, up to a number of bytes."""
    kept: list[str] = []
    for line in random.Random(0).sample(lines, len(lines)):
        num_bytes -= len(line.encode())
        if num_bytes < 0:
            break
        kept.append(line)
    return kept


def train_model(folder: Path) -> Path:
    """Train a model of two languages of random words."""
    lines = [f"__label__{i % 2} {line}" for i, line in enumerate(make_lines(2_000))]
    (folder / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    model = fasttext.train_supervised(
        str(folder / "train.txt"),
        dim=16,
        minn=2,
        maxn=4,
        bucket=10_000,
        thread=11,
        verbose=0,
    )
    model.save_model(str(folder / "model.bin"))
    return folder / "model.bin"


def measure(path: Path, texts: list[str], rounds: int) -> dict[str, Any]:
    """Return the speed of both, and the number of different results."""
    column = pa.array(texts, pa.large_string())
    library = LibraryModel(path)
    load_model(path).predict_best(column[:1])  # compiles
    ours_s: list[float] = []
    library_s: list[float] = []
    num_different = 0
    for _ in range(rounds):
        ours = load_model(path)
        start = time.process_time()
        labels, scores = ours.predict_best(column)
        ours_s.append(time.process_time() - start)
        start = time.process_time()
        wanted_labels, wanted_scores = library.predict_best(column)
        library_s.append(time.process_time() - start)
        for found, wanted in zip(
            zip(labels, scores, strict=True),
            zip(wanted_labels, wanted_scores, strict=True),
            strict=True,
        ):
            num_different += found != wanted
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    ratios = [b / a for a, b in zip(ours_s, library_s, strict=True)]
    return {
        "texts": len(texts),
        "megabytes": round(megabytes, 1),
        "library_mb_per_s": round(megabytes / statistics.median(library_s), 1),
        "kernel_mb_per_s": round(megabytes / statistics.median(ours_s), 1),
        "median_ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "num_different": num_different,
    }


if __name__ == "__main__":
    main()
