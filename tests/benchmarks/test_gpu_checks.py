"""The checks of the GPU suite judge each assumption, and are listed in the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.training.cases import TINY, Case, make_dataset
from benchmarks.training.checks import CHECKS, ON_CPU, NotAvailable, open_loader, run_check
from benchmarks.training.gpu_suite import Suite, run_checks
from tests.benchmarks.run_module import run_module
from tests.conftest import REPOSITORY

NEEDS_CUDA = CHECKS.keys() - set(ON_CPU)


def test_checks_run_apart_and_pass_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of the suite's checks, of which one needs CUDA. The next test runs all of them."""
    few = {name: CHECKS[name] for name in ("one context", "attention flash", "Muon")}
    monkeypatch.setattr("benchmarks.training.gpu_suite.CHECKS", few)
    suite = Suite(TINY, 900, tmp_path)
    run_checks(suite)
    assert list(suite.checks) == list(few)
    assert suite.checks.pop("one context") == "needs CUDA"
    assert all(verdict.startswith("pass: ") for verdict in suite.checks.values())


@pytest.mark.heavy
def test_every_check_that_needs_no_gpu_passes_on_a_cpu(tmp_path: Path) -> None:
    """The others say that they need CUDA. The verdicts are printed and saved in order."""
    arguments = ("--tiny", "--only", "checks", "--budget-s", "900", "--save", str(tmp_path))
    done = run_module("benchmarks.training.gpu_suite", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*-training_gpu_tiny.json")
    verdicts = json.loads(path.read_text())["figures"]["checks"]
    assert list(verdicts) == list(CHECKS)
    assert {name for name, text in verdicts.items() if text == "needs CUDA"} == NEEDS_CUDA
    others = {name: text for name, text in verdicts.items() if name not in NEEDS_CUDA}
    missing = {"not available: torchao is not installed"}
    assert all(text in missing or text.startswith("pass") for text in others.values())
    assert f"  1. one context: {verdicts['one context']}" in done.stdout


def pass_check(_: Case) -> str:
    """Return figures."""
    return "all good"


def miss(_: Case) -> str:
    """Lack a package."""
    raise NotAvailable("no package")


def fail(_: Case) -> str:
    """Find another result."""
    raise AssertionError("2 instead of 1\nmore lines")


@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        (pass_check, "pass: all good"),
        (miss, "not available: no package"),
        (fail, "fail: AssertionError: 2 instead of 1"),
    ],
)
def test_a_verdict_has_the_figures_or_the_reason(
    run: Any, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of any kind refutes the assumption, except what the machine lacks."""
    monkeypatch.setitem(CHECKS, "Muon", run)
    assert run_check("Muon", Case(TINY, "unused", 16)) == verdict


def test_checks_end_the_suite_in_time(tmp_path: Path) -> None:
    """If the time budget is used up, the remaining checks are listed as not run."""
    suite = Suite(TINY, -1, tmp_path)
    run_checks(suite)
    assert set(suite.checks.values()) == {"not run: no time left"}
    assert len(suite.checks) == len(CHECKS)


def test_every_check_is_a_row_of_the_documentation() -> None:
    """The rows of docs/training.md have their numbers, names and order."""
    text = (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\d+) \| ([^|]+) \| [^|]+ \| `([^|]+)` \| [^|]+ \|$", text, re.MULTILINE
    )
    expected = [(str(number), name) for number, name in enumerate(CHECKS, start=1)]
    assert [(number, name) for number, name, _ in rows] == expected
    for _, _, path in rows:
        assert (REPOSITORY / path).is_file(), path


def test_the_check_of_the_loader_compares_every_entry(tmp_path: Path) -> None:
    """Its dataset has both forms of documents; a case of the suite opens it."""
    make_dataset(tmp_path / "dataset", TINY)
    batch = next(open_loader(Case(TINY, str(tmp_path / "dataset"), 16)))
    assert batch.keys() >= {"input_ids", "labels", "cu_seqlens", "document_ids"}
