"""benchmarks.quality.document_scores: its measures on a few pages."""

from __future__ import annotations

import pyarrow as pa

from benchmarks.quality.document_scores import COLUMNS, compare
from benchmarks.quality.gold_pages import GoldPage


def test_a_page_is_found_by_its_record_and_low_values_may_be_better() -> None:
    """The column of a document without a value gets the median."""
    names = [f"{n}" for n in range(20) if GoldPage(f"{n}", "", b"").is_held_out]
    kinds = ("product", "article", "listing")
    pages = [GoldPage(name, kind, b"") for name, kind in zip(names, kinds, strict=False)]
    columns = {name: [1.0, 2.0, None] for name in COLUMNS}
    doc_ids = pa.array([0, 1, 2], pa.uint64())
    found = compare(pa.table({"doc_id": doc_ids, **columns}), pages)["articles"]["columns"]
    assert found["num_chars"]["all"] == {"auc": 1.0, "average_precision": 1.0}
    assert found["perplexity"]["all"]["auc"] == 0.0
