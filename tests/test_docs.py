"""Files, links and generated references in the docs are correct."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

import pipeline.reporting.config_docs
import training.config_docs
from pipeline.commands.init import schema as pipeline_schema
from tests.conftest import REPOSITORY
from training.cli import schema as training_schema

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


SCHEMAS = {"pipeline": pipeline_schema, "training": training_schema}
CONFIGS = sorted((REPOSITORY / "configs").glob("*.yaml"))


@pytest.mark.parametrize("package", SCHEMAS)
def test_the_schema_of_configs_is_up_to_date(package: str) -> None:
    """Run `python -m pipeline schema > configs/pipeline.schema.json`, or the same of training, when this fails."""
    made = io.StringIO()
    with contextlib.redirect_stdout(made):
        SCHEMAS[package]()
    text = (REPOSITORY / "configs" / f"{package}.schema.json").read_text(encoding="utf-8")
    assert text == made.getvalue()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_schema_accepts_each_shipped_config(path: Path) -> None:
    """Its first line names the schema, which refuses a misspelled key."""
    text = path.read_text(encoding="utf-8")
    first_line, _, _ = text.partition("\n")
    schema = path.parent / first_line.removeprefix("# yaml-language-server: $schema=")
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
    tree = yaml.safe_load(text)
    assert [error.message for error in validator.iter_errors(tree)] == []
    section = "model" if "model" in tree else "input"
    tree[section]["mispelled"] = 1
    assert not validator.is_valid(tree)


def test_the_readme_fits_on_a_screen() -> None:
    """It has the purpose, a picture, the first commands and links."""
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Links, anchors and the list of pages are correct. `make docs` builds it."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    built = subprocess.run(
        [*command, "--site-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "tutorial.html").exists()
