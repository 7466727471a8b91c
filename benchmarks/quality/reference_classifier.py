r"""Compare negatives of the reference classifier: random pages, what main content leaves out, both.

    python -m benchmarks.quality.reference_classifier --gold FOLDER --references FILE [--save]

FOLDER/wcxb is a clone of WCXB (`gold_pages.py`), FILE has one reference per line. The models are
trained on the half of the pages that is not held out. They score the main content of the held-out
pages whose domain has no page in the other half. A figure is the area under the ROC curve:

- own: of held-out texts of the sources that the model was trained on.
- pages: main content against the rest of the text of the pages.
- prose: article, documentation and forum pages against collections, listings, products, services.
- articles: articles against all other pages.

A page's kind is no judgement of its text: it tells texts from lists.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.frame import finish, make_parser, print_table
from benchmarks.quality.document_scores import QUESTIONS
from benchmarks.quality.gold_pages import GoldPage, digest_annotations, read_wcxb
from benchmarks.quality.gold_warc import write_warc
from pipeline.models.classifier_training import (
    DEFAULT_SETTINGS,
    REFERENCE_LABEL,
    ReferenceSettings,
    compute_roc_auc,
    train_reference,
)
from pipeline.models.corpus import CrawlPage, read_crawl, read_texts
from stages.filters import classifiers


def read_pages(pages: Sequence[GoldPage], folder: Path) -> list[tuple[CrawlPage, GoldPage]]:
    """Return the pages that can be read, as training reads them, each with its labels."""
    found: list[tuple[CrawlPage, GoldPage]] = []
    for page in pages:
        path = folder / "page.warc.gz"
        write_warc([page], path)
        found += [(each, page) for each in read_crawl([path])]
    return found


def measure(
    references: Sequence[str],
    pages: Sequence[tuple[CrawlPage, GoldPage]],
    folder: Path,
    settings: ReferenceSettings = DEFAULT_SETTINGS,
) -> dict[str, Any]:
    """Train a model for each kind of negatives, and return their figures."""
    training = [page for page, gold in pages if not gold.is_held_out]
    seen = {page.domain for page in training}
    held_out: list[tuple[CrawlPage, GoldPage]] = []
    for page, gold in pages:
        if gold.is_held_out and page.domain not in seen and page.main_content:
            held_out.append((page, gold))
    random_pages = [page.main_content for page in training if page.main_content]
    whole_pages = [f"{page.main_content}\n{page.left_out}" for page in training]
    # Name -> negative texts, and pages whose left-out text is negative.
    negatives: dict[str, tuple[list[str], list[CrawlPage]]] = {
        "random pages": (random_pages, []),
        "what main content leaves out": ([], training),
        "both": (whole_pages, training),
    }
    figures: dict[str, Any] = {}
    for name, (texts, crawl) in negatives.items():
        out = folder / name
        record = train_reference(references, texts, out, settings, crawl)
        scores = score_pages(classifiers.load_model(out), held_out)
        figures[name] = {"own": record["roc_auc"], **scores}
    return {"training_pages": len(training), "pages": len(held_out), "models": figures}


def score_pages(
    model: Any, pages: Sequence[tuple[CrawlPage, GoldPage]]
) -> dict[str, float]:
    """Return the AUC of the model for each question on the pages."""
    main = _score(model, [page.main_content for page, _ in pages])
    rest = _score(model, [page.left_out for page, _ in pages if page.left_out])
    found = {"pages": round(compute_roc_auc(main, rest), 3)}
    for question, kinds in QUESTIONS.items():
        is_good = np.array([gold.kind in kinds for _, gold in pages])
        found[question] = round(compute_roc_auc(main[is_good], main[~is_good]), 3)
    return found


def _score(model: Any, texts: Sequence[str]) -> NDArray[np.float64]:
    return classifiers.score_lines(
        model, REFERENCE_LABEL, list(map(classifiers.to_line, texts))
    )


def main() -> None:
    """Train, print the table, and save it."""
    parser = make_parser(__doc__)
    parser.add_argument("--gold", type=Path, required=True, help="folder with the clones")
    parser.add_argument("--references", type=Path, required=True, help="one text per line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pages = read_pages(list(read_wcxb(args.gold / "wcxb")), folder)
        figures = measure(list(read_texts([args.references])), pages, folder)
    print(f"{figures['training_pages']} pages for training, {figures['pages']} labelled")
    models = figures["models"]
    names = ("own", "pages", "prose", "articles")
    rows = [(name, *(its[key] for key in names)) for name, its in models.items()]
    print_table(("negatives", *names), rows)
    figures["annotations_sha256"] = digest_annotations(args.gold / "wcxb")
    finish(args, "reference_classifier", figures, ("fasttext", "resiliparse"))


if __name__ == "__main__":
    main()
