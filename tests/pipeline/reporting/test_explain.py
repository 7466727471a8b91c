"""Explaining documents: each has exactly one decision, and its trace shows where it came from."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import RunConfig
from pipeline.execution.engine import PhaseFinished, run
from pipeline.planning.plan import make_plan
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.explain.find import find_in_shards
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder, RunNotFound
from shardwriter.format import ShardIndex
from stages.filters.quality.definitions import DEFINITIONS
from tests.conftest import wet_record
from tests.pipeline.conftest import Small
from tests.pipeline.reporting.pages import (
    ENGLISH,
    PAGES,
    RULES,
    SHARED,
    read_decisions,
    write_pages,
)
from tests.stages.warc.files import page, response


@pytest.fixture
def mixed(small: Small) -> RunFolder:
    """A run over pages of every kind, in two files."""
    kinds = [*PAGES, "good", "copy"]
    files = [
        write_pages(small.folder / f"{name}.warc.wet", kinds)
        for name in ("first", "second")
    ]
    return small.run(input={"files": [str(path) for path in files]}, **RULES)[0]


def test_each_kind_of_page_gets_its_decision(mixed: RunFolder) -> None:
    """A page is dropped for its reason or kept."""
    decisions = read_decisions(mixed)
    assert [decisions[record] for record in range(8)] == [
        "kept",
        "language.not_wanted",
        "length.too_few_chars",
        "kept",  # the first copy
        "kept",
        "length.too_few_chars",
        "kept",
        "paragraphs.none_left",
    ]
    assert [decisions[1 << 32 | record] for record in (3, 7)] == [
        "paragraphs.none_left"
    ] * 2


@settings(max_examples=6)
@given(
    st.lists(st.lists(st.sampled_from([*PAGES]), max_size=6), min_size=1, max_size=3),
    st.sampled_from(["drop_all_copies", "keep_first"]),
)
def test_every_document_has_exactly_one_decision(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_tokenizer: Path,
    lid_file: Path,
    splits: list[list[str]],
    keep: str,
) -> None:
    """Decisions, report and dataset agree: documents read = kept + dropped."""
    folder = tmp_path_factory.mktemp("run")
    files = [
        write_pages(folder / f"{'abc'[i]}.warc.wet", kinds)
        for i, kinds in enumerate(splits)
    ]
    tree: dict[str, Any] = {
        "run_dir": str(folder / "run"),
        "input": {"files": [str(path) for path in files]},
        "paragraph_dedup": {"keep": keep},
        "annotate": {"language": {"model": str(lid_file)}},
        "tokenize": {"tokenizer": str(tiny_tokenizer)},
        "engine": {"kind": "inline"},
    }
    plan = make_plan(RunConfig.model_validate(tree | RULES))
    list(run(plan))
    found = RunFolder.open(plan.run_dir)
    decisions = read_decisions(found)
    assert set(decisions) == {
        index << 32 | record
        for index, kinds in enumerate(splits)
        for record in range(len(kinds))
    }
    kept = {doc_id for doc_id, decision in decisions.items() if decision == "kept"}
    report = make_report(found)
    assert report.steps[0].num_docs == len(decisions)
    assert report.steps[-1].num_docs == len(kept)
    assert report.reasons == Counter(
        decision for decision in decisions.values() if decision != "kept"
    )
    indexes = [
        ShardIndex.from_bytes(path.read_bytes(), path.name)
        for path in Path(found.dataset).glob("*.idx")
    ]
    assert sorted(int(doc_id) for index in indexes for doc_id in index.doc_ids) == sorted(
        kept
    )


def test_traces_agree_with_the_decisions(mixed: RunFolder) -> None:
    """By URL or by id, the trace shows the stored decision, and the shard of a kept document."""
    for doc_id, decision in read_decisions(mixed).items():
        url = f"https://example.org/{'fs'[doc_id >> 32]}/{doc_id & 0xFF}"
        (by_id,) = explain(mixed, str(doc_id))
        assert explain(mixed, url) == [by_id]
        assert (by_id.doc_id, by_id.decision, by_id.columns["url"]) == (
            doc_id,
            decision,
            url,
        )
        text = "\n".join(format_trace(by_id))
        place = find_in_shards(mixed, doc_id)
        if decision == "kept":
            assert place is not None
            assert f"{place.shard}, document {place.row}" in text
        else:
            assert place is None
            assert f"dropped: {decision}" in text


def test_trace_lists_removed_paragraphs(mixed: RunFolder) -> None:
    """The removed lines are shown, with the number that is left."""
    (trace,) = explain(mixed, str(1 << 32 | 4))
    assert any("1 paragraph removed, 1 left" in line for line in format_trace(trace))
    assert any(SHARED in line for line in format_trace(trace))


def test_trace_names_the_first_other_document_with_a_paragraph(mixed: RunFolder) -> None:
    """The lookup also works for a document of which nothing is left."""
    for doc_id in (1 << 32 | 4, 1 << 32 | 3):
        (trace,) = explain(mixed, str(doc_id))
        assert any(
            "also in document 3: https://example.org/f/3 (kept)" in line
            for line in format_trace(trace)
        )
    assert "paragraph_dedup  2 paragraphs removed, 0 left" in format_trace(trace)


def test_trace_looks_for_copies_in_the_group_of_the_document(small: Small) -> None:
    """With groups of one split, copies in other splits are not named."""
    files = [
        write_pages(small.folder / f"{name}.warc.wet", ["copy", "half"])
        for name in ("first", "second")
    ]
    twice = wet_record(
        "https://example.org/twice",
        "Title\nthe same of the museum.\nthe same of the museum.",
    )
    files[1].write_bytes(files[1].read_bytes() + twice)
    found, _ = small.run(
        input={"files": [str(f) for f in files]},
        paragraph_dedup={"keep": "keep_first", "group_splits": 1},
    )
    text = "\n".join(format_trace(explain(found, str(1 << 32 | 1))[0]))
    assert f"also in document {1 << 32}: https://example.org/s/0 (kept)" in text
    assert "twice in this document" in "\n".join(
        format_trace(explain(found, str(1 << 32 | 2))[0])
    )


def test_trace_shows_every_score_and_every_rule(small: Small, lid_file: Path) -> None:
    """Rules after the one that decided are shown too, and those that the document passes."""
    path = write_pages(small.folder / "first.warc.wet", ["french", "good"])
    found, _ = small.run(
        input={"files": [str(path)]},
        annotate={"language": {"model": str(lid_file)}, "quality": {}},
        select={
            "language": {"min_score": 0.0, "keep": ["en"]},
            "quality": {"languages": None, "min_words": 100, "min_stop_words": None},
        },
    )
    (trace,) = explain(found, "0")
    lines = [line.strip() for line in format_trace(trace)]
    num_words = trace.columns["rps_doc_word_count"]
    assert "passes length.too_few_chars" in "\n".join(lines)
    assert "passes language.score_too_low (value 1, limit 0)" in lines
    assert "breaks language.not_wanted (fr)" in lines
    assert f"breaks quality.words_too_few (value {num_words}, limit 100)" in lines
    assert any(line.startswith("passes quality.words_too_long (value ") for line in lines)
    assert {line.split()[0] for line in lines} >= set(DEFINITIONS)
    assert not any(
        "min_stop_words" in line or "stop_words_too_few" in line for line in lines
    )
    (decided,) = [line for line in lines if "dropped:" in line]
    assert decided == "select           dropped: language.not_wanted (fr)"


def test_trace_of_a_run_with_an_unknown_config_key(mixed: RunFolder) -> None:
    """Without a valid config the rules are left out, with the cause; the rest is shown."""
    path = Path(mixed.run_dir) / "run.json"
    described = json.loads(path.read_text())
    described["config"]["select"]["astrology"] = {}
    path.write_text(json.dumps(described))
    (trace,) = explain(RunFolder.open(mixed.run_dir), "0")
    assert trace.decision == "kept"
    assert any(
        "its rules cannot be evaluated: " in line and "astrology" in line
        for line in format_trace(trace)
    )


def test_location_is_where_the_tokens_are_stored(mixed: RunFolder) -> None:
    """Shard, row, sample and tokens agree with the index, and with the JSON of the sample."""
    for doc_id in (
        doc_id for doc_id, decision in read_decisions(mixed).items() if decision == "kept"
    ):
        place = find_in_shards(mixed, doc_id)
        assert place is not None
        shard = Path(mixed.dataset) / place.shard
        index = ShardIndex.from_bytes(shard.with_suffix(".idx").read_bytes(), place.shard)
        assert index.doc_ids[place.row] == doc_id
        assert index.doc_starts[place.row] == place.token_start
        with tarfile.open(shard) as tar:
            member = tar.extractfile(f"{place.sample}.json")
            assert member is not None
            documents = json.loads(member.read())
        assert doc_id in [document["doc_id"] for document in documents]


def test_trace_shows_that_main_content_was_too_short(small: Small) -> None:
    """Such a page keeps all its text. The counters of extract have the number of such pages."""
    menu = f"<p>Head</p><nav>{ENGLISH * 30}</nav>".encode()
    path = small.folder / "menu.warc"
    path.write_bytes(response(page(menu)) + response(page(ENGLISH.encode())))
    found, _ = small.run(
        input={"files": [str(path)]},
        extract={"warc": {"html": {"main_content": True}}},
    )
    short, good = explain(found, "0")[0], explain(found, "1")[0]
    reason = "all text of the page, because its main content has only 4 characters"
    assert reason in "\n".join(format_trace(short))
    assert "main content" not in "\n".join(format_trace(good))
    assert [trace.columns["main_content_chars"] for trace in (short, good)] == [4, None]
    assert make_report(found).counters["extract"]["num_without_main_content"] == 1


def test_url_that_was_crawled_twice_has_two_traces(small: Small) -> None:
    """There is one trace per document of the URL."""
    page = wet_record("https://example.org/again", "Title\n" + ENGLISH)
    other = wet_record("https://example.org/again", "Title\nSomething else altogether.")
    path = small.folder / "twice.warc.wet"
    path.write_bytes(page + other)
    found, _ = small.run(input={"files": [str(path)]})
    assert [trace.doc_id for trace in explain(found, "https://example.org/again")] == [0, 1]


@pytest.mark.parametrize(
    "key",
    ["example.org/again", "http://www.example.org/again/", "//EXAMPLE.org:443/again"],
)
def test_a_url_is_found_without_its_scheme(small: Small, key: str) -> None:
    """As `retract` finds it. A URL that no document has is answered with the nearest one."""
    path = small.folder / "one.warc.wet"
    path.write_bytes(wet_record("https://example.org/again", "Title\n" + ENGLISH))
    found, _ = small.run(input={"files": [str(path)]})
    assert [trace.url for trace in explain(found, key)] == ["https://example.org/again"]
    with pytest.raises(RunNotFound, match=r"did you mean https://example\.org/again\?"):
        explain(found, f"{key}st")


def test_empty_lines_that_a_rule_removed_are_counted(small: Small) -> None:
    """They are not listed in place of lines with text."""
    short = [
        f"Few {word}" for word in ["one", "two", "three", "four", "five", "six", "seven"]
    ]
    text = "\n\n\n".join([*short, "One more line of the page.", "And one more of them."])
    path = small.folder / "lines.warc.wet"
    path.write_bytes(wet_record("https://example.org/lines", f"Title\n{text}"))
    rules = {"min_words_per_line": 4, "end_marks": None, "min_sentences": 1}
    found, _ = small.run(input={"files": [str(path)]}, annotate={"lines": rules})
    (trace,) = explain(found, "0")
    lines = format_trace(trace)
    start = next(i for i, line in enumerate(lines) if line.startswith("lines "))
    shown = [line.strip() for line in lines[start + 1 : start + 8]]
    assert shown[:6] == [*(f"- '{line}'" for line in short[:5]), "- and 2 more"]
    assert "empty line" in shown[6]


def test_explain_needs_only_the_run_folder(mixed: RunFolder, tmp_path: Path) -> None:
    """The traces are the same after the run was moved and its input deleted."""
    before = explain(mixed, "0")
    moved = tmp_path / "elsewhere"
    shutil.move(mixed.run_dir, moved)
    for path in tmp_path.glob("*.wet"):
        path.unlink()
    assert explain(RunFolder.open(moved), "0") == before


def test_explain_works_on_an_unfinished_run(small: Small) -> None:
    """After extract, a document is not decided yet unless extract dropped it."""
    path = write_pages(small.folder / "first.warc.wet", [*PAGES])
    for event in run(small.plan(input={"files": [str(path)]}, **RULES)):
        if isinstance(event, PhaseFinished):
            break
    found = RunFolder.open(small.folder / "run")
    (trace,) = explain(found, "0")
    assert trace.decision == "not decided yet"
    assert "in 2 paragraphs" in "\n".join(format_trace(trace))
    assert explain(found, "2")[0].decision == "length.too_few_chars"
    assert find_in_shards(found, 0) is None


@pytest.mark.parametrize(
    "key", ["https://example.org/never", "99", "²", str(7 << 32), str(10**30), ""]
)
def test_unknown_documents_are_an_error(mixed: RunFolder, key: str) -> None:
    """The message names the key and where else to look."""
    with pytest.raises(
        RunNotFound,
        match=f"no document '{key}' was read; .*its record may be in the quaran",
    ):
        explain(mixed, key)
