"""Missing credentials for S3 are reported at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import StorageSettings, open_store
from storage.errors import AccessRefused, InvalidAddress
from tests.servers import FileServer, Handler, serve

ROLES = "/latest/meta-data/iam/security-credentials/"
KEYS = (
    '{"Code": "Success", "AccessKeyId": "key", "SecretAccessKey": "secret", "Token": "token", '
    '"Expiration": "2999-01-01T00:00:00Z"}'
)


class RoleService(Handler):
    """The service that gives out the credentials of a machine's role."""

    answers: dict[str, str]
    is_over: threading.Event

    def answer(self) -> None:
        answer = self.answers.get(self.path, self.answers.get("*"))
        if answer == "wait":
            self.is_over.wait(600)
        else:
            self.send(404 if answer is None else 200, (answer or "").encode())


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The answers of a role service, path -> body; no other credentials exist."""
    pytest.importorskip("obstore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    is_over = threading.Event()
    made: dict[str, str] = {}
    with serve(RoleService, answers=made, is_over=is_over) as address:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", address)
        yield made
        is_over.set()


@pytest.mark.parametrize(
    "service",
    [
        {},
        {"*": "<html>Log in to this network</html>"},
        {"*": "wait"},
        {"/latest/api/token": "token", ROLES: ""},
        {"/latest/api/token": "token", ROLES: "wait"},
    ],
    ids=["404", "a login page", "no answer", "no role", "no list of roles"],
)
def test_missing_credentials_are_an_error_at_once(
    answers: dict[str, str], service: dict[str, str]
) -> None:
    """The error says what to set. No retries: the limit of these settings is ten minutes."""
    answers.update(service)
    settings = StorageSettings(retry_timeout_s=600.0, request_timeout_s=600.0)
    began = time.monotonic()
    with pytest.raises(
        AccessRefused,
        match=r"s3://bucket: no credentials are found.*; set AWS_ACCESS_KEY_ID",
    ):
        open_store("s3://bucket/folder", settings).read_bytes("file")
    assert time.monotonic() - began < 300.0


def test_credentials_of_a_role_are_used(answers: dict[str, str]) -> None:
    """A machine with a role needs no keys."""
    answers.update({"/latest/api/token": "token", ROLES: "reader", f"{ROLES}reader": KEYS})
    with FileServer({"bucket/file": b"content"}) as server:
        store = open_store("s3://bucket", StorageSettings(endpoint=server.url))
        assert store.read_bytes("file") == b"content"


def test_a_public_bucket_needs_no_credentials(answers: dict[str, str]) -> None:
    """With the option of obstore for unsigned requests."""
    with FileServer({"bucket/file": b"content"}) as server:
        settings = StorageSettings(endpoint=server.url, options={"skip_signature": True})
        assert open_store("s3://bucket", settings).read_bytes("file") == b"content"


def test_a_damaged_profile_is_an_error(answers: dict[str, str], tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("key = 1")
    with pytest.raises(InvalidAddress, match=r"credentials: this is no AWS configuration"):
        open_store("s3://bucket/x").read_bytes("file")
