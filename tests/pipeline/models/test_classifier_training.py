"""Training of the reference classifier: reproducible, with correct figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pipeline.commands.models import models_app
from pipeline.models.classifier_training import (
    CRAWL_LABEL,
    REFERENCE_LABEL,
    ReferenceSettings,
    compute_precision_and_recall,
    compute_roc_auc,
    train_reference,
)
from pipeline.models.corpus import CrawlPage, TrainingFailed
from stages.filters import classifiers
from tests.pipeline.models.documents import make_documents

SCORES = st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_roc_auc_is_the_share_of_pairs_in_order(
    positive: list[float], negative: list[float]
) -> None:
    """The rank sum equals counting all pairs, ties as half."""
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    assert compute_roc_auc(np.array(positive), np.array(negative)) == pytest.approx(
        np.mean(pairs)
    )


@given(SCORES, SCORES, st.floats(0, 1))
def test_precision_and_recall_equal_their_definitions(
    positive: list[float], negative: list[float], limit: float
) -> None:
    """Scores at or above the limit are kept."""
    precision, recall = compute_precision_and_recall(
        np.array(positive), np.array(negative), limit
    )
    kept = [p for p in positive if p >= limit]
    assert recall == len(kept) / len(positive)
    assert precision == len(kept) / max(1, len(kept) + sum(n >= limit for n in negative))


def test_classifier_separates_two_corpora(tmp_path: Path) -> None:
    """Nearly all held-out texts get the right class, and the record has the figures."""
    positive = make_documents(400)
    negative = [f"buy cheap shoes now {i} click here free shipping" for i in range(400)]
    settings = ReferenceSettings(num_epochs=20, dimension=8)
    record = train_reference(positive, negative, tmp_path / "model", settings)
    assert record["roc_auc"] > 0.99
    assert record["recall"] > 0.95
    assert record["positive"]["num_docs"] == 400
    assert json.loads((tmp_path / "model" / "record.json").read_text()) == record
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == [
        "model.bin",
        "record.json",
    ]
    model = classifiers.load_model(tmp_path / "model")
    lines = [classifiers.to_line(make_documents(1, seed=9)[0]), "buy shoes click"]
    good, bad = classifiers.score_lines(model, REFERENCE_LABEL, lines)
    assert good > 0.5 > bad


def test_classifier_training_is_reproducible(tmp_path: Path) -> None:
    """Repeated training in one process gives equal bytes; another seed gives another model."""
    negative = [f"spam {i % 7} offer" * 5 + str(i) for i in range(300)]
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        settings = ReferenceSettings(dimension=50, seed=seed)
        train_reference(make_documents(300), negative, folder, settings)
        np.full(1_000_000, np.nan)  # what fastText might find in memory it did not set
    a, b, c = (
        [(folder / name).read_bytes() for name in ("model.bin", "record.json")]
        for folder in folders
    )
    assert a == b
    assert a[0] != c[0]


def test_words_like_labels_are_not_labels(tmp_path: Path) -> None:
    """A text may contain fastText's label prefix."""
    negative = [f"__label__spam {i} x" for i in range(300)]
    settings = ReferenceSettings(num_epochs=1, dimension=4)
    train_reference(make_documents(300), negative, tmp_path, settings)
    model = classifiers.load_model(tmp_path)
    assert set(model.labels) == {REFERENCE_LABEL, CRAWL_LABEL}


def test_too_few_texts_for_a_classifier_are_refused(tmp_path: Path) -> None:
    """Figures from a handful of texts mean nothing."""
    with pytest.raises(
        TrainingFailed, match=r"train reference: \d+ references and 0 crawl pages held out"
    ):
        train_reference(make_documents(300), ["one"], tmp_path)


SMALL = ReferenceSettings(num_epochs=20, dimension=8, held_out_share=0.3)


def make_crawl(num_domains: int) -> list[CrawlPage]:
    """Return two pages per domain; their prose is like that of references."""
    prose = make_documents(2 * num_domains, seed=3)
    menus = [f"home login cart {number} share follow" for number in range(2 * num_domains)]
    pages: list[CrawlPage] = []
    for number, (text, menu) in enumerate(zip(prose, menus, strict=True)):
        pages.append(CrawlPage(f"{number // 2}.example", text, menu))
    return pages


def test_a_crawl_gives_negatives_and_an_evaluation_on_other_domains(tmp_path: Path) -> None:
    """Main content scores high and the rest low for texts of any source."""
    crawl = make_crawl(100)
    record = train_reference(make_documents(300), [], tmp_path, SMALL, crawl)
    found = record["crawl"]
    assert found["roc_auc"] > 0.99
    assert found["num_held_out_pages"] == 2 * found["num_held_out_domains"]
    num_training = len(crawl) - found["num_held_out_pages"]
    assert record["negative"]["num_docs"] == num_training
    assert record["positive"]["num_docs"] == 300 + num_training
    assert json.loads((tmp_path / "record.json").read_text()) == record


def test_a_model_that_tells_sources_apart_is_found_out_on_pages(tmp_path: Path) -> None:
    """Its own held-out texts are separated perfectly, the parts of pages are not."""
    references = [f"encyclopedia {text}" for text in make_documents(300)]
    pages = [f"blog {text}" for text in make_documents(300, seed=5)]
    # Pages whose parts differ by chance only.
    halves = make_documents(400, seed=7)
    crawl: list[CrawlPage] = []
    for number in range(200):
        first, second = halves[2 * number : 2 * number + 2]
        crawl.append(CrawlPage(f"{number}.example", first, second))
    record = train_reference(references, pages, tmp_path, SMALL, crawl)
    assert record["crawl"]["roc_auc"] < 0.7
    assert "crawl" not in train_reference(references, pages, tmp_path, SMALL)


def test_a_crawl_of_few_domains_is_refused(tmp_path: Path) -> None:
    """Nothing would be known about pages of other domains."""
    with pytest.raises(TrainingFailed, match="give pages of more domains"):
        train_reference(make_documents(300), [], tmp_path, SMALL, make_crawl(3))


def test_the_command_says_what_its_figures_are_about(tmp_path: Path) -> None:
    """Without pages of a crawl they compare two sources. Some negatives are needed."""
    for name, seed in (("references", 0), ("pages", 5)):
        texts = [text.replace("\n", " ") for text in make_documents(300, seed)]
        (tmp_path / name).write_text("\n".join(texts), encoding="utf-8")
    words = ["train", "reference", "--out", str(tmp_path / "model")]
    words += ["--positive", str(tmp_path / "references")]
    refused = CliRunner().invoke(models_app, words)
    assert refused.exit_code == 2
    assert "give --crawl" in refused.output
    done = CliRunner().invoke(models_app, [*words, "--negative", str(tmp_path / "pages")])
    assert done.exit_code == 0
    assert "tells the sources apart" in " ".join(done.output.split())
    assert json.loads((tmp_path / "model" / "record.json").read_text())["roc_auc"] > 0
