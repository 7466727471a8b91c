"""Files, links and generated references in the docs are correct."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pipeline.reporting.config_docs
import training.config_docs
from tests.conftest import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PATH = re.compile(
    r"`((?:pipeline|stages|shardwriter|loader|training|configs|docs|benchmarks|tests)/[\w./-]+\.\w+)`"
)


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix()
)
def test_links_and_paths_exist(page: Path) -> None:
    """Every relative link and every file that a page names exists."""
    text = page.read_text(encoding="utf-8")
    links = [target for target, _ in LINK.findall(text) if "://" not in target]
    missing = [target for target in links if not (page.parent / target).exists()]
    missing += [path for path in PATH.findall(text) if not (REPOSITORY / path).exists()]
    assert not missing


@pytest.mark.parametrize("page", ["resume.md", "security.md"])
def test_every_promise_has_a_test_that_exists(page: str) -> None:
    """Each row of the tables of promises names tests, and each of them is a function of that file."""
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    tables = re.findall(r"^\| promise \| test \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()[2:]]
    assert len(rows) > 10
    for row in rows:
        tests = TEST.findall(row)
        assert tests, f"no test: {row}"
        for path, name in tests:
            functions = (REPOSITORY / path).read_text(encoding="utf-8")
            assert f"\ndef {name}(" in functions, f"{path} has no test {name}"


def test_the_config_reference_is_up_to_date() -> None:
    """docs/config.md is generated; run `python -m pipeline.reporting.config_docs > docs/config.md` when this fails."""
    assert (REPOSITORY / "docs" / "config.md").read_text(
        encoding="utf-8"
    ) == pipeline.reporting.config_docs.make_page()


def test_the_reference_of_training_configs_is_up_to_date() -> None:
    """docs/training-config.md is generated too; run `python -m training.config_docs > docs/training-config.md`."""
    assert (REPOSITORY / "docs" / "training-config.md").read_text(
        encoding="utf-8"
    ) == training.config_docs.make_page()


def test_the_readme_fits_on_a_screen_and_a_half() -> None:
    """The first screen has the purpose, two commands, their output and links."""
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 100
