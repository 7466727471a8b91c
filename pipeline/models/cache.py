"""Keep models and texts on this machine: fetched or made once, verified, shared by all processes.

Promises: what `obtain` returns has the digest that the asset states (or, where none is known, the one of its first
use); a file of the cache appears only when it is whole; any number of processes may ask at once, and one of them
fetches; with CORPUSMILL_OFFLINE=1 nothing touches the network, and the error names the file and where to put it.
Leaves to others: which assets there are (published.py, model_training.py), how a file is brought here (fetching.py).

    lid = Asset("lid", "language-identification", "1", HttpsFile("https://..."), "CC0", sha256, "...")
    obtain(lid)                    # ~/.cache/corpusmill/assets/lid/<key>/lid.176.bin
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pipeline.models.download import (
    AssetError,
    FileOrigin,
    HttpsFile,
    LocalPath,
    PyPIFile,
    Say,
    fetch,
)
from pipeline.runs.phase_folder import to_json
from storage.local import put_file

Kind = Literal["language-identification", "lm", "reference-classifier", "tokenizer", "text", "tool"]


@dataclass(frozen=True)
class Part:
    """One file of an asset that has several."""

    origin: FileOrigin
    sha256: str | None


@dataclass(frozen=True)
class Folder:
    """An asset of several files, under the names by which it is used."""

    parts: Mapping[str, Part]

    def __str__(self) -> str:
        return "; ".join(f"{name}: {part.origin}" for name, part in self.parts.items())


class Recipe(Protocol):
    """How the files of an asset are made on this machine."""

    def fingerprint(self) -> str:
        """64 hex digits that change whenever the files would."""
        ...

    def make(self, folder: Path, *, offline: bool, say: Say) -> None:
        """Write the files into an empty folder, fetching what they are made of only if not `offline`."""
        ...


@dataclass(frozen=True)
class Trained:
    """An asset that is made here."""

    recipe: Recipe

    def __str__(self) -> str:
        return "made on this machine"


@dataclass(frozen=True)
class Asset:
    """A model, text or tool that a config may name."""

    name: str
    kind: Kind
    version: str
    origin: FileOrigin | Folder | Trained
    licence: str
    sha256: (
        str | None
    )  # of a single file; None: of several files, made here, or trusted on first use
    description: str


# ---- the door ----


def cache_folder() -> Path:
    """$CORPUSMILL_CACHE, else $XDG_CACHE_HOME/corpusmill, else ~/.cache/corpusmill. It may not exist yet."""
    if own := os.environ.get("CORPUSMILL_CACHE"):
        return Path(own).expanduser().absolute()
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "corpusmill"
    )


def is_offline() -> bool:
    """Whether CORPUSMILL_OFFLINE forbids fetching."""
    return os.environ.get("CORPUSMILL_OFFLINE", "").lower() not in ("", "0", "false", "no")


def say_on_stderr(line: str) -> None:
    """Tell the user what takes time; standard output stays free for results."""
    sys.stderr.write(line + "\n")


def obtain(asset: Asset, *, offline: bool | None = None, say: Say = say_on_stderr) -> Path:
    """Where an asset lies on this machine, after fetching or making it if need be.

    Args:
        asset: what is wanted.
        offline: forbid fetching; None: as CORPUSMILL_OFFLINE says. Making something of what is cached is allowed.
        say: takes a line of text whenever something begins that takes time.

    Returns:
        A file; a folder for an asset of several files. It belongs to the cache: do not write to it.

    Raises:
        AssetError: not to be had, or other bytes than the asset states.
    """
    entry = _Entry(asset)
    if not entry.is_verified():
        with locked(entry.lock_file, asset.name, say):
            if not entry.is_verified():  # another process may have been first
                entry.complete(is_offline() if offline is None else offline, say)
    return entry.path


def known_digest(asset: Asset) -> str | None:
    """The SHA-256 of the content as far as it is known without fetching or making it."""
    return _Entry(asset).known_digest()


def is_present(asset: Asset) -> bool:
    """Whether all files are there, so that `obtain` needs neither network nor training (unless they are damaged)."""
    return _Entry(asset).is_present()


def folder_digest(sha256_by_file: Mapping[str, str]) -> str:
    """One digest of several files: SHA-256 over the lines `<name> NUL <sha256> LF`, sorted by name."""
    lines = (f"{name}\0{sha256}\n" for name, sha256 in sorted(sha256_by_file.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def digest_of_path(path: Path) -> str:
    """The SHA-256 of a file, or `folder_digest` of a folder with all that is in it.

    Raises:
        AssetError: it cannot be read.
    """
    try:
        if path.is_file():
            return _file_digest(path)
        return folder_digest(
            {file.relative_to(path).as_posix(): _file_digest(file) for file in _files(path)}
        )
    except OSError as error:
        raise AssetError(f"{path} cannot be read: {error}") from error


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _file_digest(path: Path) -> str:
    return _digest_of_version(path.absolute(), _stamp(path))


@functools.lru_cache(maxsize=4_096)
def _digest_of_version(path: Path, stamp: tuple[int, int]) -> str:
    """Read once per version of the file: language models are gigabytes, and a plan asks for them many times."""
    del stamp
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of change, by which one version of a file is told from another, as in git's index."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


# ---- the entries ----


@contextlib.contextmanager
def locked(lock_file: Path, name: str, say: Say) -> Generator[None]:
    """One process at a time; the system lets go of the lock when its holder ends, however it ends."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: waiting for another process, which is fetching or making it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Entry:
    """An asset's place in the cache: `<name>/<key>/` with its files, and beside it `<key>.json`, the record of them.

    The key changes with the asset's origin, digests or recipe, so that a new version never meets the files of an old
    one. The record holds what was verified, as {file: {sha256, bytes, mtime_ns}}: as long as size and time of change
    agree, files of gigabytes are not read again. It outlives the files: what was trusted on first use must come back
    the same.
    """

    def __init__(self, asset: Asset) -> None:
        self.asset = asset
        self.recipe = asset.origin.recipe if isinstance(asset.origin, Trained) else None
        self.parts = _parts(asset)
        home, key = cache_folder() / "assets" / asset.name, self._key()
        self.folder = home / key
        self.record_file = home / f"{key}.json"
        self.lock_file = home / f"{key}.lock"

    @property
    def path(self) -> Path:
        """What `resolve` returns."""
        is_file = not isinstance(self.asset.origin, Folder | Trained)
        return self.folder / next(iter(self.parts)) if is_file else self.folder

    def _key(self) -> str:
        if self.recipe:
            return self.recipe.fingerprint()[:16]
        identity = [
            [name, str(part.origin), part.sha256] for name, part in sorted(self.parts.items())
        ]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]

    def record(self) -> dict[str, dict[str, Any]]:
        """File -> what was verified; empty when nothing was yet."""
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self.record_file.read_text(encoding="utf-8"))["files"]
        return {}

    def is_present(self) -> bool:
        """Whether all files are there, verified or not."""
        return self.folder.is_dir() and all(
            (self.folder / name).is_file() for name in self.parts or self.record()
        )

    def is_verified(self) -> bool:
        """Whether all files are there and are the ones that were verified."""
        record = self.record()
        return (
            bool(record)
            and self.is_present()
            and all(
                _stamp(self.folder / name) == (seen["bytes"], seen["mtime_ns"])
                for name, seen in record.items()
            )
        )

    def known_digest(self) -> str | None:
        """The digest of the content as far as it is known without fetching or training."""
        pinned = {name: part.sha256 for name, part in self.parts.items()}
        recorded = {name: seen["sha256"] for name, seen in self.record().items()}
        if self.recipe:
            return folder_digest(recorded) if recorded and self.is_present() else None
        sha256s = {name: sha256 or recorded.get(name) for name, sha256 in pinned.items()}
        known = {name: sha256 for name, sha256 in sha256s.items() if sha256}
        if len(known) < len(sha256s):
            return None
        return (
            folder_digest(known)
            if isinstance(self.asset.origin, Folder)
            else next(iter(known.values()))
        )

    def complete(self, offline: bool, say: Say) -> None:
        """Fetch or make what is missing, verify all of it, and record it. Under the entry's lock."""
        if self.recipe:
            self._make(self.recipe, offline, say)
        else:
            self._fetch_missing(offline, say)
        names = self.parts or sorted(
            f.relative_to(self.folder).as_posix() for f in _files(self.folder)
        )
        recorded = self.record()
        for name in names:
            self._verify(name, self.folder / name, recorded, remedy="remove it to get it anew")
        self._write_record(names)

    def _write_record(self, names: Iterable[str]) -> None:
        files: dict[str, dict[str, Any]] = {}
        for name in names:
            num_bytes, mtime_ns = _stamp(self.folder / name)
            files[name] = {
                "sha256": _file_digest(self.folder / name),
                "bytes": num_bytes,
                "mtime_ns": mtime_ns,
            }
        put_file(self.record_file, to_json({"files": files, "origin": str(self.asset.origin)}))

    def _make(self, recipe: Recipe, offline: bool, say: Say) -> None:
        if self.is_present():
            return
        aside = self.folder.with_name(self.folder.name + ".partial")
        for leftover in (aside, self.folder):
            shutil.rmtree(leftover, ignore_errors=True)
        self.record_file.unlink(missing_ok=True)
        aside.mkdir(parents=True)
        recipe.make(aside, offline=offline, say=say)
        aside.replace(self.folder)

    def _fetch_missing(self, offline: bool, say: Say) -> None:
        missing = [name for name in self.parts if not (self.folder / name).is_file()]
        if missing and offline:
            wanted = "".join(
                f"\n  {self.folder / name}  from {self.parts[name].origin}" for name in missing
            )
            raise AssetError(
                f"{self.asset.name} is not in the cache, and CORPUSMILL_OFFLINE (or offline=True) forbids fetching; "
                f"run `python -m pipeline models fetch {self.asset.name}` with a network, or put by hand:{wanted}"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in missing:
            self._fetch_part(name, say)

    def _fetch_part(self, name: str, say: Say) -> None:
        target, origin = self.folder / name, self.parts[name].origin
        fetched = target.with_name(name + ".fetched")
        try:
            fetch(origin, fetched)
        except AssetError as error:
            raise AssetError(
                f"{self.asset.name}: {error}\nThe file may also be put by hand at {target}"
            ) from error
        recorded = self.record()
        try:
            self._verify(
                name, fetched, recorded, remedy="thrown away; its origin has changed or is unsafe"
            )
        except AssetError:
            fetched.unlink()
            raise
        if self.parts[name].sha256 is None and name not in recorded:
            say(
                f"{self.asset.name}: no digest of {name} is published: trusted on first use and checked from now on"
            )
        fetched.replace(target)

    def _verify(
        self, name: str, path: Path, recorded: Mapping[str, Mapping[str, Any]], remedy: str
    ) -> None:
        pinned = self.parts[name].sha256 if name in self.parts else None
        wanted, found = pinned or recorded.get(name, {}).get("sha256"), _file_digest(path)
        if wanted in (None, found):
            return
        if not pinned:
            remedy += f"; if the new content is wanted, remove {self.record_file}"
        raise AssetError(
            f"{self.asset.name}: {path} has another content than wanted: {remedy}\n"
            f"  found  sha256 {found}\n  wanted sha256 {wanted}\n  origin {self.parts.get(name, self.asset).origin}"
        )


def _parts(asset: Asset) -> Mapping[str, Part]:
    """File name -> where it comes from; empty for what is made here, whose files only the recipe knows."""
    match asset.origin:
        case Trained():
            return {}
        case Folder(parts):
            return parts
        case PyPIFile() | HttpsFile() | LocalPath() as origin:
            return {origin.file_name: Part(origin, asset.sha256)}
