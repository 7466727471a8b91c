"""Exports in the layout of Hugging Face, in folders and in buckets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pipeline import cli
from pipeline.reporting.export import OutputExists, export_run
from pipeline.reporting.export.hugging_face import _make_json_values, plan_files
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.retraction import retract
from pipeline.retraction.request import make_request
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder
from storage import open_store
from storage.object_store import ObjectStore
from tests.pipeline.conftest import Small
from tests.pipeline.reporting.pages import read_decisions

# So small that no file has two input splits.
ONE_SPLIT = 1


def read_files(folder: Path) -> dict[str, bytes]:
    """Return name -> content of all files, hidden ones too."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def read_documents(folder: Path) -> pa.Table:
    """Return the documents of an export in Parquet."""
    return pa.concat_tables(pq.read_table(p) for p in sorted(folder.glob("data/*.parquet")))


def test_the_export_has_the_kept_documents_in_input_order(
    kept_run: RunFolder, tmp_path: Path
) -> None:
    """Each kept document is in it once, with its text and scores; no other is."""
    exported = export_run(kept_run, tmp_path / "out", "parquet", ONE_SPLIT)
    documents = read_documents(tmp_path / "out")
    decisions = read_decisions(kept_run)
    kept = sorted(doc_id for doc_id in decisions if decisions[doc_id] == "kept")
    assert documents.column("doc_id").to_pylist() == kept
    assert list(exported.files.values()) == [1, 2, 1]
    assert documents.column_names[:3] == ["text", "doc_id", "url"]
    texts, lengths = documents.column("text"), documents.column("num_chars")
    assert list(map(len, texts.to_pylist())) == lengths.to_pylist()
    assert set(documents.column("language").to_pylist()) == {"en"}


def test_the_files_have_the_names_of_hugging_face(
    kept_run: RunFolder, tmp_path: Path
) -> None:
    """Also a card, Croissant metadata and export.json; nothing else is left."""
    export_run(kept_run, tmp_path / "out", "jsonl", ONE_SPLIT)
    data = [f"out/data/train-0000{number}-of-00003.jsonl.gz" for number in range(3)]
    small = ["out/README.md", "out/croissant.json", "out/export.json"]
    assert sorted(read_files(tmp_path)) == sorted([*small, *data])


def test_jsonl_and_parquet_have_equal_values(kept_run: RunFolder, tmp_path: Path) -> None:
    """Every column of every document."""
    export_run(kept_run, tmp_path / "parquet", "parquet")
    export_run(kept_run, tmp_path / "jsonl", "jsonl")
    (file,) = (tmp_path / "jsonl").glob("data/*.gz")
    lines = gzip.decompress(file.read_bytes()).splitlines()
    assert list(map(json.loads, lines)) == read_documents(tmp_path / "parquet").to_pylist()


def test_datasets_loads_the_folder(
    kept_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load_dataset` takes the split and the files from the card."""
    datasets = pytest.importorskip("datasets")
    export_run(kept_run, tmp_path / "out", "parquet", ONE_SPLIT)
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]
    wanted = read_documents(tmp_path / "out").column("text").to_pylist()
    assert loaded["train"]["text"][:] == wanted


@pytest.mark.parametrize("format", ["parquet", "jsonl", "ccnet"])
def test_equal_runs_give_equal_bytes(
    kept_run: RunFolder, tmp_path: Path, format: str
) -> None:
    """The name of the folder is in the card and in the metadata, and nothing else differs."""
    for place in ("one", "two"):
        export_run(kept_run, tmp_path / place / "out", format, ONE_SPLIT)
    assert read_files(tmp_path / "one") == read_files(tmp_path / "two")


@pytest.mark.parametrize("num_chars", [1, 100, 150, 10**9])
def test_files_are_whole_splits_of_limited_size(
    kept_run: RunFolder, num_chars: int
) -> None:
    """Every split with kept documents is in one file, and a file with two splits is no larger."""
    files = plan_files(KeptDocuments(kept_run), num_chars)
    splits = [split.index for file in files for split in file.splits]
    assert splits == [0, 1, 3]
    records = {record["task_id"]: record for record in _read_select(kept_run)}
    for file in files:
        chars = [records[s.key]["counters"]["counts"]["chars"] for s in file.splits]
        assert sum(chars) <= num_chars or len(chars) == 1


def _read_select(run: RunFolder) -> list[dict[str, object]]:
    return list(run.folder("select").records(split.key for split in run.splits))


class Killed(BaseException):
    """Raised in place of a kill of the process."""


@pytest.fixture
def kill_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the process of an export end before it commits the n-th file."""
    commit = PhaseFolder.commit

    def set_kill(num_commits: int) -> None:
        left = [num_commits]

        def commit_or_die(folder: PhaseFolder, task_id: str) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return commit(folder, task_id)

        monkeypatch.setattr(PhaseFolder, "commit", commit_or_die)

    return set_kill


def test_an_interrupted_export_shows_nothing_and_continues(
    kept_run: RunFolder, tmp_path: Path, kill_after: Callable[[int], None]
) -> None:
    """The folder appears when all is written. Finished files are not written again."""
    whole = tmp_path / "whole" / "out"
    export_run(kept_run, whole, "parquet", ONE_SPLIT)
    out = tmp_path / "out"
    kill_after(2)
    with pytest.raises(Killed):
        export_run(kept_run, out, "parquet", ONE_SPLIT)
    assert not out.exists()
    kill_after(1)  # one file is left
    export_run(kept_run, out, "parquet", ONE_SPLIT)
    assert read_files(out) == read_files(whole)


def test_an_unfinished_export_of_something_else_is_replaced(
    kept_run: RunFolder, tmp_path: Path, kill_after: Callable[[int], None]
) -> None:
    """Files of other sizes are not mixed."""
    out = tmp_path / "out"
    kill_after(2)
    with pytest.raises(Killed):
        export_run(kept_run, out, "parquet", ONE_SPLIT)
    kill_after(10)
    export_run(kept_run, out, "parquet")
    assert [path.name for path in (out / "data").iterdir()] == [
        "train-00000-of-00001.parquet"
    ]


def test_an_export_into_a_bucket_has_the_same_files(
    kept_run: RunFolder, tmp_path: Path, bucket_store: ObjectStore
) -> None:
    """A second one is refused, and the first stays."""
    target = bucket_store.child("out")
    export_run(kept_run, target, "parquet", ONE_SPLIT)
    export_run(kept_run, tmp_path / "out", "parquet", ONE_SPLIT)
    names = [
        *target.list_names(),
        *(f"data/{n}" for n in target.child("data").list_names()),
    ]
    assert {name: target.read_bytes(name) for name in names} == read_files(tmp_path / "out")
    assert target.child("data/done").list_names() == []
    with pytest.raises(OutputExists, match="is a complete export"):
        export_run(kept_run, target, "parquet", ONE_SPLIT)


def test_an_interrupted_export_into_a_bucket_continues(
    kept_run: RunFolder, bucket_store: ObjectStore, kill_after: Callable[[int], None]
) -> None:
    """Until the end it has no export.json, and an export of something else is refused."""
    target = bucket_store.child("out")
    kill_after(2)
    with pytest.raises(Killed):
        export_run(kept_run, target, "jsonl", ONE_SPLIT)
    assert "export.json" not in target.list_names()
    with pytest.raises(OutputExists, match="exists already; give"):
        export_run(kept_run, target, "jsonl")
    kill_after(1)
    export_run(kept_run, target, "jsonl", ONE_SPLIT)
    assert target.list_names() == ["README.md", "croissant.json", "export.json"]


def test_personal_data_is_replaced_as_in_the_shards(small: Small, tmp_path: Path) -> None:
    """The export has the placeholders of `tokenize.pii`, and counts of them."""
    wet = Path(small.tree["input"]["files"][0])
    content = wet.read_bytes()
    wet.write_bytes(content.replace(b"First of a. First of a.", b"Mail: someone@x.org now"))
    run, _ = small.run(tokenize={"pii": {}})
    export_run(run, tmp_path / "out", "parquet")
    document = read_documents(tmp_path / "out").to_pylist()[0]
    assert "|||EMAIL_ADDRESS|||" in document["text"]
    assert "someone@" not in document["text"]
    assert document["pii_email"] == document["text"].count("|||EMAIL_ADDRESS|||") > 0
    assert document["num_chars"] == len(document["text"])


def test_retracted_documents_are_left_out(small: Small, tmp_path: Path) -> None:
    """The card says how many, and its numbers are those of the export."""
    run, _ = small.run()
    request = make_request(["example.org/1"], [])
    retract(run, request, reason="asked for", requested_by="its author")
    export_run(run, tmp_path / "out", "parquet")
    urls = read_documents(tmp_path / "out").column("url").to_pylist()
    assert urls == ["https://example.org/0", "https://example.org/2"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| documents | 2 |" in card
    assert "| left out on request | 1 |" in card


def test_infinite_scores_are_null_in_jsonl() -> None:
    """JSON has no infinity."""
    table = pa.table({"score": [1.5, float("inf"), float("nan"), None], "n": [1, 2, 3, 4]})
    assert _make_json_values(table).to_pydict() == {
        "score": [1.5, None, None, None],
        "n": [1, 2, 3, 4],
    }


def test_the_command_prints_files_and_documents(
    kept_run: RunFolder, tmp_path: Path
) -> None:
    """Parquet is the default."""
    words = ["export", str(kept_run.run_dir), "--to", str(tmp_path / "out")]
    result = CliRunner().invoke(cli.make_program(), words)
    assert result.exit_code == 0, result.output
    assert "4 documents in 1 file:" in result.output
    assert (tmp_path / "out/data/train-00000-of-00001.parquet").exists()


def test_a_wrong_format_is_named(kept_run: RunFolder, tmp_path: Path) -> None:
    """The message lists the formats."""
    with pytest.raises(ValueError, match="'csv', expected one of parquet, jsonl, ccnet"):
        export_run(kept_run, open_store(tmp_path / "out"), "csv")
