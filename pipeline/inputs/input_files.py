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
import os
import socket
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from config_files.reader import ConfigError
from pipeline.inputs.file_types import CRAWL_FILES, FileType
from pipeline.inputs.input_digests import compute_digests, forget_digest
from pipeline.models.download import download
from storage import StorageError, StorageSettings, Store, open_store
from storage.names import FileNames
from storage.settings import DEFAULT_SETTINGS


@dataclass(frozen=True)
class FilePart:
    """The part of an input file that one task reads, where several tasks share the file.

    Attributes:
        start: its first row group, or its first byte in an uncompressed JSONL file. In a file
            of an index: the first of the matching rows of a row group.
        stop: its end, exclusive.
        num_bytes: its size, compressed.
        row_group: in a file of an index, that of the rows.
    """

    start: int
    stop: int
    num_bytes: int
    row_group: int | None = None


@dataclass(frozen=True)
class InputFile:
    """A file, or a part of a file, that a task reads."""

    location: str  # a path, or a URL
    num_bytes: int | None  # compressed; None: remote, not known yet
    digest: str  # SHA-256 of the content of a local file, or of the URL of a remote file
    part: FilePart | None = None  # None: the whole file

    @property
    def read_bytes(self) -> int | None:
        """Compressed bytes that a task reads; None: not known yet."""
        return self.num_bytes if self.part is None else self.part.num_bytes

    @property
    def identity(self) -> str:
        """Name and content, which make the key of an input split."""
        if self.part is None:
            return f"{self.name} {self.digest}"
        identity = f"{self.name} {self.digest} {self.part.start}-{self.part.stop}"
        group = self.part.row_group
        return identity if group is None else f"{identity} of {group}"

    @property
    def is_remote(self) -> bool:
        """Whether the location is a URL."""
        return is_address(self.location)

    @property
    def name(self) -> str:
        """The last part of the location. Outputs contain no more of it, because a crawl may be moved."""
        return self.location.rsplit("/", 1)[-1]


def find_files(
    entries: Sequence[str], storage: StorageSettings, wanted: FileType = CRAWL_FILES
) -> list[InputFile]:
    """Return the files of all entries: sorted within an entry, in the order of the entries.

    Args:
        entries: Paths, patterns, folders, and s3 or https addresses.
        storage: How object stores are reached.
        wanted: Which files of folders are read.

    Raises:
        ConfigError: an entry gives no file, a file is given twice, or a name is not UTF-8. All
            faults are listed at once.
    """
    locations: list[str] = []
    faults: list[str] = []
    for entry in entries:
        try:
            locations += _find(entry, storage, wanted)
        except ConfigError as error:
            faults += error.faults
    faults += _find_faults(locations, wanted.key)
    if faults:
        raise ConfigError(faults)
    return _identify(locations)


def is_address(entry: str) -> bool:
    """Return whether an entry is an address, not a path."""
    return "://" in entry


def _find(entry: str, storage: StorageSettings, wanted: FileType) -> list[str]:
    """Return the paths or addresses that an entry gives.

    Raises:
        ConfigError: it gives none.
    """
    if is_address(entry):
        return find_remote(entry, storage, wanted)
    path = os.path.expanduser(entry)
    if os.path.isdir(path):
        if not (found := sorted(walk_files(path, wanted))):
            message = f"the folder {entry!r} has no {wanted.name}; {wanted.remedy}"
            raise ConfigError([f"{wanted.key}: {message}"])
        return found
    if not (found := _match(path)):
        raise ConfigError([f"{wanted.key}: {entry!r} matches no file in {Path.cwd()}"])
    return found


def walk_files(folder: str, wanted: FileType) -> Iterator[str]:
    """Yield the wanted files in a folder and its subfolders, without hidden ones."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if wanted.endings.search(name) and not name.startswith("."):
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


def find_remote(
    entry: str, storage: StorageSettings, wanted: FileType = CRAWL_FILES
) -> list[str]:
    """Return the addresses of an entry. The address of a file is taken as it is, without a request.

    Raises:
        ConfigError: the entry gives no file, or cannot be listed.
    """
    parent, _, name = entry.rpartition("/")
    is_pattern = glob.has_magic(name)
    if glob.has_magic(parent):
        raise ConfigError(
            [
                f"{wanted.key}: {entry!r} has a pattern in a folder; only the last part can be one"
            ]
        )
    if not entry.startswith("s3://"):
        if is_pattern or not name:
            raise ConfigError(
                [
                    f"{wanted.key}: {entry!r} cannot be listed over http; give the address of each file"
                ]
            )
        return [entry]
    if wanted.endings.search(name) and not is_pattern:
        return [entry]
    try:
        found = _list_remote(open_store(parent, storage), name, wanted)
    except StorageError as error:
        raise ConfigError([f"{wanted.key}: {entry!r} cannot be listed: {error}"]) from error
    if not found:
        raise ConfigError([f"{wanted.key}: {entry!r} matches no object; {wanted.remedy}"])
    return found


def _list_remote(parent: Store, name: str, wanted: FileType) -> list[str]:
    """Return the objects whose names match, or the wanted files in the folder of that name."""
    if glob.has_magic(name):
        return [parent.locate(each) for each in fnmatch.filter(parent.list_names(), name)]
    return sorted(_walk_remote(parent.child(name) if name else parent, wanted))


def _walk_remote(folder: Store, wanted: FileType) -> Iterator[str]:
    """Yield the wanted files in a folder of an object store and its subfolders."""
    for name in folder.list_names():
        if wanted.endings.search(name):
            yield folder.locate(name)
    for name in folder.list_folders():
        yield from _walk_remote(folder.child(name), wanted)


def _find_faults(locations: Sequence[str], key: str) -> list[str]:
    """Return the faults of the list as a whole."""
    faults = [
        f"{key}: the name of {location!r} is not UTF-8; rename the file"
        for location in locations
        if not _is_utf8(location)
    ]
    # A file that is read twice makes all its paragraphs duplicates.
    times = Counter(
        location if is_address(location) else os.path.realpath(location)
        for location in locations
    )
    repeated = sorted(location for location, number in times.items() if number > 1)
    faults += [f"{key}: {location!r} is matched more than once" for location in repeated]
    return faults


def _is_utf8(location: str) -> bool:
    """Return whether the location can be written into JSON files and messages."""
    try:
        os.path.realpath(location).encode()
    except UnicodeEncodeError:
        return False
    return True


def _identify(locations: Sequence[str]) -> list[InputFile]:
    local = [Path(location) for location in locations if not is_address(location)]
    identified = iter(identify_local(local))
    return [
        identify_remote(location, location) if is_address(location) else next(identified)
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


def check_unchanged(file: InputFile) -> None:
    """Compare a local file that was read, perhaps in part, with the one that the run was planned with.

    Raises:
        OSError: it has changed since then.
    """
    if not file.is_remote:
        ((_, sha256),) = compute_digests([Path(file.location)])
        check_digest(file, sha256)


def _make_changed(file: InputFile, found: str, wanted: str) -> OSError:
    return OSError(
        f"{file.location} on {socket.gethostname()} has changed since the run was planned: "
        f"found {found}, wanted {wanted}; run the same command again to read the new content"
    )
