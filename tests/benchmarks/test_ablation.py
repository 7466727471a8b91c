"""The ablation runs in its small form, and its results can be read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.ablation import __main__ as ablation
from benchmarks.ablation.chart import draw
from benchmarks.ablation.datasets import (
    HELD_OUT,
    NGRAM_WORDS,
    NgramSet,
    Sizes,
    create_datasets,
    read_totals,
)
from tests.benchmarks.run_module import run_module


@pytest.mark.models
def test_the_datasets_shrink_with_each_filter(tmp_path: Path) -> None:
    """All are made from the same crawl, and the held-out text is not empty."""
    datasets = create_datasets(tmp_path / "data", Sizes(120, 300, 1))
    assert set(datasets) == {*ablation.ORDER, HELD_OUT}
    sizes = [read_totals(datasets[name])["num_tokens"] for name in ablation.ORDER]
    assert sizes == sorted(sizes, reverse=True)
    assert read_totals(datasets[HELD_OUT])["num_tokens"] > 0


@pytest.mark.heavy
@pytest.mark.models
def test_the_ablation_runs_in_its_tiny_form(tmp_path: Path) -> None:
    """Four datasets, four runs of the trainer, one result and one chart."""
    done = run_module("benchmarks.ablation", "--tiny", "--save", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    datasets = json.loads(path.read_text())["figures"]["datasets"]
    assert list(datasets) == ["raw", "deduplicated", "head", "head + reference"]
    sizes = [row["num_tokens"] for row in datasets.values()]
    assert sizes == sorted(sizes, reverse=True)
    ET.fromstring(path.with_suffix(".svg").read_text())  # noqa: S314 - our own


def test_texts_that_share_a_word_ngram_are_found() -> None:
    """13 common words are found in spite of case and punctuation; 12 are not."""
    words = [f"word{k}" for k in range(30)]
    known = NgramSet([" ".join(words)])
    assert known.shares(
        "Before that, " + ", ".join(words[5 : 5 + NGRAM_WORDS]).upper() + "!"
    )
    assert not known.shares(" ".join(words[5 : 4 + NGRAM_WORDS]))
    assert not NgramSet([]).shares(" ".join(words))


def test_a_chart_is_xml_and_names_every_curve_once_with_its_last_mean() -> None:
    """Each seed has a weak line if there are several."""
    curves = {
        "raw": [[(100.0, 7.0), (2000.0, 6.0)], [(100.0, 7.2), (2000.0, 6.2)]],
        "a < b": [[(100.0, 7.0), (2000.0, 6.3)]],
    }
    root = ET.fromstring(draw("Loss", {"held out": curves}))  # noqa: S314 - our own
    texts = [element.text for element in root.iter() if element.text]
    assert texts[-2:] == ["a < b 6.30", "raw 6.10"]
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len(lines) == 4
