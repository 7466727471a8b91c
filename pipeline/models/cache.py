"""The cache of models and texts on this machine.

A file is fetched or made once, verified, and shared by all processes. It appears in the cache when
it is complete. With CORPUSMILL_OFFLINE=1 nothing uses the network, and the error names the file
and where to put it.

    files = (HttpsFile("https://...", sha256),)
    lid = Asset("lid", "language-identification", "1", files, "CC0", "...")
    obtain(lid)                    # ~/.cache/corpusmill/assets/lid/<key>/lid.176.bin
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import filelock
from pydantic import TypeAdapter

from pipeline.models.download import AssetError, FileOrigin, fetch
from pipeline.runs.done_records import to_json
from stages.cache_folder import cache_folder
from storage.json_schema import Count, JsonObject, OpenJsonObject, Sha256, parse_json
from storage.local import put_file

log = logging.getLogger(__name__)


class _CachedFile(JsonObject):
    sha256: Sha256
    bytes: Count
    mtime_ns: Count


class _Record(OpenJsonObject):
    """The record of an asset in the cache."""

    files: dict[str, _CachedFile]


_RECORD = TypeAdapter(_Record)

Kind = Literal[
    "language-identification", "lm", "reference-classifier", "tokenizer", "text", "tool"
]


# ---- assets ----


@dataclass(frozen=True)
class Trained:
    """How an asset is made on this machine.

    Attributes:
        identify: Returns JSON values that change whenever the files would change.
        make: Writes the files into an empty folder. If it is called with True (offline), it
            fetches nothing.
    """

    identify: Callable[[], Any]
    make: Callable[[Path, bool], None]


@dataclass(frozen=True)
class Asset:
    """A model, text or tool that a config may name.

    Attributes:
        source: Its files, or how it is made.
    """

    name: str
    kind: Kind
    version: str
    source: tuple[FileOrigin, ...] | Trained
    licence: str
    description: str

    @property
    def files(self) -> dict[str, FileOrigin]:
        """File name -> file; empty for an asset that is made here, which may have any files."""
        if isinstance(self.source, Trained):
            return {}
        return {file.file_name: file for file in self.source}

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        if isinstance(self.source, Trained):
            return "made on this machine"
        if len(self.source) == 1:
            return str(self.source[0])
        return "; ".join(f"{name}: {file}" for name, file in self.files.items())


# ---- the cache ----


def is_offline() -> bool:
    """Whether CORPUSMILL_OFFLINE forbids fetching."""
    return os.environ.get("CORPUSMILL_OFFLINE", "").lower() not in ("", "0", "false", "no")


def obtain(asset: Asset, *, offline: bool | None = None) -> Path:
    """Return the path of an asset on this machine; fetch or make it first if it is missing.

    Args:
        asset: The asset.
        offline: Forbid fetching; None: as CORPUSMILL_OFFLINE says. Making an asset from cached
            sources is allowed.

    Returns:
        A file, or a folder for an asset of several files. Do not write to it.

    Raises:
        AssetError: the asset cannot be fetched or made, or has another digest than it should.
    """
    entry = Entry(asset)
    if not entry.is_verified():
        with locked(entry.lock_path, asset.name):
            if not entry.is_verified():  # another process may have completed it meanwhile
                entry.complete(is_offline() if offline is None else offline)
    return entry.path


@contextlib.contextmanager
def locked(path: Path, name: str) -> Generator[None]:
    """Let one process at a time fetch or make something.

    Args:
        path: The lock file. The operating system frees the lock of a process that dies.
        name: What is fetched or made, for the log.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A soft lock would outlive a killed process.
    lock = filelock.FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        log.info("%s: waiting for another process, which is fetching or making it", name)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


# ---- digests ----


def combine_digests(sha256_by_file: Mapping[str, str]) -> str:
    """Return one digest of several files.

    It is the SHA-256 of the lines `<name> NUL <sha256> LF`, sorted by name.
    """
    combined = hashlib.sha256()
    for name, sha256 in sorted(sha256_by_file.items()):
        combined.update(f"{name}\0{sha256}\n".encode())
    return combined.hexdigest()


def compute_digest(path: Path) -> str:
    """Return the SHA-256 of a file, or the combined digest of all files in a folder.

    Raises:
        AssetError: the path cannot be read.
    """
    try:
        if path.is_file():
            return _compute_file_digest(path)
        sha256_by_file: dict[str, str] = {}
        for file in _walk(path):
            sha256_by_file[file.relative_to(path).as_posix()] = _compute_file_digest(file)
        return combine_digests(sha256_by_file)
    except OSError as error:
        raise AssetError(f"{path} cannot be read: {error}") from error


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path


def _compute_file_digest(path: Path) -> str:
    return _compute_version_digest(path.absolute(), _get_stamp(path))


@functools.lru_cache(maxsize=4_096)
def _compute_version_digest(path: Path, stamp: tuple[int, int]) -> str:
    """Return the SHA-256 of a file.

    Cached, because models have gigabytes and a plan asks for the digest many times. `stamp`
    identifies the version of the file.
    """
    del stamp
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _get_stamp(path: Path) -> tuple[int, int]:
    """Return size and time of change, which tell versions of a file apart, as in git's index."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


# ---- entries ----


class Entry:
    """An asset in the cache: the folder `<name>/<key>/` and beside it the record `<key>.json`.

    The key depends on origin and digests, or on what a made asset depends on, so a new version
    never meets the files of an old one. The record has the verified files as
    {file: {sha256, bytes, mtime_ns}}. As long as size and time of change are equal, a file of
    gigabytes is not read again. The record stays when the files are deleted: a file that was
    trusted on first use must come back with the same content.
    """

    def __init__(self, asset: Asset) -> None:
        self.asset = asset
        self.files = asset.files
        home, key = cache_folder() / "assets" / asset.name, self._make_key()
        self.folder = home / key
        self.record_path = home / f"{key}.json"
        self.lock_path = home / f"{key}.lock"

    @property
    def path(self) -> Path:
        """The path that `obtain` returns."""
        return self.folder / next(iter(self.files)) if len(self.files) == 1 else self.folder

    def _make_key(self) -> str:
        # A cached file is found again by this key, so its JSON must never change.
        if isinstance(self.asset.source, Trained):
            content = to_json(self.asset.source.identify())
        else:
            identity: list[tuple[str, str, str | None]] = []
            for name, file in sorted(self.files.items()):
                identity.append((name, str(file), file.sha256))
            content = json.dumps(identity).encode()
        return hashlib.sha256(content).hexdigest()[:16]

    def read_record(self) -> dict[str, dict[str, Any]]:
        """Return file -> what was verified; empty before the first verification."""
        try:
            content = self.record_path.read_bytes()
        except FileNotFoundError:
            return {}
        remedy = "delete it; the files are then fetched or made again"
        return parse_json(content, _RECORD, str(self.record_path), remedy)["files"]

    def is_present(self) -> bool:
        """Whether all files exist. Then `obtain` needs no network, unless they are damaged."""
        names = self.files or self.read_record()
        return self.folder.is_dir() and all(
            (self.folder / name).is_file() for name in names
        )

    def is_verified(self) -> bool:
        """Whether all files exist and have not changed since they were verified."""
        # Called without the lock. This is safe because the record is written after the files.
        record = self.read_record()
        if not record or not self.is_present():
            return False
        for name, verified in record.items():
            if _get_stamp(self.folder / name) != (verified["bytes"], verified["mtime_ns"]):
                return False
        return True

    def find_known_digest(self) -> str | None:
        """Return the digest of the content if it is known without fetching or making it."""
        recorded: dict[str, str] = {}
        for name, verified in self.read_record().items():
            recorded[name] = verified["sha256"]
        if isinstance(self.asset.source, Trained):
            return combine_digests(recorded) if recorded and self.is_present() else None
        known: dict[str, str] = {}
        for name, file in self.files.items():
            sha256 = file.sha256 or recorded.get(name)
            if sha256 is None:
                return None
            known[name] = sha256
        return combine_digests(known) if len(known) > 1 else next(iter(known.values()))

    def complete(self, offline: bool) -> None:
        """Fetch or make what is missing, verify all files and record them. Needs the lock."""
        if isinstance(self.asset.source, Trained):
            self._make(self.asset.source, offline)
            names = sorted(
                path.relative_to(self.folder).as_posix() for path in _walk(self.folder)
            )
        else:
            self._fetch_missing(offline)
            names = list(self.files)
        recorded = self.read_record()
        for name in names:
            remedy = "remove it to fetch or make it again"
            self._verify(name, self.folder / name, recorded, remedy)
        self._write_record(names)

    def _write_record(self, names: Iterable[str]) -> None:
        files: dict[str, dict[str, Any]] = {}
        for name in names:
            path = self.folder / name
            num_bytes, mtime_ns = _get_stamp(path)
            digest = _compute_file_digest(path)
            files[name] = {"sha256": digest, "bytes": num_bytes, "mtime_ns": mtime_ns}
        put_file(self.record_path, to_json({"files": files, "origin": self.asset.origin}))

    def _make(self, source: Trained, offline: bool) -> None:
        if self.is_present():
            return
        aside = self.folder.with_name(f"{self.folder.name}.partial")
        for leftover in (aside, self.folder):
            shutil.rmtree(leftover, ignore_errors=True)
        self.record_path.unlink(missing_ok=True)
        # It is made in a folder of another name: a killed process must not leave a
        # folder that looks complete.
        aside.mkdir(parents=True)
        source.make(aside, offline)
        aside.replace(self.folder)

    def _fetch_missing(self, offline: bool) -> None:
        missing = [name for name in self.files if not (self.folder / name).is_file()]
        if missing and offline:
            self._raise_offline(missing)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in missing:
            self._fetch_file(name)

    def _raise_offline(self, missing: Iterable[str]) -> NoReturn:
        files = ""
        for name in missing:
            files += f"\n  {self.folder / name}  from {self.files[name]}"
        raise AssetError(
            f"{self.asset.name} is not in the cache, and CORPUSMILL_OFFLINE (or offline=True) "
            f"forbids fetching; run `python -m pipeline models fetch {self.asset.name}` with a "
            f"network, or put these files there:{files}"
        )

    def _fetch_file(self, name: str) -> None:
        target, origin = self.folder / name, self.files[name]
        fetched = target.with_name(f"{name}.fetched")
        try:
            fetch(origin, fetched)
        except AssetError as error:
            raise AssetError(
                f"{self.asset.name}: {error}\nYou can also put the file there yourself: {target}"
            ) from error
        recorded = self.read_record()
        remedy = "it was deleted; its origin has changed or is not safe"
        try:
            self._verify(name, fetched, recorded, remedy)
        except AssetError:
            fetched.unlink()
            raise
        if origin.sha256 is None and name not in recorded:
            log.info(
                "%s: no digest of %s is published: trusted on first use and checked from now on",
                self.asset.name,
                name,
            )
        # After the check, so the final name never has content of another digest.
        fetched.replace(target)

    def _verify(
        self, name: str, path: Path, recorded: Mapping[str, Mapping[str, Any]], remedy: str
    ) -> None:
        """Compare a file with its published digest, or with the recorded one."""
        published = self.files[name].sha256 if name in self.files else None
        expected = published or recorded.get(name, {}).get("sha256")
        found = _compute_file_digest(path)
        if expected in (None, found):
            return
        if not published:
            remedy += f"; if the new content is wanted, remove {self.record_path}"
        raise AssetError(
            f"{self.asset.name}: {path} has another digest than expected: {remedy}\n"
            f"  found    sha256 {found}\n"
            f"  expected sha256 {expected}\n"
            f"  origin   {self.files.get(name, self.asset.origin)}"
        )
