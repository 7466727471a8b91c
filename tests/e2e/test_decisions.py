"""Decisions on the sample crawl, compared with its truth table.

Floors may fall only with a reason.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.decisions import Measure, measure
from pipeline.runs.run_folder import RunFolder

pytestmark = pytest.mark.models

# decision -> (recall, precision), at least; what is 1.0 is so by construction of the crawl and of the rule
FLOORS = {
    "duplicate lines": (1.0, 1.0),
    "duplicate documents": (1.0, 1.0),
    "short documents": (1.0, 1.0),
    "languages": (0.98, 0.98),
    "low quality": (0.95, 0.2),
    "near-duplicates": (0.9, 1.0),
}


def test_decisions_stay_above_their_floors(reference_run: Path) -> None:
    """Duplicates, lengths, languages and low-quality text are found with few errors."""
    measured = measure(RunFolder.open(reference_run))
    seen = {
        name: (round(m.recall, 3), round(m.precision, 3)) for name, m in measured.items()
    }
    assert seen.keys() == FLOORS.keys()
    below = {
        name: seen[name]
        for name in FLOORS
        if any(s < f for s, f in zip(seen[name], FLOORS[name], strict=True))
    }
    assert not below, f"below the floors {FLOORS}: {below}"


def test_the_near_duplicate_with_the_lowest_perplexity_is_kept(
    reference_run: Path,
) -> None:
    """No dropped near-duplicate has a lower perplexity than its representative."""
    run = RunFolder.open(reference_run)
    perplexities: dict[int, float] = {}
    for path in Path(run.folder("annotate").root).glob("*.documents.parquet"):
        table = pq.read_table(path, columns=["doc_id", "perplexity"])
        perplexities |= dict(
            zip(*(column.to_pylist() for column in table.columns), strict=True)
        )
    paths = Path(run.folder("select").root).glob("*.decisions.parquet")
    pairs = [
        (row["doc_id"], row["representative"])
        for path in paths
        for row in pq.read_table(path).to_pylist()
    ]
    gone = [
        (perplexities[doc_id], perplexities[stays])
        for doc_id, stays in pairs
        if stays is not None
    ]
    assert len(gone) > 10
    assert all(
        mine is None or (stays is not None and stays <= mine) for mine, stays in gone
    )


def test_a_wrong_decision_lowers_a_measure() -> None:
    """The measures can fail: one miss and one false find show in recall and precision."""
    assert Measure(num_right=9, num_wanted=10, num_found=9).recall == 0.9
    assert Measure(num_right=9, num_wanted=9, num_found=10).precision == 0.9
