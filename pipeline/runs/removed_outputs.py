"""The outputs that `clean` removed from a phase folder: they are missing, but not damaged.

Their done-records and the summary of the phase stay. So the phase is complete, and the next run of the config repeats
it only if a task reads a removed file.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import TypeAdapter

from pipeline.runs.done_records import to_json
from storage import Store
from storage.json_schema import JsonObject, parse_json

# In a phase folder: the ends of the names of its removed outputs, such as `documents.parquet`.
REMOVED_FILE = "removed.json"

# `Damage.found` of a removed output.
REMOVED = "no file, because `clean` removed it"


class _Removed(JsonObject):
    suffixes: list[str]


_SCHEMA = TypeAdapter(_Removed)


def list_removed(folder: Store) -> tuple[str, ...]:
    """Return the ends of the names of the outputs that were removed."""
    try:
        content = folder.read_bytes(REMOVED_FILE)
    except FileNotFoundError:
        return ()
    remedy = "run `clean` again: it writes this file again"
    where = folder.locate(REMOVED_FILE)
    return tuple(parse_json(content, _SCHEMA, where, remedy)["suffixes"])


def is_removed(folder: Store, file: str) -> bool:
    """Return whether `clean` removes this output of a phase folder."""
    return any(file.endswith(f".{suffix}") for suffix in list_removed(folder))


def remove_outputs(folder: Store, suffixes: Iterable[str], files: Iterable[str]) -> None:
    """Delete outputs whose names have these ends.

    Crash window: the note is written first, so a file that is missing is never taken for damaged.
    """
    noted = sorted({*list_removed(folder), *suffixes})
    folder.put(REMOVED_FILE, to_json({"suffixes": noted}))
    folder.delete(*files)
