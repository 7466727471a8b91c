"""Whole runs over JSONL and Parquet files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from config_files.reader import ConfigError
from pipeline.errors import RunAborted
from pipeline.inputs import text_files
from pipeline.reporting.browse import build_index
from pipeline.reporting.browse.documents import describe_document
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder
from tests.pipeline.conftest import Small

COLUMNS = {"text": "body", "url": "meta.url"}


def make_rows(start: int, stop: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(start, stop):
        # Digits are equal in CCNet's normal form, letters are not.
        name = "".join("abcdefghij"[int(digit)] for digit in str(number))
        body = f"Sentence {name} of this corpus. " * 20
        rows.append({"body": body, "meta": {"url": f"https://example.org/{number}"}})
    return rows


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with 30 rows in three formats, and one broken line."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    lines = [json.dumps(row) for row in make_rows(0, 20)]
    (folder / "a.jsonl").write_text("\n".join([*lines[:10], "broken", ""]))
    (folder / "b.jsonl.gz").write_bytes(
        gzip.compress("\n".join(lines[10:]).encode(), mtime=0)
    )
    table = pa.Table.from_pylist(make_rows(20, 30))
    pq.write_table(table, folder / "c.parquet", row_group_size=3)
    return folder


def run(small: Small, corpus: Path, name: str = "run", **sections: Any) -> RunFolder:
    text = {"files": [str(corpus)], **COLUMNS}
    limits: Any = {"files": None, "text": text, "max_quarantined_share": 0.1}
    return small.run(name, input=limits, **sections)[0]


def read_kept(run: RunFolder) -> list[str]:
    """Return the URLs of the extracted documents, in order."""
    urls: list[str] = []
    for split in run.splits:
        path = run.folder("extract").path(f"{split.key}.documents.parquet")
        urls += pq.read_table(path, columns=["url"]).column(0).to_pylist()
    return urls


def test_all_formats_go_through_the_chain(small: Small, corpus: Path) -> None:
    """Rows are in the order of the files; the broken line is quarantined and reported."""
    found = run(small, corpus)
    assert read_kept(found) == [f"https://example.org/{number}" for number in range(30)]
    report = make_report(found)
    assert report.quarantine == {"text.not_json": 1}
    assert report.num_tokens


def test_explain_and_browse_show_where_a_row_is(small: Small, corpus: Path) -> None:
    """By the byte of an uncompressed line, and otherwise by the row."""
    found = run(small, corpus)
    places = {1: "a.jsonl at byte ", 12: "b.jsonl.gz at row 2", 24: "c.parquet at row 4"}
    with build_index(found) as index:
        for number, place in places.items():
            (trace,) = explain(found, f"https://example.org/{number}")
            assert place in "\n".join(format_trace(trace))
            shown = describe_document(index, trace.doc_id)
            assert shown["source"]["place"].startswith(place)


def test_large_files_are_read_in_parts(
    small: Small, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents are the same, in the same order, in more splits."""
    whole = read_kept(run(small, corpus))
    monkeypatch.setattr(text_files, "PART_BYTES", 2_000)
    found = run(small, corpus, "parts")
    assert len(found.splits) > 6
    assert read_kept(found) == whole
    assert make_report(found).quarantine == {"text.not_json": 1}


def test_another_column_is_another_result(small: Small, corpus: Path) -> None:
    """The columns are part of the fingerprint; a run with the same ones is found done."""
    plain: Any = {"files": None, "text": {"files": [str(corpus)], **COLUMNS}}
    other: Any = {"files": None, "text": {"files": [str(corpus)], "text": "body"}}
    first, again = (small.plan(input=plain).folder("extract") for _ in range(2))
    assert str(first) == str(again)
    assert str(small.plan(input=other).folder("extract")) != str(first)


def test_rows_of_previous_runs_are_duplicates(small: Small, corpus: Path) -> None:
    """A second delivery of a corpus adds only what is new."""
    dedup: Any = {"exact_dedup": {"by": "text"}, "paragraph_dedup": {"keep": "keep_all"}}
    first = run(small, corpus, **dedup)
    more = corpus.parent / "more"
    more.mkdir()
    lines = [json.dumps(row) for row in make_rows(25, 35)]
    (more / "d.jsonl").write_text("\n".join(lines))
    second = run(small, more, "second", previous_runs=[str(first.run_dir)], **dedup)
    reasons = make_report(second).reasons
    assert sum(number for name, number in reasons.items() if "exact_dedup" in name) == 5


def test_a_missing_column_is_found_when_the_run_is_planned(
    small: Small, corpus: Path
) -> None:
    """The message has the columns of the file."""
    text = {"files": [str(corpus)], "text": "content"}
    sections: Any = {"files": None, "text": text}
    with pytest.raises(
        ConfigError, match=r"c\.parquet has no column 'content'; found body, "
    ):
        small.plan(input=sections)


def test_a_file_that_changes_after_planning_fails_its_task(
    small: Small, corpus: Path
) -> None:
    """Half of the old and half of the new file would be no version of it."""
    from pipeline.execution.engine import run as run_plan

    sections: Any = {"files": None, "text": {"files": [str(corpus)], **COLUMNS}}
    plan = small.plan(input=sections)
    path = corpus / "a.jsonl"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"Sentence b ", b"Sentence h "))
    with pytest.raises(RunAborted, match="has changed since the run was planned"):
        list(run_plan(plan))
