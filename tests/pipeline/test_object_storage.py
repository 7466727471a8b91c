"""Run folders in a bucket of a real S3 server: the same bytes as on a disk, whatever fails on the way."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadFailed, ReadSettings
from pipeline import cli
from pipeline.config import RunConfig
from pipeline.errors import RunAborted
from pipeline.execution.engine import PhaseFinished, TaskFinished, run
from pipeline.phases import registry
from pipeline.planning.plan import make_plan
from pipeline.runs import event_log, run_lock
from pipeline.runs.event_log import events, keep
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder, RunNotFound
from pipeline.runs.run_lock import HeldByAnother, hold
from storage import object_store as s3
from storage.object_store import S3Path, StorageError, StorageSettings
from tests.conftest import REPOSITORY
from tests.loader.faults import FaultProxy
from tests.pipeline.test_sample_crawl import make
from tests.seaweed import BUCKET, Seaweed

HASTY = StorageSettings(retry_timeout_s=0.5)


@pytest.fixture
def bucket(seaweed_in_environment: Seaweed, request: pytest.FixtureRequest) -> S3Path:
    """A folder in the server's bucket for one test."""
    return S3Path(
        BUCKET, hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12], StorageSettings()
    )


# ------------------------------------------------------------------------------------------------------------- objects


CONTENT = bytes(i * i % 251 for i in range(3_000_000))


@pytest.fixture
def stored(bucket: S3Path) -> S3Path:
    """CONTENT as an object."""
    (bucket / "content").write_bytes(CONTENT)
    return bucket / "content"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    reads=st.lists(st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 1_500_000)), max_size=8)
)
def test_an_object_reads_like_a_file(stored: S3Path, reads: list[tuple[int, int]]) -> None:
    """Any ranges in any order, beyond the end too."""
    with stored.open() as file:
        for start, length in reads:
            file.seek(start)
            assert file.read(length) == CONTENT[start : start + length]
            assert file.tell() == min(start + length, len(CONTENT))


def test_reading_on_takes_more_at_a_time(stored: S3Path) -> None:
    """3 MB in pieces of 4 KiB are one request for the end and four that double; a small object is one request."""
    before = s3.requests["get"]
    with stored.open() as file:
        assert b"".join(iter(lambda: file.read(4096), b"")) == CONTENT
    assert s3.requests["get"] - before == 5
    for content in (b"", b"small"):
        (stored.parent / "other").write_bytes(content)
        before = s3.requests["get"]
        assert (stored.parent / "other").open().read() == content
        assert s3.requests["get"] - before == 1


def test_what_is_not_there_is_no_file(bucket: S3Path) -> None:
    """As on a disk."""
    for act in (bucket.read_bytes, bucket.open, bucket.modified):
        with pytest.raises(FileNotFoundError, match=rf"{bucket}: there is no such object"):
            act()
    assert (bucket.exists(), bucket.iterdir()) == (False, [])
    bucket.unlink()


def test_of_several_that_create_an_object_one_does(bucket: S3Path) -> None:
    """So it is with several that replace one version; the winner's answer may get lost."""
    assert [bool((bucket / "x").create(content)) for content in (b"1", b"2")] == [True, False]
    _, version = (bucket / "x").read_version()
    assert [bool((bucket / "x").replace(content, version)) for content in (b"3", b"4")] == [
        True,
        False,
    ]
    assert (bucket / "x").read_bytes() == b"3"
    assert (bucket / "x").replace(b"3", version), (
        "the second time, since the first answer did not come"
    )


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
            r"127\.0\.0\.1:9.*see storage\.endpoint",
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
def test_a_storage_that_cannot_be_used_is_told_in_one_line_before_anything_runs(
    bucket: S3Path,
    config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    address: str,
    environment: Mapping[str, str],
    fault: str,
) -> None:
    """What was asked for, what the server said, what to do; by the command too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(
        "AWS_METADATA_ENDPOINT", "http://127.0.0.1:9/169.254.169.254"
    )  # no machine's role in tests
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
        if not value:
            monkeypatch.delenv(name)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config("x").model_dump(mode="json")))
    monkeypatch.setattr(sys, "argv", ["pipeline", "run", str(path), "--run-dir", address])
    said: list[str] = []
    monkeypatch.setattr(cli.errors, "print", lambda line, **_: said.append(line))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, len(said), "\n" in said[0]) == (cli.FAILED, 1, False)
    assert re.search(fault, said[0]), said


# ------------------------------------------------------------------------------------------------------------- folders


def test_a_commit_uploads_outputs_and_then_records_them(bucket: S3Path) -> None:
    """As on a disk: outputs are there when the record is, attempts are counted until the next `begin`."""
    folder = PhaseFolder(bucket / "extract-00ff")
    folder.begin()
    assert [folder.attempt("u0"), folder.attempt("u0"), folder.attempt("u1")] == [1, 2, 1]
    assert [folder.attempts(task_id) for task_id in ("u0", "u1", "u2")] == [2, 1, 0]
    with folder.commit("u0") as task:
        task.path("u0.txt").write_bytes(b"text")
        task.path("u0.empty").touch()
        assert not folder.path("u0.txt").exists()
    with folder.open("u0.txt") as file:
        assert (file.read(), file.size()) == (b"text", 4)
    assert folder.record("u0")["outputs"].keys() == {"u0.txt", "u0.empty"}
    assert (folder.done(), folder.complete()) == ({"u0"}, False)
    folder.finish({"task_ids": 1})
    folder.begin()
    assert (folder.attempt("u0"), folder.summary(), folder.complete()) == (1, {"task_ids": 1}, True)


def test_a_task_that_raises_leaves_nothing(bucket: S3Path, tmp_path: Path) -> None:
    """Neither an object nor, on this machine, what was to become one."""
    spooled = S3Path(BUCKET, bucket.key, StorageSettings(spool=str(tmp_path)))
    folder = PhaseFolder(spooled / "extract-00ff")

    def task_id() -> None:
        with folder.commit("u0") as task:
            task.path("u0.txt").write_bytes(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        task_id()
    assert (folder.done(), folder.root.iterdir()) == (frozenset(), [])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("whole_bytes", [1 << 30, 1 << 20])
def test_an_upload_that_dies_leaves_no_object(
    bucket: S3Path,
    seaweed: Seaweed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_bytes: int,
) -> None:
    """Its process is killed with signal 9 in the middle: no object, no record, and nothing hidden if it is one request.

    The next task of the same work removes what the killed one had spooled.
    """
    num_open, proxy = len(seaweed.open_uploads()), FaultProxy(seaweed.port)
    proxy.deaf_after = 8 << 20
    code = (
        "import sys; from storage import object_store as s3; from pipeline.runs.phase_folder import PhaseFolder, parse_location\n"
        f"s3.WHOLE_BYTES, s3.PART_BYTES = {whole_bytes}, 5 << 20\n"
        f"settings = s3.StorageSettings(endpoint='http://127.0.0.1:{proxy.port}', spool={str(tmp_path)!r})\n"
        f"with PhaseFolder(parse_location('{bucket}', settings)).commit('u0') as task:\n"
        "    task.path('u0.bin').write_bytes(bytes(24 << 20)); print('ready', flush=True)\n"
    )
    try:
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        ) as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline() == "ready\n"
            time.sleep(2.0)
            killed.send_signal(signal.SIGKILL)
    finally:
        proxy.close()
    folder = PhaseFolder(S3Path(BUCKET, bucket.key, StorageSettings(spool=str(tmp_path))))
    assert (folder.done(), folder.path("u0.bin").exists()) == (frozenset(), False)
    assert len(seaweed.open_uploads()) - num_open == (whole_bytes == 1 << 20)
    assert list(tmp_path.rglob("u0.bin"))
    with folder.commit("u0") as task:
        task.path("u0.bin").write_bytes(b"whole")
    assert not list(tmp_path.rglob("u0.bin"))
    assert folder.path("u0.bin").read_bytes() == b"whole"


def test_a_very_large_file_travels_in_parts(
    bucket: S3Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 takes 5 GiB at once; here the bound is 1 MiB."""
    monkeypatch.setattr(s3, "WHOLE_BYTES", 1 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    (tmp_path / "large").write_bytes(CONTENT * 4)
    (bucket / "large").upload(tmp_path / "large")
    assert (bucket / "large").open().read() == CONTENT * 4


def test_a_server_that_stays_away_is_given_up(bucket: S3Path, tmp_path: Path) -> None:
    """After the stated time, with its last word; a file is not there then."""
    proxy = FaultProxy(1)
    proxy.refuse = True
    away = S3Path(
        BUCKET, bucket.key, HASTY.model_copy(update={"endpoint": f"http://127.0.0.1:{proxy.port}"})
    )
    (tmp_path / "file").write_bytes(CONTENT)
    try:
        with pytest.raises(
            StorageError, match=rf"{bucket}/x \(put\): .*tried again for 0\.5 s \(storage\.retry"
        ):
            (away / "x").upload(tmp_path / "file")
    finally:
        proxy.close()
    assert not (bucket / "x").exists()


# ----------------------------------------------------------------------------------------------------------- one driver


def test_a_second_driver_is_refused_at_once(bucket: S3Path) -> None:
    """It is told who works there; when the first lets go, the folder is free."""
    with hold(bucket) as held:
        with (
            pytest.raises(
                HeldByAnother, match=rf"process {os.getpid()} of .*heard of \d s ago.*lapses \d\d s"
            ),
            hold(bucket),
        ):
            pass
        held.check()
    with hold(bucket):
        pass


def test_a_dead_drivers_lock_lapses_and_a_driver_that_lost_it_is_told(
    bucket: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sleeps longer than a lock lives; the second takes it over; the first is told, and leaves the lock."""
    monkeypatch.setattr(run_lock, "EXPIRE_S", 1.0)
    monkeypatch.setattr(run_lock, "RENEW_S", 3.0)
    with hold(bucket) as sleeper:
        time.sleep(2.1)  # the server's clock counts in seconds
        with hold(bucket) as second:
            wait_for(lambda: lost(sleeper))
            second.check()
    with pytest.raises(HeldByAnother, match=r"has taken over"):
        sleeper.check()


def lost(held: run_lock.RunLock) -> bool:
    try:
        held.check()
    except HeldByAnother:
        return True
    return False


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_log_can_be_read_while_its_driver_lives(
    bucket: S3Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within FLUSH_S, in order, over as many objects as it takes and over several drivers."""
    monkeypatch.setattr(event_log, "FLUSH_S", 0.05)
    monkeypatch.setattr(event_log, "PART_BYTES", 300)
    for driver in range(2):
        with keep(bucket) as add:
            for number in range(20):
                add({"event": f"{driver}-{number}"})
                time.sleep(0.02)
            wait_for(lambda driver=driver: len(list(events(bucket))) == 20 * (driver + 1))
        time.sleep(1.0)  # drivers are told apart by the second in which they start
    assert [event["event"] for event in events(bucket)] == [
        f"{d}-{n}" for d in range(2) for n in range(20)
    ]
    assert len((bucket / "log").iterdir()) > 4


# ---------------------------------------------------------------------------------------------------------- whole chain


@dataclass(frozen=True)
class Runs:
    """The same run on a disk and in a bucket."""

    on_disk: RunFolder
    in_bucket: RunFolder


@pytest.fixture(scope="session")
def tree(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, lid_file: Path
) -> dict[str, Any]:
    """A config with every phase on, over 200 pages in four files."""
    crawl = make(tmp_path_factory.mktemp("crawl"), 200, documents_per_file=50)
    return {
        "input": {"files": [str(path) for path in crawl.files], "max_quarantined_share": 1.0},
        "paragraph_dedup": {"keep": "keep_first"},
        "annotate": {
            "language": {"model": str(lid_file)},
            "quality": {},
            "minhash": {"verify": "signatures", "threshold": 0.5},
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
    """The config for a run folder, with keys of its sections changed."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))

    def make_config(run_dir: object, **sections: Mapping[str, Any]) -> RunConfig:
        changed = {name: {**tree.get(name, {}), **keys} for name, keys in sections.items()}
        return RunConfig.model_validate({**tree, **changed, "run_dir": str(run_dir)})

    return make_config


@pytest.fixture(scope="session")
def on_disk(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run that the others are compared with."""
    plan = make_plan(
        RunConfig.model_validate(
            {**tree, "run_dir": str(tmp_path_factory.mktemp("reference") / "run")}
        )
    )
    list(run(plan))
    return RunFolder.open(plan.run_dir)


def outputs(found: RunFolder) -> dict[str, str]:
    """Digest of every output of every phase, records and summaries included."""
    files: dict[str, str] = {}
    for phase in found.folders:
        root = found.folder(phase).root
        below = [
            path
            for path in (*root.iterdir(), *(root / "done").iterdir())
            if not path.name.startswith(".")
        ]
        files |= {
            f"{phase}/{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
            for path in below
            if isinstance(path, S3Path) or path.is_file()
        }
    return files


def test_a_run_in_a_bucket_has_the_bytes_of_one_on_a_disk(
    bucket: S3Path, config: Callable[..., RunConfig], on_disk: RunFolder
) -> None:
    """Every file of every phase; and it asks for nothing about single objects that a listing tells."""
    before = s3.requests.copy()
    list(run(make_plan(config(bucket))))
    asked = s3.requests - before
    assert outputs(RunFolder.open(str(bucket))) == outputs(on_disk)
    assert len(outputs(on_disk)) > 60
    assert (
        asked["head"] <= 2 * len(registry.PHASES) + 4
    )  # whether a phase is complete, and its parent
    again = s3.requests.copy()
    assert all(
        event.was_complete
        for event in run(make_plan(config(bucket)))
        if isinstance(event, PhaseFinished)
    )
    assert (s3.requests - again).total() < 50


@pytest.mark.ray
def test_so_has_one_on_ray(
    bucket: S3Path, config: Callable[..., RunConfig], on_disk: RunFolder
) -> None:
    """Workers are other processes, which connect by themselves."""
    list(run(make_plan(config(bucket, engine={"kind": "ray", "workers": 2}))))
    assert outputs(RunFolder.open(str(bucket))) == outputs(on_disk)


def test_so_has_one_whose_connections_are_cut(
    bucket: S3Path, config: Callable[..., RunConfig], on_disk: RunFolder, seaweed: Seaweed
) -> None:
    """Fifty times, after 3,000 bytes of answers each."""
    proxy = FaultProxy(seaweed.port)
    proxy.cut_after, proxy.cuts = 3_000, 50
    before = s3.requests["again"]
    try:
        cut = config(
            bucket, storage={"endpoint": f"http://127.0.0.1:{proxy.port}", "retry_timeout_s": 120.0}
        )
        list(run(make_plan(cut)))
    finally:
        proxy.close()
    assert s3.requests["again"] - before >= 40
    assert outputs(RunFolder.open(str(bucket))) == outputs(on_disk)


def test_so_has_one_that_was_killed(
    bucket: S3Path, config: Callable[..., RunConfig], on_disk: RunFolder, tmp_path: Path
) -> None:
    """Kill -9 in annotate; the next run takes over at once, since the driver was of this machine, and does the rest."""
    path = tmp_path / "killed.yaml"
    path.write_text(yaml.safe_dump(config(bucket).model_dump(mode="json")))
    code = (
        "import sys, time; from pipeline.config import load; from pipeline.execution.engine import *\n"
        "from pipeline.planning.plan import make_plan\n"
        "for event in run(make_plan(load(sys.argv[1]))):\n"
        "    if isinstance(event, TaskFinished) and event.phase == 'annotate':\n"
        "        print('annotating', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "annotating\n"
        with pytest.raises(
            RunAborted, match=rf"another process is working in {bucket}: process {killed.pid} "
        ):
            list(run(make_plan(config(bucket))))
        killed.send_signal(signal.SIGKILL)
    happened = list(run(make_plan(config(bucket))))
    done = [
        event.task_id
        for event in happened
        if isinstance(event, TaskFinished) and event.phase == "annotate"
    ]
    complete = [
        event.phase for event in happened if isinstance(event, PhaseFinished) and event.was_complete
    ]
    assert (complete, len(done)) == (
        registry.list_phase_names()[: registry.list_phase_names().index("annotate")],
        3,
    )
    assert outputs(RunFolder.open(str(bucket))) == outputs(on_disk)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # webdataset leaves shards open
@pytest.mark.parametrize("verb", ["report", "status", "explain", "preview", "verify", "export"])
def test_every_reader_of_a_run_reads_it_in_a_bucket(
    in_bucket: RunFolder, on_disk: RunFolder, tmp_path: Path, verb: str
) -> None:
    """By nothing but its address, with the words it has for a folder on a disk."""
    rest = {
        "report": ["--json"],
        "status": [],
        "explain": [str(1 << 32 | 3)],
        "preview": ["--set", "select.quality.min_words=300"],
        "verify": [],
        "export": [str(tmp_path / "out")],
    }[verb]
    said: list[str] = []
    for found in (on_disk, in_bucket):
        result = CliRunner().invoke(cli.app, [verb, str(found.run_dir), *rest])
        assert result.exit_code == 0, result.output
        said.append(result.output.replace(str(found.run_dir), "RUN"))
        if verb == "export":
            (tmp_path / "out").rename(tmp_path / f"out-{len(said)}")
    gc.collect()
    assert said[0].split() == said[1].split() or verb in ("status", "report"), "times differ there"
    if verb == "report":
        accounts = [{**json.loads(each), "seconds": {}} for each in said]
        assert accounts[0] == accounts[1]
    if verb == "export":
        files = [
            {p.name: p.read_bytes() for p in (tmp_path / f"out-{n}").iterdir()} for n in (1, 2)
        ]
        assert files[0] == files[1] != {}


@pytest.fixture
def in_bucket(bucket: S3Path, on_disk: RunFolder) -> RunFolder:
    """A copy of the finished run in the bucket."""
    root = on_disk.run_dir
    assert isinstance(root, Path)
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_relative_to(root / "dataset"):
            (bucket / str(path.relative_to(root)).replace("log.jsonl", "log/0.jsonl")).upload(path)
    (bucket / "dataset").write_bytes(on_disk.dataset.name.encode())
    return RunFolder.open(str(bucket))


def test_the_loader_follows_the_link_to_the_dataset(
    in_bucket: RunFolder, on_disk: RunFolder, bucket: S3Path
) -> None:
    """RUN/dataset is an address of the latest finished dataset, as it is a folder's name on a disk."""
    catalogues = [
        read_manifest_columns(f"{found.run_dir}/dataset", ReadSettings())
        for found in (on_disk, in_bucket)
    ]
    assert catalogues[0].digest == catalogues[1].digest
    assert catalogues[1].address == str(in_bucket.dataset)
    (bucket / "elsewhere").write_bytes(b"../../another bucket")
    for name in ("elsewhere", "nowhere"):
        with pytest.raises(ReadFailed, match=rf"{name}/manifest\.json"):
            read_manifest_columns(f"{bucket}/{name}", ReadSettings())


def test_a_bucket_without_a_run_says_so(bucket: S3Path) -> None:
    """As a folder does."""
    with pytest.raises(RunNotFound, match=rf"{bucket}: no run here"):
        RunFolder.open(str(bucket))
