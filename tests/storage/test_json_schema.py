"""Schemas of JSON files: every value fits, or is named with its place."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import DamagedFile
from storage.json_schema import (
    BOOLEAN,
    SHA256,
    Anything,
    Array,
    Integer,
    Mismatch,
    Nullable,
    Number,
    Object,
    Schema,
    Table,
    Text,
    parse_json,
)
from tests.json_mutations import ANY_JSON, damaged_json

RECORD = Object(
    {
        "task_id": Text(re.compile("[a-z]+"), "a word"),
        "outputs": Table(Object({"bytes": Integer(), "sha256": SHA256})),
        "seconds": Array(Number()),
        "is_last": BOOLEAN,
    },
    optional={"why": Nullable(Text())},
)
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
        ({"task_id": "A"}, "task_id: found 'A', wanted a word"),
        ({"task_id": "\ud800"}, r"task_id: found '\ud800', wanted a word"),
        ({"is_last": 1}, "is_last: found 1, wanted True or False"),
        ({"seconds": 3}, "seconds: found 3, wanted a list"),
        (
            {"seconds": [1, -2]},
            "seconds[1]: found -2, wanted a finite number of at least 0",
        ),
        (
            {"outputs": {"b": {"bytes": True, "sha256": "0" * 64}}},
            "outputs['b'].bytes: found True, wanted an integer in 0..2**63 - 1",
        ),
        (
            {"outputs": {"b": {"bytes": 2**63, "sha256": "0" * 64}}},
            "outputs['b'].bytes: found 9223372036854775808, wanted an integer in 0..2**63 - 1",
        ),
        (
            {"outputs": {"b": {"bytes": 4}}},
            (
                "outputs['b']: found keys missing ['sha256'] and unknown [], "
                "wanted the keys ['bytes', 'sha256']"
            ),
        ),
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


@given(content=damaged_json(VALUE))
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


@given(value=ANY_JSON)
@pytest.mark.parametrize(
    "schema",
    [Integer(), Number(), Text(), SHA256, BOOLEAN, Array(Text()), Table(Integer()), RECORD],
)
def test_a_schema_raises_nothing_but_a_mismatch(schema: Schema, value: Any) -> None:
    """For any JSON value. A value that fits one schema fits `Anything`."""
    try:
        schema.check(value)
    except Mismatch as mismatch:
        assert mismatch.found  # noqa: PT017 - not always raised
    Anything().check(value)


@given(number=st.integers())
def test_integers_are_checked_at_both_ends(number: int) -> None:
    """The limits belong to the range."""
    schema = Integer(-3, 7)
    if -3 <= number <= 7:
        schema.check(number)
    else:
        with pytest.raises(Mismatch, match=r"wanted an integer in -3\.\.7"):
            schema.check(number)
