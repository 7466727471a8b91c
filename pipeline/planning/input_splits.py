"""The files a run reads, cut into units.

Promises: the same config and the same files give the same units in the same order, whatever the machine; a file is
known by its content (local) or by its immutable URL (remote); nothing but lists of names is read over the network to
plan a run.
Leaves to others: the records inside (stages/warc/reader.py), making the sample crawl (sample_crawl.py).

    units = list_units(config.input)
    with local_copy(units[0].files[0], config.storage) as path:
        ...
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import importlib.util
import json
import math
import os
import socket
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from config_files.reader import ConfigError
from pipeline.config import CommonCrawl, InputConfig, SampleCrawl
from pipeline.models import registry as model_registry
from pipeline.models.cache import locked
from pipeline.models.download import download
from pipeline.runs.phase_folder import to_json
from storage.local import put_file
from storage.settings import DEFAULT_SETTINGS, StorageSettings

SETTLED_S = 2.0
"""A file that changed less than this ago may change again without its time of change telling: some file systems count
in steps of two seconds. Its digest is not remembered (as git's "racy" entries are not)."""

WET_BYTES = 75_000_000
"""A WET file of a recent snapshot, compressed, where its size is not known yet (CC-MAIN-2024 to 2026: 65 to 80 MB)."""


MAX_SPLITS = 10_000
"""That `files_per_split: auto` makes: what is written per unit, and opened per unit and partition, stays bounded so."""


@dataclass(frozen=True)
class InputFile:
    """One WARC or WET file."""

    location: str  # a path, or a URL
    num_bytes: int | None  # as it lies there, compressed; None where only the server knows
    digest: str  # SHA-256 of the content (local), or of the URL (remote: snapshots never change under their name)

    @property
    def name(self) -> str:
        """The last part of the location: all that outputs may say of it, since a crawl can be moved."""
        return self.location.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class InputSplit:
    """What one task reads and what resuming counts: one file, or several small ones."""

    index: int
    key: str
    files: tuple[InputFile, ...] = ()  # empty in the plan of a recorded run

    @classmethod
    def create(cls, index: int, files: Sequence[InputFile]) -> Self:
        """Return the split with a key made of its index and its content.

        A file that was changed gives another key, so its old outputs are not used again.
        """
        names = "\n".join(f"{file.name} {file.digest}" for file in files)
        content = hashlib.sha256(names.encode()).hexdigest()
        return cls(index, f"{index:06d}-{content[:8]}", tuple(files))

    @property
    def num_bytes(self) -> int:
        """Compressed bytes, estimated where unknown."""
        return sum(WET_BYTES if f.num_bytes is None else f.num_bytes for f in self.files)


def list_input_splits(
    config: InputConfig, storage: StorageSettings = DEFAULT_SETTINGS
) -> tuple[InputSplit, ...]:
    """The units of a run, in input order.

    Raises:
        ConfigError: a pattern matches nothing, a list cannot be had, or S3 is asked for without its extra.
    """
    files = _files(config, storage)
    size = files_per_split(config, len(files))
    return tuple(
        InputSplit.create(i // size, files[i : i + size]) for i in range(0, len(files), size)
    )


def files_per_split(config: InputConfig, num_files: int) -> int:
    """How many files a unit of that input has."""
    if config.files_per_split == "auto":
        return max(1, math.ceil(num_files / MAX_SPLITS))
    return config.files_per_split


def locate_sample_crawl(config: SampleCrawl) -> Path:
    """Where the sample crawl of these settings lies, or will lie, in the user's cache."""
    from pipeline.sample_crawl.generator import VERSION

    key = hashlib.sha256(to_json({"version": VERSION, **config.model_dump()})).hexdigest()[:16]
    return model_registry.cache_folder() / "sample-crawls" / key


def make_sample_crawl(crawl: SampleCrawl, say: Callable[[str], None]) -> None:
    """Make the sample crawl on this machine unless it is there; of several processes one does."""
    from pipeline.sample_crawl.generator import generate

    folder = locate_sample_crawl(crawl)
    if folder.exists():
        return
    with locked(folder.with_name(f"{folder.name}.lock"), "the sample crawl"):
        if folder.exists():  # another process was first
            return
        say(f"making a sample crawl of {crawl.documents:,} pages in {folder}")
        generate(
            folder,
            num_documents=crawl.documents,
            seed=crawl.seed,
            format=crawl.format,
            documents_per_file=crawl.documents_per_file,
        )


def _files(config: InputConfig, storage: StorageSettings) -> list[InputFile]:
    if config.common_crawl:
        return _common_crawl(config.common_crawl, storage)
    if config.sample_crawl:
        folder = locate_sample_crawl(config.sample_crawl)
        return _with_digests(sorted(folder.glob("*.warc*.gz")))
    paths: list[Path] = []
    faults: list[str] = []
    for pattern in config.files or ():
        matches = _matches(os.path.expanduser(pattern))
        if not matches:
            faults.append(f"input.files: {pattern!r} matches no file in {Path.cwd()}")
        paths += matches
    times = Counter(
        os.path.realpath(path) for path in paths
    )  # twice the same file: all its paragraphs are repeated
    faults += [
        f"input.files: {path!r} is matched more than once"
        for path in sorted(times)
        if times[path] > 1
    ]
    if faults:
        raise ConfigError(faults)
    return _with_digests(paths)


def _matches(pattern: str) -> list[Path]:
    """The files of a pattern, sorted; a file that is called so is meant itself, whatever [ and * there are in it."""
    if os.path.isfile(pattern):
        return [Path(pattern)]
    return [
        Path(path) for path in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(path)
    ]


def _with_digests(paths: Sequence[Path]) -> list[InputFile]:
    """Local files with their content's digest, which is remembered by size and time of change, as git's index does."""
    memory = model_registry.cache_folder() / "input-digests.json"
    known: dict[str, list[object]] = {}
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        known = json.loads(memory.read_text(encoding="utf-8"))
    files: list[InputFile] = []
    before = len(known)
    for path in paths:
        stat = path.stat()
        stamp = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
        (digest,) = known.get(stamp) or [_sha256(path)]
        if time.time() - stat.st_mtime > SETTLED_S:
            known[stamp] = [digest]
        files.append(InputFile(str(path), stat.st_size, str(digest)))
    if len(known) > before:
        memory.parent.mkdir(parents=True, exist_ok=True)
        put_file(memory, to_json(known))
    return files


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _common_crawl(config: CommonCrawl, storage: StorageSettings) -> list[InputFile]:
    _check_extra(config.base_url)
    base = config.base_url.rstrip("/") + "/"
    url = f"{base}crawl-data/{config.crawl}/{config.format}.paths.gz"
    names = _names(config.crawl, url, locate_crawl_list(config.crawl, url), storage)
    end = len(names) if config.count is None else config.first + config.count
    if config.first >= len(names) or end > len(names):
        wanted = f"files {config.first} to {max(config.first, end - 1)} are asked for"
        raise ConfigError(
            [f"input.common_crawl: {wanted}; {config.crawl} lists {len(names)} files, from 0"]
        )
    return [
        InputFile(base + n, None, hashlib.sha256(n.encode()).hexdigest())
        for n in names[config.first : end]
    ]


def locate_crawl_list(crawl: str, url: str) -> Path:
    """Where a snapshot's list of files lies in the user's cache once it is fetched."""
    return (
        model_registry.cache_folder()
        / "crawls"
        / f"{crawl}-{hashlib.sha256(url.encode()).hexdigest()[:8]}.paths.gz"
    )


def _names(crawl: str, url: str, kept: Path, storage: StorageSettings) -> list[str]:
    """The names in a snapshot's list of files, which is fetched once.

    Raises:
        ConfigError: it cannot be had, or is no such list; what came is thrown away then.
    """
    try:
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            download(url, kept, storage=storage)
    except OSError as error:
        raise ConfigError(
            [f"input.common_crawl.crawl: the list of {crawl} cannot be had: {error}"]
        ) from error
    try:
        names = gzip.decompress(kept.read_bytes()).decode().split()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        kept.unlink(missing_ok=True)
        raise ConfigError(
            [f"input.common_crawl: {url} is no list of files in gzip form: {error}"]
        ) from error
    if not names:
        kept.unlink()
        raise ConfigError(
            [f"input.common_crawl: {url} is no list of files in gzip form: it is empty"]
        )
    return names


def _check_extra(url: str) -> None:
    if url.startswith("s3://") and importlib.util.find_spec("obstore") is None:
        raise ConfigError(
            [f"{url}: reading from S3 needs the extra s3: pip install 'corpusmill[s3]'"]
        )


@contextlib.contextmanager
def local_copy(file: InputFile, storage: StorageSettings = DEFAULT_SETTINGS) -> Generator[Path]:
    """The file as a path on this machine: itself, or fetched into a folder that is removed afterwards.

    Args:
        file: where it lies.
        storage: how object storage is reached, and the folder for fetched files.

    Raises:
        OSError: it cannot be read, is another file than it was when the run was planned, or cannot be fetched within
            the downloader's bound of retries.
    """
    if "://" not in file.location:
        yield _as_planned(file)
        return
    with tempfile.TemporaryDirectory(dir=storage.scratch_dir, prefix="corpusmill-") as folder:
        path = Path(folder) / file.name
        download(file.location, path, storage=storage)
        yield path


def _as_planned(file: InputFile) -> Path:
    """A local file that is what it was on the machine where the run was planned: units are named by its content."""
    path = Path(file.location)
    if not path.exists():
        raise FileNotFoundError(
            f"No such file on {socket.gethostname()}: {path}; on a cluster input lies on storage that all machines "
            f"share, or is named by URL"
        )
    if (found := _sha256(path)) != file.digest:
        raise OSError(
            f"{path} on {socket.gethostname()} is not what it was when the run was planned: sha256 {found}, wanted "
            f"{file.digest}; run the same command again to read it as it is"
        )
    return path
