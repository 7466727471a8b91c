"""Runs in a bucket of a real S3 server: the same bytes as on a disk, with any fault."""

from __future__ import annotations

import gc
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadFailed, ReadSettings
from pipeline import cli
from pipeline.config import RunConfig
from pipeline.errors import RunAborted
from pipeline.execution.engine import OutputDamaged, PhaseFinished, TaskFinished, run
from pipeline.phases import registry
from pipeline.planning.plan import make_plan
from pipeline.runs.phase_folder import DAMAGED, SUMMARY_FILE
from pipeline.runs.run_folder import RunFolder, RunNotFound
from pipeline.terminal import FAILED
from storage.object_store import ObjectStore
from storage.retries import requests
from tests.conftest import REPOSITORY
from tests.connected_engine import ConnectedEngine
from tests.faults.runs.small_run import hash_outputs, run_command, start_driver
from tests.loader.faults import FaultProxy
from tests.pipeline.conftest import run_until
from tests.pipeline.sample_crawl.invented import make_crawl
from tests.seaweed import BUCKET, Seaweed


@pytest.fixture(scope="session")
def tree(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, lid_file: Path
) -> dict[str, Any]:
    """A config with all phases on, for 200 pages in four files."""
    crawl = make_crawl(tmp_path_factory.mktemp("crawl"), 200, documents_per_file=50)
    return {
        "input": {
            "files": [str(path) for path in crawl.files],
            "max_quarantined_share": 1.0,
        },
        "paragraph_dedup": {"keep": "keep_first"},
        "annotate": {
            "language": {"model": str(lid_file)},
            "quality": {},
            "minhash": {"threshold": 0.5},
        },
        "fuzzy_dedup": {"keep": "longest"},
        "select": {"language": None},
        "tokenize": {"tokenizer": str(tiny_tokenizer)},
        "write_shards": {"shard_tokens": 100_000},
        "engine": {"kind": "inline"},
    }


@pytest.fixture
def config(
    tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RunConfig]:
    """Makes the config for a run folder, with changed keys of its sections."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))

    def make_config(run_dir: object, **sections: Mapping[str, Any]) -> RunConfig:
        changed = {name: {**tree.get(name, {}), **keys} for name, keys in sections.items()}
        return RunConfig.model_validate({**tree, **changed, "run_dir": str(run_dir)})

    return make_config


@pytest.fixture(scope="session")
def on_disk(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run on a disk, which the others must equal."""
    plan = make_plan(
        RunConfig.model_validate(
            {**tree, "run_dir": str(tmp_path_factory.mktemp("reference") / "run")}
        )
    )
    list(run(plan))
    return RunFolder.open(plan.run_dir)


def test_a_run_in_a_bucket_has_the_bytes_of_one_on_a_disk(
    bucket_store: ObjectStore, config: Callable[..., RunConfig], on_disk: RunFolder
) -> None:
    """All files are equal. No request asks for what a listing returns."""
    before = requests.copy()
    list(run(make_plan(config(bucket_store))))
    sent = requests.copy() - before
    assert hash_outputs(RunFolder.open(str(bucket_store))) == hash_outputs(on_disk)
    assert len(hash_outputs(on_disk)) > 60
    # whether a phase is complete, and its parent
    assert sent["head"] <= 2 * len(registry.PHASES) + 4
    again = requests.copy()
    assert all(
        event.was_complete
        for event in run(make_plan(config(bucket_store)))
        if isinstance(event, PhaseFinished)
    )
    assert (requests.copy() - again).total() < 7 * len(registry.PHASES)


@pytest.mark.ray
def test_a_run_on_ray_in_a_bucket_has_the_same_bytes(
    bucket_store: ObjectStore,
    config: Callable[..., RunConfig],
    on_disk: RunFolder,
    ray_engine: ConnectedEngine,
) -> None:
    """Its workers are other processes with their own connections."""
    plan = make_plan(config(bucket_store, engine={"kind": "ray"}))
    list(run_until(plan, "annotate", ray_engine.use(plan)))
    found = hash_outputs(RunFolder.open(str(bucket_store)))
    assert found.items() <= hash_outputs(on_disk).items()
    assert any(name.startswith("annotate/done/") for name in found)


def test_a_run_with_cut_connections_has_the_same_bytes(
    bucket_store: ObjectStore,
    config: Callable[..., RunConfig],
    on_disk: RunFolder,
    seaweed: Seaweed,
) -> None:
    """Twenty connections are cut after 3,000 bytes of answers each."""
    proxy = FaultProxy(seaweed.port)
    proxy.cut_after, proxy.cuts = 3_000, 20
    before = requests["retries"]
    try:
        cut = config(
            bucket_store,
            storage={
                "endpoint": proxy.url,
                "advanced": {"retry_timeout_s": 120.0},
            },
        )
        list(run(make_plan(cut)))
    finally:
        proxy.close()
    assert requests["retries"] - before >= 16
    assert hash_outputs(RunFolder.open(str(bucket_store))) == hash_outputs(on_disk)


def test_a_run_that_was_killed_is_resumed_with_the_same_bytes(
    bucket_store: ObjectStore,
    config: Callable[..., RunConfig],
    on_disk: RunFolder,
    tmp_path: Path,
) -> None:
    """Kill -9 in annotate. The next driver on this machine need not wait, and runs the other tasks."""
    path = tmp_path / "killed.yaml"
    path.write_text(yaml.safe_dump(config(bucket_store).model_dump(mode="json")))
    code = (
        "import sys, time; from pipeline.config import load; from pipeline.execution.engine import *\n"
        "from pipeline.planning.plan import make_plan\n"
        "for event in run(make_plan(load(sys.argv[1]))):\n"
        "    if isinstance(event, TaskFinished) and event.phase == 'annotate':\n"
        "        print('annotating', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "annotating\n"
        with pytest.raises(
            RunAborted,
            match=rf"another process is working in {bucket_store}: process {killed.pid} ",
        ):
            list(run(make_plan(config(bucket_store))))
        killed.send_signal(signal.SIGKILL)
    happened = list(run(make_plan(config(bucket_store))))
    done = [
        event.task_id
        for event in happened
        if isinstance(event, TaskFinished) and event.phase == "annotate"
    ]
    complete = [
        event.phase
        for event in happened
        if isinstance(event, PhaseFinished) and event.was_complete
    ]
    phases = [each.name for each in registry.list_enabled(config(bucket_store))]
    assert (complete, len(done)) == (phases[: phases.index("annotate")], 3)
    assert hash_outputs(RunFolder.open(str(bucket_store))) == hash_outputs(on_disk)


# webdataset leaves shards open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "verb", ["report", "status", "explain", "preview", "verify", "export"]
)
def test_every_command_reads_a_run_in_a_bucket(
    in_bucket: RunFolder, on_disk: RunFolder, tmp_path: Path, verb: str
) -> None:
    """It needs only the address, and its output is the same as for a folder on a disk."""
    rest = {
        "report": ["--json"],
        "status": [],
        "explain": [str(1 << 32 | 3)],
        "preview": ["--set", "select.quality.min_words=300"],
        "verify": [],
        "export": ["--to", str(tmp_path / "out"), "--format", "ccnet"],
    }[verb]
    said: list[str] = []
    for found in (on_disk, in_bucket):
        result = CliRunner().invoke(cli.app, [verb, str(found.run_dir), *rest])
        assert result.exit_code == 0, result.output
        said.append(result.output.replace(str(found.run_dir), "RUN"))
        if verb == "export":
            (tmp_path / "out").rename(tmp_path / f"out-{len(said)}")
    gc.collect()
    assert said[0].split() == said[1].split() or verb in ("status", "report"), (
        "times differ there"
    )
    if verb == "report":
        accounts = [{**json.loads(each), "seconds": {}} for each in said]
        assert accounts[0] == accounts[1]
    if verb == "export":
        files = [
            {p.name: p.read_bytes() for p in (tmp_path / f"out-{n}").iterdir()}
            for n in (1, 2)
        ]
        assert files[0] == files[1] != {}


@pytest.fixture
def in_bucket(bucket_store: ObjectStore, on_disk: RunFolder) -> RunFolder:
    """A copy of the finished run in the bucket."""
    root = on_disk.run_dir.get_local_path()
    assert root is not None
    for path in sorted(root.rglob("*")):
        if path.name == ".lock" or path.is_relative_to(root / "dataset"):
            continue
        if path.is_file():
            name = path.relative_to(root).as_posix().replace("log.jsonl", "log/0.jsonl")
            bucket_store.move_in(path, name)
    bucket_store.set_latest_link("dataset", on_disk.dataset.name)
    return RunFolder.open(str(bucket_store))


def test_a_damaged_output_in_a_bucket_is_made_again(
    in_bucket: RunFolder,
    on_disk: RunFolder,
    bucket_store: ObjectStore,
    config: Callable[..., RunConfig],
) -> None:
    """A flipped bit is noticed by the phase that reads the object, which is kept aside."""
    tokenized = in_bucket.folder("tokenize").root
    name = next(n for n in tokenized.list_names() if n.endswith(".tokens.bin"))
    content = bytearray(tokenized.read_bytes(name))
    content[len(content) // 2] ^= 1
    tokenized.put(name, bytes(content))
    shards = in_bucket.folder("write_shards").root
    shards.child("done").delete_all()
    shards.delete(SUMMARY_FILE)
    events = list(run(make_plan(config(bucket_store))))
    damaged = [event for event in events if isinstance(event, OutputDamaged)]
    assert [(each.phase, Path(each.file).name) for each in damaged] == [("tokenize", name)]
    assert tokenized.child(DAMAGED).read_bytes(name) == content
    assert hash_outputs(RunFolder.open(str(bucket_store))) == hash_outputs(on_disk)


def test_the_loader_follows_the_link_to_the_dataset(
    in_bucket: RunFolder, on_disk: RunFolder, bucket_store: ObjectStore
) -> None:
    """RUN and RUN/dataset are addresses of the latest complete dataset."""
    local = read_manifest_columns(str(on_disk.run_dir), ReadSettings())
    for address in (in_bucket.run_dir, in_bucket.run_dir.child("dataset")):
        columns = read_manifest_columns(str(address), ReadSettings())
        assert columns.digest == local.digest
        assert columns.address == str(in_bucket.dataset)
    bucket_store.put("elsewhere", b"../../another bucket")
    for name in ("elsewhere", "nowhere"):
        with pytest.raises(ReadFailed, match=rf"{name}/manifest\.json"):
            read_manifest_columns(f"{bucket_store}/{name}", ReadSettings())


def test_a_folder_without_a_run_is_reported(bucket_store: ObjectStore) -> None:
    """The message names the address."""
    with pytest.raises(RunNotFound, match=rf"{bucket_store}: no run here"):
        RunFolder.open(str(bucket_store))


@pytest.mark.parametrize(
    ("address", "environment", "fault"),
    [
        ("s3://nobucket/x", {}, r"404 NoSuchBucket.*make the bucket"),
        (
            f"s3://{BUCKET}/x",
            {"AWS_SECRET_ACCESS_KEY": "guessed"},
            r"403 SignatureDoesNotMatch.*set AWS_ACCESS_KEY_ID",
        ),
        (
            f"s3://{BUCKET}/x",
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
            r"no credentials are found",
        ),
        (
            f"s3://{BUCKET}/x",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            r"127\.0\.0\.1:9.*check storage\.endpoint",
        ),
        (
            f"s3://{BUCKET}/x",
            {"AWS_ENDPOINT_URL": "http://example.org"},
            r"only https.*AWS_ALLOW_HTTP=true",
        ),
        (
            f"s3://{BUCKET}/x",
            {"AWS_ACCESS_KEY_ID": "", "AWS_PROFILE": "mine"},
            r"AWS_PROFILE is 'mine'.*aws configure",
        ),
        ("s3:///x", {}, r"names no bucket"),
    ],
)
def test_unusable_storage_is_reported_in_one_line_before_the_run_starts(
    bucket_store: ObjectStore,
    config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    address: str,
    environment: Mapping[str, str],
    fault: str,
) -> None:
    """The line has the address, the answer of the server and the remedy."""
    monkeypatch.setenv("HOME", str(tmp_path))
    # Tests must not use the role of this machine.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9/169.254.169.254")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
        if not value:
            monkeypatch.delenv(name)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config("x").model_dump(mode="json")))
    printed = tmp_path / "printed"
    command = ["run", str(path), "--run-dir", address]
    driver = start_driver(run_command, *command, messages=printed)
    driver.join()
    lines = printed.read_text().splitlines()
    assert (driver.exitcode, len(lines)) == (FAILED, 1), lines
    assert re.search(fault, lines[0])
