"""Schemas of JSON files: every value fits, or is named with its place."""

from __future__ import annotations

import json
import pickle
from typing import Annotated, Any

import pytest
from hypothesis import given
from pydantic import Field, TypeAdapter

from storage.errors import DamagedFile
from storage.json_schema import Count, JsonObject, Seconds, Sha256, parse_json
from tests.faults.fuzz.mutations import mutated_json_bytes


class Output(JsonObject):
    bytes: Count
    sha256: Sha256


class Record(JsonObject):
    task_id: Annotated[str, Field(pattern="^[a-z]+$")]
    outputs: dict[str, Output]
    seconds: list[Seconds]
    is_last: bool
    why: str | None = None


RECORD = TypeAdapter(Record)
VALUE = {
    "task_id": "a",
    "outputs": {"a.bin": {"bytes": 4, "sha256": "0" * 64}},
    "seconds": [0.5, 2],
    "is_last": True,
    "why": None,
}


def read(content: bytes) -> Any:
    return parse_json(content, RECORD, "done/a.json", "delete it")


def test_a_value_that_fits_is_returned() -> None:
    """Optional keys may be absent."""
    assert read(json.dumps(VALUE).encode()) == VALUE
    short = {key: value for key, value in VALUE.items() if key != "why"}
    assert read(json.dumps(short).encode()) == short


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_id": "A"}, "task_id: found 'A', wanted a match of '^[a-z]+$'"),
        (
            {"task_id": "\ud800"},
            r"task_id: found '\ud800', wanted a valid string, unable to parse raw data as a unicode string",
        ),
        ({"is_last": 1}, "is_last: found 1, wanted a valid boolean"),
        ({"seconds": 3}, "seconds: found 3, wanted a valid list"),
        ({"seconds": [1, -2]}, "seconds[1]: found -2, wanted greater than or equal to 0"),
        (
            {"outputs": {"b.bin": {"bytes": True, "sha256": "0" * 64}}},
            "outputs['b.bin'].bytes: found True, wanted a valid integer",
        ),
        (
            {"outputs": {"b": {"bytes": 2**63, "sha256": "0" * 64}}},
            "outputs.b.bytes: found 9223372036854775808, wanted less than or equal to 9223372036854775807",
        ),
        (
            {"outputs": {"b": {"bytes": 4}}},
            "outputs.b.sha256: found nothing, wanted a value",
        ),
        ({"other": 3}, "other: found 3, wanted no such key"),
    ],
)
def test_a_value_that_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    """The message has file, key, what was found and what was wanted, and the remedy."""
    with pytest.raises(DamagedFile) as caught:
        read(json.dumps({**VALUE, **change}).encode())
    assert str(caught.value) == f"done/a.json: {message}; delete it"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000, b"1" * 5_000, b"3"]
)
def test_bytes_that_are_no_record_are_refused(content: bytes) -> None:
    """Also what `json.loads` accepts, and what makes it raise other errors."""
    with pytest.raises(DamagedFile, match=r"^done/a\.json: found .*, wanted "):
        read(content)


def test_a_message_is_short_however_large_the_value_is() -> None:
    """A damaged file of megabytes gives one line."""
    for large in ("x" * 10**6, list(range(10**5)), {str(i): i for i in range(10**5)}):
        with pytest.raises(DamagedFile) as caught:
            read(json.dumps({**VALUE, "is_last": large}).encode())
        assert len(str(caught.value)) < 500


@given(content=mutated_json_bytes([VALUE]))
def test_damaged_json_is_accepted_in_range_or_refused(content: bytes) -> None:
    """Nothing but DamagedFile is raised, and what is accepted fits."""
    try:
        value = read(content)
    except DamagedFile:
        return
    assert value["task_id"].isalpha()
    assert all(type(seconds) in (int, float) for seconds in value["seconds"])
    for output in value["outputs"].values():
        assert 0 <= output["bytes"] < 2**63
