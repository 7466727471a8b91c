"""Compare the decisions of a run with the truth table of its sample crawl.

    python -m benchmarks.decisions runs/ccnet

Prints recall and precision of four kinds of decision: lines and documents removed as exact duplicates; languages;
low-quality text (word salad and keyword spam) dropped by perplexity or a classifier; and near-duplicates. An edited
copy and its source must be found if the exact Jaccard similarity of their remaining texts reaches the config's
threshold. MinHash finds pairs near the threshold with some probability, so the similarities of all pairs are printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.frame import make_parser, print_table
from pipeline.config import RunConfig
from pipeline.inputs.input_splits import locate_sample_crawl
from pipeline.runs.run_folder import RunFolder
from stages.dedup.minhash import split_ngrams

# Kinds of page whose text is in one known language.
LABELLED = ("good", "foreign", "near_source", "near_copy", "partial_source", "partial_copy")

QUALITY_REASONS = ("perplexity.", "classifiers.", "quality.")


@dataclass(frozen=True)
class Measure:
    """Recall and precision of one kind of decision."""

    num_right: int
    num_wanted: int
    num_found: int

    @property
    def recall(self) -> float:
        """The share of the wanted items that were found."""
        return self.num_right / self.num_wanted if self.num_wanted else 1.0

    @property
    def precision(self) -> float:
        """The share of the found items that were wanted."""
        return self.num_right / self.num_found if self.num_found else 1.0


def measure(run: RunFolder) -> dict[str, Measure]:
    """Return recall and precision of every kind of decision of a finished run on a sample crawl."""
    config = RunConfig.model_validate(run.config)
    truth = _read_truth(config)
    pages = _pages(run)
    measures = {
        "duplicate lines": _duplicate_lines(truth, pages),
        "duplicate documents": _documents(truth, pages, "emptied", ("paragraphs.",)),
        "short documents": _documents(truth, pages, "too_short", ("length.",)),
        "languages": _languages(truth, pages),
        "low quality": _documents(truth, pages, "low_quality", QUALITY_REASONS),
    }
    if config.fuzzy_dedup is not None:
        measures["near-duplicates"] = _near_duplicates(run, pages)
    return measures


def _read_truth(config: RunConfig) -> list[dict[str, Any]]:
    crawl = config.input.sample_crawl
    assert crawl is not None, (
        "the run has no sample crawl, and only sample crawls have a truth table"
    )
    return pq.read_table(locate_sample_crawl(crawl) / "truth.parquet").to_pylist()


def similarities(run: RunFolder) -> dict[frozenset[str], float]:
    """Return the exact Jaccard similarity of each edited copy and its source, by their URLs, if both have text left."""
    config = RunConfig.model_validate(run.config)
    assert config.annotate.minhash is not None, (
        "the run has no annotate.minhash, which defines the n-grams"
    )
    pairs = [
        frozenset((row["url"], row["source_url"]))
        for row in _read_truth(config)
        if row["kind"] == "near_copy"
    ]
    urls = frozenset[str]().union(*pairs)
    grams: dict[str, set[str]] = {}
    for path in sorted(Path(run.folder("annotate").path("")).glob("*.documents.parquet")):
        for row in pq.read_table(path, columns=["url", "text"]).to_pylist():
            if row["url"] in urls:
                grams[row["url"]] = set(
                    split_ngrams(row["text"], config.annotate.minhash.ngram_words)
                )
    return {
        pair: _jaccard(*(grams[url] for url in pair))
        for pair in pairs
        if pair <= grams.keys()
    }


def _jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, len(one | other))


def _pages(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Return the stored columns of every page, by URL. Later phases overwrite the columns of phases before them."""
    pages: dict[str, dict[str, Any]] = {}
    for phase in ("extract", "annotate", "select"):
        for kind in ("documents", "decisions"):
            for path in sorted(Path(run.folder(phase).path("")).glob(f"*.{kind}.parquet")):
                names = [
                    n
                    for n in pq.read_schema(path).names
                    if n not in ("text", "paragraph_hashes")
                ]
                for row in pq.read_table(path, columns=names).to_pylist():
                    known = {k: v for k, v in row.items() if v is not None}
                    pages.setdefault(row["url"], {}).update(known)
    return pages


def _duplicate_lines(
    truth: list[dict[str, Any]], pages: Mapping[str, dict[str, Any]]
) -> Measure:
    right = wanted = found = 0
    for row in truth:
        page = pages.get(row["url"], {})
        if row["num_repeated_lines"] is None or "original_num_lines" not in page:
            continue
        removed = page["original_num_lines"] - len(page.get("kept_lines", ()))
        wanted += row["num_repeated_lines"]
        found += removed
        right += min(removed, row["num_repeated_lines"])
    return Measure(right, wanted, found)


def _documents(
    truth: list[dict[str, Any]],
    pages: Mapping[str, dict[str, Any]],
    decision: str,
    reasons: tuple[str, ...],
) -> Measure:
    """Measure documents that must be dropped for one of these reasons. Pages without an expected decision are ignored."""
    claimed = [
        row
        for row in truth
        if row["expected_decision"] not in ("any", "quarantined") and row["url"] in pages
    ]
    wanted = {row["url"] for row in claimed if row["expected_decision"] == decision}
    found = {
        row["url"]
        for row in claimed
        if pages[row["url"]].get("decision", "").startswith(reasons)
    }
    return Measure(len(wanted & found), len(wanted), len(found))


def _near_duplicates(run: RunFolder, pages: Mapping[str, dict[str, Any]]) -> Measure:
    config = RunConfig.model_validate(run.config)
    assert config.annotate.minhash is not None
    # A pair below the threshold counts neither as right nor as wrong, because MinHash finds it by chance.
    edited = similarities(run)
    wanted = {
        pair
        for pair, similarity in edited.items()
        if similarity >= config.annotate.minhash.threshold
    }
    urls = {page["doc_id"]: url for url, page in pages.items()}
    found = {
        frozenset((url, urls[p["representative"]]))
        for url, p in pages.items()
        if "representative" in p
    }
    return Measure(len(wanted & found), len(wanted), len(found - (edited.keys() - wanted)))


def _languages(truth: list[dict[str, Any]], pages: Mapping[str, dict[str, Any]]) -> Measure:
    scored = [
        row
        for row in truth
        if row["kind"] in LABELLED and "language" in pages.get(row["url"], {})
    ]
    right = sum(pages[row["url"]]["language"] == row["language"] for row in scored)
    wanted = sum(row["kind"] in LABELLED and row["url"] in pages for row in truth)
    return Measure(right, wanted, len(scored))


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__, saves=False)
    parser.add_argument("run", type=Path, help="folder of a finished run on a sample crawl")
    run = RunFolder.open(parser.parse_args().run)
    rows = [
        (
            name,
            m.num_wanted,
            m.num_found,
            m.num_right,
            f"{m.recall:.4f}",
            f"{m.precision:.4f}",
        )
        for name, m in measure(run).items()
    ]
    print_table(("decision", "wanted", "found", "right", "recall", "precision"), rows)
    if run.config.fuzzy_dedup is not None:
        exact = sorted(similarities(run).values())
        print(
            f"Exact Jaccard similarity of {len(exact):,} edited copies and their sources: least "
            f"{exact[0]:.3f}, median {exact[len(exact) // 2]:.3f}, most {exact[-1]:.3f}"
        )


if __name__ == "__main__":
    main()
