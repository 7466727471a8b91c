"""Downloads from a real S3 server: resumed where they broke, never of two versions."""

from __future__ import annotations

import contextlib
import logging
import select
import shutil
import socket
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from config_files.reader import ConfigError
from pipeline.config import InputConfig
from pipeline.inputs.input_splits import list_input_splits
from pipeline.models.download import AssetError, download
from tests.pipeline.conftest import Small
from tests.pipeline.sample_crawl.invented import make_crawl
from tests.seaweed import BUCKET, KEYS, Seaweed

# Long enough for a few attempts.
STALL_S = 1.0


@dataclass(frozen=True)
class Bucket:
    """The server's bucket, as the pipeline sees it."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, key: str) -> str:
        return f"s3://{BUCKET}/{key}"


@pytest.fixture
def bucket(seaweed_in_environment: Seaweed) -> Bucket:
    """The bucket, configured by AWS_* variables."""
    return Bucket(seaweed_in_environment.port)


def put(bucket: Bucket, key: str, content: bytes) -> str:
    """Write an object and return its address."""
    from obstore.store import S3Store

    options = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    S3Store(BUCKET, endpoint=bucket.endpoint, **KEYS, **options).put(key, content)
    return bucket.url(key)


@contextlib.contextmanager
def proxy(bucket: Bucket, cut_after: int, *, is_repaired: bool = True) -> Generator[int]:
    """A port in front of the server. The connection that delivers that byte is cut.

    Later ones are not, if the proxy is repaired.
    """
    left, threads = [cut_after], list[threading.Thread]()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(
                    threading.Thread(
                        target=_relay, args=(client, bucket.port, left, is_repaired)
                    )
                )
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def _relay(client: socket.socket, port: int, left: list[int], is_repaired: bool) -> None:
    """Relay both ways until an end closes, a second passes without bytes, or none are `left`."""
    with (
        client,
        socket.create_connection(("127.0.0.1", port)) as server,
        contextlib.suppress(OSError),
    ):
        while ready := select.select([client, server], [], [], 1.0)[0]:
            for source in ready:
                chunk = source.recv(4096)
                if not chunk:
                    return
                if source is server and left:
                    left[0] -= len(chunk)
                    if left[0] < 0:
                        left[:] = [] if is_repaired else [0]
                        return
                (client if source is server else server).sendall(chunk)


CONTENT = bytes(range(256)) * 1_200


def test_an_object_is_downloaded(bucket: Bucket, tmp_path: Path) -> None:
    """The partial file is gone afterwards. An empty object works too."""
    download(put(bucket, "a/b.bin", CONTENT), tmp_path / "b.bin")
    assert (tmp_path / "b.bin").read_bytes() == CONTENT
    download(put(bucket, "empty", b""), tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.bin", "empty"]
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_cut_connection_is_resumed_where_it_broke(
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Bytes that were received are not requested again."""
    url = put(bucket, "cut.bin", CONTENT)
    caplog.set_level(logging.INFO, "storage")
    with proxy(bucket, cut_after=180_000) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        download(url, tmp_path / "cut.bin")
    assert (tmp_path / "cut.bin").read_bytes() == CONTENT
    first, second = caplog.messages
    assert first.endswith(", 0.3 MB")
    assert int(second.rpartition("from byte ")[2].replace(",", "")) > 150_000


def test_two_versions_of_an_object_are_never_mixed(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partial file of another version, left by an earlier process, is dropped."""
    url = put(bucket, "changing.bin", CONTENT)
    with proxy(bucket, cut_after=120_000, is_repaired=False) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        with pytest.raises(AssetError, match="no byte came for 1 s"):
            download(url, tmp_path / "x", stall_timeout_s=STALL_S)
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    (partial,) = tmp_path.glob("x.*.partial")
    assert 100_000 < partial.stat().st_size < 120_000
    put(bucket, "changing.bin", CONTENT[::-1])
    download(url, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT[::-1]


def test_final_errors_are_reported_at_once(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing object or bucket, an address without object and a wrong key are not retried."""
    with pytest.raises(AssetError, match=r"absent \(get\): there is no such object"):
        download(bucket.url("absent"), tmp_path / "x", stall_timeout_s=STALL_S)
    with pytest.raises(AssetError, match=r"\(get\): the server says 404 NoSuchBucket"):
        download("s3://nobucket/absent", tmp_path / "x", stall_timeout_s=STALL_S)
    with pytest.raises(AssetError, match=r"use an address such as s3://bucket/key"):
        download("s3://bucket", tmp_path / "x", stall_timeout_s=STALL_S)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guessed")
    with pytest.raises(AssetError, match=r"s3://bucket/ready \(get\): the server says 403"):
        download(bucket.url("ready"), tmp_path / "x", stall_timeout_s=STALL_S)
    assert list(tmp_path.iterdir()) == []


def test_plain_http_to_other_machines_is_refused(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint is checked like any address."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://example.org")
    with pytest.raises(AssetError, match=r"http://example\.org: only https"):
        download(bucket.url("ready"), tmp_path / "x", stall_timeout_s=STALL_S)


def test_a_snapshot_on_s3_gives_the_same_shards_as_its_files_on_disk(
    small: Small, bucket: Bucket, tmp_path: Path
) -> None:
    """All phases run on a mirror of Common Crawl."""
    crawl = make_crawl(
        tmp_path / "crawl", 100, documents_per_file=50, layout="common-crawl"
    )
    assert crawl.paths_list is not None
    for path in (*crawl.files, crawl.paths_list):
        put(bucket, f"mirror/{path.relative_to(crawl.folder)}", path.read_bytes())
    source = {"crawl": "CC-MAIN-SAMPLE", "base_url": f"s3://{BUCKET}/mirror"}
    fetched, _ = small.run(input={"files": None, "common_crawl": source})
    on_disk, _ = small.run("on-disk", input={"files": [str(path) for path in crawl.files]})
    shards = sorted(path.name for path in Path(on_disk.dataset).glob("shard-*"))
    assert shards
    for name in shards:
        assert (Path(fetched.dataset) / name).read_bytes() == (
            Path(on_disk.dataset) / name
        ).read_bytes()
    shutil.rmtree(tmp_path / "cache" / "crawls")
    with pytest.raises(
        ConfigError,
        match=r"the list of CC-MAIN-1999-01 cannot be downloaded: s3://bucket/mirror/.*404",
    ):
        list_input_splits(
            InputConfig.model_validate(
                {"common_crawl": {**source, "crawl": "CC-MAIN-1999-01"}}
            )
        )
