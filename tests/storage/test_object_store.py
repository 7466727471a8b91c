"""Objects on a real S3 server: reading by range, uploads, and a server that does not answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage import StorageSettings, object_store
from storage.errors import AccessRefused, InvalidAddress, ObjectChanged, Unreachable
from storage.object_store import ObjectStore
from storage.retries import requests
from tests.loader.faults import FaultProxy
from tests.seaweed import Seaweed
from tests.servers import FAULTS, FileServer

CONTENT = bytes(i * i % 251 for i in range(3_000_000))


@pytest.fixture
def filled(bucket_store: ObjectStore) -> ObjectStore:
    """A folder with CONTENT as the object "content"."""
    bucket_store.put("content", CONTENT)
    return bucket_store


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    reads=st.lists(
        st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 1_500_000)), max_size=8
    )
)
def test_an_object_reads_like_a_file(
    filled: ObjectStore, reads: list[tuple[int, int]]
) -> None:
    """Any ranges in any order, also beyond the end."""
    with filled.open("content") as file:
        for start, length in reads:
            file.seek(start)
            assert file.read(length) == CONTENT[start : start + length]
            assert file.tell() == min(start + length, len(CONTENT))


def test_sequential_reads_fetch_more_at_a_time(filled: ObjectStore) -> None:
    """3 MB read by 4 KiB take one request for the end and four that double; a small object one."""
    before = requests["get"]
    with filled.open("content") as file:
        assert b"".join(iter(lambda: file.read(4096), b"")) == CONTENT
    assert requests["get"] - before == 5
    for content in (b"", b"small"):
        filled.put("other", content)
        before = requests["get"]
        assert filled.open("other").read() == content
        assert requests["get"] - before == 1


def test_a_retried_create_or_replace_recognizes_its_own_object(
    bucket_store: ObjectStore,
) -> None:
    """The server's answer to the first attempt may be lost."""
    version = bucket_store.create("x", b"1")
    assert version
    assert bucket_store.create("x", b"1") == version
    replaced = bucket_store.replace("x", b"2", version)
    assert replaced
    assert bucket_store.replace("x", b"2", version) == replaced


def test_a_very_large_file_is_uploaded_in_parts(
    bucket_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 accepts at most 5 GiB in one request; here the limit is 1 MiB."""
    monkeypatch.setattr(object_store, "SINGLE_PUT_BYTES", 1 << 20)
    monkeypatch.setattr(object_store, "PART_BYTES", 5 << 20)
    (tmp_path / "large").write_bytes(CONTENT * 4)
    bucket_store.move_in(tmp_path / "large", "large")
    assert bucket_store.open("large").read() == CONTENT * 4


def test_another_version_of_an_object_is_not_read(filled: ObjectStore) -> None:
    """A range of the version that was asked for, or an error."""
    _, version = filled.get_size_and_version("content")
    filled.put("content", b"replaced, longer than the range")
    with pytest.raises(ObjectChanged, match="412"):
        filled.read_range("content", 0, 10, version)


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(
    filled: ObjectStore,
) -> None:
    """An open file reads one version to its end."""
    with filled.open("content") as file:
        assert file.read(1000) == CONTENT[:1000]
        filled.put("content", bytes(reversed(CONTENT)))
        with pytest.raises(ObjectChanged, match=r"content, bytes \d+\.\.\d+ \(get\)"):
            file.read()


@pytest.fixture
def odd_server() -> Iterator[FileServer]:
    """A server with CONTENT as the object "bucket/content"."""
    with FileServer({"bucket/content": CONTENT}) as server:
        yield server


def open_odd_store(server: FileServer, **given: Any) -> ObjectStore:
    """Return the server's bucket; requests are given up soon."""
    timeouts: dict[str, Any] = {"request_timeout_s": 0.5, "retry_timeout_s": 0.5}
    options = {"access_key_id": "key", "secret_access_key": "secret"}
    settings = StorageSettings(
        endpoint=server.url, options=options, **{**timeouts, **given}
    )
    return ObjectStore.from_address("s3://bucket", settings)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_answer_is_never_taken_for_the_object(
    odd_server: FileServer, fault: str
) -> None:
    """A server that answers correctly once and then breaks a rule gives the object, or an error."""
    store = open_odd_store(odd_server)
    _, version = store.get_size_and_version("content")
    odd_server.num_healthy = 1
    odd_server.fault = fault
    assert bytes(store.read_range("content", 0, 5000, version)) == CONTENT[:5000]
    with pytest.raises((ObjectChanged, Unreachable)):
        store.read_range("content", 5000, 9000, version)
    odd_server.fault = ""
    assert bytes(store.read_range("content", 5000, 9000, version)) == CONTENT[5000:9000]


@pytest.mark.parametrize("fault", ["other version", "shorter object"])
def test_a_changed_object_is_requested_once(odd_server: FileServer, fault: str) -> None:
    """The error says what was found and what was expected."""
    store = open_odd_store(odd_server, retry_timeout_s=60.0)
    odd_server.fault = fault
    _, version = store.get_size_and_version("content")
    message = {
        "other version": r'the object has the ETag ".*", ".*" was expected',
        "shorter object": r"the object has 2,000 bytes, at least 3,000 were expected",
    }[fault]
    with pytest.raises(ObjectChanged, match=rf"s3://bucket/content.*: {message}"):
        store.read_range("content", 1000, 3000, version)
    assert len(odd_server.ranges) == 1


def test_a_range_behind_the_end_is_an_error_at_once(odd_server: FileServer) -> None:
    """The object is shorter than expected."""
    store = open_odd_store(odd_server, retry_timeout_s=60.0)
    with pytest.raises(ObjectChanged, match="416"):
        store.read_range("content", len(CONTENT), len(CONTENT) + 100)
    assert len(odd_server.ranges) == 1


@pytest.mark.parametrize("fault", ["short answer", "withheld", "no answer", "503"])
def test_the_time_until_an_error_is_limited(odd_server: FileServer, fault: str) -> None:
    """At most `stall_timeout_s` after the last new byte, also if a request may take longer."""
    store = open_odd_store(odd_server, stall_timeout_s=2.0, request_timeout_s=60.0)
    odd_server.fault = fault
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"no byte came for 2 s \(stall_timeout_s\)"):
        store.read_range("content", 0, 5000)
    # On a quiet machine at most 2 s; without the limit, 60 s.
    assert time.monotonic() - began < 20.0
    # Received bytes are not requested again, and the pauses between requests grow.
    starts = [start for _, start, _ in odd_server.ranges]
    received = 4900 if fault in ("short answer", "withheld") else 0
    assert starts == [0] + [received] * (len(starts) - 1)
    # Beside other work, the first request may take all of the time.
    assert 1 <= len(starts) <= 20


def test_a_server_that_stays_away_is_given_up(
    bucket_store: ObjectStore, tmp_path: Path
) -> None:
    """After the time of the settings, with the last error; the file is not there then."""
    proxy = FaultProxy(1)
    proxy.refuse = True
    endpoint = proxy.url
    away = replace(
        bucket_store, settings=StorageSettings(endpoint=endpoint, retry_timeout_s=0.5)
    )
    (tmp_path / "file").write_bytes(CONTENT)
    limit = r"tried again for 0\.5 s \(storage\.advanced\.retry_timeout_s\)"
    try:
        with pytest.raises(Unreachable, match=rf"{bucket_store}/x \(put\): .*{limit}"):
            away.move_in(tmp_path / "file", "x")
    finally:
        proxy.close()
    assert not bucket_store.exists("x")


def test_a_cut_connection_is_resumed_within_a_range(
    filled: ObjectStore, seaweed: Seaweed
) -> None:
    """Every connection is cut after 1 MB: the bytes that arrived are kept, the rest is fetched."""
    proxy = FaultProxy(seaweed.port)
    proxy.cut_after = 1_000_000
    endpoint = proxy.url
    cut = replace(filled, settings=StorageSettings(endpoint=endpoint, retry_timeout_s=60.0))
    before = requests.copy()
    try:
        assert bytes(cut.read_range("content", 0, len(CONTENT))) == CONTENT
    finally:
        proxy.close()
    counted = requests.copy() - before
    assert counted["retries"] >= 3
    assert counted["fetched_bytes"] == len(CONTENT)  # no byte was fetched twice


def test_errors_are_classified_by_what_the_caller_can_do(
    bucket_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong key is refused access, a missing bucket is a wrong address; neither is retried."""
    before = requests["retries"]
    with pytest.raises(
        InvalidAddress, match=r"404 NoSuchBucket: The[^:]*; make the bucket"
    ):
        ObjectStore.from_address("s3://nobucket/x").list_names()
    with pytest.raises(InvalidAddress, match="names no bucket"):
        ObjectStore.from_address("s3:///x")
    insecure = replace(
        bucket_store, settings=StorageSettings(endpoint="http://example.org")
    )
    with pytest.raises(InvalidAddress, match=r"only https.*storage\.allow_http"):
        insecure.list_names()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guessed")
    with pytest.raises(
        AccessRefused, match=r"403 SignatureDoesNotMatch: The[^:]*; set AWS_ACCESS_KEY_ID"
    ):
        bucket_store.list_names()
    assert requests["retries"] == before
