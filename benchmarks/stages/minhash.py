"""Compare the MinHash kernels with rensa and datasketch on the same documents.

    python -m benchmarks.stages.minhash --wet pages.warc.wet.gz --rounds 5 --save

The kernels read texts. rensa reads n-grams, therefore it is measured with n-grams that exist as bytes or as strings;
"n-grams by Python" has what Python takes to make them. "from hashes" is the signature alone.
Every signature of ours must be datasketch's. rensa has other hashes; it runs in an environment with the
pinned wheel and is left out, with the reason, where that cannot be installed. Without `--wet`, the texts
are made of random words.
"""

from __future__ import annotations

import pickle
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
from datasketch import MinHash

from benchmarks.frame import (
    Entrant,
    compare_with,
    count_bytes,
    finish,
    make_parser,
    print_comparison,
    read_documents,
    take_turns,
    time_cpu,
)
from benchmarks.quality.peer_environment import prepare_environment
from stages.dedup.minhash import SEED, flatten_lists, ngram_sets, signatures, split_ngrams
from stages.kernels.dedup.signatures import sign_ngrams
from stages.settings.dedup import MinHashSettings

REQUIREMENTS = Path(__file__).parents[1] / "peers" / "requirements" / "rensa.txt"
NUM_PERMUTATIONS = 96

OURS = "kernels, from texts"

# Runs in rensa's environment: reads a name per line and prints the CPU seconds of its call.
_RENSA_PROGRAM = """
import pickle, sys, time
from rensa import RMinHash
with open(sys.argv[1], "rb") as file:
    data = pickle.load(file)
size, seed = data["num_permutations"], data["seed"]
calls = {
    "rensa, from n-grams as bytes": lambda: (
        RMinHash.digest_matrix_from_token_byte_sets(data["bytes"], size, seed)
    ),
    "rensa, from n-grams as strings": lambda: (
        RMinHash.digest_matrix_from_token_sets(data["strings"], size, seed)
    ),
    "rensa, from hashes": lambda: (
        RMinHash.digest_matrix_from_flat_token_hashes(*data["hashes"], size, seed)
    ),
}
print("|".join(calls), flush=True)
for line in sys.stdin:
    started = time.process_time()
    calls[line.rstrip()]()
    print(time.process_time() - started, flush=True)
"""


class Rensa:
    """A process with rensa that holds the n-grams, and measures one call at a time."""

    def __init__(self, python: Path, data: Path) -> None:
        """Start it.

        Args:
            python: of rensa's environment.
            data: pickled n-grams.
        """
        command = [python, "-c", _RENSA_PROGRAM, data]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.names = self._read().split("|")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()  # closes its input, which ends it

    def _read(self) -> str:
        line = _get(self._process.stdout).readline()
        if not line:
            raise SystemExit(f"rensa ended with the exit code {self._process.wait()}")
        return line.rstrip()

    def measure(self, name: str) -> float:
        """Return the CPU seconds of one call."""
        stdin = _get(self._process.stdin)
        stdin.write(f"{name}\n")
        stdin.flush()
        return float(self._read())


def _get(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def write_ngrams(
    path: Path, ngrams: list[list[str]], starts: np.ndarray[Any, Any], hashes: Any
) -> None:
    """Write what rensa reads: the distinct n-grams of each text, and their hashes."""
    data = {
        "num_permutations": NUM_PERMUTATIONS,
        "seed": SEED,
        "strings": ngrams,
        "bytes": [[ngram.encode() for ngram in each] for each in ngrams],
        # Arrays are read without a copy.
        "hashes": (array("Q", hashes.tolist()), array("Q", starts.tolist())),
    }
    path.write_bytes(pickle.dumps(data))


def sign_with_datasketch(ngrams: list[list[bytes]]) -> np.ndarray[Any, Any]:
    """Return the signatures of datasketch, (n, NUM_PERMUTATIONS)."""
    rows = MinHash.bulk(ngrams, num_perm=NUM_PERMUTATIONS, seed=SEED)
    return np.array([row.hashvalues for row in rows])


def compare(texts: list[str], rounds: int) -> dict[str, Any]:
    """Return the figures of all entrants, after a check of our signatures.

    Raises:
        SystemExit: if a signature is not datasketch's.
    """
    settings = MinHashSettings(num_permutations=NUM_PERMUTATIONS)
    column = pa.array(texts, pa.large_string())
    # Distinct, as the kernels leave out repeated n-grams themselves.
    ngrams = [
        list(dict.fromkeys(split_ngrams(text, settings.ngram_words))) for text in texts
    ]
    as_bytes = [[ngram.encode() for ngram in each] for each in ngrams]
    found, _ = signatures(column, settings)  # compiles
    num_different = int(np.any(found != sign_with_datasketch(as_bytes), axis=1).sum())
    if num_different:
        raise SystemExit(f"{num_different} signatures are not datasketch's")
    starts, hashes = flatten_lists(ngram_sets(column, settings))
    permutations = np.ascontiguousarray(
        MinHash(num_perm=NUM_PERMUTATIONS, seed=SEED).permutations, np.uint32
    )
    calls: dict[str, Callable[[], object]] = {
        OURS: partial(signatures, column, settings),
        "datasketch, from n-grams as bytes": partial(sign_with_datasketch, as_bytes),
        "kernels, from hashes": partial(sign_ngrams, starts, hashes, permutations),
        "n-grams by Python": lambda: [
            split_ngrams(text, settings.ngram_words) for text in texts
        ],
    }
    entrants = {name: time_cpu(call) for name, call in calls.items()}
    failed, seconds = measure_beside_rensa(entrants, ngrams, starts, hashes, rounds)
    num_bytes = count_bytes(texts)
    return {
        "documents": len(texts),
        "megabytes": round(num_bytes / 1e6, 2),
        "distinct_ngrams": sum(map(len, ngrams)),
        "num_permutations": NUM_PERMUTATIONS,
        "different_signatures": num_different,
        "entrants": compare_with(seconds, OURS, num_bytes),
        "failed": failed,
    }


def measure_beside_rensa(
    entrants: Mapping[str, Entrant],
    ngrams: list[list[str]],
    starts: Any,
    hashes: Any,
    rounds: int,
) -> tuple[str, dict[str, list[float]]]:
    """Return why rensa cannot run, or "", and the CPU seconds of each round of all entrants."""
    failed = ""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        data = Path(folder) / "ngrams.pickle"
        write_ngrams(data, ngrams, starts, hashes)
        try:
            python = prepare_environment(REQUIREMENTS, with_dependencies=False)
        except subprocess.CalledProcessError as error:
            failed = f"rensa cannot be installed: {error.stderr}"
        else:
            rensa = stack.enter_context(Rensa(python, data))
            entrants = {
                **entrants,
                **{name: partial(rensa.measure, name) for name in rensa.names},
            }
        return failed, take_turns(entrants, rounds)


def main() -> None:
    """Compare, print the table, and save the figures with `--save`."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--wet", type=Path, help="pages instead of random words")
    parser.add_argument("--megabytes", type=float, default=4, help="of text, at most")
    args = parser.parse_args()
    figures = compare(read_documents(args.wet, args.megabytes), args.rounds)
    print_comparison(figures["entrants"], OURS)
    print(f"{figures['documents']:,} documents, all with datasketch's signatures")
    if figures["failed"]:
        print(figures["failed"])
    finish(args, "minhash", figures, libraries=("datasketch", "numba", "numpy"))


if __name__ == "__main__":
    main()
