"""Documents that were too slow in earlier tries of a task: processed one by one, then left out."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.execution.document_timeout import DocumentTimeout
from pipeline.execution.engine import PhaseFinished, run
from pipeline.phases import registry
from pipeline.phases.extract import Extract
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.report.summary import describe_reason, make_report
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.slow_documents import SlowDocuments, read_notes, write_note
from stages.filters.length import Length
from tests.conftest import wet_record
from tests.pipeline.conftest import Small
from tests.pipeline.execution.deadly import DEADLY_STAGES
from tests.processes import run_python
from tests.stages.warc.files import page, response


def make_timeout(slow: list[int], suspects: list[tuple[int, int]]) -> DocumentTimeout:
    """Return what these notes on the stage `length` say."""
    timeout = object.__new__(DocumentTimeout)
    timeout._slow = {"length": dict.fromkeys(slow, 300)}
    timeout._suspects = {"length": suspects}
    return timeout


IDS = st.integers(0, 30)


@given(
    st.lists(IDS, min_size=1, unique=True).map(sorted),
    st.lists(IDS),
    st.lists(st.tuples(IDS, IDS).map(sorted).map(tuple)),
)
def test_parts_are_the_batch_and_slow_documents_are_alone(
    ids: list[int], slow: list[int], suspects: list[Any]
) -> None:
    """In order, without empty parts; documents without a note are not separated needlessly."""
    batch = pa.table({"doc_id": pa.array(ids, pa.uint64())})
    timeout = make_timeout(slow, suspects)
    parts = [part.column("doc_id").to_pylist() for part in timeout.divide("length", batch)]
    assert [doc_id for part in parts for doc_id in part] == ids
    noted = {*slow, *(n for first, last in suspects for n in range(first, last + 1))}
    for part in parts:
        assert len(part) == 1 or noted.isdisjoint(part)
    num_noted = len(noted.intersection(ids))
    assert num_noted <= len(parts) <= 2 * num_noted + 1
    (whole,) = timeout.divide("language", batch)
    assert whole.equals(batch)


def note_documents(small: Small, step: str, *ranges: tuple[int, int], **plan: Any) -> str:
    """Write notes on documents of the first split, and return the id of its task."""
    planned = small.plan(**plan)
    task_id = planned.splits[0].key
    for first, last in ranges:
        note = SlowDocuments(step, first, last, 300)
        write_note(planned.folder("extract").root, task_id, note, 301.0)
    return task_id


def test_a_slow_document_is_dropped_by_its_stage(small: Small) -> None:
    """The decision has the limit; the other documents are kept, with the same bytes as otherwise."""
    whole, _ = small.run("whole")
    task_id = note_documents(small, "length", (1, 1))
    found, _ = small.run()
    decisions = pq.read_table(
        found.folder("extract").path(f"{task_id}.decisions.parquet")
    ).to_pylist()
    assert [(row["doc_id"], row["decision"], row["limit"]) for row in decisions] == [
        (1, "length.too_slow", 300.0)
    ]
    documents, expected = (
        pq.read_table(run.folder("extract").path(f"{task_id}.documents.parquet"))
        for run in (found, whole)
    )
    assert documents.equals(expected.filter(pa.array([True, False, True])))
    assert make_report(found).reasons["length.too_slow"] == 1
    assert "engine.document_timeout_s" in describe_reason("length.too_slow")
    assert any("length.too_slow" in line for line in format_trace(explain(found, "1")[0]))


def test_a_larger_limit_tries_the_document_again(small: Small) -> None:
    """A note is void if the config allows more time than the document had."""
    note_documents(small, "length", (1, 1))
    found, _ = small.run(engine={"kind": "inline", "document_timeout_s": 301})
    assert make_report(found).reasons.get("length.too_slow") is None


def test_suspected_documents_are_processed_one_by_one(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outputs are those of a run without notes."""
    sizes: list[int] = []

    class Counting(Length):
        def apply(self, batch: pa.Table) -> Any:
            sizes.append(batch.num_rows)
            return super().apply(batch)

    whole, _ = small.run("whole")
    stages = tuple(Counting if stage is Length else stage for stage in Extract.stages)
    monkeypatch.setattr(Extract, "stages", stages)
    task_id = note_documents(small, "length", (0, 1))
    found, _ = small.run()
    assert sizes[:3] == [1, 1, 1]
    for kind in ("documents.parquet", "decisions.parquet", "hashes.arrow"):
        file = f"{task_id}.{kind}"
        paths = [run.folder("extract").path(file) for run in (found, whole)]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_slow_page_is_quarantined(small: Small) -> None:
    """With the cause html.too_slow and the seconds; the page is not parsed."""
    file = small.folder / "pages.warc"
    file.write_bytes(response(page(b"<p>" + b"A page with some words in it. " * 9)) * 3)
    sections = {"input": {"files": [str(file)]}}
    task_id = note_documents(small, "read", (1, 1), **sections)
    found, _ = small.run(**sections)
    text = found.folder("extract").path(f"{task_id}.quarantine.jsonl").read_text()
    (entry,) = map(json.loads, text.splitlines())
    assert (entry["record"], entry["cause"]) == (1, "html.too_slow")
    assert entry["detail"] == "it took more than 300 s of CPU time"
    counts = found.folder("extract").summary()["counters"]["counts"]
    assert (counts["documents"], counts["num_records"]) == (2, 3)


def run_deadly(small: Small) -> subprocess.CompletedProcess[str]:
    """Run the config by the command line, with the stage `Deadly` in the place of `length`."""
    code = "from tests.pipeline.execution.deadly import main; main()"
    return run_python(
        "-c", code, "run", str(small.path), env=os.environ | {"COLUMNS": "200"}, timeout=600
    )


# The other documents pass kernels, which may have to be compiled within the limit.
@pytest.mark.parametrize(
    ("engine", "num_documents", "limit_s"),
    [
        pytest.param({"kind": "inline"}, 1, 3),
        pytest.param({"kind": "inline"}, 3, 15, marks=pytest.mark.heavy),
        pytest.param(
            {"kind": "ray", "workers": 1}, 3, 15, marks=[pytest.mark.ray, pytest.mark.heavy]
        ),
    ],
    ids=["inline", "inline, several documents", "ray"],
)
def test_a_document_that_does_not_end_is_left_out(
    small: Small,
    monkeypatch: pytest.MonkeyPatch,
    engine: dict[str, Any],
    num_documents: int,
    limit_s: int,
) -> None:
    """The process is killed and replaced, and the run ends without the document, also when resumed.

    The config is edited meanwhile: the run keeps what it was planned with.
    """
    texts = [f"endless edit {small.path}", *(f"page {n} of some words" for n in "ab")]
    records = [
        wet_record(f"https://example.org/{number}", f"Title\n{text}")
        for number, text in enumerate(texts[:num_documents])
    ]
    (small.folder / "a.warc.wet").write_bytes(b"".join(records))
    sections: dict[str, Any] = {
        "input": {"files": [str(small.folder / "a.*.wet")]},
        "engine": {**engine, "document_timeout_s": limit_s},
    }
    small.config(**sections)
    done = run_deadly(small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert small.path.read_text().startswith("edited")
    found = RunFolder.open(small.folder / "run")
    counts = found.folder("extract").summary()["counters"]["counts"]
    assert counts["dropped.length.too_slow"] == 1
    assert counts.get("documents_kept", 0) == num_documents - 1
    task_id = found.splits[0].key
    notes = read_notes(found.folder("extract").root, task_id, limit_s)
    # With others in its batch, it has to be found first.
    assert len(notes) == (1 if num_documents == 1 else 2)
    assert SlowDocuments("length", 0, 0, limit_s) in notes
    if engine["kind"] == "inline":
        line = "a document took longer than engine.document_timeout_s"
        assert done.stderr.count(line) == len(notes)
        monkeypatch.setattr(Extract, "stages", DEADLY_STAGES)
        again = list(run(small.plan(**sections)))
        assert all(isinstance(event, PhaseFinished) for event in again)
        assert len(again) == len(registry.list_enabled(small.plan(**sections).config))
