"""The comparison of two runs agrees with their stored decisions, and says why they differ."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.reporting.diff import (
    RunDiff,
    compare_runs,
    pairing,
    print_diff,
    to_value,
)
from pipeline.reporting.diff.pairing import (
    ABSENT,
    Pairing,
    pair_documents,
    pair_splits,
)
from pipeline.reporting.report import make_report
from pipeline.reporting.report.page import make_diff_page
from pipeline.runs.run_folder import RunFolder, RunNotFound
from terminal_output.console import SafeConsole
from tests.pipeline.conftest import Small, make_small
from tests.pipeline.reporting.conftest import write_attacks
from tests.pipeline.reporting.pages import PAGES, read_decisions, write_pages
from tests.processes import run_command

RULES: dict[str, Any] = {
    "extract": {"length": {"min_chars": 5}},
    "select": {"language": {"min_score": 0.0, "keep": ["en"]}},
}


@dataclass(frozen=True)
class Runs:
    """Runs over two or three of the files a, b and c."""

    small: Small
    before: RunFolder  # a and b; English only
    after: RunFolder  # a and b; every language, longer texts
    moved: RunFolder  # c and b; as `before`


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, lid_file: Path
) -> Runs:
    """Three runs. The hostile pages are in the file that all of them read."""
    small = make_small(tmp_path_factory.mktemp("diff"), tiny_tokenizer, lid_file)
    kinds = [*PAGES, "good", "french"]
    a, b, c = (str(small.folder / f"{name}.warc.wet") for name in "abc")
    write_pages(Path(a), kinds)
    write_attacks(Path(b))
    write_pages(Path(c), [*kinds, "french"])
    first = {"input": {"files": [a, b]}, **RULES}
    changed = {
        **first,
        "extract": {"length": {"min_chars": 72}},
        "select": {"language": {"min_score": 0.0, "keep": None}},
    }
    return Runs(
        small,
        small.run("before", **first)[0],
        small.run("after", **changed)[0],
        small.run("moved", **{**first, "input": {"files": [c, b]}})[0],
    )


@pytest.fixture(scope="module")
def found(runs: Runs) -> RunDiff:
    return compare_runs(runs.before, runs.after)


def print_text(found: RunDiff) -> str:
    out = io.StringIO()
    print_diff(found, SafeConsole(width=160, file=out))
    return out.getvalue()


def list_pairs(tables: Iterator[Any]) -> Counter[tuple[str, str]]:
    pairs: Counter[tuple[str, str]] = Counter()
    for table in tables:
        columns = (table.column(f"decision_{side}") for side in ("before", "after"))
        pairs.update(zip(*(column.to_pylist() for column in columns), strict=True))
    return pairs


def test_a_phase_without_stages_is_no_change(runs: Runs, found: RunDiff) -> None:
    """A run that was made before the phase existed does not name it."""
    versions = {name: each for name, each in runs.before.stage_versions.items() if each}
    assert len(versions) < len(runs.before.stage_versions)
    older = replace(runs.before, stage_versions=versions)
    assert compare_runs(older, runs.after).stages == found.stages


def test_transitions_are_those_of_the_stored_decisions(runs: Runs, found: RunDiff) -> None:
    """Both runs read the same files, so a document has the same id in both."""
    before, after = read_decisions(runs.before), read_decisions(runs.after)
    assert before.keys() == after.keys()
    pairs = Counter((before[i], after[i]) for i in before)
    changed = {pair: number for pair, number in pairs.items() if pair[0] != pair[1]}
    assert len(changed) > 1
    assert {(t.before, t.after): t.num_docs for t in found.transitions} == changed
    assert found.num_changed == sum(changed.values())
    assert found.num_unchanged == len(before) - found.num_changed


def test_numbers_are_those_of_the_reports(runs: Runs, found: RunDiff) -> None:
    """Documents, characters, tokens and languages."""
    for run, read, kept, side in zip(
        (runs.before, runs.after), found.read, found.kept, (0, 1), strict=True
    ):
        report = make_report(run)
        assert read == report.num_docs_read
        assert kept.num_docs == report.steps[-1].num_docs
        assert kept.num_chars == report.steps[-1].num_chars
        assert kept.num_tokens == report.num_tokens
        languages = {name: pair[side].num_docs for name, pair in found.languages.items()}
        assert {n: number for n, number in languages.items() if number} == report.languages


def test_causes_are_changed_keys_and_the_phases_that_they_change(found: RunDiff) -> None:
    """Neither the folder of the run nor phases that are off are named."""
    assert found.config == {
        "extract.length.min_chars": (5, 72),
        "select.language.keep": (["en"], None),
    }
    assert found.stages == {}
    assert {"extract", "select", "tokenize"} <= set(found.phases)
    assert "fuzzy_dedup" not in found.phases


def test_examples_have_the_rules_of_both_runs(runs: Runs, found: RunDiff) -> None:
    """With the ids by which `explain` finds them; the same ones each time."""
    decisions = read_decisions(runs.before), read_decisions(runs.after)
    for transition in found.transitions:
        assert 0 < len(transition.examples) <= transition.num_docs
        for example in transition.examples:
            assert decisions[0][example.doc_id_before] == transition.before
            assert decisions[1][example.doc_id_after] == transition.after
            assert "://" in example.url or example.url.startswith("javascript:")
    (short,) = [t for t in found.transitions if t.after == "length.too_few_chars"][:1]
    assert short.examples[0].rule_after["limit"] == 72
    assert compare_runs(runs.before, runs.after).transitions == found.transitions


def test_scores_and_domains_are_those_of_kept_documents(found: RunDiff) -> None:
    """Each histogram has the kept documents of each run."""
    scores = {score.score: score for score in found.distributions.scores}
    everything = scores["num_chars"].histograms[0]
    assert everything["language"] is None
    assert sum(everything["before"]) == found.kept[0].num_docs
    assert sum(everything["after"]) == found.kept[1].num_docs
    assert scores["num_chars"].moved_share > 0
    (domain,) = [d for d in found.distributions.domains if d.name == "example.org"]
    assert domain.kept[0] != domain.kept[1]
    assert domain.read == (8, 8)


def test_other_splits_are_compared_by_url(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in several passes, and documents of one run only are counted as such."""
    found = pair_splits(runs.before, runs.moved)
    assert [(old.index, new.index) for old, new in found.same] == [(1, 1)]
    assert [split.index for split in found.only_before] == [0]
    result = compare_runs(runs.before, runs.moved)
    by_side = {(ABSENT, t.after) for t in result.transitions if t.before == ABSENT}
    assert (ABSENT, "kept") in by_side
    assert all(ABSENT in (t.before, t.after) for t in result.transitions)
    assert result.read == tuple(
        make_report(run).num_docs_read for run in (runs.before, runs.moved)
    )

    same = pair_splits(runs.before, runs.after)
    by_url = Pairing([], runs.before.splits, runs.after.splits)
    wanted = list_pairs(pair_documents(runs.before, runs.after, same))
    monkeypatch.setattr(pairing, "MAX_ROWS", 3)
    assert list_pairs(pair_documents(runs.before, runs.after, by_url)) == wanted


def test_a_url_that_occurs_twice_is_two_documents(runs: Runs, tmp_path: Path) -> None:
    """The first one is compared with the first one."""
    path = write_pages(tmp_path / "a.warc.wet", [*PAGES])
    twice = tmp_path / "twice.warc.wet"
    twice.write_bytes(path.read_bytes() * 2)
    run = runs.small.run("twice", **{**RULES, "input": {"files": [str(twice)]}})[0]
    documents = pair_documents(run, run, Pairing([], run.splits, run.splits))
    (table,) = list(documents)
    assert table.num_rows == 2 * len(PAGES)
    assert table.column("doc_id_before").equals(table.column("doc_id_after"))


def test_a_run_does_not_differ_from_itself(runs: Runs) -> None:
    """And the text says so."""
    found = compare_runs(runs.before, runs.before)
    assert (found.num_changed, found.config, found.phases) == (0, {}, ())
    assert found.distributions.domains == ()
    assert {score.moved_share for score in found.distributions.scores} == {0.0}
    assert "No document has another decision." in print_text(found)
    assert "No document has another decision." in make_diff_page("same", found)


def test_the_text_shows_causes_and_transitions(found: RunDiff) -> None:
    """Keys as `--set` takes them; control characters of the crawl are escaped."""
    text = print_text(found)
    assert 'select.language.keep: ["en"] -> null' in text
    assert "extract.length.min_chars: 5 -> 72" in text
    assert "length.too_few_chars" in text
    assert "documents kept" in text
    assert "\u202e" not in text


def test_json_has_every_field(found: RunDiff) -> None:
    """And the number of changed documents."""
    value = json.loads(json.dumps(to_value(found)))
    assert value.keys() == {"num_changed", *RunDiff.__dataclass_fields__}
    assert value["num_changed"] == found.num_changed


def test_an_unfinished_run_is_refused(runs: Runs) -> None:
    """The message names the run."""
    unfinished = Path(runs.small.folder) / "unfinished"
    unfinished.mkdir()
    shutil.copy(Path(str(runs.before.run_dir)) / "run.json", unfinished)
    with pytest.raises(RunNotFound, match="unfinished: select is not done yet"):
        compare_runs(runs.before, RunFolder.open(unfinished))


def test_the_page_fits_into_a_narrow_window(
    browser: Any, found: RunDiff, tmp_path: Path
) -> None:
    """Examples are text; nothing is loaded, and no policy is violated."""
    path = tmp_path / "diff.html"
    path.write_text(make_diff_page("a and b", found), encoding="utf-8")
    context = browser.new_context(viewport={"width": 400, "height": 800})
    page = context.new_page()
    logged: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator("details[open] .documents > li").count() > 0
    assert page.locator("path.after").count() > 0
    assert page.query_selector_all("main script, main img") == []
    assert logged == []
    context.close()


def test_the_command_ends_with_its_own_code(runs: Runs, tmp_path: Path) -> None:
    """4 with --exit-code if documents differ; the page and the report are written."""
    folders = [str(run.run_dir) for run in (runs.before, runs.after)]
    page = tmp_path / "diff.html"
    done = run_command("diff", *folders, "--exit-code", "--json", "--html", str(page))
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["num_changed"] > 0
    assert "Documents with another decision" in page.read_text(encoding="utf-8")
    done = run_command("report", folders[1], "--against", folders[0])
    assert done.returncode == 0, done.stderr
    assert "documents with another decision" in done.stdout
    written = json.loads((Path(folders[1]) / "report.json").read_text())
    assert written["against"]["before"] == folders[0]
    assert "Compared with" in (Path(folders[1]) / "report.html").read_text("utf-8")
