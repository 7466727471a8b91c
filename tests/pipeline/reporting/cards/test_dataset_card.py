"""The dataset card of an export."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from pipeline.reporting.cards import make_dataset_card
from pipeline.reporting.cards.dataset_card import name_size
from pipeline.reporting.cards.facts import (
    CC_BY_SA,
    COMMON_CRAWL,
    UNKNOWN,
    Licence,
    describe_source,
    find_licence,
    read_crawled,
)
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.reporting.report import make_report
from pipeline.reporting.templates import escape_markdown, make_markdown_table
from pipeline.runs.run_folder import RunFolder
from tests.pipeline.conftest import Small


@pytest.fixture
def card(kept_run: RunFolder) -> str:
    """The card of a run."""
    return make_dataset_card(KeptDocuments(kept_run), "my-corpus").decode()


def read_header(card: str) -> dict[str, Any]:
    """Return the YAML header."""
    return yaml.safe_load(card.split("---\n")[1])


def test_the_header_has_the_keys_of_hugging_face(card: str) -> None:
    """Languages, licence, size and the files of the split."""
    header = read_header(card)
    assert header["language"] == ["en"]
    assert (header["license"], header["size_categories"]) == ("unknown", ["n<1K"])
    (config,) = header["configs"]
    assert config["data_files"] == [{"split": "train", "path": "data/train-*"}]


def test_terms_are_those_of_the_input(small: Small) -> None:
    """Those of files that a user names are unknown."""
    assert find_licence(small.config()) is UNKNOWN
    sources: list[tuple[dict[str, Any], Licence]] = [
        ({"common_crawl": {"crawl": "CC-MAIN-2026-17"}}, COMMON_CRAWL),
        ({"sample_crawl": {}}, CC_BY_SA),
    ]
    for source, licence in sources:
        config = small.config(input={"files": None, **source})
        assert find_licence(config) is licence
    texts = small.config(input={"files": None, "text": {"files": ["corpus.jsonl"]}})
    assert "corpus.jsonl" in describe_source(texts)


def test_the_card_has_every_step_and_reason_of_the_report(
    card: str, kept_run: RunFolder
) -> None:
    """With their numbers of documents."""
    report = make_report(kept_run)
    assert report.reasons
    for step in report.steps:
        assert f"| `{step.name}` | {step.num_docs:,} | {step.num_chars:,} |" in card
    for reason, num_docs in report.reasons.items():
        assert f"| `{reason}` | {num_docs:,} |" in card


def test_the_card_names_columns_models_and_months(
    card: str, kept_run: RunFolder, lid_file: object
) -> None:
    """A model of the user has a licence to be filled in."""
    for column in KeptDocuments(kept_run).schema.names:
        assert f"| `{column}` |" in card
    assert re.search(
        rf"\| {re.escape(escape_markdown(str(lid_file)))} \| .*to be filled in", card
    )
    assert "| crawled | 2026-11 to 2026-11 |" in card


def test_domains_are_sorted_by_their_characters(kept_run: RunFolder) -> None:
    """With the sums of their kept documents."""
    documents = KeptDocuments(kept_run)
    crawled = read_crawled(documents)
    lengths = [n for t in documents.read() for n in t.column("num_chars").to_pylist()]
    (domain,) = crawled.domains.to_pylist()
    assert domain == {
        "domain": "example.org",
        "num_docs": len(lengths),
        "num_chars": sum(lengths),
    }
    assert crawled.months == {"2026-11": 4}


@pytest.mark.parametrize(
    ("num_docs", "name"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**12, "n>1T"), (10**13, "n>1T")],
)
def test_sizes_have_the_names_of_hugging_face(num_docs: int, name: str) -> None:
    """Each name begins at its lower number."""
    assert name_size(num_docs) == name


def make_card(run: RunFolder, **sections: Any) -> str:
    """Return the card of a run as if its config had other sections."""
    tree = {**run.recorded_config, **sections}
    other = replace(run, recorded_config=tree)
    return make_dataset_card(KeptDocuments(other), "my-corpus").decode()


def test_limits_follow_from_the_config(card: str, kept_run: RunFolder) -> None:
    """What a run has done is not listed as missing."""
    assert "Personal data was not replaced." in card
    assert "Near-duplicates were not removed." in card
    tokenize = {**kept_run.recorded_config["tokenize"], "pii": {}}
    assert "Personal data was not replaced." not in make_card(kept_run, tokenize=tokenize)


@pytest.mark.parametrize(
    ("source", "terms"),
    [
        ({"common_crawl": {"crawl": "CC-MAIN-2026-17"}}, COMMON_CRAWL.url),
        ({"sample_crawl": {}}, CC_BY_SA.url),
        ({"files": ["corpus.wet"]}, "The terms of these files: to be filled in."),
    ],
)
def test_the_card_states_the_terms(
    kept_run: RunFolder, source: dict[str, Any], terms: str
) -> None:
    """And no others than those of the input."""
    card = make_card(kept_run, input={"files": None, **source})
    assert terms in card
    assert ("license: other" in card.split("## Source")[1]) == ("common_crawl" in source)


def test_texts_of_the_crawl_cannot_break_out_of_a_table() -> None:
    """Neither HTML, links, cells nor lines can be injected."""
    hostile = "a|b\n<script>[x](javascript:y)`\x1b[0m"
    shown = make_markdown_table(("x",), [(hostile,)]).splitlines()
    assert len(shown) == 3
    assert "\n" not in shown[2]
    assert "<script>" not in shown[2]
    assert re.findall(r"(?<!\\)[`\[\]]", shown[2]) == []
    assert shown[2].count("|") - shown[2].count("\\|") == 2
