"""The comparison runs our own programs and reports the others, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import run
from benchmarks.peers.pages import write_pages
from benchmarks.peers.run import (
    Chain,
    compare_decisions,
    draw_chart,
    format_table,
    prepare_models,
)
from pipeline.models.registry import cache_folder
from tests.benchmarks.quality.test_extraction import PAGES

BROKEN = "./missing-1.0-py3-none-any.whl\n"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Write a few pages as input."""
    folder = tmp_path / "pages"
    write_pages(((f"/{name}.html", html) for name, html, _ in PAGES), folder)
    return folder


@pytest.fixture(autouse=True)
def without_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every peer requirements that cannot be installed."""
    for path in run.REQUIREMENTS.glob("*.txt"):
        (tmp_path / path.name).write_text(BROKEN)
    monkeypatch.setattr(run, "REQUIREMENTS", tmp_path)
    monkeypatch.setenv("CORPUSMILL_CACHE", str(cache_folder()))  # the models stay there
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")


def test_a_program_that_cannot_be_installed_is_a_row_with_its_error(
    pages: Path, tmp_path: Path
) -> None:
    """Ours runs, and the table has both."""
    chain = Chain("main content", pages, tmp_path, tmp_path / "work")
    chain.run_round()
    figures = chain.summarize()
    ours = figures["entrants"]["blocks"]
    assert ours["ratio"] == 1.0
    assert ours["decisions"]["kept"] == figures["pages"]["num_pages"] == len(PAGES)
    assert "missing-1.0" in figures["failed"]["trafilatura"]
    table = format_table({"main content": figures})
    assert "| main content | blocks |" in table
    assert "| main content | trafilatura | cannot be installed: " in table
    assert ">blocks</text>" in draw_chart({"main content": figures})


@pytest.mark.heavy
@pytest.mark.models
def test_our_chain_runs_beside_the_bare_calls(pages: Path, tmp_path: Path) -> None:
    """The figures have our decisions, and the CPU seconds of each library."""
    models = prepare_models(tmp_path / "models")
    chain = Chain("ccnet", pages, models, tmp_path / "work")
    assert chain.failed.keys() == {"cc_net"}
    chain.run_round()
    rows = chain.summarize()["entrants"]
    assert rows["corpusmill"]["decisions"]["kept"] > 0
    libraries = rows["bare calls"]["cpu_s_by_library"]
    assert libraries.keys() == {"SHA-1", "fastText", "SentencePiece", "KenLM"}


def test_decisions_are_equal_within_the_rounding_of_perplexities() -> None:
    """Counted are the pages that both keep."""
    ours = {"a": ("en", 100.0, "x"), "b": ("en", 100.0, "x"), "c": ("en", None, "x")}
    theirs = {"a": ("en", 100.1, "x"), "b": ("de", 100.2, "y"), "d": ("en", None, "x")}
    assert compare_decisions(ours, theirs) == {
        "kept": 3,
        "kept_by_both": 2,
        "same_language": 1,
        "same_perplexity": 1,
        "same_text": 1,
    }
