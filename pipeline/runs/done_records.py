"""The JSON of done-records and of summaries of phases. It has a digest of itself.

A schema finds impossible values. The digest finds the others, such as another number of tokens
after one flipped bit. The name of the phase folder finds the record of another run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from pipeline.runs.output_digests import count_crc_chars
from storage.errors import DamagedFile
from storage.json_schema import Count, JsonObject, Sha256, parse_json, show_value

_REMEDY = "run the config again: it writes this file again"

# Bins of histograms are integers, also negative ones; keys of JSON objects are strings.
_Bin = Annotated[str, Field(pattern=r"^-?[0-9]{1,18}$")]
# Binary values.
_Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


class _Counters(JsonObject):
    counts: dict[str, Count]
    histograms: dict[str, dict[_Bin, Count]]


class _Output(JsonObject):
    bytes: Count
    sha256: Sha256
    block_crc32: _Base64
    segments: _Base64 = ""


class _DoneRecord(JsonObject):
    folder: str
    task_id: str
    outputs: dict[str, _Output]
    counters: _Counters
    digest: Sha256
    entry: Any = None


class _Summary(JsonObject):
    folder: str
    task_ids: Count
    of: str
    counters: _Counters
    digest: Sha256


# Of a task that counts nothing.
NO_COUNTERS: Mapping[str, Any] = {"counters": {"counts": {}, "histograms": {}}}

_DONE_RECORD = TypeAdapter(_DoneRecord)
_SUMMARY = TypeAdapter(_Summary)


def dump_record(record: Mapping[str, Any], folder: str) -> bytes:
    """Return a done-record as the content of its file.

    Args:
        record: the record.
        folder: the name of the phase folder.
    """
    return _seal({**NO_COUNTERS, **record}, folder)


def parse_record(content: bytes, task_id: str, folder: str) -> dict[str, Any]:
    """Return the done-record of a task.

    Raises:
        DamagedFile: it has been changed; `where` is the place in the record.
    """
    record = _open_sealed(content, _DONE_RECORD, folder, "")
    _check_equal(record, "task_id", task_id, "")
    for name, output in record["outputs"].items():
        found, wanted = len(output["block_crc32"]), count_crc_chars(output["bytes"])
        if found != wanted:
            place = f"outputs[{name!r}].block_crc32"
            raise DamagedFile(place, f"{found} characters", f"{wanted}", _REMEDY)
    return record


def dump_summary(summary: Mapping[str, Any], folder: str) -> bytes:
    """Return the summary of a phase as the content of its file."""
    return _seal(summary, folder)


def parse_summary(content: bytes, folder: str, where: str) -> dict[str, Any]:
    """Return the summary of a phase.

    Raises:
        DamagedFile: it has been changed.
    """
    return _open_sealed(content, _SUMMARY, folder, where)


def _seal(value: Mapping[str, Any], folder: str) -> bytes:
    value = {**value, "folder": folder}
    return to_json({**value, "digest": _compute_digest(value)})


def _open_sealed(
    content: bytes, schema: TypeAdapter[Any], folder: str, where: str
) -> dict[str, Any]:
    value = parse_json(content, schema, where, _REMEDY)
    stored = value.pop("digest")
    _check_equal({"digest": _compute_digest(value)}, "digest", stored, where)
    _check_equal(value, "folder", folder, where)
    del value["folder"]
    return value


def _compute_digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(to_json(value)).hexdigest()


def _check_equal(value: Mapping[str, Any], key: str, wanted: str, where: str) -> None:
    if value[key] != wanted:
        place = f"{where}: {key}" if where else key
        raise DamagedFile(place, show_value(value[key]), repr(wanted), _REMEDY)


def to_json(value: Any) -> bytes:
    """Return JSON that is the same for equal values."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1)
    return f"{text}\n".encode()
