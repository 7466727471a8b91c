"""Input splits of local files, and of a snapshot on a local server."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config_files.reader import ConfigError
from pipeline.config import InputConfig
from pipeline.errors import RunAborted
from pipeline.execution.engine import TaskFinished
from pipeline.inputs.input_files import local_copy
from pipeline.inputs.input_splits import (
    InputSplit,
    get_files_per_split,
    list_input_splits,
)
from pipeline.reporting.cards.facts import describe_source
from pipeline.runs.run_folder import RunFolder
from pipeline.sample_crawl.generator import SampleCrawl
from storage import StorageSettings
from tests.pipeline.conftest import Small
from tests.pipeline.sample_crawl.invented import make_crawl
from tests.processes import run_python
from tests.servers import FileServer

SNAPSHOT = "CC-MAIN-SAMPLE"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def names(splits: tuple[InputSplit, ...]) -> list[list[str]]:
    return [[file.name for file in split.files] for split in splits]


def splits_of_runs(*patterns: str | Path, **keys: Any) -> tuple[InputSplit, ...]:
    return list_input_splits(InputConfig(files=tuple(map(str, patterns)), **keys))


# ---- local files ----


@given(num_files=st.integers(1, 12), files_per_split=st.integers(1, 13))
def test_splits_hold_each_file_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, num_files: int, files_per_split: int
) -> None:
    """Each split has `files_per_split` files, the last one the rest."""
    folder = tmp_path_factory.mktemp("files")
    for i in range(num_files):
        (folder / f"{i:02d}.wet").write_bytes(bytes([i]) * i)
    splits = splits_of_runs(folder / "*", files_per_split=files_per_split)
    assert [name for split in names(splits) for name in split] == [
        f"{i:02d}.wet" for i in range(num_files)
    ]
    assert [len(split.files) for split in splits[:-1]] == [files_per_split] * (
        len(splits) - 1
    )
    assert [split.key.split("-")[0] for split in splits] == [
        f"{i:06d}" for i in range(len(splits))
    ]
    assert sum(split.num_bytes for split in splits) == sum(range(num_files))


# ---- Common Crawl ----


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> SampleCrawl:
    """120 pages in three files, in the layout of a Common Crawl snapshot."""
    return make_crawl(
        tmp_path_factory.mktemp("snapshot") / "crawl",
        120,
        documents_per_file=40,
        layout="common-crawl",
    )


@pytest.fixture
def server(snapshot: SampleCrawl) -> Iterator[FileServer]:
    """That snapshot behind HTTP."""
    with FileServer(snapshot.folder) as made:
        yield made


def make_server_input(server: FileServer, **keys: Any) -> Mapping[str, Any]:
    """Return the input section that reads the server's snapshot."""
    return {
        "files": None,
        "common_crawl": {"crawl": SNAPSHOT, "base_url": f"{server.url}/", **keys},
    }


def get_path(file: Path, snapshot: SampleCrawl) -> str:
    """Return the path of a file on the server."""
    return file.relative_to(snapshot.folder).as_posix()


def list_server_splits(server: FileServer, **keys: Any) -> tuple[InputSplit, ...]:
    return list_input_splits(InputConfig.model_validate(make_server_input(server, **keys)))


def read_shard_digests(run: RunFolder) -> dict[str, str]:
    """Return name -> digest of every shard and index."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(run.dataset).glob("shard-*"))
    }


def test_a_snapshot_gives_the_same_shards_as_its_files_on_disk(
    small: Small, server: FileServer, snapshot: SampleCrawl
) -> None:
    """The list is requested once, and each file once."""
    fetched, _ = small.run(input=make_server_input(server))
    assert [split.key for split in fetched.splits] == [
        split.key for split in list_server_splits(server)
    ]
    assert [path.rsplit("/", 1)[-1] for _, path, _ in server.requests] == [
        "wet.paths.gz",
        *(path.name for path in snapshot.files),
    ]
    on_disk, _ = small.run(
        "on-disk", input={"files": [str(path) for path in snapshot.files]}
    )
    assert read_shard_digests(fetched) == read_shard_digests(on_disk)
    assert len(read_shard_digests(fetched)) == 2


def test_planning_requests_only_the_list(server: FileServer, snapshot: SampleCrawl) -> None:
    """Names, order and keys come from the list, which is requested once."""
    splits = list_server_splits(server)
    assert list_server_splits(server) == splits
    assert len(server.requests) == 1
    assert names(splits) == [[path.name] for path in snapshot.files]
    assert {file.num_bytes for split in splits for file in split.files} == {None}
    assert all(
        split.files[0].location.startswith(f"{server.url}/crawl-data/{SNAPSHOT}/segments/")
        for split in splits
    )


def test_a_slice_is_part_of_the_list(server: FileServer, snapshot: SampleCrawl) -> None:
    """It has `count` files from `first`, or all that follow."""
    files = [path.name for path in snapshot.files]
    assert names(list_server_splits(server, first=1, count=1)) == [files[1:2]]
    assert names(list_server_splits(server, first=1)) == [[name] for name in files[1:]]
    assert names(list_server_splits(server, first=0, count=3)) == [[name] for name in files]


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ({"first": 1, "count": 3}, "1 to 3"),
        ({"first": 3}, "3 to 3"),
        ({"first": 9, "count": 1}, "9 to 9"),
    ],
)
def test_a_slice_beyond_the_list_is_refused(
    server: FileServer, keys: dict[str, int], asked: str
) -> None:
    """The error has the requested range and the number of files."""
    with pytest.raises(ConfigError) as caught:
        list_server_splits(server, **keys)
    wanted = (
        f"input.common_crawl: files {asked} are requested; {SNAPSHOT} lists 3 files, from 0"
    )
    assert caught.value.faults == (wanted,)


def test_several_snapshots_are_read_in_one_run(
    small: Small, server: FileServer, snapshot: SampleCrawl
) -> None:
    """In the order of the config; `first` and `count` choose files of each snapshot."""
    other = "CC-MAIN-OTHER"
    for path in [*snapshot.files, snapshot.folder / f"crawl-data/{SNAPSHOT}/wet.paths.gz"]:
        content = path.read_bytes()
        if path.name == "wet.paths.gz":
            listed = gzip.decompress(content).decode().replace(SNAPSHOT, other)
            content = gzip.compress(listed.encode())
        server.files[get_path(path, snapshot).replace(SNAPSHOT, other)] = content
    splits = list_server_splits(server, crawl=[other, SNAPSHOT], first=1, count=2)
    wanted = [path.name for path in snapshot.files[1:3]]
    assert names(splits) == [[name] for name in wanted * 2]
    places = [split.files[0].location.split("/")[4] for split in splits]
    assert places == [other, other, SNAPSHOT, SNAPSHOT]
    assert len({split.key.split("-")[1] for split in splits}) == 4
    given = make_server_input(server, crawl=[other, SNAPSHOT], count=1)
    run, _ = small.run(input=given)
    assert len(run.splits) == 2
    source = f"snapshots {other}, {SNAPSHOT}: 1 WET file of each, from number 0"
    assert source in describe_source(run.config)


def test_the_faults_of_all_snapshots_are_reported(server: FileServer) -> None:
    """One line for each."""
    with pytest.raises(ConfigError) as caught:
        list_server_splits(
            server, crawl=["CC-MAIN-1999-01", SNAPSHOT, "CC-MAIN-1999-02"], count=9
        )
    first, second, third = caught.value.faults
    assert "input.common_crawl.crawl: the list of CC-MAIN-1999-01 cannot" in first
    assert second.startswith("input.common_crawl: files 0 to 8 are requested")
    assert "input.common_crawl.crawl: the list of CC-MAIN-1999-02 cannot" in third


@pytest.mark.parametrize(
    ("crawl", "fault"),
    [
        ("CC-x", "crawl is 'CC-x', String should match"),
        ([SNAPSHOT, "bad"], "crawl.1 is 'bad', String should match"),
        ([SNAPSHOT, SNAPSHOT], f"crawl: {SNAPSHOT} given twice; name each once"),
        ([], "crawl is [], Tuple should have at least 1 item"),
        (3, "crawl is 3, should be a valid tuple"),
    ],
)
def test_a_wrong_name_of_a_snapshot_is_refused(
    small: Small, server: FileServer, crawl: Any, fault: str
) -> None:
    """The fault names the key."""
    with pytest.raises(ConfigError) as caught:
        small.config(input=make_server_input(server, crawl=crawl))
    assert len(caught.value.faults) == 1
    assert f"input.common_crawl.{fault}" in caught.value.faults[0]


def test_an_unknown_snapshot_is_reported(server: FileServer) -> None:
    """The error has the key, the name, the address and the server's answer."""
    with pytest.raises(
        ConfigError,
        match=r"common_crawl\.crawl: the list of CC-MAIN-1999-01 .*/wet\.paths\.gz.*404",
    ):
        list_server_splits(server, crawl="CC-MAIN-1999-01")


@pytest.mark.parametrize(
    "content",
    [b"<html>try later</html>", gzip.compress(b"a/b.gz\n" * 99, mtime=0)[:-9], b""],
    ids=["page", "cut", "empty"],
)
def test_a_damaged_list_is_refused_and_requested_again(
    server: FileServer, tmp_path: Path, snapshot: SampleCrawl, content: bytes
) -> None:
    """An HTML page, a truncated list and an empty file are not stored."""
    server.folder = tmp_path / "mirror"
    path = server.folder / "crawl-data" / SNAPSHOT / "wet.paths.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"wet\.paths\.gz is not a gzip list of files"):
        list_server_splits(server)
    assert snapshot.paths_list is not None
    shutil.copy(snapshot.paths_list, path)
    assert len(list_server_splits(server)) == 3


def test_a_transfer_that_is_cut_is_resumed(
    small: Small, server: FileServer, snapshot: SampleCrawl
) -> None:
    """The second request asks for the missing bytes, and the dataset is complete."""
    cut = snapshot.files[1]
    server.cuts[get_path(cut, snapshot)] = 1_000
    run, _ = small.run(input=make_server_input(server))
    assert server.list_ranges(cut.name) == [None, "bytes=1000-"]
    record = run.folder("extract").record(run.splits[1].key)
    assert record["counters"]["counts"]["documents"] > 20


def test_a_missing_file_fails_only_its_task(
    small: Small, server: FileServer, snapshot: SampleCrawl
) -> None:
    """The command ends with code 1 and names the file. The next run does only this task."""
    missing = snapshot.files[1].name
    server.failures[get_path(snapshot.files[1], snapshot)] = [404] * 1_000
    config = small.config(input=make_server_input(server))
    done = run_python(
        "-m", "pipeline", "run", str(small.path), env=os.environ | {"COLUMNS": "200"}
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "phase extract: 1 of 3 tasks failed; the others are done" in done.stderr
    assert f"{missing} (get): there is no such object (the server says 404" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(RunFolder.open(config.run_dir).folder("extract").list_done()) == 2
    with pytest.raises(RunAborted, match=f"000001-.*{missing}.*the server says 404"):
        small.run(input=make_server_input(server))
    server.failures.clear()
    _, events = small.run(input=make_server_input(server))
    extracted = [
        event.task_id
        for event in events
        if isinstance(event, TaskFinished) and event.phase == "extract"
    ]
    assert [task_id.split("-")[0] for task_id in extracted] == ["000001"]


def test_a_fetched_copy_is_removed_after_use(
    server: FileServer, snapshot: SampleCrawl, tmp_path: Path
) -> None:
    """The file is in the scratch directory under its own name only while it is read."""
    (split,) = list_server_splits(server, count=1)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with local_copy(split.files[0], StorageSettings(scratch_dir=str(scratch))) as copy:
        assert copy.read_bytes() == snapshot.files[0].read_bytes()
        assert copy.name == snapshot.files[0].name
        assert scratch in copy.parents
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("num_files", "size", "num_splits"),
    [(1, 1, 1), (10_000, 1, 10_000), (90_000, 9, 10_000)],
)
def test_auto_makes_at_most_ten_thousand_splits(
    num_files: int, size: int, num_splits: int
) -> None:
    """There is one file per split up to 10,000 files."""
    config = InputConfig(files=("*.gz",))
    assert get_files_per_split(config, num_files) == size
    assert -(-num_files // size) == num_splits


def test_auto_has_the_fingerprints_of_its_number(small: Small) -> None:
    """Outputs made with one file per split are reused under `auto`."""
    files = small.tree["input"]
    plans = [
        small.plan(input={**files, "files_per_split": size}) for size in ("auto", 1, 2)
    ]
    auto, one, two = ([phase.fingerprint for phase in plan.phases] for plan in plans)
    assert auto == one
    assert auto[0] != two[0]
