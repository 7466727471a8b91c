"""Look at the files that a user names, and decide how a run reads them.

found = inspect_files(["crawl/"])
found.summary              # "12 WET files (gzip), 861.2 MB"
found.entries              # ["crawl/"], for input.files
found.rejected             # files that are not crawl files, with the reason
"""

from __future__ import annotations

import glob
import os
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from config_files.reader import ConfigError
from pipeline.inputs.file_types import CRAWL_FILES, TEXT_FILES, FileType
from pipeline.inputs.find_columns import find_columns
from pipeline.inputs.input_files import find_remote, is_address, walk_files
from pipeline.inputs.recognize import CONTENTS, Kind, Recognized, recognize
from stages.settings.warc import TextColumns
from storage import StorageSettings, open_store
from storage.settings import DEFAULT_SETTINGS
from terminal_output import format_count

# Of more files, this number is read, evenly over the list; the rest must be like them.
MAX_READ = 1000

# Of a remote file, this much is read.
_HEAD_BYTES = 1 << 20

_NUM_SHOWN = 3

_ENDING = re.compile(r"(\.(warc|wet|gz|zst|lz4))+$")


@dataclass(frozen=True)
class Inspection:
    """The files that were found.

    Attributes:
        accepted: files that a run can read, all of one kind of content.
        rejected: other files.
        entries: of `input.files`; they give the accepted files.
        num_files: the number of files that the entries give.
        columns: of `input.text`, if the content is rows.
    """

    accepted: tuple[Recognized, ...]
    rejected: tuple[Recognized, ...]
    entries: tuple[str, ...]
    num_files: int
    columns: TextColumns | None

    @property
    def content(self) -> str:
        """`text` of WET files, `HTML`, or `rows`."""
        assert self.accepted[0].kind is not None
        return CONTENTS[self.accepted[0].kind]

    @property
    def summary(self) -> str:
        """Number, kinds, compression and size of the files."""
        kinds = " and ".join(sorted({str(file.kind) for file in self.accepted}))
        compressions = ", ".join(sorted({file.compression for file in self.accepted}))
        files = format_count(self.num_files, f"{kinds} file")
        mean_bytes = sum(file.num_bytes for file in self.accepted) / len(self.accepted)
        size = format_bytes(mean_bytes * self.num_files)
        packing = "uncompressed" if compressions == "none" else compressions
        return f"{files} ({packing}), {size}"


def inspect_files(
    entries: Sequence[str], storage: StorageSettings = DEFAULT_SETTINGS
) -> Inspection:
    """Read the beginning of each file and return how a run reads them.

    Args:
        entries: files, folders, patterns, and s3 or https addresses.
        storage: how addresses are reached.

    Raises:
        ConfigError: an entry gives no file, no file can be read by a run, or they are of two
            kinds that may have the same pages.
    """
    accepted: list[Recognized] = []
    rejected: list[Recognized] = []
    wanted: list[str] = []
    num_files = 0
    for entry in entries:
        names = _list_names(entry, storage)
        found = [_recognize(name, storage) for name in _draw(names)]
        good = [file for file in found if file.kind is not None]
        accepted += good
        rejected += [file for file in found if file.kind is None]
        if len(names) == len(found):
            names = [file.location for file in good]
        wanted += _shorten(
            entry, names, TEXT_FILES if good and good[0].columns else CRAWL_FILES
        )
        num_files += len(names)
    _check(accepted, rejected, entries)
    columns = find_columns(accepted) if accepted[0].columns else None
    return Inspection(tuple(accepted), tuple(rejected), tuple(wanted), num_files, columns)


def format_bytes(num_bytes: float) -> str:
    """Return a size for people.

    >>> format_bytes(861_200_000), format_bytes(2_000)
    ('861.2 MB', '2.0 kB')
    """
    for factor, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.1f} {name}"
    return f"{num_bytes / 1e3:,.1f} kB"


def _list_names(entry: str, storage: StorageSettings) -> list[str]:
    """Return the paths or addresses of all files of an entry, sorted.

    Raises:
        ConfigError: there is none.
    """
    if is_address(entry):
        return find_remote(entry, storage)
    path = os.path.expanduser(entry)
    if os.path.isdir(path):
        if not (names := _walk(path)):
            raise ConfigError([f"{entry}: the folder has no files"])
        return names
    if os.path.exists(path):
        return [path]
    matches = [each for each in glob.glob(path, recursive=True) if os.path.isfile(each)]
    if not matches:
        raise ConfigError([f"{entry}: no such file or folder in {Path.cwd()}"])
    return sorted(matches)


def _walk(folder: str) -> list[str]:
    """Return all files below a folder, without hidden ones."""
    found: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = [name for name in names if not name.startswith(".")]
        found += [os.path.join(parent, name) for name in visible]
    return sorted(found)


def _draw(names: Sequence[str]) -> list[str]:
    """Return at most MAX_READ of the names, evenly spaced."""
    step = max(1, -(-len(names) // MAX_READ))
    return list(names[::step])


def _recognize(name: str, storage: StorageSettings) -> Recognized:
    if not is_address(name):
        return recognize(Path(name))
    parent, _, last = name.rpartition("/")
    folder = open_store(parent, storage)
    num_bytes = folder.get_size(last)
    with tempfile.NamedTemporaryFile(dir=storage.scratch_dir) as head:
        head.write(folder.read_range(last, 0, min(num_bytes, _HEAD_BYTES)))
        head.flush()
        found = recognize(Path(head.name))
    return replace(found, location=name, num_bytes=num_bytes)


def _shorten(entry: str, names: list[str], wanted: FileType) -> list[str]:
    """Return the entry if a run would find exactly these files with it, else the files."""
    if is_address(entry) or not os.path.isdir(path := os.path.expanduser(entry)):
        return [entry] if names else []
    return [entry] if sorted(walk_files(path, wanted)) == sorted(names) else names


def _check(
    accepted: Sequence[Recognized], rejected: Sequence[Recognized], entries: Sequence[str]
) -> None:
    if not accepted:
        where = ", ".join(entries)
        raise ConfigError(
            [
                f"{where}: found no WET, WARC, ARC, JSONL or Parquet file:",
                *describe_rejected(rejected),
            ]
        )
    kinds = Counter(file.kind for file in accepted if file.kind is not None)
    contents = {CONTENTS[kind] for kind in kinds}
    if len(contents) > 1:
        found = " and ".join(f"{kinds[kind]:,} {kind}" for kind in sorted(kinds))
        if "rows" in contents:
            raise ConfigError(
                [f"found {found} files; a run reads crawl files or rows; name either"]
            )
        wet = next(Path(file.location) for file in accepted if file.kind is Kind.WET)
        fault = (
            f"found {found} files: WET files have the text of pages that WARC files may have too, "
            f"and every page would be read twice; name the files of one kind, such as "
            f"'{wet.parent}/*{_find_ending(wet.name)}'"
        )
        raise ConfigError([fault])


def _find_ending(name: str) -> str:
    """Return the endings of a name, such as `.warc.wet.gz`."""
    ending = _ENDING.search(name)
    return ending[0] if ending else name


def describe_rejected(rejected: Sequence[Recognized]) -> list[str]:
    """Return a line for each of the first files that a run cannot read, and a count of the rest."""
    lines = [
        f"  not read: {file.location}: {file.problem}" for file in rejected[:_NUM_SHOWN]
    ]
    if len(rejected) > _NUM_SHOWN:
        lines.append(f"  not read: {len(rejected) - _NUM_SHOWN:,} more")
    return lines
