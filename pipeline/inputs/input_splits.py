"""The files that a run reads, grouped into input splits.

The same config and the same files give the same splits in the same order on every machine.
Planning downloads nothing but lists of names.

    splits = list_input_splits(config.input)
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from config_files.reader import ConfigError
from pipeline.config import CommonCrawl, InputConfig, SampleCrawl
from pipeline.inputs.input_files import (
    InputFile,
    find_files,
    identify_local,
    identify_remote,
)
from pipeline.inputs.page_index import find_pages
from pipeline.inputs.text_files import find_text_files
from pipeline.models import registry as model_registry
from pipeline.models.cache import locked
from pipeline.models.download import download
from pipeline.runs.done_records import to_json
from storage.settings import DEFAULT_SETTINGS, StorageSettings
from terminal_output import format_count

log = logging.getLogger(__name__)

# Compressed size of a WET file of a recent snapshot, where it is unknown (CC-MAIN-2024 to
# 2026: 65 to 80 MB).
WET_BYTES = 75_000_000

# With `files_per_split: auto`. It bounds the number of files that are written per split,
# and opened per partition.
MAX_SPLITS = 10_000


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
        names = "\n".join(file.identity for file in files)
        content = hashlib.sha256(names.encode()).hexdigest()
        return cls(index, f"{index:06d}-{content[:8]}", tuple(files))

    @property
    def num_bytes(self) -> int:
        """Compressed bytes of all files, estimated where unknown."""
        sizes = [file.read_bytes for file in self.files]
        return sum(WET_BYTES if num_bytes is None else num_bytes for num_bytes in sizes)


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
        return identify_local(sorted(folder.glob("*.warc*.gz")))
    if config.text:
        return find_text_files(config.text, storage)
    return find_files(config.files or (), storage)


def _list_common_crawl(config: CommonCrawl, storage: StorageSettings) -> list[InputFile]:
    """Return the files of all snapshots, in the order of the config.

    Raises:
        ConfigError: with the faults of all snapshots.
    """
    files: list[InputFile] = []
    faults: list[str] = []
    for crawl in config.crawls:
        try:
            files += _list_snapshot(config, crawl, storage)
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(faults)
    return files


def _list_snapshot(
    config: CommonCrawl, crawl: str, storage: StorageSettings
) -> list[InputFile]:
    base = config.base_url.rstrip("/") + "/"
    kind = "cc-index-table" if config.pages else config.format
    url = f"{base}crawl-data/{crawl}/{kind}.paths.gz"
    names = _read_crawl_list(crawl, url, locate_crawl_list(crawl, url), storage)
    if config.pages:
        cache = model_registry.cache_folder() / "crawls"
        single = config.model_copy(update={"crawl": crawl})
        return find_pages(single, config.pages, names, storage, cache)
    end = len(names) if config.count is None else config.first + config.count
    if config.first >= len(names) or end > len(names):
        last = max(config.first, end - 1)
        fault = (
            f"input.common_crawl: files {config.first} to {last} are requested; "
            f"{crawl} lists {format_count(len(names), 'file')}, from 0"
        )
        raise ConfigError([fault])
    return [identify_remote(base + name, name) for name in names[config.first : end]]


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
