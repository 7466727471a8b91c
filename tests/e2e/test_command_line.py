"""The command line on real runs: summaries, traces, exit codes and error messages."""

from __future__ import annotations

import gc
import hashlib
import json
import re
import resource
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import webdataset

from pipeline.runs.run_folder import RunFolder
from tests.conftest import wet_record
from tests.e2e.conftest import Chain
from tests.faults.runs.small_run import run_command, start_driver


def command(
    *arguments: str | Path, work: Callable[..., None] = run_command, **environment: str
) -> tuple[int, str]:
    """Return exit code and output of `python -m pipeline ...`, in a forked process."""
    environment = {"COLUMNS": "200", **environment}
    with tempfile.NamedTemporaryFile() as output:
        path, words = Path(output.name), map(str, arguments)
        driver = start_driver(work, *words, messages=path, environment=environment)
        driver.join()
        assert driver.exitcode is not None
        return driver.exitcode, path.read_text()


def run_with_small_files(*arguments: str) -> None:
    """Be `python -m pipeline`, with no file over 300,000 bytes. The work of a driver process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    run_command(*arguments)


@pytest.fixture
def small(tmp_path: Path, tiny_tokenizer: Path, wet_file: Path) -> Path:
    """A config without models on three pages (the language filter is off)."""
    path = tmp_path / "small.yaml"
    path.write_text(
        f"run_dir: {tmp_path}/run\ninput:\n  files: ['{wet_file}']\nextract:\n  length: {{min_chars: 10}}\n"
        f"paragraph_dedup:\n  keep: keep_first\nselect:\n  language: null\n"
        f"tokenize:\n  tokenizer: {tiny_tokenizer}\nengine:\n  kind: inline\n"
    )
    return path


@pytest.mark.models
def test_a_run_ends_with_its_summary_and_next_commands(
    chain: Chain, reference_run: Path
) -> None:
    """It prints the steps, the reasons, the dataset and the next commands."""
    process = chain.command("reference")
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    assert "nothing was left to do" in out
    assert f"python -m pipeline explain {reference_run}" in out
    for expected in (
        "What is left after each step",
        "paragraphs.none_left",
        "select: language",
        "Quarantined:",
    ):
        assert expected in out
    page = (reference_run / "report.html").read_text()
    addresses = re.findall(r"""(?:href|src|url)\s*[=(]\s*["']?([^"'\s>)]+)""", page)
    assert [address for address in addresses if not address.startswith("#")] == []
    assert "paragraphs.none_left" in page
    report = json.loads((reference_run / "report.json").read_text())
    assert report["steps"][0]["num_docs"] >= report["steps"][-1]["num_docs"] > 0


# webdataset leaves its files to the garbage collector
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.models
def test_the_shards_of_a_run_read_back_by_webdataset(reference_run: Path) -> None:
    """Plain webdataset reads the samples and tokens of the manifest."""
    dataset = Path(RunFolder.open(reference_run).dataset)
    manifest = json.loads((dataset / "manifest.json").read_text())
    shards = [str(dataset / shard["file"]) for shard in manifest["shards"]]
    samples = list(
        webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).decode()
    )
    assert len(samples) == manifest["totals"]["num_samples"]
    assert (
        sum(len(sample["tokens.npy"]) for sample in samples)
        == manifest["totals"]["num_tokens"]
    )
    gc.collect()
    documents = [document for sample in samples for document in sample["json"]]
    # Copies of a document have ids of their own.
    ids = {document["doc_id"] for document in documents}
    assert len(documents) == len(ids) == manifest["totals"]["num_docs"]
    assert len({document["url"] for document in documents}) < len(documents)


@pytest.mark.models
def test_explain_shows_kept_and_dropped_documents(reference_run: Path) -> None:
    """By URL and by id: what was removed, the scores, the decision and the shard are shown."""
    run = RunFolder.open(reference_run)
    rows = [
        r
        for p in sorted(Path(run.folder("select").root).glob("*.decisions.parquet"))
        for r in pq.read_table(p).to_pylist()
    ]
    kept = next(row for row in rows if row["decision"] == "kept")
    code, trace = command("explain", reference_run, kept["url"])
    assert code == 0
    assert re.search(r"paragraph_dedup +\d+ paragraphs? removed, \d+ left", trace)
    assert "language_score" in trace
    assert re.search(r"write_shards +shard-\d+\.tar, document \d+", trace)
    dropped = next(row for row in rows if row["decision"].startswith("perplexity."))
    code, trace = command("explain", reference_run, str(dropped["doc_id"]))
    assert code == 0
    assert re.search(
        r"select +dropped: perplexity\.bucket_not_wanted \(value [\d.]+, limit [\d.]+, tail\)",
        trace,
    )
    copy = next(row for row in rows if row["decision"] == "minhash.near_duplicate")
    stays = next(row for row in rows if row["doc_id"] == copy["representative"])
    code, trace = command("explain", reference_run, copy["url"])
    assert code == 0
    assert "select           dropped: minhash.near_duplicate\n" in trace
    assert f"near-duplicate of document {stays['doc_id']}: {stays['url']} (" in trace
    code, text = command("explain", reference_run, copy["url"], "--json")
    (found,) = json.loads(text)
    assert (code, found["decision"]) == (0, "minhash.near_duplicate")
    assert found["representatives"]["select"]["doc_id"] == stays["doc_id"]
    assert found["rows"]["select.decisions"]["doc_id"] == copy["doc_id"]
    code, message = command("explain", reference_run, "https://nowhere.example/")
    assert code == 2
    assert "no document 'https://nowhere.example/'" in message


def test_a_quiet_run_prints_only_where_the_dataset_is(small: Path, tmp_path: Path) -> None:
    """Progress and report are left out; report.html is written."""
    code, out = command("run", small, "--quiet")
    assert code == 0
    (line,) = out.splitlines()
    assert "tasks done, in" in line
    assert line.endswith(f"The dataset: {tmp_path}/run/dataset/manifest.json")
    assert (tmp_path / "run" / "report.html").exists()


def test_verify_finds_a_flipped_bit(small: Path, tmp_path: Path) -> None:
    """The exit code is 0 for a good dataset, and 1 with the shard's name after one bit was changed."""
    assert command("run", small)[0] == 0
    code, out = command("verify", tmp_path / "run")
    assert (code, "as the manifest says" in out) == (0, True)
    (shard,) = (tmp_path / "run").glob("write_shards-*/shard-000000.tar")
    content = bytearray(shard.read_bytes())
    content[700] ^= 4
    shard.write_bytes(bytes(content))
    code, out = command("verify", tmp_path / "run")
    assert code == 1
    assert "shard-000000.tar" in out


def test_plan_shows_what_would_run(small: Path, tmp_path: Path) -> None:
    """Before a run every phase would run, after it all are done. Plan writes nothing."""
    code, out = command("plan", small)
    assert code == 0
    assert out.count("would run") == 6
    assert not (tmp_path / "run").exists()
    assert command("run", small)[0] == 0
    assert command("plan", small)[1].count(" all ") == 6


def test_wrong_configs_end_with_code_2_and_every_fault(small: Path) -> None:
    """All faults are printed, and nothing is run."""
    code, out = command(
        "run", small, "--set", "select.langauge=null", "--set", "engine.workers=0"
    )
    assert code == 2
    assert "did you mean language?" in out
    assert "engine.workers is 0" in out
    assert command("run", "nowhere.yaml")[0] == 2
    assert command("report", "/nowhere")[0] == 2
    assert command("fly")[0] == 2


def test_too_much_quarantine_ends_with_code_3_and_a_whole_dataset(
    small: Path, wet_file: Path, tmp_path: Path
) -> None:
    """The good records are still written to shards."""
    wet_file.write_bytes(wet_file.read_bytes() + b"no record at all\r\n" * 3)
    code, out = command("run", small)
    assert code == 3, out
    assert "input.max_quarantined_share allows 1.00%" in out
    assert (
        json.loads(
            next((tmp_path / "run").glob("write_shards-*/manifest.json")).read_text()
        )["totals"]["num_docs"]
        == 3
    )


def test_a_lost_input_file_ends_with_code_3_and_a_whole_dataset(
    small: Path, wet_file: Path, tmp_path: Path
) -> None:
    """The pages of the other file are in the shards, and the lost file is named."""
    lost = wet_file.with_name("b-lost.warc.wet")
    lost.write_bytes(b"<html>503 Slow Down</html>" * 9)
    files = f"input.files=['{wet_file}', '{lost}']"
    limits = ("--set", "input.max_quarantined_share=0.5")
    code, out = command("run", small, "--set", files, *limits)
    assert code == 3, out
    assert "input.max_lost_files_share allows 0.00%: b-lost.warc.wet" in out
    manifest = json.loads((tmp_path / "run" / "dataset" / "manifest.json").read_text())
    assert manifest["totals"]["num_docs"] == 3
    code, out = command("run", small, "--set", files, *limits)
    assert (code, "nothing was left to do" in out) == (3, True)


@pytest.mark.parametrize("run_dir", ["/proc/run", "{file}/run"])
def test_unwritable_run_folder_is_an_error_before_the_run(
    small: Path, tmp_path: Path, run_dir: str
) -> None:
    """The message names the option to set."""
    blocking = tmp_path / "blocking"
    blocking.write_text("")
    code, out = command("run", small, "--run-dir", run_dir.format(file=blocking))
    assert code == 1
    assert "cannot be written" in out
    assert "--run-dir" in out


def test_run_resumes_after_a_full_disk(small: Path, tmp_path: Path) -> None:
    """A task without disk space fails with the system's message; the next run does only this task."""
    wet = tmp_path / "b-second.warc.wet"
    words = " ".join(
        hashlib.blake2b(str(n).encode(), digest_size=8).hexdigest() for n in range(60_000)
    )
    wet.write_bytes(wet_record("https://example.org/big", f"Title\n{words}", number=9))
    files = f"input.files=['{tmp_path}/*.warc.wet']"
    code, out = command("run", small, "--set", files, work=run_with_small_files)
    assert code == 1, out
    assert "1 of 2 tasks failed; the others are done" in out
    assert "File too large" in out
    code, out = command("run", small, "--set", files)
    assert code == 0
    assert "extract: 2 tasks, 1 done before" in out


def test_second_run_in_a_folder_is_refused(small: Path, tmp_path: Path) -> None:
    """The message says that another process works in the folder."""
    import fcntl

    assert command("run", small)[0] == 0
    with (tmp_path / "run" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, out = command("run", small)
    assert code == 1
    assert "another process is working" in out
