r"""Compare the quality score of documents, and the signals that it is made of, on labelled pages.

    python -m benchmarks.quality.document_scores --gold FOLDER --work FOLDER [--save]

The pages and their kinds are those of WCXB (`gold_pages.py`): 2,008 pages of 2026. Two questions:

- prose: article, documentation and forum pages against collections, listings, products and services.
- articles: articles against all other pages.

A page's kind is no judgement of its text: there are poor articles and good product pages. The
labels tell texts from lists, which is the larger part of a quality filter's work.

The pipeline extracts the pages (main content), scores them with the models of the demo, and
combines the scores (`select.score: {}`), all in WORK, where a second call finds them. A figure is
the area under the ROC curve (AUC) or the average precision of one column on all pages. Figures of
the half that `GoldPage.is_held_out` names are beside them: nobody chose signals by it. The last row
is a logistic model that `models train quality` fits to the labels of the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.frame import finish, make_parser, print_table
from benchmarks.quality.gold_pages import GoldPage, digest_annotations, read_wcxb
from benchmarks.quality.gold_warc import write_warc
from pipeline.config import RunConfig
from pipeline.execution.engine import run
from pipeline.models.classifier_training import compute_average_precision, compute_roc_auc
from pipeline.phases.annotate import Annotate
from pipeline.phases.select import Select
from pipeline.planning.plan import make_plan
from pipeline.planning.prepare import prepare
from pipeline.quality_training import fit_quality
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import read_table

# Question -> the kinds of good pages.
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "prose": ("article", "documentation", "forum"),
    "articles": ("article",),
}

LANGUAGES = ("en", "fr", "es")

# Column -> 1: higher values are better; -1: lower ones.
COLUMNS: Mapping[str, int] = {
    "num_chars": 1,
    "classifier_wikipedia_reference": 1,
    "perplexity": -1,
    "rps_doc_frac_unique_words": -1,
    "rps_lines_num_words_mean": 1,
    "quality_score": 1,
}

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


def make_config(work: Path, score: Mapping[str, Any]) -> RunConfig:
    """Return a config that scores all pages, with this section `select.score`, and drops none."""
    classifier = {
        "models": {language: f"demo-reference-{language}" for language in LANGUAGES},
        "label": "__label__reference",
    }
    annotate = {
        "perplexity": {"models": {name: f"demo-lm-{name}" for name in LANGUAGES}},
        "classifiers": {"wikipedia_reference": classifier},
        "quality": {},
    }
    tree = {
        "run_dir": str(work / "run"),
        "input": {"files": [str(work / "pages.warc.gz")]},
        "extract": {"warc": {"html": {"main_content": True}}, "length": None},
        "paragraph_dedup": {"keep": "keep_all"},
        "annotate": annotate,
        "select": {"language": None, "score": score},
        "tokenize": {"tokenizer": "gpt2-bpe"},
        "engine": {"kind": "inline"},
    }
    return RunConfig.model_validate(tree)


def read_scores(run_folder: RunFolder) -> pa.Table:
    """Return the columns of COLUMNS of every kept document."""
    tables: list[pa.Table] = []
    for split in run_folder.splits:
        names = ["doc_id", *(name for name in COLUMNS if name != "quality_score")]
        file_name = Annotate.documents.file_name(split.key)
        stored = read_table(run_folder.folder(Annotate.name).open(file_name), names)
        file_name = Select.scores.file_name(split.key)
        scores = read_table(run_folder.folder(Select.name).open(file_name))
        tables.append(stored.join(scores, "doc_id", join_type="inner"))
    return pa.concat_tables(tables).sort_by("doc_id")


def measure(values: Values, is_good: Mask) -> dict[str, float]:
    """Return the AUC and the average precision of a score, high for good pages."""
    auc = compute_roc_auc(values[is_good], values[~is_good])
    return {
        "auc": round(auc, 3),
        "average_precision": round(compute_average_precision(values, is_good), 3),
    }


def compare(documents: pa.Table, pages: Sequence[GoldPage]) -> dict[str, Any]:
    """Return question -> column -> its figures on all pages and on the held-out half.

    Args:
        documents: of one input split, in which every page is one record.
        pages: in the order of the records.
    """
    # some pages have the same URL
    numbers = documents.column("doc_id").to_numpy() & np.uint64(0xFFFF_FFFF)
    found = [pages[number] for number in numbers.tolist()]
    is_held_out = np.array([page.is_held_out for page in found])
    figures: dict[str, Any] = {}
    for question, kinds in QUESTIONS.items():
        is_good = np.array([page.kind in kinds for page in found])
        columns: dict[str, Any] = {}
        for name, values in _list_values(documents):
            columns[name] = {
                "all": measure(values, is_good),
                "held_out": measure(values[is_held_out], is_good[is_held_out]),
            }
        share = round(float(is_good.mean()), 3)
        figures[question] = {"good": kinds, "good_share": share, "columns": columns}
    return figures


def _list_values(documents: pa.Table) -> Iterator[tuple[str, Values]]:
    """Yield the values of each column, high for good pages, with the median where there is none."""
    for name, sign in COLUMNS.items():
        values = documents.column(name).to_numpy().astype(np.float64)
        yield name, sign * np.where(np.isnan(values), np.nanmedian(values), values)


def compare_fitted(
    work: Path, documents: pa.Table, pages: Sequence[GoldPage]
) -> dict[str, Any]:
    """Fit a model to the pages that are not held out, for each question.

    Returns:
        Question -> the model's figures in cross-validation and on the held-out half.
    """
    doc_ids = documents.column("doc_id").to_pylist()
    figures: dict[str, Any] = {}
    for question, kinds in QUESTIONS.items():
        labels: dict[str | int, bool] = {}
        for doc_id in doc_ids:
            page = pages[doc_id & 0xFFFF_FFFF]
            if not page.is_held_out:
                labels[doc_id] = page.kind in kinds
        fitted = fit_quality(RunFolder.open(work / "run"), labels)
        scored = score_pages(work, fitted["score"])
        its = compare(scored, pages)[question]["columns"]["quality_score"]
        figures[question] = {
            "held_out": its["held_out"],
            "cross_validation": fitted["cross_validation"],
            "num_labels": len(labels),
            "num_signals": len(fitted["score"]["signals"]),
        }
    return figures


def score_pages(work: Path, score: Mapping[str, Any]) -> pa.Table:
    """Run the pipeline with this section `select.score`, and return the scores."""
    config = make_config(work, score)
    prepare(config)
    for _ in run(make_plan(config)):
        pass
    return read_scores(RunFolder.open(work / "run"))


def print_tables(figures: Mapping[str, Any]) -> None:
    """Print a table per question."""
    for question, its in figures.items():
        print(
            f"\n{question}: {', '.join(its['good'])} ({its['good_share']:.0%} of the pages)"
        )
        rows: list[tuple[object, ...]] = []
        for name, column in its["columns"].items():
            rows.append((name, *column["all"].values(), *column["held_out"].values()))
        fitted = its["fitted"]["held_out"].values()
        rows.append(("fitted to the other half", "", "", *fitted))
        print_table(("", "AUC", "AP", "held out: AUC", "AP"), rows)


def main() -> None:
    """Score the pages, print the tables, and save them."""
    parser = make_parser(__doc__)
    parser.add_argument("--gold", type=Path, required=True, help="folder with the clones")
    parser.add_argument("--work", type=Path, required=True, help="folder of the run")
    args = parser.parse_args()
    pages = list(read_wcxb(args.gold / "wcxb"))
    args.work.mkdir(parents=True, exist_ok=True)
    if not (args.work / "pages.warc.gz").exists():
        write_warc(pages, args.work / "pages.warc.gz")
    documents = score_pages(args.work, {})
    figures = compare(documents, pages)
    for question, fitted in compare_fitted(args.work, documents, pages).items():
        figures[question]["fitted"] = fitted
    print_tables(figures)
    saved = {
        "pages": len(pages),
        "documents": documents.num_rows,
        "annotations_sha256": digest_annotations(args.gold / "wcxb"),
        "questions": figures,
    }
    finish(args, "document_scores", saved)


if __name__ == "__main__":
    main()
