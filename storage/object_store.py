"""Objects of an S3-compatible storage as paths: what a run folder needs of it, and no more.

Promises: an object appears whole or not at all; a read gives the bytes asked for; a request that fails is sent again,
with growing waits, until `retry_timeout_s` after it first failed, unless trying again cannot help; then one error says
what was asked for, what the server said and what to do. Nothing is asked about single objects where a listing tells.
Leaves to others: what the objects mean (store.py), and that a name always stands for the same bytes: an object that is
replaced while it is read would give a mixture.

    folder = S3Path.of("s3://bucket/runs/ccnet", StorageSettings(region="eu-west-1"))
    (folder / "run.json").write_bytes(b"{}")
    pq.read_table(pa.PythonFile((folder / "000007.documents.parquet").open(), mode="r"))

One way to reach a server for all of the pipeline, its input too (`connect`). obstore is the client: others commit what
they have when a writer dies, or hang (docs/decisions/0010-run-folders-in-buckets.md).
"""

from __future__ import annotations

import configparser
import contextlib
import functools
import importlib.util
import io
import math
import mmap
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

SCHEME = "s3://"

REQUEST_BYTES = 16 << 20
"""What one request may bring or take in `request_timeout_s`, and the most that a reader asks for at once."""

WHOLE_BYTES = 512 << 20
"""A file up to this size is uploaded by one request, so that whatever dies meanwhile leaves nothing behind. A larger
one travels in parts, since S3 takes no more than 5 GiB at once."""

PART_BYTES = 64 << 20

TAIL_BYTES = 256 << 10
"""Asked for when a file is opened: all of a small one, the footer of a large one, and its size, by one request."""

GAP_BYTES = 1 << 20
"""What a reader leaves out without losing its stride: at 20 ms a request, reading on costs less than asking anew."""

CONNECT_TIMEOUT_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 10.0

K = TypeVar("K")
T = TypeVar("T")


class StorageError(OSError):
    """A storage cannot be reached, or refuses; the message says what was asked for, its answer and what to do."""


class StorageSettings(BaseModel):
    """How object storage is reached. Credentials come from AWS_ACCESS_KEY_ID and its kin, a profile, or a role."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    endpoint: str | None = Field(
        default=None,
        description="Address of the server; null: AWS_ENDPOINT_URL, or else Amazon's own.",
    )
    region: str | None = Field(
        default=None, description="Region of the buckets; null: AWS_REGION, or us-east-1."
    )
    allow_http: bool = Field(
        default=False,
        description="Whether an endpoint of another machine may be http, as within a private network: whoever is on "
        "the way can read and change the data then.",
    )
    request_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="How long a request may take for each 16 MiB that it brings or takes.",
    )
    retry_timeout_s: float = Field(
        default=180.0,
        ge=0,
        description="How long after its first failure a request is still tried again.",
    )
    spool: str | None = Field(
        default=None,
        description="Folder of each machine for input and outputs on their way; null: the system's for temporary "
        "files. It holds what the tasks of a machine are reading and writing.",
    )


BY_ENVIRONMENT = StorageSettings()
"""Reached as the usual AWS_* environment says: all that a reader knows who has nothing but an address."""


@dataclass(frozen=True)
class S3Path:
    """An object, or a folder of them: the part of pathlib.Path's interface that makes sense for objects."""

    bucket: str
    key: str  # "" is the bucket itself
    settings: StorageSettings

    @classmethod
    def of(cls, url: str, settings: StorageSettings) -> Self:
        """The object or folder at s3://bucket/key.

        Raises:
            StorageError: the address names no bucket, or obstore is not installed.
        """
        bucket, _, key = url.removeprefix(SCHEME).partition("/")
        if not url.startswith(SCHEME) or not bucket:
            raise StorageError(f"{url} names no bucket; wanted s3://bucket/folder")
        if importlib.util.find_spec("obstore") is None:
            raise StorageError(f"{url}: S3 needs the extra s3: pip install 'corpusmill[s3]'")
        return cls(bucket, re.sub("/+", "/", key).strip("/"), settings)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> S3Path:
        return S3Path(self.bucket, f"{self.key}/{name}".strip("/"), self.settings)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> S3Path:
        """The folder it lies in."""
        return S3Path(self.bucket, self.key.rpartition("/")[0], self.settings)

    def check(self) -> None:
        """Ask once for what lies here, so that a wrong address or key is told before anything is done.

        Raises:
            StorageError: it cannot be listed.
        """
        patient = self.settings.model_copy(
            update={"retry_timeout_s": min(5.0, self.settings.retry_timeout_s)}
        )
        S3Path(self.bucket, self.key, patient).iterdir()

    def iterdir(self) -> list[S3Path]:
        """The objects right below, in the order of their names; one request per 1,000."""
        import obstore

        found = self._persist(
            "list", lambda store: obstore.list_with_delimiter(store, self.key or None)
        )
        keys = (each["path"] for each in found["objects"])
        # some servers list an emptied folder as an object of its own
        return [S3Path(self.bucket, key, self.settings) for key in keys if key != self.key]

    def exists(self) -> bool:
        """Whether there is an object of this name."""
        try:
            self._head()
        except FileNotFoundError:
            return False
        return True

    def modified(self) -> datetime:
        """When it was last written, by the server's clock."""
        return self._head()["last_modified"]

    def _head(self) -> Mapping[str, Any]:
        import obstore

        return self._persist("head", lambda store: obstore.head(store, self.key))

    def read_bytes(self) -> bytes:
        """All of a small object. Raises FileNotFoundError."""
        return self.read_version()[0]

    def read_version(self) -> tuple[bytes, str]:
        """All of a small object, and the mark of this version of it. Raises FileNotFoundError."""
        import obstore

        def get(store: Any) -> tuple[bytes, str]:
            answer = obstore.get(store, self.key)
            return bytes(answer.bytes()), answer.meta["e_tag"] or ""

        return self._persist("get", get)

    def open(self, mode: Literal["rb"] = "rb") -> ObjectFile:
        """The object as a seekable file. Raises FileNotFoundError."""
        assert mode == "rb"
        return ObjectFile(self)

    def get_range(self, start: int, stop: int) -> bytes:
        """Bytes start .. stop - 1."""
        import obstore

        def get(store: Any) -> bytes:
            data = bytes(obstore.get_range(store, self.key, start=start, end=stop))
            if len(data) != stop - start:
                raise _Incomplete(f"{len(data):,} bytes have come of bytes {start:,} to {stop:,}")
            return data

        return self._persist("get", get)

    def get_tail(self, num_bytes: int) -> tuple[bytes, int]:
        """The last bytes, at most so many, and the size of the whole. Raises FileNotFoundError."""
        import obstore

        def get(store: Any) -> tuple[bytes, int]:
            try:
                answer = obstore.get(store, self.key, options={"range": {"suffix": num_bytes}})
            except Exception as error:
                if (
                    _status(error) == 416
                ):  # there is no last byte of nothing (RFC 9110 section 14.1.2)
                    return b"", 0
                raise
            data, size = bytes(answer.bytes()), int(answer.meta["size"])
            if len(data) != min(num_bytes, size):
                raise _Incomplete(f"{len(data):,} bytes have come of the last {num_bytes:,}")
            return data, size

        return self._persist("get", get)

    def write_bytes(self, data: bytes) -> None:
        """Write a small object whole, in the place of one that is there."""
        import obstore

        self._persist("put", lambda store: obstore.put(store, self.key, data, use_multipart=False))

    def upload(self, file: Path) -> None:
        """Write the content of a local file, whole or not at all.

        In parts if it is very large: a part that fails is sent again, and when that does not help the upload is given
        up and the server told to forget its parts. Only a process that is killed meanwhile, or cut off, leaves them,
        invisible, to the bucket's own rule for incomplete uploads.
        """
        import obstore

        num_bytes = file.stat().st_size
        if num_bytes > WHOLE_BYTES:
            options: dict[str, Any] = {
                "use_multipart": True,
                "chunk_size": PART_BYTES,
                "max_concurrency": 2,
            }
            requests["put"] += 1 + -(
                -num_bytes // PART_BYTES
            )  # to begin, and the parts; the end is counted as ever
            self._persist(
                "put",
                lambda store: obstore.put(store, self.key, file, **options),
                PART_BYTES,
                parts=True,
            )
        elif num_bytes:
            with (
                file.open("rb") as opened,
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            ):
                self._persist("put", lambda store: _put_mapped(store, self.key, mapped), num_bytes)
        else:  # which cannot be mapped
            self.write_bytes(b"")

    def create(self, data: bytes) -> str | None:
        """Write an object that is not there yet; its version, or None where there is one: of several, one succeeds.

        No two may write the same: so one whose answer got lost recognises its own.
        """
        return self._conditional(data, "create")

    def replace(self, data: bytes, version: str) -> str | None:
        """Write an object in the place of that version of it; the new version, or None where there is another."""
        return self._conditional(data, {"e_tag": version})

    def _conditional(self, data: bytes, mode: Any) -> str | None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def put(store: Any) -> str | None:
            try:
                return obstore.put(store, self.key, data, mode=mode)["e_tag"] or ""
            except (AlreadyExistsError, PreconditionError):
                return None

        if (version := self._persist("put", put)) is not None:
            return version
        with contextlib.suppress(FileNotFoundError):
            found, version = self.read_version()
            return version if found == data else None
        return None

    def unlink(self, missing_ok: bool = True) -> None:
        """Delete the object, if it is there."""
        assert missing_ok  # S3 does not tell
        self._delete([self.key])

    def remove_tree(self) -> None:
        """Delete all objects below."""
        import obstore

        pages = self._persist("list", lambda store: list(obstore.list(store, self.key)))
        if keys := [each["path"] for page in pages for each in page]:
            self._delete(keys)

    def _delete(self, keys: list[str]) -> None:
        import obstore

        self._persist("delete", lambda store: obstore.delete(store, keys))

    def _persist(
        self, kind: str, request: Callable[[Any], T], num_bytes: int = 0, *, parts: bool = False
    ) -> T:
        """What `request` gives, tried again until `retry_timeout_s` after its first failure."""
        deadline, wait_s = None, FIRST_WAIT_S
        timeout_s = self.settings.request_timeout_s * max(1, math.ceil(num_bytes / REQUEST_BYTES))
        while True:
            requests[kind] += 1
            try:
                return request(
                    connect(self.bucket, self.settings, timeout_s=timeout_s, resends_parts=parts)
                )
            except Exception as error:
                if isinstance(error, StorageError):
                    raise
                answer = _answer(error)
                if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in answer:
                    raise FileNotFoundError(f"{self}: there is no such object") from error
                deadline = deadline or time.monotonic() + self.settings.retry_timeout_s
                if _is_final(error):
                    raise StorageError(f"{self} ({kind}): {answer}; {_remedy(error)}") from error
                if time.monotonic() + wait_s > deadline:
                    bound = f"tried again for {self.settings.retry_timeout_s:g} s (storage.retry_timeout_s)"
                    raise StorageError(
                        f"{self} ({kind}): {answer}; {bound}; {_remedy(error)}"
                    ) from error
            requests["again"] += 1
            time.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - so that tasks do not all come back at once
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)


requests: Counter[str] = Counter()
"""What this process has asked for, by kind (list, head, get, put, delete), and how often it was not the first time."""


class ObjectFile(io.RawIOBase):
    """An object as a seekable file, read by range: the further it is read in one direction, the more at a time.

    Opening brings the end of the object with its size: the footer of Parquet and Arrow files, and all of a small one.
    """

    def __init__(self, path: S3Path) -> None:
        super().__init__()
        self._path, self._at = path, 0
        tail, self.size = path.get_tail(TAIL_BYTES)
        self._tail = self.size - len(tail), tail
        self._ahead = 0, b""
        self._stride = TAIL_BYTES

    @property
    def name(self) -> str:
        """For error messages."""
        return str(self._path)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Let the next read begin elsewhere; asks for nothing."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """As many bytes as there is room for, fewer only at the end."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """All that is left."""
        return self.read(self.size)

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes, fewer only at the end."""
        stop = self.size if size is None or size < 0 else min(self._at + size, self.size)
        pieces: list[bytes] = []
        while self._at < stop:
            piece = self._piece(self._at, stop)
            pieces.append(piece)
            self._at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _piece(self, start: int, stop: int) -> bytes:
        """Some of these bytes, from the first on."""
        for first, data in (self._tail, self._ahead):
            if first <= start < first + len(data):
                return data[start - first : stop - first]
        reached = self._ahead[0] + len(self._ahead[1])
        is_onward = bool(self._ahead[1]) and 0 <= start - reached <= GAP_BYTES
        self._stride = min(2 * self._stride, REQUEST_BYTES) if is_onward else TAIL_BYTES
        # what is in the tail is not fetched twice
        end = min(max(stop, start + self._stride), start + REQUEST_BYTES, self._tail[0])
        self._ahead = start, self._path.get_range(start, end)
        return self._ahead[1][: stop - start]


# ------------------------------------------------------------------------------------------------------- the connection


def connect(
    bucket: str, settings: StorageSettings, *, timeout_s: float, resends_parts: bool = False
) -> Any:
    """The bucket as obstore has it; the same one for equal arguments and environment.

    It tries once only: who asks also knows when to try again. But the parts of an upload it sends again itself.

    Raises:
        StorageError: the endpoint is http and not of this machine, or the profile has no keys.
    """
    environment = tuple(
        sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    )
    # frozen settings have a hash, which pydantic's types do not say
    return _connected(bucket, settings, timeout_s, resends_parts, environment)  # pyright: ignore[reportArgumentType]


@functools.lru_cache(maxsize=64)
def _connected(
    bucket: str,
    settings: StorageSettings,
    timeout_s: float,
    resends_parts: bool,
    environment: tuple[tuple[str, str], ...],
) -> Any:
    from obstore.store import S3Store

    given = dict(environment)
    endpoint = (
        settings.endpoint or given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL")
    )
    may_http = settings.allow_http or given.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
    if endpoint:
        _refuse_unsafe(endpoint, may_http=may_http)
    options: dict[str, Any] = {**_profile(given)}
    if (
        endpoint
    ):  # under both names, since obstore would prefer what the environment says under the second
        options |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
    if settings.region:
        options["region"] = settings.region
    return S3Store(
        bucket,
        **options,
        client_options={
            "allow_http": bool(endpoint and endpoint.startswith("http:")),
            "connect_timeout": timedelta(seconds=min(CONNECT_TIMEOUT_S, timeout_s)),
            "timeout": timedelta(seconds=timeout_s),
            "user_agent": "corpusmill",
        },
        retry_config={
            "max_retries": 10 if resends_parts else 0,
            "retry_timeout": timedelta(seconds=settings.retry_timeout_s),
        },
    )


def _refuse_unsafe(endpoint: str, *, may_http: bool) -> None:
    parts = urlsplit(endpoint)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StorageError(
            f"storage.endpoint is {endpoint!r}; wanted https://host or https://host:port"
        )
    if parts.scheme == "http" and not (is_local or may_http):
        raise StorageError(
            f"{endpoint}: only https addresses are used (plain http: of this machine alone); within a network that is "
            f"yours set storage.allow_http, or AWS_ALLOW_HTTP=true"
        )


def _profile(given: Mapping[str, str]) -> dict[str, str]:
    """Keys and region of the profile, where the environment has no keys: what obstore does not look for itself.

    AWS's rules: https://docs.aws.amazon.com/sdkref/latest/guide/file-location.html
    """
    if "AWS_ACCESS_KEY_ID" in given:
        return {}
    name = given.get("AWS_PROFILE", "default")
    credentials, config = (configparser.ConfigParser(interpolation=None) for _ in range(2))
    credentials.read(
        given.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials", "utf-8"
    )
    config.read(given.get("AWS_CONFIG_FILE") or Path.home() / ".aws" / "config", "utf-8")
    found: dict[str, str] = {}
    for file, section in (
        (config, name if name == "default" else f"profile {name}"),
        (credentials, name),
    ):
        found |= dict(file[section]) if section in file else {}
    if "aws_access_key_id" not in found:
        if "AWS_PROFILE" in given:
            raise StorageError(
                f"AWS_PROFILE is {name!r}, which has no aws_access_key_id in AWS's credentials file; for one that "
                f"signs in elsewhere run  eval $(aws configure export-credentials --profile {name} --format env)"
            )
        return {}  # then it is the role of the machine, or of its container
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    options = {
        key.removeprefix("aws_").replace("session_", ""): found[key]
        for key in names
        if key in found
    }
    is_region_set = "AWS_REGION" in given or "AWS_DEFAULT_REGION" in given
    return options | (
        {"region": found["region"]} if "region" in found and not is_region_set else {}
    )


# ------------------------------------------------------------------------------------------------------ what went wrong


def _put_mapped(store: Any, key: str, mapped: mmap.mmap) -> None:
    import obstore

    with memoryview(mapped) as view:
        obstore.put(store, key, view, use_multipart=False)


class _Incomplete(Exception):
    """An answer that ended early and called itself whole."""


_PASSING = frozenset((408, 409, 425, 429))
"""Client errors that another attempt can mend (RFC 9110 section 15.5); 409: two conditional writes at once."""


def _status(error: BaseException) -> int | None:
    """The HTTP status in obstore's message: for what was asked of a listing it has no classes of exceptions."""
    found = re.search(r"status code: (\d{3})", str(error))
    return int(found[1]) if found else None


def _is_final(error: Exception) -> bool:
    """Whether trying again cannot help."""
    from obstore.exceptions import (
        InvalidPathError,
        NotSupportedError,
        PermissionDeniedError,
        UnauthenticatedError,
        UnknownConfigurationKeyError,
    )

    classes = (
        FileNotFoundError,
        InvalidPathError,
        NotSupportedError,
        PermissionDeniedError,
        UnauthenticatedError,
    )
    status = _status(error)
    is_refused = (
        status is not None and (300 <= status < 500 or status == 501) and status not in _PASSING
    )
    is_ours = isinstance(error, (UnknownConfigurationKeyError, TypeError, ValueError))
    return isinstance(error, classes) or is_refused or is_ours or _has_no_credentials(error)


def _has_no_credentials(error: Exception) -> bool:
    """Whether there are not both parts of a key, or none, and the address of a machine's own role does not answer."""
    return (
        re.search(r"169\.254\.169\.254|Missing (AccessKeyId|SecretAccessKey)", str(error))
        is not None
    )


def _answer(error: Exception) -> str:
    """What the server said, or what befell the request, without the dump of Rust's structures behind it."""
    text = str(error)
    if _has_no_credentials(error):
        return "no credentials are found, in the environment, a profile or a role of this machine"
    parts = [re.search(rf"<{name}>(.*?)</{name}>", text, re.DOTALL) for name in ("Code", "Message")]
    said = ": ".join(part[1] for part in parts if part)
    if (status := _status(error)) is not None:
        return f"the server says {status}{f' {said}' if said else ''}"
    first = text.strip().split("\n", maxsplit=1)[0]
    return (
        re.sub(r"^Generic S3 error: |Error performing list request: ", "", first)
        or type(error).__name__
    )


def _remedy(error: Exception) -> str:
    status, text = _status(error), str(error)
    if status in (401, 403) or _has_no_credentials(error):
        return (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) to keys that may list, read, write and "
            "delete there"
        )
    if "NoSuchBucket" in text:
        return "make the bucket, or correct the address"
    if status in (301, 307, 400):
        return "set storage.region (or AWS_REGION) to the bucket's own"
    if status is None:
        return "see storage.endpoint (or AWS_ENDPOINT_URL), storage.region and the network"
    return "see the server's log"


def fetch_each(items: Iterable[K], fetch: Callable[[K], T]) -> Iterator[T]:
    """`fetch` of each item, in their order, several at a time: what waits for a server need not wait in turn."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(NUM_CONNECTIONS) as threads:
        yield from threads.map(fetch, items)


NUM_CONNECTIONS = 16
"""Requests at a time where many small files are read."""
