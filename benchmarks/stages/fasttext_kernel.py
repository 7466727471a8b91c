"""Compare the kernel of fastText models with the library on the same texts.

    python -m benchmarks.stages.fasttext_kernel --model lid.176.ftz --text sentences.tsv.xz --rounds 5
    python -m benchmarks.stages.fasttext_kernel --model lid.176.ftz --wet pages.warc.wet.gz

Single lines and documents are measured: 50 lines, or the pages of a WET file. Each round of the kernel starts with an
empty cache of words. `num_different` counts texts with another label, or another bit of the score. Without `--text` the
lines are made of random words.
"""

from __future__ import annotations

import json
import lzma
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fasttext
import pyarrow as pa

from benchmarks.frame import (
    LINES_PER_DOCUMENT,
    batched,
    compare_with,
    count_bytes,
    finish,
    make_lines,
    make_parser,
    read_records,
    take_turns,
    time_cpu,
    truncate,
)
from stages.kernels.fasttext.model import LibraryModel, load_model


def read_lines(path: Path) -> list[str]:
    """Return the last column of each line."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n").rpartition("\t")[2] for line in file]


def train_model(folder: Path) -> Path:
    """Train a model of two languages of random words."""
    lines = [f"__label__{i % 2} {line}" for i, line in enumerate(make_lines(2_000))]
    (folder / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    options = {"dim": 16, "minn": 2, "maxn": 4, "bucket": 10_000, "thread": 11}
    model = fasttext.train_supervised(str(folder / "train.txt"), verbose=0, **options)
    model.save_model(str(folder / "model.bin"))
    return folder / "model.bin"


def measure(path: Path, texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Return the speed of both, and the number of different results."""
    column = pa.array(texts, pa.large_string())
    library = LibraryModel(path)
    found, wanted = (model.predict_best(column) for model in (load_model(path), library))
    rows = zip(*found, *wanted, strict=True)
    num_different = sum((a, b) != (c, d) for a, b, c, d in rows)

    def run_kernel() -> float:
        ours = load_model(path)  # with an empty cache of words
        started = time.process_time()
        ours.predict_best(column)
        return time.process_time() - started

    entrants = {
        "kernel": run_kernel,
        "library": time_cpu(lambda: library.predict_best(column)),
    }
    entrants_s = take_turns(entrants, rounds)
    num_bytes = count_bytes(texts)
    return {
        "texts": len(texts),
        "megabytes": round(num_bytes / 1e6, 1),
        "num_different": num_different,
        "entrants": compare_with(entrants_s, "kernel", num_bytes),
    }


def main() -> None:
    """Measure lines and documents, print the figures, and save them with `--save`."""
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument("--model", type=Path, help="without: a small model is trained")
    parser.add_argument(
        "--text", type=Path, help="a text per line, .xz; of columns the last is taken"
    )
    parser.add_argument("--wet", type=Path, help="pages instead of lines")
    parser.add_argument("--megabytes", type=float, default=4, help="of text, at most")
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
    name = "fasttext_kernel_pages" if args.wet else "fasttext_kernel"
    finish(args, name, figures, libraries=("fasttext", "numba"))


if __name__ == "__main__":
    main()
