"""benchmarks.quality.reference_classifier on a small crawl."""

from __future__ import annotations

from pathlib import Path

from benchmarks.quality.gold_pages import GoldPage
from benchmarks.quality.reference_classifier import measure, read_pages
from pipeline.models.classifier_training import ReferenceSettings
from tests.pipeline.models.documents import make_documents


def make_page(number: int, text: str) -> GoldPage:
    """Return an article or a product page, each of another domain."""
    is_article = number % 2 == 0
    prose = "".join(f"<p>{line}</p>" for line in text.splitlines()) * 4
    content = (
        prose if is_article else f"<p>Cart {number}, price, delivery, cart, price.</p>" * 9
    )
    html = f"<body><nav>Cart price {number}</nav><article>{content}</article></body>"
    url = f"https://{number}.example.org{number}.com/"
    kind = "article" if is_article else "product"
    return GoldPage(str(number), kind, html.encode(), url=url)


def test_both_models_are_measured_on_pages_of_unseen_domains(tmp_path: Path) -> None:
    """No page of the training is among the labelled ones."""
    gold = [make_page(n, text) for n, text in enumerate(make_documents(200, seed=1))]
    pages = read_pages(gold, tmp_path)
    assert len(pages) == len(gold)
    settings = ReferenceSettings(num_epochs=5, dimension=4, held_out_share=0.3)
    found = measure(make_documents(100), pages, tmp_path, settings)
    assert found["training_pages"] == sum(not page.is_held_out for page in gold)
    assert found["pages"] <= sum(page.is_held_out for page in gold)
    for figures in found["models"].values():
        assert figures.keys() == {"own", "pages", "prose", "articles"}
        assert all(0 <= figure <= 1 for figure in figures.values())
