"""The crawl files that `input.files` names, and how a task reads one.

A local file is identified by its content, and a remote file by its URL, which must not change.

    files = find_files(["crawl/*.wet.gz", "s3://bucket/crawl/"], config.storage.to_settings())
    with local_copy(files[0], config.storage.to_settings()) as path:
        ...
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import importlib.util
import os
import re
import socket
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from config_files.reader import ConfigError
from pipeline.models.download import download
from pipeline.planning.input_digests import compute_digests, forget_digest
from storage import StorageError, StorageSettings, Store, open_store
from storage.names import FileNames
from storage.settings import DEFAULT_SETTINGS

# The files of a folder that are read. Common Crawl's names end in .warc.gz and .warc.wet.gz.
_IS_CRAWL_FILE = re.compile(r"\.(warc|wet|arc)(\.gz)?$")

_FOLDER_REMEDY = "its files must end in .warc, .wet or .arc, or these with .gz"


@dataclass(frozen=True)
class InputFile:
    """One WARC or WET file."""

    location: str  # a path, or a URL
    num_bytes: int | None  # compressed; None: remote, not known yet
    digest: str  # SHA-256 of the content of a local file, or of the URL of a remote file

    @property
    def is_remote(self) -> bool:
        """Whether the location is a URL."""
        return _is_address(self.location)

    @property
    def name(self) -> str:
        """The last part of the location. Outputs contain no more of it, because a crawl may be moved."""
        return self.location.rsplit("/", 1)[-1]


def find_files(entries: Sequence[str], storage: StorageSettings) -> list[InputFile]:
    """Return the files of all entries: sorted within an entry, in the order of the entries.

    Args:
        entries: Paths, patterns, folders, and s3 or https addresses.
        storage: How object stores are reached.

    Raises:
        ConfigError: an entry gives no file, a file is given twice, or a name is not UTF-8. All
            faults are listed at once.
    """
    locations: list[str] = []
    faults: list[str] = []
    for entry in entries:
        try:
            locations += _find(entry, storage)
        except ConfigError as error:
            faults += error.faults
    faults += _find_faults(locations)
    if faults:
        raise ConfigError(faults)
    return _identify(locations)


def check_extra(url: str) -> None:
    """Refuse an s3 address if the extra s3 is not installed.

    Raises:
        ConfigError: it is not installed.
    """
    if url.startswith("s3://") and importlib.util.find_spec("obstore") is None:
        raise ConfigError(
            [f"{url}: reading from S3 needs the extra s3: pip install 'corpusmill[s3]'"]
        )


def _is_address(entry: str) -> bool:
    return "://" in entry


def _find(entry: str, storage: StorageSettings) -> list[str]:
    """Return the paths or addresses that an entry gives.

    Raises:
        ConfigError: it gives none.
    """
    if _is_address(entry):
        return _find_remote(entry, storage)
    path = os.path.expanduser(entry)
    if os.path.isdir(path):
        if not (found := sorted(_walk(path))):
            raise ConfigError(
                [f"input.files: the folder {entry!r} has no crawl file; {_FOLDER_REMEDY}"]
            )
        return found
    if not (found := _match(path)):
        raise ConfigError([f"input.files: {entry!r} matches no file in {Path.cwd()}"])
    return found


def _walk(folder: str) -> Iterator[str]:
    """Yield the crawl files in a folder and its subfolders, without hidden ones."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if _IS_CRAWL_FILE.search(name) and not name.startswith("."):
                yield os.path.join(parent, name)


def _match(pattern: str) -> list[str]:
    """Return the files that a pattern matches, sorted.

    If a file has exactly this name, it is the only match.
    """
    if os.path.isfile(pattern):
        return [pattern]
    return [
        path for path in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(path)
    ]


def _find_remote(entry: str, storage: StorageSettings) -> list[str]:
    """Return the addresses of an entry. The address of a file is taken as it is, without a request.

    Raises:
        ConfigError: the entry gives no file, or cannot be listed.
    """
    check_extra(entry)
    parent, _, name = entry.rpartition("/")
    is_pattern = glob.has_magic(name)
    if glob.has_magic(parent):
        raise ConfigError(
            [
                f"input.files: {entry!r} has a pattern in a folder; only the last part can be one"
            ]
        )
    if not entry.startswith("s3://"):
        if is_pattern or not name:
            raise ConfigError(
                [
                    f"input.files: {entry!r} cannot be listed over http; give the address of each file"
                ]
            )
        return [entry]
    if _IS_CRAWL_FILE.search(name) and not is_pattern:
        return [entry]
    try:
        found = _list_remote(open_store(parent, storage), name)
    except StorageError as error:
        raise ConfigError([f"input.files: {entry!r} cannot be listed: {error}"]) from error
    if not found:
        raise ConfigError([f"input.files: {entry!r} matches no object; {_FOLDER_REMEDY}"])
    return found


def _list_remote(parent: Store, name: str) -> list[str]:
    """Return the objects whose names match, or the crawl files in the folder of that name."""
    if glob.has_magic(name):
        return [parent.locate(each) for each in fnmatch.filter(parent.list_names(), name)]
    return sorted(_walk_remote(parent.child(name) if name else parent))


def _walk_remote(folder: Store) -> Iterator[str]:
    """Yield the crawl files in a folder of an object store and its subfolders."""
    for name in folder.list_names():
        if _IS_CRAWL_FILE.search(name):
            yield folder.locate(name)
    for name in folder.list_folders():
        yield from _walk_remote(folder.child(name))


def _find_faults(locations: Sequence[str]) -> list[str]:
    """Return the faults of the list as a whole."""
    faults = [
        f"input.files: the name of {location!r} is not UTF-8; rename the file"
        for location in locations
        if not _is_utf8(location)
    ]
    # A file that is read twice makes all its paragraphs duplicates.
    times = Counter(
        location if _is_address(location) else os.path.realpath(location)
        for location in locations
    )
    repeated = sorted(location for location, number in times.items() if number > 1)
    faults += [
        f"input.files: {location!r} is matched more than once" for location in repeated
    ]
    return faults


def _is_utf8(location: str) -> bool:
    """Return whether the location can be written into JSON files and messages."""
    try:
        os.path.realpath(location).encode()
    except UnicodeEncodeError:
        return False
    return True


def _identify(locations: Sequence[str]) -> list[InputFile]:
    local = [Path(location) for location in locations if not _is_address(location)]
    identified = iter(identify_local(local))
    return [
        identify_remote(location, location) if _is_address(location) else next(identified)
        for location in locations
    ]


def identify_local(paths: Sequence[Path]) -> list[InputFile]:
    """Return local files with their sizes and the digests of their contents."""
    digests = compute_digests(paths)
    return [
        InputFile(str(path), num_bytes, digest)
        for path, (num_bytes, digest) in zip(paths, digests, strict=True)
    ]


def identify_remote(address: str, name: str) -> InputFile:
    """Return a remote file, which is identified by its name in the crawl, or by its address."""
    return InputFile(address, None, hashlib.sha256(name.encode()).hexdigest())


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
