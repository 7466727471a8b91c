"""The server of browse: who may ask, and what it says to browsers."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping
from importlib import resources

import pytest

from pipeline.runs.run_folder import RunFolder
from tests.conftest import REPOSITORY
from tests.pipeline.reporting.browse.conftest import TOKEN
from tests.pipeline.reporting.conftest import URLS

# A response: status, headers, body.
Response = tuple[int, http.client.HTTPMessage, bytes]


def fetch(
    address: str,
    path: str = "",
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Request a path relative to the page, or an absolute one; return the response."""
    parts = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=600)
    target = path if path.startswith("/") else parts.path + path
    connection.request(method, target, headers=dict(headers or {}))
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers, body


def test_every_answer_forbids_what_an_attack_needs(address: str) -> None:
    """Errors too. No script or style may be inline, and nothing is loaded from elsewhere."""
    for path in (
        "",
        "main.js",
        "api/run",
        "api/nothing",
        "/wrong/",
        "api/documents?seed=x",
    ):
        _, headers, _ = fetch(address, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "path",
    ["/", "/api/run", "/wrong/api/run", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", "//", "/%ff%fe/"],
)
def test_nothing_is_answered_without_the_token(address: str, path: str) -> None:
    """A wrong token and a missing page look alike."""
    status, _, body = fetch(address, path)
    assert (status, body) == (404, b"404: Not Found")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("localhost:8080", 200),  # through `ssh -L 8080:...`
        ("localhost", 200),
        ("attack.example:80", 403),
        ("127.0.0.1.attack.example", 403),
        ("attack.example:127.0.0.1", 403),
        ("", 403),
    ],
)
def test_a_page_with_another_host_name_gets_nothing(
    address: str, host: str, status: int
) -> None:
    """DNS rebinding: its name resolves to 127.0.0.1, and the browser sends the name."""
    found, _, body = fetch(address, "api/run", headers={"Host": host})
    assert found == status
    assert (b"run_dir" in body) == (status == 200)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
def test_only_get_is_answered(address: str, method: str) -> None:
    """The server changes nothing."""
    assert fetch(address, "api/run", method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "../server.py",
        "..%2fserver.py",
        "%2e%2e/server.py",
        "nothing.js",
        "server.py",
        "a/b",
    ],
)
def test_only_the_assets_are_sent(address: str, path: str) -> None:
    """No path leads out of their folder."""
    assert fetch(address, path)[0] == 404


def test_assets_have_their_types_and_hold_no_inline_code(address: str) -> None:
    """And no address of another host."""
    kinds = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
    folder = resources.files("pipeline.reporting.browse").joinpath("assets")
    for file in folder.iterdir():
        _, headers, body = fetch(address, file.name)
        assert body == file.read_bytes()
        ending = file.name.rpartition(".")[2]
        wanted = kinds.get(ending, "image/svg+xml")
        assert headers["Content-Type"] == f"{wanted}; charset=utf-8"
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search("https?://|innerHTML|outerHTML|document.write|eval[(]", text)
        if ending == "html":
            assert not re.search(r"<script(?![^>]* src=)|<style|style=|\son\w+=", text)


def test_hostile_strings_are_sent_as_json(address: str) -> None:
    """The strings arrive unchanged; the type keeps browsers from reading them as markup."""
    status, headers, body = fetch(address, "api/documents?num_docs=100")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    urls = {document["url"] for document in json.loads(body)["documents"]}
    assert set(URLS) <= urls


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("api/documents?seed=x", 400, "seed is 'x', wanted a number"),
        ("api/document?doc_id=999999999999", 404, "no document '999999999999' was read"),
    ],
)
def test_an_expected_error_is_an_answer(
    address: str, path: str, status: int, message: str
) -> None:
    """With its message."""
    found, _, body = fetch(address, path)
    assert found == status
    assert message in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGTERM, 143, ["stopped by SIGTERM"]), (signal.SIGINT, 0, [])],
)
def test_a_stopped_server_has_nothing_to_continue(
    browsed: RunFolder, number: signal.Signals, code: int, message: list[str]
) -> None:
    """Ctrl-C is its usual end."""
    command = [sys.executable, "-m", "pipeline", "browse", "--json", str(browsed.run_dir)]
    process = subprocess.Popen(
        # SIGINT is ignored, if the tests run in the background.
        ["env", "--default-signal=INT", *command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "address" in json.loads(process.stdout.readline())
    process.send_signal(number)
    _, stderr = process.communicate(timeout=600)
    assert (process.returncode, stderr.splitlines()[1:]) == (code, message)
