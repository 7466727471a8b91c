"""The summary of training content for the EU AI Act."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline import cli
from pipeline.reporting.cards import make_eu_summary
from pipeline.reporting.cards.eu_summary import (
    TO_BE_FILLED_IN,
    count_domains,
    name_size_range,
)
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder
from tests.pipeline.conftest import Small

# The sections of the Commission's template.
SECTIONS = [
    "1",
    "1.1",
    "1.2",
    "1.3",
    "2",
    "2.1",
    "2.2",
    "2.3",
    "2.4",
    "2.5",
    "2.6",
    "3",
    "3.1",
    "3.2",
    "3.3",
]


def test_the_sections_are_those_of_the_template(kept_run: RunFolder) -> None:
    """In their order. Facts about provider and model are marked."""
    summary = make_eu_summary(kept_run)
    assert re.findall(r"^##+ ([\d.]+?)\.? ", summary, re.MULTILINE) == SECTIONS
    for question in ("Provider name", "model name", "Code of Practice"):
        (line,) = [line for line in summary.splitlines() if question in line]
        assert line.endswith(TO_BE_FILLED_IN)


def test_the_numbers_are_those_of_the_report(kept_run: RunFolder) -> None:
    """Documents, tokens, languages, the period, and the domains."""
    report, summary = make_report(kept_run), make_eu_summary(kept_run)
    assert f"- Tokens, before removals on request: {report.num_tokens:,}" in summary
    assert f"| en | 4 | {report.language_tokens['en']:,} |" in summary
    assert "11/2026 to 11/2026" in summary
    assert "Domain names with most content: 1 of 1" in summary
    assert re.search(r"^\| example\.org \| 4 \| \d+ \|$", summary, re.MULTILINE)


@pytest.mark.parametrize(
    ("num_domains", "large", "sme"),
    [
        (0, 0, 0),
        (1, 1, 1),
        (10, 1, 1),
        (11, 2, 1),
        (20_000, 2_000, 1_000),
        (10**6, 10**5, 1_000),
    ],
)
def test_the_share_of_domains_is_that_of_the_template(
    num_domains: int, large: int, sme: int
) -> None:
    """One in ten; of small enterprises one in twenty, at most 1,000. Shares are rounded up."""
    assert count_domains(num_domains, is_sme=False) == large
    assert count_domains(num_domains, is_sme=True) == sme


@pytest.mark.parametrize(
    ("num_tokens", "name"),
    [
        (0, "less than 1 billion tokens"),
        (10**9, "1 billion to 10 trillion tokens"),
        (10**13, "1 billion to 10 trillion tokens"),
        (10**13 + 1, "more than 10 trillion tokens"),
    ],
)
def test_sizes_are_ranges_of_the_template(num_tokens: int, name: str) -> None:
    """Bounds belong to the middle range."""
    assert name_size_range(num_tokens) == name


def summarize(run: RunFolder, **sections: Any) -> str:
    """Return the summary of a run as if its config had other sections."""
    return make_eu_summary(
        replace(run, recorded_config={**run.recorded_config, **sections})
    )


def test_the_crawler_is_named_only_where_it_is_known(kept_run: RunFolder) -> None:
    """Crawl files of unknown origin may be those of any crawler."""
    assert f"Crawler name and identifier: {TO_BE_FILLED_IN}" in summarize(kept_run)
    source = {"common_crawl": {"crawl": "CC-MAIN-2026-17"}, "files": None}
    assert "CCBot" in summarize(kept_run, input=source)


def test_measures_follow_from_the_config(kept_run: RunFolder) -> None:
    """A measure that the run did not take is not claimed."""
    plain = summarize(kept_run)
    assert "No list of URLs or domains was excluded" in plain
    assert "Personal data was not replaced." in plain
    assert "- Left out on request after they were read: 0 documents." in plain
    config = kept_run.recorded_config
    taken = summarize(
        kept_run,
        tokenize={**config["tokenize"], "pii": {}},
        extract={**config["extract"], "url": {"subwords": ["casino"]}},
    )
    assert "`extract.url` were excluded" in taken
    assert "phone, card and account numbers were replaced" in taken


def test_the_command_writes_the_summary_into_the_run(small: Small, tmp_path: Path) -> None:
    """`--sme` alone is wrong usage."""
    run, _ = small.run()
    program, run_dir = cli.make_program(), str(run.run_dir)
    result = CliRunner().invoke(program, ["report", run_dir, "--eu-summary", "--sme"])
    assert result.exit_code == 0, result.output
    written = (tmp_path / "run" / "eu-summary.md").read_text()
    assert written == make_eu_summary(run, is_sme=True)
    assert CliRunner().invoke(program, ["report", run_dir, "--sme"]).exit_code == 2
