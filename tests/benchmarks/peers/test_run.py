"""The comparison runs our own programs and reports the others, without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers import run
from benchmarks.peers.inputs import PageSource
from benchmarks.peers.pages import COUNTS, InputPage, extract_text, write_pages
from benchmarks.peers.run import (
    Chain,
    compare_decisions,
    draw_chart,
    prepare_models,
    print_chains,
)
from pipeline.models.registry import cache_folder
from tests.benchmarks.quality.test_extraction import PAGES

BROKEN = "./missing-1.0-py3-none-any.whl\n"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Write a few pages as input."""
    folder = tmp_path / "pages"
    write_pages(read_gold_pages(), folder)
    return folder


def read_gold_pages() -> Iterator[InputPage]:
    """Yield the pages of the tests of extraction."""
    for name, html, _ in PAGES:
        text = extract_text(html)
        assert text is not None
        yield InputPage(f"https://example.org/{name}.html", text, html)


@pytest.fixture(autouse=True)
def without_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every peer requirements that cannot be installed."""
    for path in run.REQUIREMENTS.glob("*.txt"):
        (tmp_path / path.name).write_text(BROKEN)
    monkeypatch.setattr(run, "REQUIREMENTS", tmp_path)
    monkeypatch.setenv("CORPUSMILL_CACHE", str(cache_folder()))  # the models stay there
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")


def test_a_program_that_cannot_be_installed_is_a_line_with_its_error(
    pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours runs, and is in the table."""
    chain = Chain("main content", pages, tmp_path, tmp_path / "work")
    chain.run_round()
    figures = chain.summarize()
    ours = figures["entrants"]["blocks"]
    assert ours["ratio"] == 1.0
    assert ours["decisions"]["kept"] == figures["pages"]["num_pages"] == len(PAGES)
    assert "missing-1.0" in figures["failed"]["trafilatura"]
    print_chains({"main content": figures})
    printed = capsys.readouterr().out
    assert "\nmain content   blocks" in printed
    assert f"main content: {len(PAGES)} pages, a file of 0.00 MB" in printed
    assert "main content, trafilatura: cannot be installed: " in printed
    assert ">blocks</text>" in draw_chart({"main content": figures})


@pytest.mark.heavy
@pytest.mark.models
def test_our_chain_runs_beside_the_bare_calls(pages: Path, tmp_path: Path) -> None:
    """The figures have our decisions, the CPU seconds of each library, and two sums of these."""
    models = prepare_models(tmp_path / "models")
    chain = Chain("ccnet", pages, models, tmp_path / "work")
    assert chain.failed.keys() == {"cc_net"}
    chain.run_round()
    rows = chain.summarize()["entrants"]
    assert rows["corpusmill"]["decisions"]["kept"] > 0
    seconds = rows["bare calls"]["cpu_s_by_library"]
    ours_alone = {"FastWARC", "Parquet", "gigatoken", "tarfile, SHA-256"}
    assert seconds.keys() == {"SHA-1", "fastText", "SentencePiece", "KenLM"} | ours_alone
    assert rows["bare calls"]["cpu_s"] < rows["all bare calls"]["cpu_s"]
    assert rows["all bare calls"]["cpu_s"] == pytest.approx(sum(seconds.values()), abs=0.05)


def test_wet_and_warc_files_are_read_as_the_pages_they_hold(
    pages: Path, tmp_path: Path
) -> None:
    """A page that occurs in both files is read once; the text of a WARC file is extracted."""
    html, text = pages / "pages.warc.gz", pages / "pages.warc.wet.gz"
    for files in ([html], [html, text], [text]):
        source = PageSource(tmp_path, files=tuple(files))
        folder = source.prepare("ccnet")
        counts = json.loads((folder / COUNTS).read_text())
        assert counts["num_pages"] == len(PAGES)
        assert (counts["html_bytes"] > 0) == (html in files)
        found = folder / text.name
        assert found.read_bytes() == text.read_bytes()


def test_a_damaged_file_is_read_up_to_the_damage(
    pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The note names the file."""
    content = (pages / "pages.warc.wet.gz").read_bytes()
    path = tmp_path / "cut.warc.wet.gz"
    path.write_bytes(content + b"\x1f\x8b\x08\x00 no deflate stream")
    folder = PageSource(tmp_path, files=(path,)).prepare("ccnet")
    assert json.loads((folder / COUNTS).read_text())["num_pages"] == len(PAGES)
    assert f"{path}: the rest is not read" in capsys.readouterr().out


def test_a_chain_of_html_refuses_files_without_html(pages: Path, tmp_path: Path) -> None:
    """The message says which files to give."""
    source = PageSource(tmp_path, files=(pages / "pages.warc.wet.gz",))
    with pytest.raises(SystemExit, match="give WARC files"):
        Chain("main content", source.prepare("main content"), tmp_path, tmp_path)


def test_result_files_of_other_inputs_have_other_names(tmp_path: Path) -> None:
    """The default input has the name of the chain alone."""
    assert PageSource(tmp_path).suffix == ""
    assert PageSource(tmp_path, scale=4).suffix == "_x4"
    assert PageSource(tmp_path, files=(tmp_path,)).suffix == "_files"


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
