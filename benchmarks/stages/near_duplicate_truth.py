"""Compare fuzzy_dedup with exact Jaccard similarities and with datasketch.

    python -m benchmarks.stages.near_duplicate_truth                          # some minutes on one core
    python -m benchmarks.stages.near_duplicate_truth --texts 300 --pages 500  # a small form

Edited texts: summaries of Wikipedia, each unchanged and with some words replaced by words of other summaries, such that
similarities between 0.4 and 1 are likely. The true similarity of every pair is computed from the word n-grams that the
two texts share. For every pair above 0.4 the benchmark records whether it has a common band. The expected share follows
from the formula 1 - (1 - s^rows)^bands. datasketch.MinHashLSH searches the same pairs with the same permutations and
bands. The decisions of the pipeline are compared, document by document, with those of plain Python on datasketch's
pairs, with `fuzzy_dedup.rule` off and as `jaccard`. Of the decisions two shares are measured:

    recall      pairs at the threshold and above of which at most one document is kept
    precision   dropped documents that are similar to their own representative

The same is measured on the sample crawl, and with `--files` on real pages. Pairs are all pages in the output of annotate
that are similar.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasketch
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.frame import finish, make_parser, print_table
from pipeline.config import load
from pipeline.execution.engine import PhaseFinished, run
from pipeline.models.demo.texts import summaries
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import make_plan
from pipeline.sample_crawl.generator import generate
from stages.dedup.minhash import (
    SEED,
    MinHash,
    MinHashSettings,
    compute_bands,
    split_ngrams,
)
from tests.conftest import wet_record

# Pairs below this similarity are not counted.
LOWEST = 0.4
BINS = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
RULES = ("null", "jaccard")
Pair = tuple[int, int]

CONFIG = """
run_dir: {folder}/run
input: {{files: ["{files}"]}}
extract: {{length: {{min_chars: {min_chars}}}}}
paragraph_dedup: {{keep: keep_all}}
annotate: {{language: {{max_chars: 20}}, minhash: {{threshold: {threshold}}}}}
fuzzy_dedup: {{keep: first, rule: {rule}}}
tokenize: {{tokenizer: gpt2-bpe}}
engine: {{kind: inline}}
"""


def edited_texts(num_texts: int, seed: int = 1) -> list[str]:
    """Return summaries of at least 60 words and an edited copy of each, shuffled."""
    rng = random.Random(seed)
    found = [text for _, text in summaries("en", "pages") if len(text.split()) >= 60][
        :num_texts
    ]
    words = [word for text in found for word in text.split()]
    texts = list(found)
    for text in found:
        # Of n words a share p is replaced: a word 5-gram is unchanged with probability (1 - p)^5, and s = x / (2 - x) for a share x.
        wanted = rng.uniform(LOWEST, 1.0)
        share = 1 - (2 * wanted / (1 + wanted)) ** (1 / MinHashSettings().ngram_words)
        texts.append(
            " ".join(
                rng.choice(words) if rng.random() < share else word for word in text.split()
            )
        )
    rng.shuffle(texts)
    return texts


def similarities(texts: Sequence[str], settings: MinHashSettings) -> dict[Pair, float]:
    """Return the exact Jaccard similarity of every pair of at least LOWEST."""
    sets = [set(split_ngrams(text, settings.ngram_words)) for text in texts]
    holders: dict[str, list[int]] = defaultdict(list)
    for i, one in enumerate(sets):
        for gram in one:
            holders[gram].append(i)
    shared = Counter(
        (a, b) for found in holders.values() for k, b in enumerate(found) for a in found[:k]
    )
    jaccard = {
        (a, b): n / (len(sets[a]) + len(sets[b]) - n) for (a, b), n in shared.items()
    }
    return {pair: s for pair, s in jaccard.items() if s >= LOWEST}


def found_pairs(texts: Sequence[str], settings: MinHashSettings) -> set[Pair]:
    """Return the pairs of texts with a common band, according to the MinHash stage."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(texts)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
        }
    )
    holders: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(
        MinHash(settings).apply(batch).kept.column("minhash").to_pylist()
    ):
        for number in row or ():
            holders[number].append(i)
    return {
        (a, b) for found in holders.values() for k, b in enumerate(found) for a in found[:k]
    }


def datasketch_pairs(texts: Sequence[str], settings: MinHashSettings) -> set[Pair]:
    """Return the same pairs according to datasketch.MinHashLSH, which uses the same permutations."""
    index = datasketch.MinHashLSH(
        params=compute_bands(settings), num_perm=settings.num_permutations
    )
    pairs: set[Pair] = set()
    for i, text in enumerate(texts):
        sketch = datasketch.MinHash(num_perm=settings.num_permutations, seed=SEED)
        if grams := split_ngrams(text, settings.ngram_words):
            sketch.update_batch([gram.encode() for gram in grams])
            pairs |= {(int(str(j)), i) for j in index.query(sketch)}
            index.insert(i, sketch)
    return pairs


def decide(pairs: Iterable[Pair], num_texts: int) -> dict[int, int]:
    """Return the representative of each dropped text: the first kept text that is similar to it."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for a, b in pairs:
        neighbours[max(a, b)].append(min(a, b))
    dropped: dict[int, int] = {}
    for text in range(num_texts):
        kept = [other for other in neighbours[text] if other not in dropped]
        if kept:
            dropped[text] = min(kept)
    return dropped


def groups(pairs: Iterable[Pair], num_texts: int) -> dict[int, int]:
    """Return the representative of each dropped text: the first text of its cluster."""
    labels = list(range(num_texts))

    def root(i: int) -> int:
        while labels[i] != i:
            i = labels[i]
        return i

    for a, b in pairs:
        one, other = sorted((root(a), root(b)))
        labels[other] = one
    return {i: root(i) for i in range(num_texts) if root(i) != i}


def compare(
    texts: Sequence[str], settings: MinHashSettings, folder: Path, make_run_plan: Any
) -> dict[str, Any]:
    """Return recall, precision, shares by similarity, and differences to datasketch and plain Python."""
    jaccard = similarities(texts, settings)
    near = {pair for pair, s in jaccard.items() if s >= settings.threshold}
    candidates, theirs = found_pairs(texts, settings), datasketch_pairs(texts, settings)
    num_bands, num_rows = compute_bands(settings)
    wanted = {
        "null": groups(theirs, len(texts)),
        "jaccard": decide(theirs & near, len(texts)),
    }
    figures: dict[str, Any] = {
        "texts": len(texts),
        "threshold": settings.threshold,
        "bands": [num_bands, num_rows],
        "pairs_at_threshold": len(near),
        "candidates_as_datasketch": {
            "equal": len(candidates & theirs),
            "different": len(candidates ^ theirs),
        },
        "by_similarity": list(_describe_bins(jaccard, candidates, num_bands, num_rows)),
    }
    figures["rules"] = {}
    for rule in RULES:
        ours = verdicts(make_run_plan(folder / rule, rule))
        figures["rules"][rule] = _describe_rule(rule, ours, wanted[rule], near, len(texts))
    return figures


def _describe_bins(
    jaccard: dict[Pair, float], candidates: set[Pair], num_bands: int, num_rows: int
) -> Iterator[dict[str, Any]]:
    """Yield the share of pairs that are found, and the expected one, by similarity."""
    for low, high in itertools.pairwise(BINS):
        here = [pair for pair, s in jaccard.items() if low <= s < high or s == high == 1.0]
        if not here:
            continue
        expected = [1 - (1 - jaccard[pair] ** num_rows) ** num_bands for pair in here]
        yield {
            "from": low,
            "to": high,
            "pairs": len(here),
            "expected": round(float(np.mean(expected)), 3),
            "found": round(len(candidates.intersection(here)) / len(here), 3),
        }


def _describe_rule(
    rule: str,
    ours: dict[int, int],
    wanted: dict[int, int],
    near: set[Pair],
    num_texts: int,
) -> dict[str, Any]:
    """Return recall and precision of a rule, and differences to plain Python."""
    num_right = sum(
        (kept, text) in near or (text, kept) in near for text, kept in ours.items()
    )
    num_equal = sum(ours.get(i) == wanted.get(i) for i in range(num_texts))
    return {
        "rule": rule,
        "recall": _share(sum(a in ours or b in ours for a, b in near), len(near)),
        "precision": _share(num_right, len(ours)),
        "documents_dropped": len(ours),
        "as_plain_python": {"equal": num_equal, "different": num_texts - num_equal},
    }


def _share(some: int, of: int) -> float | None:
    return round(some / of, 4) if of else None


def verdicts(plan: RunPlan) -> dict[int, int]:
    """Return the representative of each near-duplicate that the pipeline drops, as positions in annotate's output."""
    for event in run(plan):
        if isinstance(event, PhaseFinished) and event.phase == "fuzzy_dedup":
            break
    order = {doc_id: i for i, (doc_id, _) in enumerate(annotated(plan))}
    phase = FuzzyDedup(plan)
    return {
        order[split.index << 32 | row["record"]]: order[row["representative"]]
        for split in plan.splits
        for row in phase.find_near_duplicates(split).to_pylist()
    }


def annotated(plan: RunPlan) -> list[tuple[int, str]]:
    """Return id and text of the documents in the output of annotate."""
    rows: list[tuple[int, str]] = []
    for split in plan.splits:
        with plan.folder("annotate").open(f"{split.key}.documents.parquet") as file:
            table = pq.read_table(file, columns=["doc_id", "text"])
        rows += zip(
            table.column("doc_id").to_pylist(),
            table.column("text").to_pylist(),
            strict=True,
        )
    return rows


def measure_texts(num_texts: int, threshold: float) -> dict[str, Any]:
    """Compare on edited copies of real texts."""
    texts = edited_texts(num_texts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = b"".join(
            wet_record(f"https://example.org/{i}", f"Title\n{text}", number=i)
            for i, text in enumerate(texts)
        )
        (folder / "0.warc.wet").write_bytes(content)
        make_run_plan = partial(_plan, f"{folder}/*.warc.wet", threshold, 10)
        return compare(texts, MinHashSettings(threshold=threshold), folder, make_run_plan)


def measure_crawl(num_pages: int, threshold: float) -> dict[str, Any]:
    """Compare on the sample crawl."""
    with tempfile.TemporaryDirectory() as name:
        generate(Path(name), num_documents=num_pages, seed=1, format="wet")
        return measure_files(f"{name}/*.warc.wet*", threshold)


def measure_files(files: str, threshold: float) -> dict[str, Any]:
    """Compare on the pages of WET files, without paragraph_dedup, which would remove mirrored pages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_run_plan = partial(_plan, files, threshold, 300)
        plan = make_run_plan(folder / "null", "null")
        verdicts(plan)
        texts = [text for _, text in annotated(plan)]
        settings = MinHashSettings(threshold=threshold)
        return compare(texts, settings, folder, make_run_plan)


def _plan(files: str, threshold: float, min_chars: int, place: Path, rule: str) -> RunPlan:
    place.mkdir(exist_ok=True)
    settings = {"files": files, "threshold": threshold, "rule": rule}
    text = CONFIG.format(folder=place, min_chars=min_chars, **settings)
    (place / "near.yaml").write_text(text)
    return make_plan(load(str(place / "near.yaml")))


def show(name: str, figures: dict[str, Any]) -> None:
    """Print the figures as tables."""
    equal, num_near = figures["candidates_as_datasketch"], figures["pairs_at_threshold"]
    print(f"\n{name}: {figures['texts']:,} texts, {num_near:,} pairs at the threshold")
    print(f"pairs as datasketch.MinHashLSH has them: {equal}")
    for rows in (figures["by_similarity"], list(figures["rules"].values())):
        print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])


def main() -> None:
    """Compare on both kinds of text, print the tables, and save the figures with `--save`."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--texts", type=int, default=4_000, help="texts, each with an edited copy"
    )
    parser.add_argument(
        "--pages", type=int, default=5_000, help="pages of the sample crawl"
    )
    parser.add_argument("--files", help="pattern of WET files with real pages")
    parser.add_argument("--threshold", type=float, default=0.8)
    args = parser.parse_args()
    figures = {
        "edited_texts": measure_texts(args.texts, args.threshold),
        "sample_crawl": measure_crawl(args.pages, args.threshold),
    }
    if args.files:
        figures["real_pages"] = measure_files(args.files, args.threshold)
    for name, one in figures.items():
        show(name.replace("_", " "), one)
    libraries = ("datasketch", "numpy", "numba", "pyarrow")
    finish(args, "near_duplicate_truth", figures, libraries)


if __name__ == "__main__":
    main()
