r"""Compare our Gopher quality and repetition rules with datatrove's two filters on the same documents.

    python -m venv peers && peers/bin/pip install "datatrove[processing]==0.10.1" spacy pyarrow "numpy<2.4" numba \
        "pydantic>=2.12" fastwarc isal warcio resiliparse
    peers/bin/python benchmarks/stages/quality_rules.py --files "crawl/*.warc.wet.gz" [--save]

Prints MB per CPU second (medians over rounds, in turns), the ratio, and how often both keep, both drop or differ, with
the rules that decided. Our stages compute every signal of every document and store it; datatrove's filters stop at the
first failed rule. Both treat every document as English.
"""

from __future__ import annotations

import argparse
import glob
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))  # so that the file runs from another environment

from benchmarks.result_file import save  # noqa: E402 - after the path is set
from stages.filters.quality import (  # noqa: E402
    Quality,
    QualityFilter,
    QualityFilterSettings,
    QualitySettings,
)
from stages.settings.warc import WarcSettings  # noqa: E402
from stages.warc.reader import WarcReader  # noqa: E402

LIBRARIES = "datatrove", "spacy", "numpy", "numba", "pyarrow"
BATCH_ROWS = 500
Judge = Callable[[Sequence[str]], list[str]]


def read(pattern: str, num_documents: int) -> Iterator[str]:
    """Yield the texts of the first documents of the files."""
    left = num_documents
    for number, path in enumerate(sorted(glob.glob(pattern))):
        for batch in WarcReader(
            Path(path), WarcSettings(), split=number, batch_bytes=1 << 22
        ):
            texts = [text for text in batch.column("text").to_pylist() if text][:left]
            yield from texts
            left -= len(texts)
            if not left:
                return


def ours(texts: Sequence[str]) -> list[str]:
    """Return the drop reason of each text, or "" if it is kept."""
    measure, judge = (
        Quality(QualitySettings()),
        QualityFilter(QualityFilterSettings(languages=None)),
    )
    found = [""] * len(texts)
    for first in range(0, len(texts), BATCH_ROWS):
        part = texts[first : first + BATCH_ROWS]
        batch = pa.table(
            {
                "doc_id": pa.array(range(first, first + len(part)), pa.uint64()),
                "text": pa.array(part, pa.large_string()),
                "language": pa.array(["en"] * len(part)),
            }
        )
        dropped = judge.apply(measure.apply(batch).kept).dropped
        for document, reason in zip(
            *(dropped.column(name).to_pylist() for name in ("doc_id", "reason")),
            strict=True,
        ):
            found[document] = reason
    return found


def theirs() -> Judge:
    from datatrove.data import Document
    from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter

    filters: list[Any] = [GopherQualityFilter(), GopherRepetitionFilter()]

    def judge(texts: Sequence[str]) -> list[str]:
        found: list[str] = []
        for text in texts:
            document, reason = Document(text=text, id=""), ""
            for each in filters:
                answer = each.filter(document)
                if answer is not True:
                    reason = answer[1] if isinstance(answer, tuple) else "dropped"
                    break
            found.append(reason)
        return found

    return judge


def format_pair(mine: str, other: str) -> str:
    """Return whether both decisions agree, or else both reasons."""
    if bool(mine) == bool(other):
        return "both drop" if mine else "both keep"
    return f"{mine or 'kept'} | {other or 'kept'}"


def main() -> None:
    """Measure both, print the figures, and save them with `--save`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", required=True, help="a pattern of WET files")
    parser.add_argument("--documents", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    texts = list(read(args.files, args.documents))
    megabytes = pc.sum(pc.binary_length(pa.array(texts, pa.large_string()))).as_py() / 1e6
    judges: dict[str, Judge] = {"ours": ours, "datatrove": theirs()}
    # This first call also compiles the kernels and loads spaCy's tokenizer.
    decisions = {name: judge(texts) for name, judge in judges.items()}
    seconds: dict[str, list[float]] = {name: [] for name in judges}
    for _ in range(args.rounds):
        for name, judge in judges.items():
            began = time.process_time()
            judge(texts)
            seconds[name].append(time.process_time() - began)
    median = {name: statistics.median(found) for name, found in seconds.items()}
    pairs = Counter(
        format_pair(mine, other)
        for mine, other in zip(decisions["ours"], decisions["datatrove"], strict=True)
    )
    figures = {
        "documents": len(texts),
        "megabytes": round(megabytes, 2),
        "mb_per_cpu_s": {name: round(megabytes / each, 3) for name, each in median.items()},
        "ratio": round(median["datatrove"] / median["ours"], 1),
        "ratio_by_round": [
            round(t / o, 1)
            for t, o in zip(seconds["datatrove"], seconds["ours"], strict=True)
        ],
        "decisions": dict(pairs.most_common()),
    }
    print(figures)
    if args.save:
        print(save("quality_rules", figures, libraries=LIBRARIES))


if __name__ == "__main__":
    main()
