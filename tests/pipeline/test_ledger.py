"""Every document of the input has one fate, and its story can be told long after."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import RunConfig
from pipeline.execution.engine import PhaseFinished, run
from pipeline.planning.plan import make_plan
from pipeline.reporting.explain import explain, find_in_shards
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder, RunNotFound
from shardwriter.format import ShardIndex
from stages.filters.quality_definitions import DEFINITIONS
from tests.conftest import wet_record
from tests.pipeline.conftest import Small

ENGLISH = "the treaty was signed in the museum, page {}"
FRENCH = "le chat et la souris, page {}"
SHARED = "the treaty was signed, as all pages say."
PAGES = {
    "good": f"{ENGLISH}\nA line of page {{}} alone.",
    "french": f"{FRENCH}\nUne ligne de la page {{}}.",
    "short": "x",
    "copy": f"{SHARED}\nin the museum the treaty was signed.",
    "half": f"{SHARED}\nthe treaty of the museum, page {{}}",
    "empty": "",
}
"""Kind -> the lines of a page, with the page's number in words where it must differ from others."""

LETTERS = str.maketrans("0123456789", "abcdefghij")  # deduplication takes all digits for the same


def write_pages(path: Path, kinds: Sequence[str], broken: int = 0) -> Path:
    """A WET file of pages of those kinds, and some records that are none."""
    name, records = path.stem[0], list[bytes]()
    for i, kind in enumerate(kinds):
        text = PAGES[kind].replace("{}", f"{name}{i}".translate(LETTERS))
        records.append(wet_record(f"https://example.org/{name}/{i}", f"Title\n{text}"))
    path.write_bytes(b"".join(records) + b"no record at all\r\n" * broken)
    return path


RULES: dict[str, Any] = {
    "extract": {"length": {"min_chars": 5}},
    "select": {"language": {"min_score": 0.0, "keep": ["en"]}},
}


def last_fates(found: RunFolder) -> dict[int, str]:
    """Document -> fate, from the ledger's files; a second fate of a document is an error."""
    decisions: dict[int, str] = {}
    for phase in ("extract", "annotate", "select"):
        for split in found.splits:
            for row in pq.read_table(
                found.folder(phase).path(f"{split.key}.decisions.parquet")
            ).to_pylist():
                assert row["doc_id"] not in decisions
                decisions[row["doc_id"]] = row["decision"]
    return decisions


@pytest.fixture
def mixed(small: Small) -> RunFolder:
    """A run over pages of every kind, in two files."""
    kinds = [*PAGES, "good", "copy"]
    files = [write_pages(small.folder / f"{name}.warc.wet", kinds) for name in ("first", "second")]
    return small.run(input={"files": [str(path) for path in files]}, **RULES)[0]


def test_each_fault_of_a_page_has_its_reason(mixed: RunFolder) -> None:
    """What was dropped early has no second fate; what is left is kept."""
    decisions = last_fates(mixed)
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
    assert [decisions[1 << 32 | record] for record in (3, 7)] == ["paragraphs.none_left"] * 2


@settings(max_examples=6)
@given(
    st.lists(st.lists(st.sampled_from([*PAGES]), max_size=6), min_size=1, max_size=3),
    st.sampled_from(["drop_all_copies", "keep_first"]),
)
def test_every_document_has_exactly_one_fate(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_tokenizer: Path,
    lid_file: Path,
    splits: list[list[str]],
    keep: str,
) -> None:
    """Documents of the input = kept + dropped, in the ledger, in the report and in the dataset."""
    folder = tmp_path_factory.mktemp("run")
    files = [write_pages(folder / f"{'abc'[i]}.warc.wet", kinds) for i, kinds in enumerate(splits)]
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
    decisions = last_fates(found)
    assert set(decisions) == {
        index << 32 | record for index, kinds in enumerate(splits) for record in range(len(kinds))
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
    assert sorted(int(doc_id) for index in indexes for doc_id in index.doc_ids) == sorted(kept)


def test_stories_agree_with_the_ledger(mixed: RunFolder) -> None:
    """Told by URL or by id, every document has the fate that the ledger holds, and its place if it was kept."""
    for doc_id, decision in last_fates(mixed).items():
        url = f"https://example.org/{'fs'[doc_id >> 32]}/{doc_id & 0xFF}"
        (by_id,) = explain(mixed, str(doc_id))
        assert explain(mixed, url) == [by_id]
        assert (by_id.doc_id, by_id.decision, by_id.columns["url"]) == (doc_id, decision, url)
        text = "\n".join(by_id.lines)
        place = find_in_shards(mixed, doc_id)
        if decision == "kept":
            assert place is not None
            assert f"{place.shard}, document {place.row}" in text
        else:
            assert place is None
            assert f"dropped: {decision}" in text


def test_a_story_tells_what_deduplication_took(mixed: RunFolder) -> None:
    """The lines that went are shown, and how much is left."""
    (trace,) = explain(mixed, str(1 << 32 | 4))
    assert any("1 paragraphs removed, 1 left" in line for line in trace.lines)
    assert any(SHARED in line for line in trace.lines)


def test_a_story_names_who_else_has_what_was_taken(mixed: RunFolder) -> None:
    """Also of a page of which nothing is left: the first other document with the paragraph, and what became of it."""
    for doc_id in (1 << 32 | 4, 1 << 32 | 3):
        (trace,) = explain(mixed, str(doc_id))
        assert any(
            "also in document 3: https://example.org/f/3 (kept)" in line for line in trace.lines
        )
    assert "deduplicate  2 paragraphs removed, 0 left" in trace.lines


def test_a_story_looks_for_copies_where_deduplication_did(small: Small) -> None:
    """With groups of one unit, another unit's copy took nothing; a line's own repetition is said to be that."""
    files = [
        write_pages(small.folder / f"{name}.warc.wet", ["copy", "half"])
        for name in ("first", "second")
    ]
    twice = wet_record(
        "https://example.org/twice", "Title\nthe same of the museum.\nthe same of the museum."
    )
    files[1].write_bytes(files[1].read_bytes() + twice)
    found, _ = small.run(
        input={"files": [str(f) for f in files]},
        paragraph_dedup={"keep": "keep_first", "group_splits": 1},
    )
    text = "\n".join(explain(found, str(1 << 32 | 1))[0].lines)
    assert f"also in document {1 << 32}: https://example.org/s/0 (kept)" in text
    assert "twice in this document" in "\n".join(explain(found, str(1 << 32 | 2))[0].lines)


def test_a_story_tells_every_score_and_every_rule_with_its_limit(
    small: Small, lid_file: Path
) -> None:
    """Rules behind the one that decided are told as well, and those that the document passes."""
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
    lines = [line.strip() for line in trace.lines]
    num_words = trace.columns["rps_doc_word_count"]
    assert "passes length.too_few_chars" in "\n".join(lines)
    assert "passes language.score_too_low (value 1, limit 0)" in lines
    assert "breaks language.not_wanted (fr)" in lines
    assert f"breaks quality.words_too_few (value {num_words}, limit 100)" in lines
    assert any(line.startswith("passes quality.words_too_long (value ") for line in lines)
    assert {line.split()[0] for line in lines} >= set(DEFINITIONS)
    assert not any("min_stop_words" in line or "stop_words_too_few" in line for line in lines)
    (decided,) = [line for line in lines if "dropped:" in line]
    assert decided == "select       dropped: language.not_wanted (fr)"


def test_a_story_without_its_rules_is_still_told(mixed: RunFolder) -> None:
    """A config that this software does not know: the rules are said to be untold, with the cause."""
    path = Path(mixed.run_dir) / "run.json"
    described = json.loads(path.read_text())
    described["config"]["select"]["astrology"] = {}
    path.write_text(json.dumps(described))
    (trace,) = explain(RunFolder.open(mixed.run_dir), "0")
    assert trace.decision == "kept"
    assert any("its rules cannot be told: " in line and "astrology" in line for line in trace.lines)


def test_a_place_is_where_the_tokens_lie(mixed: RunFolder) -> None:
    """Shard, row, sample and span are those of the index, and of the sample's own JSON."""
    for doc_id in (doc_id for doc_id, decision in last_fates(mixed).items() if decision == "kept"):
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


def test_a_page_that_was_crawled_twice_has_two_stories(small: Small) -> None:
    """One per document of that URL."""
    page = wet_record("https://example.org/again", "Title\n" + ENGLISH)
    other = wet_record("https://example.org/again", "Title\nSomething else altogether.")
    path = small.folder / "twice.warc.wet"
    path.write_bytes(page + other)
    found, _ = small.run(input={"files": [str(path)]})
    assert [trace.doc_id for trace in explain(found, "https://example.org/again")] == [0, 1]


def test_a_story_needs_the_run_folder_alone(mixed: RunFolder, tmp_path: Path) -> None:
    """Moved elsewhere, with input and config gone, it tells the same."""
    before = explain(mixed, "0")
    moved = tmp_path / "elsewhere"
    shutil.move(mixed.run_dir, moved)
    for path in tmp_path.glob("*.wet"):
        path.unlink()
    assert explain(RunFolder.open(moved), "0") == before


def test_a_story_goes_as_far_as_the_run_has_got(small: Small) -> None:
    """After extract alone nothing is decided; the fates that are known are told."""
    path = write_pages(small.folder / "first.warc.wet", [*PAGES])
    for event in run(small.plan(input={"files": [str(path)]}, **RULES)):
        if isinstance(event, PhaseFinished):
            break
    found = RunFolder.open(small.folder / "run")
    (trace,) = explain(found, "0")
    assert trace.decision == "not decided yet"
    assert "in 2 paragraphs" in "\n".join(trace.lines)
    assert explain(found, "2")[0].decision == "length.too_few_chars"
    assert find_in_shards(found, 0) is None


@pytest.mark.parametrize(
    "key", ["https://example.org/never", "99", "²", str(7 << 32), str(10**30), ""]
)
def test_what_was_never_read_is_told(mixed: RunFolder, key: str) -> None:
    """No such URL, record or unit: a message with the key, and where else to look."""
    with pytest.raises(
        RunNotFound,
        match=f"no document '{key}' among what was read; its record may be in the quaran",
    ):
        explain(mixed, key)


def test_a_folder_without_a_run_is_told(mixed: RunFolder, tmp_path: Path) -> None:
    """With the nearest folder that holds one, or the command that starts one."""
    with pytest.raises(
        RunNotFound, match=rf"no run here \(run\.json is missing\); did you mean {mixed.run_dir}\?"
    ):
        RunFolder.open(tmp_path / "runn")
    with pytest.raises(RunNotFound, match="start one with `python -m pipeline run`"):
        RunFolder.open(tmp_path / "nowhere" / "run")


def test_run_json_describes_the_run(mixed: RunFolder) -> None:
    """Config in full, a folder per phase, the units; and nothing else is needed to open it."""
    described = json.loads((Path(mixed.run_dir) / "run.json").read_text())
    assert described["config"]["extract"]["length"]["min_chars"] == 5
    assert described["folders"] == dict(mixed.folders)
    assert Path(mixed.folder("select").root).is_dir()
    assert [split.key for split in mixed.splits] == described["splits"]
