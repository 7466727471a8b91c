"""Compare our Gopher rules with datatrove's filters on the same documents: speed, decisions, and each rule on n-grams.

    python -m benchmarks.quality.gopher_rules --files "crawl/*.warc.wet.gz" [--main-content] [--save]

First both decide on all texts, in turns: CPU seconds, the ratio, and how often both keep, both drop or differ, with the
rules that decided. Our stages compute every signal of every document; datatrove's filters stop at the first failed rule.
Both treat every document as English.

Then, for each rule of Gopher's table A1 on n-grams: the documents that it drops, the share with equal decisions, and how
many documents only one of the two drops. RedPajama-V2's signals with the same limits are shown beside ours. Equal texts
count once here. Documents under Gopher's 50 words are left out: another rule drops them first.
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.frame import (
    compare_with,
    count_bytes,
    finish,
    make_parser,
    print_comparison,
    take_turns,
    time_cpu,
)
from benchmarks.quality.peer_environment import run_with_peers
from stages.filters.quality import (
    Quality,
    QualityFilter,
    QualityFilterSettings,
    QualitySettings,
)
from stages.settings.warc import HtmlSettings, WarcSettings
from stages.warc.reader import WarcReader

PEERS = Path(__file__).with_name("gopher_rules-peers.txt")
LIBRARIES = ("datatrove", "spacy", "numpy", "numba", "pyarrow", "resiliparse")

BATCH_ROWS = 500
MIN_WORDS = 50
LENGTHS = range(2, 11)
LAST_TOP = 4  # the rules for n = 2 to 4 judge the most frequent n-gram


def read_texts(pattern: str, html: HtmlSettings) -> Iterator[str]:
    """Yield the texts of files, in input order."""
    settings = WarcSettings(html=html)
    for number, path in enumerate(sorted(glob.glob(pattern, recursive=True))):
        batches = WarcReader(Path(path), settings, split=number, batch_bytes=1 << 22)
        for batch in batches:
            yield from filter(None, batch.column("text").to_pylist())


def read_different_texts(pattern: str, html: HtmlSettings) -> Iterator[str]:
    """Yield different texts of at least MIN_WORDS words."""
    seen: set[str] = set()
    for text in read_texts(pattern, html):
        if len(text.split()) >= MIN_WORDS and text not in seen:
            seen.add(text)
            yield text


# ---- whole filters ----


def judge_with_ours(texts: Sequence[str]) -> list[str]:
    """Return the drop reason of each text, or "" if it is kept."""
    judge = QualityFilter(QualityFilterSettings(languages=None))
    found = [""] * len(texts)
    for first in range(0, len(texts), BATCH_ROWS):
        batch = measure_ours(texts[first : first + BATCH_ROWS])
        dropped = judge.apply(batch).dropped
        for row in dropped.select(["doc_id", "reason"]).to_pylist():
            found[first + row["doc_id"]] = row["reason"]
    return found


def make_datatrove_judge() -> Callable[[Sequence[str]], list[str]]:
    """Return a function like `judge_with_ours`, of datatrove's two filters."""
    from datatrove.data import Document  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline.filters import (  # pyright: ignore[reportMissingImports]
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    filters: list[Any] = [GopherQualityFilter(), GopherRepetitionFilter()]

    def judge_text(text: str) -> str:
        document = Document(text=text, id="")
        for each in filters:
            answer = each.filter(document)
            if answer is not True:
                return answer[1] if isinstance(answer, tuple) else "dropped"
        return ""

    return lambda texts: [judge_text(text) for text in texts]


def format_pair(mine: str, other: str) -> str:
    """Return whether both decisions agree, or else both reasons."""
    if bool(mine) == bool(other):
        return "both drop" if mine else "both keep"
    return f"{mine or 'kept'} | {other or 'kept'}"


def compare_filters(texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Return the speeds and the pairs of decisions."""
    judges = {"ours": judge_with_ours, "datatrove": make_datatrove_judge()}
    decisions = [judge(texts) for judge in judges.values()]
    entrants = {name: time_cpu(partial(judge, texts)) for name, judge in judges.items()}
    seconds = take_turns(entrants, rounds)
    return {
        "documents": len(texts),
        "entrants": compare_with(seconds, "ours", count_bytes(texts)),
        "decisions": dict(Counter(map(format_pair, *decisions)).most_common()),
    }


# ---- each rule on repeated n-grams ----


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
            "language": ["en"] * len(texts),
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
    """Print the figures, and save them with `--save`."""
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--files", required=True, help="a pattern of WARC or WET files")
    parser.add_argument("--documents", type=int, default=1500)
    parser.add_argument(
        "--main-content", action="store_true", help="of HTML pages, as in the recipes"
    )
    args = parser.parse_args()
    if run_with_peers("benchmarks.quality.gopher_rules", PEERS):
        return
    html = HtmlSettings(main_content=args.main_content)
    texts = list(islice(read_texts(args.files, html), args.documents))
    filters = compare_filters(texts, args.rounds)
    print_comparison(filters["entrants"], "ours")
    print(filters["decisions"])
    different = list(islice(read_different_texts(args.files, html), args.documents))
    rules = compare(different)
    print(f"{len(different)} documents")
    for signal, found in rules.items():
        print(signal, found)
    figures = {"filters": filters, "documents": len(different), "rules": rules}
    name = "gopher_rules" + "_main_content" * args.main_content
    finish(args, name, figures, LIBRARIES)


if __name__ == "__main__":
    main()
