"""Compare the speed of paragraph hashing with CCNet's, which hashes one line at a time.

    python -m benchmarks.stages.paragraph_hashing --cc-net ~/cc_net --wet pages.warc.wet.gz

All entrants must return equal hashes. Each starts from Python strings: our time includes the
creation of an Arrow array, which the pipeline does not need. Without `--wet` the texts are made of
random words.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.frame import (
    compare_with,
    count_bytes,
    finish,
    make_parser,
    print_comparison,
    read_documents,
    take_turns,
    time_cpu,
)
from stages.dedup.paragraph_hashes import hash_paragraph, hash_paragraphs

OURS = "hash_paragraphs"
Hasher = Callable[[Sequence[str]], NDArray[np.uint64]]


def hash_each_line(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Hash one line after the other in Python."""
    lines = [line for text in texts for line in text.split("\n")]
    return np.array([*map(hash_paragraph, lines)], np.uint64)


def hash_all(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Hash all texts with the kernel."""
    return hash_paragraphs(pa.array(texts, pa.large_string()))[1]


def load_ccnet(checkout: Path) -> Hasher:
    """Return the loop of CCNet's `compute_hashes` around CCNet's own normalizer."""
    sys.path.insert(0, str(checkout))
    normalize = importlib.import_module("cc_net.text_normalizer").normalize_for_dedup

    def hash_with_ccnet(texts: Sequence[str]) -> NDArray[np.uint64]:
        digests: list[bytes] = []
        for text in texts:
            for line in text.split("\n"):
                sha1 = hashlib.sha1(normalize(line).encode(), usedforsecurity=False)
                digests.append(sha1.digest()[:8])
        return np.frombuffer(b"".join(digests), "<u8")

    return hash_with_ccnet


def main() -> None:
    """Compare, print the table, and save the figures with `--save`."""
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument("--megabytes", type=float, default=4, help="of text, at most")
    parser.add_argument(
        "--cc-net", type=Path, help="checkout of cc_net: its code takes part"
    )
    parser.add_argument("--wet", type=Path, help="pages instead of random words")
    args = parser.parse_args()
    texts = read_documents(args.wet, args.megabytes)
    hashers: dict[str, Hasher] = {OURS: hash_all, "hash_paragraph per line": hash_each_line}
    if args.cc_net:
        hashers["cc_net"] = load_ccnet(args.cc_net)
    wanted = hash_all(texts)
    for name, hasher in hashers.items():
        if not np.array_equal(hasher(texts), wanted):
            raise SystemExit(f"{name} and {OURS} have different hashes")
    entrants = {name: time_cpu(partial(each, texts)) for name, each in hashers.items()}
    rows = compare_with(take_turns(entrants, args.rounds), OURS, count_bytes(texts))
    print_comparison(rows, OURS)
    finish(args, "paragraph_hashing", {"num_lines": len(wanted), "entrants": rows})


if __name__ == "__main__":
    main()
