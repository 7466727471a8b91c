"""`retract` takes documents out of the dataset of a real small run, and later runs keep to it."""

from __future__ import annotations

import gc
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from loader import TokenLoader
from pipeline import cli
from pipeline.execution.engine import run as run_plan
from pipeline.reporting.browse.search import Search
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.export import export_run
from pipeline.reporting.report import make_report, to_html
from pipeline.reporting.samples import draw_samples
from pipeline.retraction import retract
from pipeline.retraction.apply import find_unretracted, read_all_tombstones, read_log
from pipeline.retraction.records import read_records
from pipeline.retraction.request import make_request
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.run_lock import hold
from pipeline.terminal import FAILED, WRONG_USAGE
from shardwriter.format import (
    RETRACTIONS_FILE,
    FormatError,
    Manifest,
    RetractionLog,
    ShardIndex,
)
from tests.conftest import wet_record
from tests.pipeline.conftest import Small

# webdataset leaves shards open
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

IGNORED = -100
WHY = {"reason": "takedown", "requested_by": "the author"}


def command(*arguments: object) -> tuple[int, str]:
    """Return exit code and output of a command."""
    result = CliRunner().invoke(cli.make_program(), [str(word) for word in arguments])
    gc.collect()
    return result.exit_code, result.output


def write(path: Path, *lines: str) -> Path:
    """Write lines into a file, and return its path."""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def read_rows(run: RunFolder) -> dict[str, np.ndarray]:
    """Return all rows of a run as the loader gives them."""
    loader = TokenLoader(
        str(run.run_dir), seq_len=16, global_batch_rows=1, rank=0, world_size=1, epochs=1
    )
    batches = list(loader)
    return {name: np.concatenate([b[name].numpy() for b in batches]) for name in batches[0]}


def count_masked(run: RunFolder) -> int:
    """Return the number of labels that the loader masks."""
    return int((read_rows(run)["labels"] == IGNORED).sum())


def find_document(run: RunFolder, record: int) -> tuple[int, int]:
    """Return the first token of the document with that record number, and its tokens."""
    manifest = Manifest.loads(run.dataset.read_bytes("manifest.json"))
    file = manifest.shards[0].index_file
    index = ShardIndex.from_bytes(run.dataset.read_bytes(file), file)
    place = index.doc_ids.tolist().index(record)
    first, stop = index.doc_starts[place : place + 2].tolist()
    return first, stop - first


def test_the_command_retracts_and_says_what_it_did(small: Small, tmp_path: Path) -> None:
    """URLs that were not read are named. The order of rows and saved states stay."""
    run, _ = small.run()
    before = read_rows(run)
    urls = write(tmp_path / "urls", "http://www.example.org/1/", "https://example.org/none")
    domains = write(tmp_path / "domains", "other.example")
    files = ("--urls", urls, "--domains", domains)
    request = ("retract", run.run_dir, *files, "--reason", "takedown")
    code, output = command(*request, "--dry-run")
    assert code == 0
    assert "the request names 1 document of" in output
    assert "dry run" in output
    assert not run.dataset.exists(RETRACTIONS_FILE)
    code, output = command(*request, "--requested-by", "the author", "--json")
    assert code == 0
    result = json.loads(output)
    first, num_tokens = find_document(run, 1)
    assert (result["num_docs"], result["num_tokens"]) == (1, num_tokens)
    assert result["unmatched"] == ["example.org/none", "other.example"]
    assert [d["url"] for d in result["documents"]] == ["https://example.org/1"]
    assert result["record"]["requested_by"] == "the author"
    assert result["digest_before"] != result["digest_after"]
    after = read_rows(run)
    # Labels are the tokens from the second one on.
    is_masked = np.zeros(len(before["labels"].ravel()) + 1, bool)
    is_masked[first : first + num_tokens] = True
    wanted = np.where(is_masked[1:].reshape(before["labels"].shape), IGNORED, 0)
    in_order = np.argsort(_find_rows(run))
    assert ((after["labels"][in_order] == IGNORED) == (wanted == IGNORED)).all()
    code, output = command(*request, "--requested-by", "the author")
    assert code == 0
    assert "the same request was recorded" in output
    assert len(read_records(run.run_dir)) == 1


def _find_rows(run: RunFolder) -> np.ndarray:
    """Return the row of the shard at each position of the first epoch."""
    loader = TokenLoader(
        str(run.run_dir), seq_len=16, global_batch_rows=1, rank=0, world_size=1, epochs=1
    )
    end = loader._stream.find_end(1)
    assert end is not None
    return loader._stream.locate(np.arange(end))[2]


def test_other_commands_know_retracted_documents(small: Small, tmp_path: Path) -> None:
    """`explain`, `report` and `verify` name the retraction; exports and samples leave it out."""
    run, _ = small.run()
    run_dir = str(run.run_dir)
    retract(run, make_request(["example.org/1"], []), **WHY)
    (trace,) = explain(run, "https://example.org/1")
    assert trace.retraction is not None
    assert "requested by the author: takedown" in "\n".join(format_trace(trace))
    (other,) = explain(run, "https://example.org/2")
    assert other.retraction is None
    assert [entry.num_docs for entry in make_report(run).retractions] == [1]
    assert "Retracted since" in to_html(make_report(run))
    code, output = command("verify", run_dir)
    assert (code, "1 document with" in output) == (0, True)
    assert "1 request retracted" in " ".join(output.split())
    export_run(run, tmp_path / "export", "jsonl")
    with gzip.open(tmp_path / "export" / "data" / "train-00000-of-00001.jsonl.gz") as file:
        urls = [json.loads(line)["url"] for line in file]
    assert urls == ["https://example.org/0", "https://example.org/2"]
    assert {sample.url for sample in draw_samples(run, Search(), 10, 0)} == set(urls)


@pytest.mark.parametrize(
    "fault", ["no request applied", "one document left", "wrong place"]
)
def test_verify_finds_documents_that_are_not_masked(small: Small, fault: str) -> None:
    """Requests are matched again, and tombstones are compared with the indexes."""
    run, _ = small.run()
    retract(run, make_request([], ["example.org"]), **WHY)
    assert find_unretracted(run) == []
    dataset, record = run.dataset, read_records(run.run_dir)[0]
    log = RetractionLog(read_log(dataset).manifest_digest)
    tombstones = read_all_tombstones(dataset, read_log(dataset))
    if fault == "no request applied":
        dataset.put(RETRACTIONS_FILE, log.dumps())
    else:
        if fault == "one document left":
            tombstones = tombstones[1:]
        else:
            tombstones[0, 3] -= 1
        log, content = log.append(
            tombstones, recorded_at="", request_sha256=record.sha256, **WHY
        )
        dataset.put(log.entries[0].tombstones, content)
        dataset.put(RETRACTIONS_FILE, log.dumps())
    code, output = command("verify", str(run.run_dir))
    assert code == FAILED
    wanted = "tombstone of document" if fault == "wrong place" else "not masked"
    assert wanted in output.replace("\n", " ")


def test_a_later_run_keeps_requests_in_force(small: Small) -> None:
    """In a dataset of other thresholds, and again when the first thresholds come back."""
    run, _ = small.run()
    retract(run, make_request(["example.org/1"], []), **WHY)
    masked = count_masked(run)
    assert masked > 0
    other, _ = small.run(write_shards={"seed": 5})
    assert other.dataset != run.dataset
    assert count_masked(other) in range(masked - 1, masked + 2)
    retract(other, make_request(["example.org/2"], []), **WHY)
    back, _ = small.run()
    assert str(back.dataset) == str(run.dataset)
    assert count_masked(back) > masked
    events = [
        event for event in back.read_events() if event["event"] == "RetractionApplied"
    ]
    assert [event["reason"] for event in events] == ["takedown", "takedown"]


def test_a_request_covers_documents_that_are_read_later(
    small: Small, tmp_path: Path
) -> None:
    """A domain without documents is recorded, and applied when a file of it is added."""
    run, _ = small.run()
    result = retract(run, make_request([], ["late.example"]), **WHY)
    assert (result.num_docs, result.list_unmatched()) == (0, ["late.example"])
    late = tmp_path / "late.warc.wet"
    text = "Title\n" + "Words of another page. " * 20
    late.write_bytes(wet_record("https://sub.late.example/page", text))
    files = [*small.tree["input"]["files"], str(late)]
    later, _ = small.run(input={"files": files})
    assert count_masked(later) > 0


def test_a_request_is_applied_after_a_crash(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is recorded first. The same command, or a run, applies it to the dataset."""
    run, _ = small.run()
    request = make_request(["example.org/1"], [])

    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for crash_at in ("pipeline.retraction.apply.read_log", "storage.local.LocalStore.put"):
        with monkeypatch.context() as patch:
            patch.setattr(crash_at, crash)
            with pytest.raises(KeyboardInterrupt):
                retract(run, request, **WHY)
        assert count_masked(run) == 0
    assert retract(run, request, **WHY).num_docs == 1
    assert len(read_records(run.run_dir)) == 1
    assert count_masked(run) > 0


def test_a_request_is_recorded_before_the_run_is_finished(small: Small) -> None:
    """The dataset is retracted before readers can find it."""
    events = run_plan(small.plan())
    for event in events:
        if getattr(event, "phase", "") == "extract" and hasattr(event, "was_complete"):
            break
    events.close()
    run = RunFolder.open(small.folder / "run")
    result = retract(run, make_request(["example.org/1"], []), **WHY)
    assert (result.digest_before, result.digest_after) == (None, None)
    finished, _ = small.run()
    assert count_masked(finished) > 0


def test_wrong_use_is_refused(small: Small, tmp_path: Path) -> None:
    """No reason, no request, a run that works, and a damaged log."""
    run, _ = small.run()
    urls = write(tmp_path / "urls", "example.org/1")
    assert command("retract", run.run_dir, "--urls", urls)[0] == WRONG_USAGE
    assert command("retract", run.run_dir, "--reason", "takedown")[0] == WRONG_USAGE
    with hold(run.run_dir):
        request = ("--urls", urls, "--reason", "takedown")
        code, output = command("retract", run.run_dir, *request)
    assert code == FAILED
    assert "another process is working" in output
    run.dataset.put(RETRACTIONS_FILE, b"{}")
    with pytest.raises(FormatError):
        retract(run, make_request(["example.org/1"], []), **WHY)
