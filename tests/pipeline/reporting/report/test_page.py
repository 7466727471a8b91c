"""The page of the report in Chromium: what it shows, wide, narrow, dark and printed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.reporting.report import details as report_details
from pipeline.reporting.report import make_report, make_report_page
from pipeline.reporting.report.details import Details, read_details
from pipeline.reporting.report.provenance import read_provenance
from pipeline.runs.run_folder import RunFolder
from tests.pipeline.reporting.conftest import URLS
from tests.pipeline.reporting.pages import read_decisions

WINDOWS = {
    "wide": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "narrow-dark": {"viewport": {"width": 400, "height": 800}, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def details(browsed: RunFolder) -> Details:
    return read_details(browsed)


@pytest.fixture(scope="module")
def address(browsed: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the report of a run with hostile pages."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(make_report_page(browsed, make_report(browsed)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module", params=list(WINDOWS))
def window(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty window. Each new one starts a process, which takes a second of CPU."""
    context = browser.new_context(**WINDOWS[request.param])
    yield context.new_page()
    context.close()


@pytest.fixture
def page(window: Any, address: str) -> Iterator[Any]:
    """The report in a window. At the end, no error and no violation of the policy was logged."""
    logged: list[str] = []
    listeners = {
        "console": lambda message: logged.append(message.text),
        "pageerror": lambda error: logged.append(str(error)),
        "request": lambda made: logged.append(made.url),
    }
    window.emulate_media(media="null")  # a test may have chosen print
    window.goto("about:blank")
    for event, listener in listeners.items():
        window.on(event, listener)
    window.goto(address)
    yield window
    for event, listener in listeners.items():
        window.remove_listener(event, listener)
    assert logged == [address]


def read_width(page: Any, selector: str) -> list[float]:
    """Return the right edge of each element."""
    return page.eval_on_selector_all(
        selector, "nodes => nodes.map((node) => node.getBoundingClientRect().right)"
    )


def open_folds(page: Any) -> None:
    """Show what a click on a summary shows."""
    page.eval_on_selector_all("details", "all => all.forEach((one) => { one.open = true })")


def test_documents_and_config_are_folded(page: Any) -> None:
    """A page of many documents and keys is short: each is shown by a click on its summary."""
    height = page.evaluate("document.documentElement.scrollHeight")
    for hidden in (".documents", ".cluster li", "pre"):
        assert not page.is_visible(hidden)
    page.click("#random-documents-by-decision ~ details > summary")
    assert page.is_visible(".documents")
    open_folds(page)
    assert page.evaluate("document.documentElement.scrollHeight") > 2 * height


def test_nothing_is_cut_off(page: Any) -> None:
    """Bars and labels end inside the window, and the page does not scroll sideways."""
    open_folds(page)
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for selector in (".bar svg", ".histogram svg", ".url"):
        edges = read_width(page, selector)
        assert edges
        assert max(edges) <= width


def test_bars_are_as_long_as_their_numbers(page: Any) -> None:
    """The style sheet is applied, although the policy allows no other one."""
    rows = page.query_selector_all("#what-is-left-after-each-step ~ div tbody tr")[:-1]
    numbers: list[int] = []
    widths: list[float] = []
    for row in rows:
        number = row.query_selector(".number").inner_text()
        numbers.append(int(number.replace(",", "")))
        box = row.query_selector("rect").bounding_box()
        widths.append(box["width"] if box else 0.0)
    assert len(rows) > 3
    if page.viewport_size["width"] == 400:  # a narrow window has no room for bars
        assert widths == [0.0] * len(rows)
        return
    expected = [widths[0] * number / numbers[0] for number in numbers]
    assert widths == pytest.approx(expected, abs=1)


def test_hostile_documents_are_text(page: Any) -> None:
    """URLs, titles and texts with scripts are shown; nothing of them is markup."""
    open_folds(page)
    assert page.title().startswith("/")
    assert "hacked" not in page.title()
    assert page.query_selector_all("script, img, iframe, main a:not([href^='#'])") == []
    text = page.inner_text("main")
    assert "<script>document.title='hacked'</script>" in text
    assert "\u202e" not in text
    assert any(url in text for url in URLS)


def test_links_lead_to_sections(page: Any) -> None:
    """Each heading can be reached from the list at the top."""
    links = page.eval_on_selector_all("nav a", "all => all.map((a) => a.hash.slice(1))")
    ids = page.eval_on_selector_all("h2", "all => all.map((h) => h.id)")
    assert links == ids
    assert len(set(ids)) == len(ids) > 8


def test_a_dark_window_has_a_dark_page(page: Any) -> None:
    """And a printed page is light in both."""
    read = "getComputedStyle(document.body).backgroundColor"
    is_dark = page.viewport_size["width"] == 400
    assert (page.evaluate(read) != "rgb(255, 255, 255)") == is_dark
    page.emulate_media(media="print")
    assert page.evaluate(read) == "rgb(255, 255, 255)"
    assert not page.is_visible("nav")


def test_histograms_have_all_scored_documents(details: Details, browsed: RunFolder) -> None:
    """Each score has one for all languages, with the documents kept and dropped."""
    scored = make_report(browsed).counters["select"]["documents"]
    by_score = {bins["score"]: bins["histograms"] for bins in details.histograms}
    assert {"language_score", "quality_score", "rps_doc_word_count"} <= by_score.keys()
    everything = by_score["language_score"][0]
    assert everything["num_docs"] == scored
    assert sum(everything["kept"]) == make_report(browsed).steps[-1].num_docs
    assert [line["label"] for line in by_score["rps_doc_word_count"][0]["lines"]] == [
        "min_words"
    ]


def test_every_decision_has_samples(details: Details, browsed: RunFolder) -> None:
    """Documents with that decision, the same ones each time."""
    decisions = read_decisions(browsed)
    assert set(details.samples) == set(decisions.values())
    for decision, documents in details.samples.items():
        assert documents
        for document in documents:
            assert decisions[int(document["doc_id"])] == decision
    assert read_details(browsed).samples == details.samples


def test_the_cluster_of_near_duplicates_is_listed(details: Details) -> None:
    """Its representative is kept; the URLs are those of its documents."""
    (cluster,) = [one for one in details.clusters if "near.example" in one.url]
    assert (cluster.num_docs, cluster.decision) == (3, "kept")
    urls = {cluster.url, *cluster.members}
    assert urls == {f"https://near.example/{number}" for number in range(3)}


def test_domains_have_their_losses(details: Details) -> None:
    """All documents are those of some domain."""
    totals = [domain["num_docs"] for domain in details.domains]
    assert sum(totals) == details.num_docs
    assert totals == sorted(totals, reverse=True)
    assert details.num_domains == len(details.domains)


def test_a_large_run_is_read_in_part(
    browsed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every n-th input split; the page says how many."""
    monkeypatch.setattr(report_details, "MAX_DOCS", 8)
    details = read_details(browsed)
    assert 0 < details.num_splits < details.num_all_splits == len(browsed.splits)
    html = make_report_page(browsed, make_report(browsed))
    assert re.search(r"show \d+ documents, from 2 of 3 input splits", html)


def test_provenance_names_models_versions_and_config(browsed: RunFolder) -> None:
    """A model that is a file of the user has no known licence; the page says so."""
    found = read_provenance(browsed)
    licences = {model.licence for model in found.models}
    assert licences == {""}
    html = make_report_page(browsed, make_report(browsed))
    assert "not in the registry: see its source" in html
    assert {"annotate", "tokenize"} <= {p for m in found.models for p in m.phases}
    assert "score 1" in found.stages["select"]
    assert found.libraries.keys() >= {"corpusmill", "Python", "pyarrow"}
    assert "min_words: 8" in found.config
    assert found.started is not None
    assert found.started.endswith("UTC")
    assert found.wall_s.keys() >= {"extract", "select"}


def test_damaged_files_leave_a_report_without_details(
    browsed: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The numbers of the report come from counters: a warning names the file."""
    copy = tmp_path / "run"
    shutil.copytree(str(browsed.run_dir), copy)
    run = RunFolder.open(copy)
    name = f"{run.splits[0].key}.documents.parquet"
    run.folder("annotate").path(name).write_bytes(b"")
    assert read_details(run) == Details()
    assert name in caplog.text
    assert make_report_page(run, make_report(run))
