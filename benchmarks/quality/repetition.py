"""Compare the decisions of our rules on repeated n-grams with those of datatrove, rule by rule.

    python -m benchmarks.quality.repetition --files "crawl/*.warc.gz" [--main-content] [--save]

Prints for each rule of Gopher's table A1 on n-grams the documents that it drops, the share with
equal decisions, and how many documents only one of the two drops. RedPajama-V2's signals with the same limits are shown beside ours. Equal texts count
once. Documents under Gopher's 50 words are left out: another rule drops them first.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.frame import make_parser
from benchmarks.quality.peer_environment import run_with_peers
from benchmarks.result_file import save
from stages.filters.quality import Quality, QualityFilterSettings, QualitySettings
from stages.settings.warc import HtmlSettings, WarcSettings
from stages.warc.reader import WarcReader

PEERS = Path(__file__).with_name("repetition-peers.txt")
LIBRARIES = ("datatrove", "spacy", "numpy", "numba", "pyarrow", "resiliparse")

MIN_WORDS = 50
LENGTHS = range(2, 11)
LAST_TOP = 4  # the rules for n = 2 to 4 judge the most frequent n-gram


def read_texts(pattern: str, num_documents: int, html: HtmlSettings) -> list[str]:
    """Return different texts of at least MIN_WORDS words, in input order."""
    texts: dict[str, None] = {}
    for text in _read_pages(pattern, WarcSettings(html=html)):
        if len(text.split()) >= MIN_WORDS:
            texts[text] = None
        if len(texts) == num_documents:
            break
    return list(texts)


def _read_pages(pattern: str, settings: WarcSettings) -> Iterator[str]:
    for number, path in enumerate(sorted(glob.glob(pattern, recursive=True))):
        batches = WarcReader(Path(path), settings, split=number, batch_bytes=1 << 22)
        for batch in batches:
            yield from filter(None, batch.column("text").to_pylist())


def name_signal(n: int) -> str:
    """Return the signal of the rule on n-grams."""
    return f"frac_chars_top_{n}gram" if n <= LAST_TOP else f"frac_chars_dupe_{n}grams"


def find_limit(n: int) -> float:
    """Return the limit of Gopher's table A1."""
    kind = "top" if n <= LAST_TOP else "duplicate"
    return getattr(QualityFilterSettings(), f"max_{kind}_{n}gram_char_share")


def measure_ours(texts: Sequence[str]) -> pa.Table:
    """Return our quality signals of each text."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(texts)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
        }
    )
    return Quality(QualitySettings()).apply(batch).kept


def measure_theirs(texts: Sequence[str]) -> dict[int, NDArray[np.float64]]:
    """Return n -> (num_texts,) float64: the shares that datatrove's filter compares."""
    from datatrove.pipeline.filters import (  # pyright: ignore[reportMissingImports]
        gopher_repetition_filter as peer,
    )
    from datatrove.utils.text import (  # pyright: ignore[reportMissingImports]
        split_into_words,
    )

    shares = {n: np.zeros(len(texts)) for n in LENGTHS}
    for row, text in enumerate(texts):
        words: list[str] = split_into_words(text, "eng")
        for n in LENGTHS:
            if n <= LAST_TOP:
                ngrams = peer.get_n_grams(words, n)
                num_chars = peer.find_top_duplicate(ngrams) if ngrams else 0
            else:
                num_chars = peer.find_all_duplicate(words, n)
            shares[n][row] = num_chars / len(text)
    return shares


def compare(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return signal -> documents dropped by each, and the shares of equal decisions."""
    signals, theirs = measure_ours(texts), measure_theirs(texts)
    figures: dict[str, dict[str, Any]] = {}
    for n in LENGTHS:
        limit = find_limit(n)
        peer = theirs[n] > limit
        ours = signals.column(name_signal(n)).to_numpy() > limit
        redpajama = signals.column(f"rps_doc_{name_signal(n)}").to_numpy() > limit
        figures[name_signal(n)] = {
            "limit": limit,
            "dropped_by_datatrove": int(peer.sum()),
            "dropped_by_ours": int(ours.sum()),
            "dropped_by_redpajama": int(redpajama.sum()),
            "dropped_only_by_datatrove": int((peer & ~ours).sum()),
            "dropped_only_by_ours": int((ours & ~peer).sum()),
            "agreement_of_ours": round(float(np.mean(peer == ours)), 4),
            "agreement_of_redpajama": round(float(np.mean(peer == redpajama)), 4),
        }
    return figures


def main() -> None:
    """Print the figures of each rule, and save them with `--save`."""
    parser = make_parser(__doc__)
    parser.add_argument("--files", required=True, help="a pattern of WARC or WET files")
    parser.add_argument("--documents", type=int, default=1500)
    parser.add_argument(
        "--main-content", action="store_true", help="of HTML pages, as in the recipes"
    )
    args = parser.parse_args()
    if run_with_peers("benchmarks.quality.repetition", PEERS):
        return
    html = HtmlSettings(main_content=args.main_content)
    texts = read_texts(args.files, args.documents, html)
    figures = compare(texts)
    print(f"{len(texts)} documents")
    for signal, found in figures.items():
        print(signal, found)
    if args.save:
        result = {
            "documents": len(texts),
            "main_content": args.main_content,
            "rules": figures,
        }
        name = "quality_repetition" + "_main_content" * args.main_content
        print(save(name, result, libraries=LIBRARIES))


if __name__ == "__main__":
    main()
