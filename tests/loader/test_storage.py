"""Remote datasets: the same rows as without faults, or a clear error in time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from loader import TokenLoader
from loader.storage import (
    Cache,
    Counters,
    ReadFailed,
    ReadSettings,
    open_dataset,
)
from shardwriter.format import ShardCorrupt, read_index
from tests.conftest import REPOSITORY
from tests.loader.conftest import Dataset, write_dataset
from tests.loader.faults import FaultProxy
from tests.pipeline.runs.waiting import wait_for
from tests.seaweed import BUCKET, KEYS, Seaweed
from tests.servers import FileServer

pytest.importorskip("obstore")
T = 64


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Three shards of about 40 KB."""
    return write_dataset(
        tmp_path_factory.mktemp("served"),
        [[200] * 100] * 3,
        sample_tokens=2048,
        metadata=False,
    )


@pytest.fixture(scope="module")
def server(served: Dataset) -> Iterator[FileServer]:
    """A web server for that dataset."""
    made = FileServer(served.folder)
    yield made
    made.close()


@pytest.fixture
def proxy(server: FileServer) -> Iterator[FaultProxy]:
    """A proxy in front of the server, without faults yet."""
    made = FaultProxy(server.port)
    yield made
    made.close()


def settings(folder: Path, **given: Any) -> ReadSettings:
    """Return settings with short timeouts of requests."""
    bounds = {"stall_timeout_s": 60.0, "request_timeout_s": 0.5, "block_bytes": 16384}
    return ReadSettings(**{"cache_dir": folder / "cache", **bounds, **given})


def open_loader(address: str, given: ReadSettings | None, **order: int) -> TokenLoader:
    """Return a loader of one rank and one epoch."""
    usual = {"global_batch_rows": 8, "interleave_depth": 4, "window_rows": 8}
    return TokenLoader(
        address,
        seq_len=T,
        rank=0,
        world_size=1,
        epochs=1,
        settings=given,
        **{**usual, **order},
    )


def stream(
    address: str, given: ReadSettings | None = None
) -> tuple[list[list[int]], dict[str, Any]]:
    """Return all rows of an epoch, and the statistics of the loader."""
    loader = open_loader(address, given)
    rows = [row for batch in loader for row in batch["input_ids"].tolist()]
    stats = loader.stats()
    loader.close()
    return rows, stats


@pytest.fixture(scope="module")
def expected(served: Dataset) -> list[list[int]]:
    """The rows of the dataset on the disk."""
    return stream(str(served.folder))[0]


def test_a_remote_dataset_has_the_rows_of_the_local_one(
    server: FileServer, expected: list[list[int]], tmp_path: Path
) -> None:
    """Over http; the second epoch comes from the cache."""
    address = server.url
    rows, stats = stream(address, settings(tmp_path))
    assert rows == expected
    assert stats["cache_misses"] > 3
    again, stats = stream(address, settings(tmp_path))
    assert again == expected
    assert stats["cache_misses"] == 0
    assert stats["cache_hits"] > 3


def test_blocks_are_fetched_ahead(
    server: FileServer, served: Dataset, tmp_path: Path
) -> None:
    """One batch starts the fetch of all blocks within ahead_bytes, or only of the next chunks."""
    whole = 3 * 200 * 100 * 2

    def start(ahead_bytes: int) -> TokenLoader:
        given = settings(
            tmp_path / str(ahead_bytes), block_bytes=4096, ahead_bytes=ahead_bytes
        )
        loader = open_loader(server.url, given, global_batch_rows=1)
        next(loader)
        return loader

    loader = start(ahead_bytes=2**20)
    wait_for(lambda: loader.stats()["fetched_bytes"] > 0.95 * whole)
    loader.close()
    loader = start(ahead_bytes=1)
    fetched = -1
    while fetched != (fetched := loader.stats()["fetched_bytes"]):
        time.sleep(0.5)
    loader.close()
    assert fetched < 0.7 * whole


def wait_for_threads(before: Sequence[threading.Thread]) -> None:
    """Wait for the end of the threads that were started after `before` was enumerated."""
    for thread in threading.enumerate():
        if thread not in before and thread.name.startswith("loader-"):
            thread.join(600)
            assert not thread.is_alive(), thread.name


def test_blocks_of_one_epoch_at_most_are_requested(
    server: FileServer, tmp_path: Path
) -> None:
    """A tiny dataset has 3,000 epochs within ahead_bytes; locating all of them takes 30 s."""
    before_s = time.process_time()
    threads = threading.enumerate()
    loader = TokenLoader(
        server.url,
        seq_len=T,
        global_batch_rows=8,
        rank=0,
        world_size=1,
        settings=settings(tmp_path),
    )
    next(loader)
    loader.close()
    wait_for_threads(threads)
    assert time.process_time() - before_s < 10.0


def test_cut_connections_are_resumed(
    proxy: FaultProxy, expected: list[list[int]], tmp_path: Path
) -> None:
    """Every connection is reset after 20 KB: only the missing bytes are requested again."""
    proxy.cut_after = 20_000
    rows, stats = stream(proxy.url, settings(tmp_path, block_bytes=65536))
    assert rows == expected
    assert stats["retries"] > 3


def test_reading_continues_after_an_outage(
    proxy: FaultProxy, expected: list[list[int]], tmp_path: Path
) -> None:
    """Connections are refused and cut, then the server is back: the rows are the same."""
    proxy.cut_after, proxy.cuts = 10_000, 2
    timer = threading.Timer(0.5, lambda: setattr(proxy, "refuse", False))
    address, given = proxy.url, settings(tmp_path)
    loader = open_loader(address, given)
    rows = next(loader)["input_ids"].tolist()
    proxy.refuse = True
    timer.start()
    rows += [row for batch in loader for row in batch["input_ids"].tolist()]
    assert rows == expected
    loader.close()


def test_a_server_that_stays_away_is_an_error_in_time(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    """The error has file, bytes and cause. The loader can continue later."""
    # Without requests ahead, and with small windows, the first steps need blocks of one shard only.
    given = settings(tmp_path, stall_timeout_s=1.0, request_timeout_s=0.3, ahead_bytes=0)
    loader = open_loader(proxy.url, given, interleave_depth=1)
    first = next(loader)
    proxy.refuse = True
    with pytest.raises(
        ReadFailed,
        match=r"http://127.0.0.1:\d+/shard-00000\d.(tar|idx)(, bytes \d+\.\.\d+)? \(\w+\): .*no byte came for 1 s",
    ):
        list(loader)
    proxy.refuse = False
    later = None
    while later is None:
        # Beside other work, the server itself may not answer within these short times.
        with contextlib.suppress(ReadFailed):
            later = next(loader)
    assert len(later["input_ids"]) == len(first["input_ids"])
    loader.close()


def test_a_server_that_sends_nothing_is_an_error_in_time(
    proxy: FaultProxy, tmp_path: Path
) -> None:
    """It accepts connections and does not answer."""
    proxy.hang_after = 0
    with pytest.raises(
        ReadFailed,
        match=r"manifest.json \(head\): .*no byte came for 1.5 s \(stall_timeout_s\)",
    ):
        stream(proxy.url, settings(tmp_path, stall_timeout_s=1.5))


@pytest.mark.parametrize("fault", ["withheld", "no answer", "503"])
def test_blocks_that_were_requested_ahead_do_not_delay_an_error(
    served: Dataset, expected: list[list[int]], tmp_path: Path, fault: str
) -> None:
    """The server breaks down while many blocks are requested; later it is back."""
    files = {path.name: path.read_bytes() for path in served.folder.iterdir()}
    given = settings(
        tmp_path,
        stall_timeout_s=2.0,
        request_timeout_s=60.0,
        block_bytes=1024,
        fetch_threads=2,
    )
    with FileServer(files) as server:
        server.num_healthy, server.fault = 12, fault
        loader = open_loader(server.url, given)
        rows: list[list[int]] = []

        def read_on() -> None:
            for batch in loader:
                rows.extend(batch["input_ids"].tolist())

        for _ in range(2):
            with pytest.raises(ReadFailed, match="no byte came for 2 s"):
                read_on()
        # Each error comes after one or two waits of 2 s. Nothing waits for all blocks in turn.
        distinct = set(server.ranges[server.num_healthy :])
        assert len(distinct) < 20
        server.fault = ""
        for _ in range(20):
            # A block that was requested before the end of the fault may still fail.
            with contextlib.suppress(ReadFailed):
                read_on()
                break
        loader.close()
    assert rows == expected


def test_a_manifest_that_cannot_be_read_is_requested_from_one_place(
    served: Dataset, tmp_path: Path
) -> None:
    """If the server does not answer, the loader does not look for a link in place of the folder."""
    files = {f"run/dataset/{p.name}": p.read_bytes() for p in served.folder.iterdir()}
    with FileServer(files) as server:
        server.fault = "no answer"
        with pytest.raises(ReadFailed, match=r"manifest.json.*no byte came for 1 s"):
            open_loader(
                f"{server.url}/run/dataset", settings(tmp_path, stall_timeout_s=1.0)
            )
        assert {path for path, *_ in server.ranges} == {"run/dataset/manifest.json"}


def list_open_files(*folders: Path) -> list[str]:
    """Return the paths in these folders to which this process has file descriptors."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one of this listing
            found.append(os.readlink(descriptor))
    return [path for path in found if path.startswith(tuple(map(str, folders)))]


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_closed_loader_leaves_no_files_or_threads(
    served: Dataset, server: FileServer, tmp_path: Path, is_remote: bool
) -> None:
    """Also if it is closed in the middle of the epoch, and is not garbage-collected."""
    address = server.url if is_remote else str(served.folder)
    threads = threading.enumerate()
    loader = open_loader(address, settings(tmp_path, block_bytes=4096))
    batch = next(loader)
    assert list_open_files(served.folder, tmp_path)
    loader.close()
    wait_for_threads(threads)
    assert list_open_files(served.folder, tmp_path) == []
    assert batch["input_ids"].shape == (8, T)


def test_a_stalled_answer_is_requested_again(
    proxy: FaultProxy, expected: list[list[int]], tmp_path: Path
) -> None:
    """Connections send nothing after 24 KB."""
    proxy.hang_after = 24_000
    assert stream(proxy.url, settings(tmp_path, request_timeout_s=0.2))[0] == expected


def test_a_slow_connection_is_no_error(
    proxy: FaultProxy, expected: list[list[int]], tmp_path: Path
) -> None:
    """A block may take any time while bytes arrive."""
    proxy.rate = 12_000  # a block takes 5.5 s
    given = settings(
        tmp_path, stall_timeout_s=5.0, request_timeout_s=4.0, block_bytes=65536
    )
    assert stream(proxy.url, given)[0] == expected


def test_a_bit_error_in_transit_is_fetched_again(
    proxy: FaultProxy, expected: list[list[int]], tmp_path: Path
) -> None:
    """The checksum detects it. The second copy is used, and the first is not cached."""
    loader_settings = settings(tmp_path)
    stream(proxy.url, settings(tmp_path / "warm"))
    proxy.flip = True
    rows, stats = stream(f"{proxy.url}/", loader_settings)
    assert rows == expected
    assert proxy.flips == 1
    assert stats["refetches"] == 1


def test_a_bit_error_at_the_source_is_reported(tmp_path: Path) -> None:
    """Both copies are wrong: the error has the shard, the sample and its bytes."""
    made = write_dataset(
        tmp_path / "made", [[200] * 50], sample_tokens=2048, metadata=False
    )
    path = made.folder / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    data[int(read_index(path.with_suffix(".idx")).sample_offsets[2]) + 30] ^= 4
    path.write_bytes(data)
    server = FileServer(made.folder)
    with pytest.raises(
        ShardCorrupt,
        match=r"shard-000000.tar, sample 000000-0000\d, bytes \d+\.\.\d+: found tokens",
    ):
        stream(server.url, settings(tmp_path))
    rows, stats = stream(server.url, settings(tmp_path, on_corrupt="skip_and_count"))
    assert stats["damaged_samples"] == 1
    assert stats["skipped_rows"] > 0
    assert len(rows) == 156
    server.close()


def test_a_damaged_cache_file_is_fetched_again(
    server: FileServer, expected: list[list[int]], tmp_path: Path
) -> None:
    """The checksum detects damage by a bad disk too."""
    address, given = server.url, settings(tmp_path)
    stream(address, given)
    for path in (tmp_path / "cache").glob("*.tar-*"):
        data = bytearray(path.read_bytes())
        data[7] ^= 1
        path.write_bytes(data)
    assert stream(address, given)[0] == expected


def test_a_missing_file_is_an_error_at_once(server: FileServer, tmp_path: Path) -> None:
    """It is not retried."""
    with pytest.raises(
        ReadFailed,
        match=r"no/such/manifest.json \(head\): there is no such object.*; correct the address",
    ):
        stream(
            f"{server.url}/no/such",
            settings(tmp_path, stall_timeout_s=60),
        )
    assert [path for _, path, _ in server.requests].count("no/such/manifest.json") == 1


def test_the_cache_stays_within_its_size(
    server: FileServer, expected: list[list[int]], tmp_path: Path
) -> None:
    """With room for a third of the dataset, old blocks are deleted and the rows are the same."""
    given = settings(tmp_path, cache_bytes=50_000, block_bytes=8192)
    rows, stats = stream(server.url, given)
    assert rows == expected
    assert stats["cache_evictions"] > 0
    held = sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())
    assert held < 50_000 * 1.25


BLOCK = "0123456789abcdef-shard-000000.tar-0-100"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_cache_folder_of_another_user_is_refused(
    server: FileServer, tmp_path: Path
) -> None:
    """The error names the folder, its owner and its mode, and what to set."""
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    os.chown(folder, 12345, 12345)
    message = rf"{folder}: .* of user 0 .*; found user 12345, mode 777; set .*cache_dir"
    with pytest.raises(ReadFailed, match=message):
        stream(server.url, settings(tmp_path))
    assert os.listdir(folder) == []


def test_a_cache_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """A new one is private; a link to a private folder is followed."""
    Cache(settings(tmp_path), Counters())
    folder = tmp_path / "cache"
    assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(folder)
    Cache(settings(tmp_path, cache_dir=tmp_path / "link"), Counters())
    folder.chmod(0o722)
    with pytest.raises(ReadFailed, match=r"that others cannot write; found .*mode 722"):
        Cache(settings(tmp_path), Counters())


def test_a_file_in_place_of_the_cache_folder_is_an_error(tmp_path: Path) -> None:
    """The error names the path and the setting."""
    (tmp_path / "file").touch()
    for cache_dir in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(ReadFailed, match=rf"{tmp_path}/file.*cache_dir"):
            Cache(settings(tmp_path, cache_dir=cache_dir), Counters())


def test_other_content_of_the_cache_folder_is_left_alone(
    server: FileServer, expected: list[list[int]], tmp_path: Path
) -> None:
    """Files of any name, folders in place of blocks and lock files. The rows are the same."""
    cache = tmp_path / "cache"
    (cache / "folder").mkdir(parents=True)
    cache.chmod(0o700)
    names = ("notes", "-", "a-b-c-d", "1.2.part", "0123-4-5", "x" * 200, "\udcff")
    for name in names:
        (cache / name).write_bytes(b"x" * 100_000)
        os.utime(cache / name, (0, 0))  # used least recently
    for number in range(0, 1024, 2):
        (cache / f"{number:04d}.lock").mkdir()
    address = server.url
    given = settings(tmp_path, cache_bytes=50_000, block_bytes=8192)
    assert stream(address, given)[0] == expected
    for name in names:
        assert (cache / name).stat().st_size == 100_000
    assert (cache / "folder").is_dir()


def test_a_folder_in_place_of_a_block_is_no_error(tmp_path: Path) -> None:
    """The block is fetched each time."""
    (tmp_path / "cache" / BLOCK).mkdir(parents=True)
    (tmp_path / "cache").chmod(0o700)
    counters = Counters()
    cache = Cache(settings(tmp_path, cache_bytes=1), counters)
    for _ in range(2):
        assert bytes(cache.get(BLOCK, 100, lambda: b"x" * 100)) == b"x" * 100
    assert counters["cache_write_failures"] == 2


def test_ranks_of_a_node_fetch_a_block_once(tmp_path: Path) -> None:
    """The others wait for the rank that fetches it."""
    counters = [Counters() for _ in range(4)]
    fetched: list[int] = []

    def fetch() -> bytes:
        time.sleep(0.1)
        fetched.append(1)
        return b"x" * 100

    def ask(counter: Counters) -> None:
        assert (
            bytes(Cache(settings(tmp_path), counter).get("key", 100, fetch)) == b"x" * 100
        )

    threads = [threading.Thread(target=ask, args=(counter,)) for counter in counters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1
    assert sum(counter["cache_hits"] for counter in counters) == 3


KILLED = """
import os, sys, time
from pathlib import Path
from loader.storage import Cache, Counters, ReadSettings
def fetch():
    print("holding", flush=True)
    time.sleep(60)
Cache(ReadSettings(cache_dir=Path(sys.argv[1])), Counters()).get("key", 3, fetch)
"""


def test_a_killed_rank_does_not_block_others(tmp_path: Path) -> None:
    """The operating system frees its lock."""
    arguments = [sys.executable, "-c", KILLED, str(tmp_path / "cache")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=REPOSITORY) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"holding\n"
        other.kill()
        assert (
            bytes(Cache(settings(tmp_path), Counters()).get("key", 3, lambda: b"abc"))
            == b"abc"
        )


def test_the_wait_for_another_rank_is_limited(tmp_path: Path) -> None:
    """If the rank that fetches does not finish, the others raise."""
    given = settings(tmp_path, stall_timeout_s=0.3)
    started, finish = threading.Event(), threading.Event()

    def hang() -> bytes:
        started.set()
        finish.wait()
        return b"abc"

    thread = threading.Thread(target=lambda: Cache(given, Counters()).get("key", 3, hang))
    thread.start()
    started.wait()
    try:
        with pytest.raises(
            ReadFailed, match=r"another process of this node has been fetching it for 0.3 s"
        ):
            Cache(given, Counters()).get("key", 3, lambda: b"abc")
    finally:
        finish.set()
        thread.join()


@pytest.mark.parametrize(
    ("name", "value"),
    [("cache_bytes", 0), ("on_corrupt", "ignore"), ("stall_timeout_s", -1)],
)
def test_settings_out_of_range_are_refused(name: str, value: object) -> None:
    """The error has the name and the value."""
    with pytest.raises(ValueError, match=f"{name} is {value!r}, must be"):
        ReadSettings(**{name: value})


def test_a_dataset_on_a_real_s3_server(
    seaweed: Seaweed, served: Dataset, expected: list[list[int]], tmp_path: Path
) -> None:
    """Requests are signed. A wrong secret is an error at once."""
    keys = {**KEYS, "endpoint": seaweed.endpoint}
    for path in served.folder.iterdir():
        seaweed.store("data").put(path.name, path)
    given = settings(
        tmp_path, store_options=keys, request_timeout_s=60.0, stall_timeout_s=600.0
    )
    assert stream(f"s3://{BUCKET}/data", given)[0] == expected
    wrong = settings(tmp_path, store_options={**keys, "secret_access_key": "guess"})
    store = open_dataset(f"s3://{BUCKET}/data", wrong)
    with pytest.raises(
        ReadFailed, match=r"manifest\.json \(head\): .*403.*; set AWS_ACCESS_KEY_ID"
    ):
        store.map("manifest.json")
