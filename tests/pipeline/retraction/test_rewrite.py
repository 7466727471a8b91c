"""`retract --rewrite` removes tokens, texts and URLs; order, rows and states stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loader import TokenLoader
from pipeline.reporting.explain import explain, format_trace
from pipeline.retraction import retract
from pipeline.retraction.request import make_request
from pipeline.retraction.rewrite import rewrite
from pipeline.runs.run_folder import RunFolder
from pipeline.terminal import FAILED
from shardwriter.format import RETRACTIONS_FILE, RetractionLog, ShardCorrupt
from shardwriter.verification.dataset import verify_folder
from storage.local import LocalStore
from tests.pipeline.conftest import Small
from tests.pipeline.reporting.conftest import write_near_duplicates
from tests.pipeline.retraction.test_retract import WHY, command, read_rows, write

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

# Three documents in several shards, with URLs in the shards.
SHARDS = {"write_shards": {"shard_tokens": 400, "sample_tokens": 1}}


def read_tars(run: RunFolder) -> dict[str, bytes]:
    """Return the tars of the dataset."""
    folder = Path(str(run.dataset))
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def check_rows(run: RunFolder, wanted: dict[str, np.ndarray]) -> None:
    """Assert that the loader gives these rows."""
    found = read_rows(run)
    for name, rows in wanted.items():
        assert np.array_equal(found[name], rows)


def test_rewritten_shards_have_no_trace_of_the_documents(
    small: Small, tmp_path: Path
) -> None:
    """Neither their tokens nor their URLs. Rows, states, sizes and the manifest stay."""
    run, _ = small.run(**SHARDS)
    before, manifest = read_tars(run), run.dataset.read_bytes("manifest.json")
    loader = TokenLoader(
        str(run.run_dir), seq_len=16, global_batch_rows=1, rank=0, world_size=1
    )
    next(loader)
    old_state = loader.state_dict()
    urls = write(tmp_path / "urls", "https://example.org/1")
    request = ("retract", run.run_dir, "--urls", urls, "--reason", "takedown")
    assert command(*request)[0] == 0
    masked = read_rows(run)
    code, output = command(*request, "--rewrite")
    assert code == 0
    assert "1 shard and 5 other files of the run" in output
    check_rows(run, masked)
    after = read_tars(run)
    assert run.dataset.read_bytes("manifest.json") == manifest
    assert {n: len(tar) for n, tar in after.items()} == {
        n: len(t) for n, t in before.items()
    }
    assert any(b"https://example.org/1" in tar for tar in before.values())
    assert not any(b"https://example.org/1" in tar for tar in after.values())
    assert any(b"https://example.org/2" in tar for tar in after.values())
    loader.load_state_dict(old_state)
    assert command("verify", run.run_dir, "--deep")[0] == 0
    again = rewrite(run)
    assert (again.shards, again.num_files) == ((), 0)
    # The next run finds nothing to repair.
    _, events = small.run(**SHARDS)
    assert all(getattr(event, "was_complete", True) for event in events)
    assert read_tars(run) == after


def test_a_rewrite_that_is_killed_anywhere_leaves_the_dataset_whole(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader gives the same rows after each crash, and the next call continues."""
    run, _ = small.run(**SHARDS)
    original = read_tars(run)
    retract(run, make_request([], ["example.org"]), **WHY)
    masked = read_rows(run)
    num_crashes = 0
    is_done = False
    while not is_done:
        calls = 0

        def stop_at(name: str, *, after: bool, at: int = num_crashes // 2) -> Any:
            real = getattr(LocalStore, name)

            def act(*words: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls <= at:
                    return real(*words)
                if after:
                    real(*words)
                raise KeyboardInterrupt

            return act

        with monkeypatch.context() as patch:
            for name in ("put", "move_in"):
                patch.setattr(LocalStore, name, stop_at(name, after=num_crashes % 2 == 1))
            try:
                rewrite(run)
                is_done = True
            except KeyboardInterrupt:
                num_crashes += 1
        check_rows(run, masked)
        if num_crashes % 2 and not is_done:
            for name, content in original.items():
                _put_back(run, name, content)
    assert num_crashes > 6
    assert verify_folder(run.dataset) == []
    assert not any(b"example.org" in tar for tar in read_tars(run).values())
    assert not read_strings(run) & {f"https://example.org/{record}" for record in range(3)}


def test_texts_and_urls_are_removed_from_the_run(small: Small) -> None:
    """`explain` and later runs still work, and everything of other documents stays."""
    run, _ = small.run(**SHARDS)
    before = read_strings(run)
    (trace,) = explain(run, "https://example.org/1")
    text = trace.rows["extract", "documents"]["text"]
    tokens = {path: path.read_bytes() for path in _list_files(run, "*.tokens.bin")}
    retract(run, make_request(["example.org/1"], []), **WHY)
    assert read_strings(run) == before
    assert rewrite(run).num_files == 5
    assert before - read_strings(run) >= {"https://example.org/1", text}
    (other,) = explain(run, "https://example.org/2")
    assert other.rows["extract", "documents"]["text"] in read_strings(run)
    (path,) = tokens
    old = np.frombuffer(tokens[path], np.uint16)
    new = np.frombuffer(path.read_bytes(), np.uint16)
    end = new[-1]
    assert ((new == old) | (new == end)).all()
    assert (new != old).sum() == trace.location.num_tokens - 1 if trace.location else False
    (removed,) = explain(run, "https://example.org/1")
    assert removed.retraction is not None
    assert command("verify", run.run_dir, "--deep")[0] == 0
    assert command("report", run.run_dir)[0] == 0
    later, _ = small.run(**SHARDS, select={"language": None, "perplexity": None})
    later, _ = small.run(write_shards={"seed": 5})
    assert verify_folder(later.dataset) == []
    assert command("verify", later.run_dir)[0] == 0


def test_other_documents_name_a_retracted_one(small: Small) -> None:
    """A near-duplicate of a retracted document is explained without its URL.

    No document is kept here, so the index of tokens has a batch without rows.
    """
    path = write_near_duplicates(small.folder / "near.warc.wet")
    fuzzy = {"annotate": {"minhash": {}}, "fuzzy_dedup": {"keep": "first"}}
    run, _ = small.run(input={"files": [str(path)]}, **fuzzy)
    retract(run, make_request(["near.example/0"], []), **WHY)
    (trace,) = explain(run, "https://near.example/1")
    assert "document 0: https://near.example/0 (retracted)" in "\n".join(
        format_trace(trace)
    )
    rewrite(run)
    (trace,) = explain(run, "https://near.example/1")
    assert "document 0: no URL (retracted)" in "\n".join(format_trace(trace))
    (trace,) = explain(run, "0")
    assert format_trace(trace)[0] == "document 0: no URL"


def _list_files(run: RunFolder, pattern: str) -> list[Path]:
    return sorted(Path(str(run.run_dir)).glob(f"*/{pattern}"))


def read_strings(run: RunFolder) -> set[str]:
    """Return every string that the tables of all phases hold."""
    strings: set[str] = set()
    for path in _list_files(run, "*"):
        if path.suffix == ".parquet" and path.parent.name != "retractions":
            table = pq.read_table(path)
        elif path.suffix == ".arrow":
            with pa.OSFile(str(path)) as file:
                table = pa.ipc.open_file(file).read_all()
        else:
            continue
        for column in table.columns:
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                strings.update(column.drop_null().to_pylist())
    return strings


def _put_back(run: RunFolder, name: str, content: bytes) -> None:
    """Give a shard its first bytes again, as a repair does. The next rewrite starts over."""
    path = Path(str(run.dataset)) / name
    if path.read_bytes() != content:
        run.folder("write_shards").root.put(name, content)


def test_shards_that_came_back_are_found(small: Small) -> None:
    """`verify` names tokens in a rewritten shard, and a damaged shard is not rewritten."""
    run, _ = small.run(**SHARDS)
    original = read_tars(run)
    retract(run, make_request([], ["example.org"]), **WHY)
    rewrite(run)
    name = next(iter(original))
    run.dataset.put(name, original[name])
    code, output = command("verify", run.run_dir)
    assert code == FAILED
    assert "tokens of retracted documents, wanted none" in output.replace("\n", " ")
    damaged = bytearray(original[name])
    damaged[len(damaged) // 2] ^= 1
    run.dataset.put(name, bytes(damaged))
    with pytest.raises(ShardCorrupt):
        rewrite(run)


def test_a_rewrite_covers_later_retractions(small: Small) -> None:
    """A shard may be rewritten several times."""
    run, _ = small.run(write_shards={"sample_tokens": 10_000})
    for record in (1, 2):
        retract(run, make_request([f"example.org/{record}"], []), **WHY)
        masked = read_rows(run)
        assert rewrite(run).shards == (0,)
        check_rows(run, masked)
        assert verify_folder(run.dataset) == []
    log = RetractionLog.loads(run.dataset.read_bytes(RETRACTIONS_FILE))
    assert log.rewritten == (0,)
    checksums = json.loads(run.dataset.read_bytes("rewritten-000000.json"))
    assert len(checksums["tar_digests"]) == 2
