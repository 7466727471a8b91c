"""Every recipe in configs/ makes a valid dataset from HTML pages, by its own rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.config import load
from pipeline.execution.engine import run
from pipeline.planning.plan import make_plan
from pipeline.planning.prepare import prepare
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder
from shardwriter import verify
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.models

CRAWL = "{sample_crawl: {documents: 300, documents_per_file: 150, seed: 3, format: warc}, max_quarantined_share: 0.1}"


@dataclass(frozen=True)
class Expected:
    """Reasons that must and may occur, and the range of the kept share."""

    must: frozenset[str]
    may: frozenset[str]  # stages
    kept: tuple[float, float]


def _expected(*must: str, may: str, kept: tuple[float, float]) -> Expected:
    return Expected(frozenset(must), frozenset(may.split()), kept)


# A third of the crawl is English (CCNet's chain: other languages), and some of it is spam, short or copied.
GOPHER = ("quality.words_too_few", "quality.stop_words_too_few")
RECIPES = {
    "ccnet": _expected(
        *("length.too_few_chars", "paragraphs.none_left", "perplexity.bucket_not_wanted"),
        may="length paragraphs language perplexity classifiers minhash",
        kept=(0.3, 0.8),
    ),
    "refinedweb": _expected(
        *("language.not_wanted", "minhash.near_duplicate", *GOPHER),
        may="paragraphs language quality minhash url",
        kept=(0.15, 0.35),
    ),
    "fineweb": _expected(
        *(
            "language.not_wanted",
            "minhash.near_duplicate",
            "lines.sentences_too_few",
            "quality.terminal_lines_too_few",
        ),
        may="paragraphs lines language quality minhash",
        kept=(0.15, 0.35),
    ),
    "c4": _expected(
        *(
            "language.not_wanted",
            "lines.none_left",
            "lines.sentences_too_few",
            "paragraphs.none_left",
        ),
        may="paragraphs lines language",
        kept=(0.15, 0.35),
    ),
    "dclm-baseline": _expected(
        *(
            "language.not_wanted",
            "paragraphs.none_left",
            "classifiers.not_in_top",
            *GOPHER,
        ),
        may="paragraphs language classifiers quality minhash",
        kept=(0.015, 0.035),  # a tenth of the English pages that the other rules keep
    ),
    "pile-cc": _expected(
        # Pages in other languages give jusText's English stop words nothing, so that few are left to the language rule.
        *("paragraphs.none_left", "minhash.near_duplicate", "classifiers.not_in_top"),
        may="paragraphs language classifiers minhash",
        kept=(0.035, 0.085),  # 0.24 of them
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_on_html_pages_by_its_own_rules(name: str, tmp_path: Path) -> None:
    """Only its own reasons occur, some documents are kept, and the shards verify."""
    keep = ["select.perplexity.keep=[head, middle, all]"] if name == "ccnet" else []
    config = load(
        name, [f"input={CRAWL}", "engine.kind=inline", f"run_dir={tmp_path}/run", *keep]
    )
    prepare(config)
    list(run(make_plan(config)))
    found = RunFolder.open(tmp_path / "run")
    report = make_report(found)
    expected = RECIPES[name]
    assert report.reasons.keys() >= expected.must
    assert {reason.split(".")[0] for reason in report.reasons} <= expected.may
    assert (
        expected.kept[0]
        < report.steps[-1].num_docs / report.steps[0].num_docs
        < expected.kept[1]
    )
    if name != "ccnet":
        assert set(report.languages) == {"en"}
    assert report.num_tokens > 0
    assert verify(found.dataset) == []


def test_every_recipe_has_its_table() -> None:
    """docs/recipes.md has a section with a table for each recipe."""
    page = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")
    sections = {section.split("\n")[0]: section for section in page.split("\n## ")[1:]}
    others = {
        "Scores of classifiers: a fixed limit, or a share of the run",
        "One quality score from several scores",
        "Better documents more often, and a budget of tokens",
        "Train a reference classifier on pages",
        "Toxic and adult pages, by a model of your own",
        "Evaluation sets out of the training data",
        "What no recipe has yet",
    }
    assert {f"{name}.yaml" for name in RECIPES} == sections.keys() - others
    for name in RECIPES:
        assert "| what | the paper | here |" in sections[f"{name}.yaml"]
