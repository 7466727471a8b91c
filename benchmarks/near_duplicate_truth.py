"""Compare fuzzy_dedup with exact Jaccard similarities and with datasketch.

    python -m benchmarks.near_duplicate_truth                          # some minutes on one core
    python -m benchmarks.near_duplicate_truth --texts 300 --pages 500  # a small form

Edited texts: summaries of Wikipedia, each unchanged and with some words replaced by words of other summaries, such that
similarities between 0.4 and 1 are likely. The true similarity of every pair is computed from the word n-grams that the
two texts share. For every pair above 0.4 the benchmark records whether it is found: by a common band (`off`), and after
each kind of `annotate.minhash.verify`. The expected share follows from the formula 1 - (1 - s^rows)^bands.
datasketch.MinHashLSH searches the same pairs with the same permutations. The decisions of the pipeline are compared,
document by document, with those of plain Python, which joins datasketch's pairs and keeps the first of each cluster.

Sample crawl: the truth table names the source of each edited copy. Pairs are all pages in the output of annotate that
are similar, including pairs that are not in the truth table.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import datasketch
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.near_duplicates import wet_record
from benchmarks.result_file import save
from pipeline.config import load
from pipeline.execution.engine import PhaseFinished, run
from pipeline.models.demo_texts import summaries
from pipeline.phases.fuzzy_dedup import FuzzyDedup
from pipeline.planning.plan import make_plan
from pipeline.planning.run_plan import RunPlan
from pipeline.sample_crawl.generator import generate
from stages.dedup.minhash import (
    SEED,
    MinHash,
    MinHashSettings,
    compute_bands,
    signatures,
    split_ngrams,
)

# Pairs below this similarity are not counted: with 9 bands of 13 rows, one in 16,000 is a
# candidate.
LOWEST = 0.4
BINS = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
Verify = Literal["off", "signatures", "exact"]
VERIFY: tuple[Verify, ...] = ("off", "signatures", "exact")
Pair = tuple[int, int]

CONFIG = """
run_dir: {folder}/run
input: {{files: ["{files}"]}}
extract: {{length: {{min_chars: {min_chars}}}}}
paragraph_dedup: {{keep: {keep}}}
annotate: {{language: {{max_chars: 20}}, minhash: {{threshold: {threshold}, verify: {verify}}}}}
fuzzy_dedup: {{keep: first}}
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
        threshold=settings.threshold, num_perm=settings.num_permutations
    )
    pairs: set[Pair] = set()
    for i, text in enumerate(texts):
        sketch = datasketch.MinHash(num_perm=settings.num_permutations, seed=SEED)
        if grams := split_ngrams(text, settings.ngram_words):
            sketch.update_batch([gram.encode() for gram in grams])
            pairs |= {(int(str(j)), i) for j in index.query(sketch)}
            index.insert(i, sketch)
    return pairs


def verified(
    pairs: Iterable[Pair],
    texts: Sequence[str],
    jaccard: dict[Pair, float],
    settings: MinHashSettings,
    verify: Verify,
) -> set[Pair]:
    """Return the candidate pairs that pass the verification."""
    if verify == "off":
        return set(pairs)
    if verify == "exact":
        return {pair for pair in pairs if jaccard.get(pair, 0.0) >= settings.threshold}
    minima, _ = signatures(pa.array(texts, pa.large_string()), settings)
    least = settings.threshold * settings.num_permutations
    return {(a, b) for a, b in pairs if (minima[a] == minima[b]).sum() >= least}


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
    found = {
        verify: verified(candidates, texts, jaccard, settings, verify) for verify in VERIFY
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
        "by_similarity": [],
        "verify": {},
    }
    for low, high in itertools.pairwise(BINS):
        here = [pair for pair, s in jaccard.items() if low <= s < high or s == high == 1.0]
        if here:
            expected = np.mean(
                [1 - (1 - jaccard[pair] ** num_rows) ** num_bands for pair in here]
            )
            shares = {
                verify: round(len(found[verify].intersection(here)) / len(here), 3)
                for verify in VERIFY
            }
            row = {
                "from": low,
                "to": high,
                "pairs": len(here),
                "expected": round(float(expected), 3),
                **shares,
            }
            figures["by_similarity"].append(row)
    for verify in VERIFY:
        plan: RunPlan = make_run_plan(folder / verify, {"off": "null"}.get(verify, verify))
        ours = verdicts(plan)
        wanted = groups(verified(theirs, texts, jaccard, settings, verify), len(texts))
        figures["verify"][verify] = {
            "recall": _share(len(found[verify] & near), len(near)),
            "precision": _share(len(found[verify] & near), len(found[verify])),
            "documents_dropped": len(ours),
            "as_datasketch": {
                "equal": sum(ours.get(i) == wanted.get(i) for i in range(len(texts))),
                "different": sum(ours.get(i) != wanted.get(i) for i in range(len(texts))),
            },
        }
    return figures


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
    settings = MinHashSettings(threshold=threshold)
    texts = edited_texts(num_texts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = b"".join(wet_record(i, f"Title\n{text}") for i, text in enumerate(texts))
        (folder / "0.warc.wet").write_bytes(content)
        return compare(
            texts,
            settings,
            folder,
            lambda place, verify: _plan(place, folder, threshold, verify, 10),
        )


def measure_crawl(num_pages: int, threshold: float) -> dict[str, Any]:
    """Compare on the sample crawl, without paragraph_dedup, which would remove its mirrored pages."""
    settings = MinHashSettings(threshold=threshold)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        crawl = generate(folder / "crawl", num_documents=num_pages, seed=1, format="wet")

        def make_run_plan(place: Path, verify: str) -> RunPlan:
            return _plan(place, folder / "crawl", threshold, verify, 300)

        plan = make_run_plan(folder / "off", "false")
        dropped = verdicts(plan)
        texts = [text for _, text in annotated(plan)]
        figures = compare(texts, settings, folder, make_run_plan)
        figures["truth_table"] = _by_kind(
            crawl.truth, plan, set(dropped) | set(dropped.values())
        )
        return figures


def _by_kind(truth: Path, plan: RunPlan, in_groups: set[int]) -> dict[str, dict[str, int]]:
    """Return the number of annotated pages of each kind, and how many have a near-duplicate."""
    kinds = {
        row["url"]: row["kind"]
        for row in pq.read_table(truth, columns=["url", "kind"]).to_pylist()
    }
    urls: list[str] = []
    for split in plan.splits:
        with plan.folder("annotate").open(f"{split.key}.documents.parquet") as file:
            urls += pq.read_table(file, columns=["url"]).column("url").to_pylist()
    pages = Counter(kinds[url] for url in urls)
    grouped = Counter(kinds[url] for i, url in enumerate(urls) if i in in_groups)
    return {
        kind: {"pages": num_pages, "with_near_duplicate": grouped[kind]}
        for kind, num_pages in pages.items()
    }


def _plan(
    place: Path, files: Path, threshold: float, verify: str, min_chars: int
) -> RunPlan:
    place.mkdir(exist_ok=True)
    (place / "near.yaml").write_text(
        CONFIG.format(
            folder=place,
            files=f"{files}/*.warc.wet*",
            threshold=threshold,
            verify=verify,
            min_chars=min_chars,
            keep="keep_all",
        )
    )
    return make_plan(load(str(place / "near.yaml")))


def show(name: str, figures: dict[str, Any]) -> None:
    """Print the figures as tables."""
    equal, num_near = figures["candidates_as_datasketch"], figures["pairs_at_threshold"]
    print(
        f"\n{name}: {figures['texts']:,} texts, {num_near:,} pairs of {figures['threshold']} and more"
    )
    print(
        f"pairs as datasketch.MinHashLSH has them: {equal['equal']:,} equal, {equal['different']:,} different"
    )
    print("similarity     pairs  expected     off  signatures  exact")
    for row in figures["by_similarity"]:
        shares = f"{row['off']:7.3f} {row['signatures']:11.3f} {row['exact']:6.3f}"
        print(
            f"{row['from']:.2f}-{row['to']:.2f}  {row['pairs']:9,} {row['expected']:9.3f} {shares}"
        )
    for verify, row in figures["verify"].items():
        same = row["as_datasketch"]
        print(
            f"{verify:<10}  recall {row['recall']}, precision {row['precision']}, {row['documents_dropped']:,} dropped; "
            f"decisions of plain Python: {same['equal']:,} equal, {same['different']:,} different"
        )
    if "truth_table" in figures:
        for kind, row in figures["truth_table"].items():
            print(
                f"{kind:<15} {row['pages']:>7,} pages, {row['with_near_duplicate']:,} with a near-duplicate"
            )


def main() -> None:
    """Compare on both kinds of text, print the tables, and save the figures with `--save`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--texts", type=int, default=4_000, help="texts, each with an edited copy"
    )
    parser.add_argument(
        "--pages", type=int, default=5_000, help="pages of the sample crawl"
    )
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    figures = {
        "edited_texts": measure_texts(args.texts, args.threshold),
        "sample_crawl": measure_crawl(args.pages, args.threshold),
    }
    for name, one in figures.items():
        show(name.replace("_", " "), one)
    if args.save:
        print(
            save(
                "near_duplicate_truth",
                figures,
                libraries=("datasketch", "numpy", "numba", "pyarrow"),
            )
        )


if __name__ == "__main__":
    main()
