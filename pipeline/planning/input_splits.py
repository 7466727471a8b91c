"""The files that a run reads, grouped into input splits.

The same config and the same files give the same splits in the same order on every machine. A local file is identified
by its content, and a remote file by its URL, which must not change. Planning downloads nothing but lists of names.

    splits = list_input_splits(config.input)
    with local_copy(splits[0].files[0], config.storage.to_settings()) as path:
        ...
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import importlib.util
import logging
import math
import os
import socket
import tempfile
import zlib
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from config_files.reader import ConfigError
from pipeline.config import CommonCrawl, InputConfig, SampleCrawl
from pipeline.models import registry as model_registry
from pipeline.models.cache import locked
from pipeline.models.download import download
from pipeline.planning.input_digests import compute_digests, forget_digest
from pipeline.runs.done_records import to_json
from storage.names import FileNames
from storage.settings import DEFAULT_SETTINGS, StorageSettings

log = logging.getLogger(__name__)

# Compressed size of a WET file of a recent snapshot, where it is unknown (CC-MAIN-2024 to
# 2026: 65 to 80 MB).
WET_BYTES = 75_000_000

# With `files_per_split: auto`. It bounds the number of files that are written per split,
# and opened per partition.
MAX_SPLITS = 10_000


@dataclass(frozen=True)
class InputFile:
    """One WARC or WET file."""

    location: str  # a path, or a URL
    num_bytes: int | None  # compressed; None: remote, not known yet
    digest: str  # SHA-256 of the content of a local file, or of the URL of a remote file

    @property
    def is_remote(self) -> bool:
        """Whether the location is a URL."""
        return "://" in self.location

    @property
    def name(self) -> str:
        """The last part of the location. Outputs contain no more of it, because a crawl may be moved."""
        return self.location.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class InputSplit:
    """The input of one task: one file, or several small ones."""

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
        """Compressed bytes of all files, estimated where unknown."""
        return sum(WET_BYTES if f.num_bytes is None else f.num_bytes for f in self.files)


def list_input_splits(
    config: InputConfig, storage: StorageSettings = DEFAULT_SETTINGS
) -> tuple[InputSplit, ...]:
    """Return the input splits of a run, in input order.

    Raises:
        ConfigError: a pattern matches no file, a list of files cannot be read, or the extra s3 is not installed.
    """
    files = _list_files(config, storage)
    num_files = get_files_per_split(config, len(files))
    starts = range(0, len(files), num_files)
    return tuple(
        InputSplit.create(i // num_files, files[i : i + num_files]) for i in starts
    )


def get_files_per_split(config: InputConfig, num_files: int) -> int:
    """Return the number of files of each split but the last."""
    if config.files_per_split == "auto":
        return max(1, math.ceil(num_files / MAX_SPLITS))
    return config.files_per_split


def locate_sample_crawl(config: SampleCrawl) -> Path:
    """Return the folder of the sample crawl with these settings, in the user's cache. It may not exist yet."""
    from pipeline.sample_crawl.generator import VERSION

    key = hashlib.sha256(to_json({"version": VERSION, **config.model_dump()})).hexdigest()[
        :16
    ]
    return model_registry.cache_folder() / "sample-crawls" / key


def make_sample_crawl(crawl: SampleCrawl) -> None:
    """Make the sample crawl in the user's cache unless it exists. Other processes wait for the first one."""
    from pipeline.sample_crawl.generator import generate

    folder = locate_sample_crawl(crawl)
    if folder.exists():
        return
    with locked(folder.with_name(f"{folder.name}.lock"), "the sample crawl"):
        if folder.exists():  # another process was first
            return
        log.info("making a sample crawl of %s pages in %s", f"{crawl.documents:,}", folder)
        generate(
            folder,
            num_documents=crawl.documents,
            seed=crawl.seed,
            format=crawl.format,
            documents_per_file=crawl.documents_per_file,
        )


def _list_files(config: InputConfig, storage: StorageSettings) -> list[InputFile]:
    if config.common_crawl:
        return _list_common_crawl(config.common_crawl, storage)
    if config.sample_crawl:
        folder = locate_sample_crawl(config.sample_crawl)
        return _identify(sorted(folder.glob("*.warc*.gz")))
    paths: list[Path] = []
    faults: list[str] = []
    for pattern in config.files or ():
        matches = _match(os.path.expanduser(pattern))
        if not matches:
            faults.append(f"input.files: {pattern!r} matches no file in {Path.cwd()}")
        paths += matches
    faults += [
        f"input.files: the name of {str(path)!r} is not UTF-8; rename the file"
        for path in paths
        if not _is_utf8(path)
    ]
    # A file that is read twice makes all its paragraphs duplicates.
    times = Counter(os.path.realpath(path) for path in paths)
    repeated = sorted(path for path, number in times.items() if number > 1)
    faults += [f"input.files: {path!r} is matched more than once" for path in repeated]
    if faults:
        raise ConfigError(faults)
    return _identify(paths)


def _match(pattern: str) -> list[Path]:
    """Return the files that a pattern matches, sorted.

    If a file has exactly this name, it is the only match.
    """
    if os.path.isfile(pattern):
        return [Path(pattern)]
    found = sorted(glob.glob(pattern, recursive=True))
    return [Path(path) for path in found if os.path.isfile(path)]


def _is_utf8(path: Path) -> bool:
    """Return whether the path can be written into JSON files and messages."""
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        return False
    return True


def _identify(paths: Sequence[Path]) -> list[InputFile]:
    """Return local files with their sizes and the digests of their contents."""
    digests = compute_digests(paths)
    return [
        InputFile(str(path), num_bytes, digest)
        for path, (num_bytes, digest) in zip(paths, digests, strict=True)
    ]


def _list_common_crawl(config: CommonCrawl, storage: StorageSettings) -> list[InputFile]:
    _check_extra(config.base_url)
    base = config.base_url.rstrip("/") + "/"
    url = f"{base}crawl-data/{config.crawl}/{config.format}.paths.gz"
    names = _read_crawl_list(
        config.crawl, url, locate_crawl_list(config.crawl, url), storage
    )
    end = len(names) if config.count is None else config.first + config.count
    if config.first >= len(names) or end > len(names):
        last = max(config.first, end - 1)
        fault = (
            f"input.common_crawl: files {config.first} to {last} are requested; "
            f"{config.crawl} lists {len(names)} files, from 0"
        )
        raise ConfigError([fault])
    files: list[InputFile] = []
    for name in names[config.first : end]:
        digest = hashlib.sha256(name.encode()).hexdigest()
        files.append(InputFile(base + name, None, digest))
    return files


def locate_crawl_list(crawl: str, url: str) -> Path:
    """Return the file of a snapshot's list of files in the user's cache. It may not exist yet."""
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    return model_registry.cache_folder() / "crawls" / f"{crawl}-{digest}.paths.gz"


def _read_crawl_list(
    crawl: str, url: str, cached: Path, storage: StorageSettings
) -> list[str]:
    """Return the names in a snapshot's list of files, which is downloaded once.

    Raises:
        ConfigError: it cannot be downloaded, or is not such a list; the download is removed then.
    """
    try:
        if not cached.exists():
            cached.parent.mkdir(parents=True, exist_ok=True)
            download(url, cached, storage=storage)
    except OSError as error:
        raise ConfigError(
            [f"input.common_crawl.crawl: the list of {crawl} cannot be downloaded: {error}"]
        ) from error
    try:
        names = gzip.decompress(cached.read_bytes()).decode().split()
        reason = "it is empty"
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        names, reason = [], str(error)
    if not names:
        cached.unlink(missing_ok=True)
        raise ConfigError(
            [f"input.common_crawl: {url} is not a gzip list of files: {reason}"]
        )
    return names


def _check_extra(url: str) -> None:
    if url.startswith("s3://") and importlib.util.find_spec("obstore") is None:
        raise ConfigError(
            [f"{url}: reading from S3 needs the extra s3: pip install 'corpusmill[s3]'"]
        )


@contextlib.contextmanager
def local_copy(
    file: InputFile, storage: StorageSettings = DEFAULT_SETTINGS
) -> Generator[Path]:
    """Yield the path of the file on this machine. A remote file is downloaded, and removed afterwards.

    Args:
        file: the file.
        storage: access to object storage, and the folder for downloads.

    Raises:
        OSError: the file cannot be read or downloaded, or has another size than when the run was planned.
    """
    if not file.is_remote:
        path = Path(file.location)
        _check_size(file, path)
        yield path
        return
    with tempfile.TemporaryDirectory(
        dir=storage.scratch_dir, prefix="corpusmill-"
    ) as folder:
        # The last part of a URL can be "..", and a server chooses it.
        path = Path(folder) / FileNames().make(file.name)
        download(file.location, path, storage=storage)
        yield path


def _check_size(file: InputFile, path: Path) -> None:
    try:
        num_bytes = path.stat().st_size
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"No such file on {socket.gethostname()}: {path}; on a cluster, input must be on "
            f"storage that all machines share, or be given as URLs"
        ) from error
    if num_bytes != file.num_bytes:
        raise _make_changed(file, f"{num_bytes} bytes", f"{file.num_bytes}")


def check_digest(file: InputFile, sha256: str) -> None:
    """Compare the content that was read with the content that the run was planned with.

    A remote file is not compared: it is identified by its URL.

    Args:
        file: the file.
        sha256: of all bytes that were read from it.

    Raises:
        OSError: it has changed since the run was planned, or while it was read.
    """
    if file.is_remote or sha256 == file.digest:
        return
    # Without this, a file system with wrong times would let the next run plan the old content.
    forget_digest(Path(file.location))
    raise _make_changed(file, f"sha256 {sha256}", file.digest)


def _make_changed(file: InputFile, found: str, wanted: str) -> OSError:
    return OSError(
        f"{file.location} on {socket.gethostname()} has changed since the run was planned: "
        f"found {found}, wanted {wanted}; run the same command again to read the new content"
    )
