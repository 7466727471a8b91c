"""Checks of the JSON files that are read back: keys, types and ranges.

A disk or a person may have changed such a file since it was written. Each reader states what it
needs as a pydantic type, and a value that does not fit is reported with its place in the file.

    class Output(JsonObject):
        bytes: Count
        sha256: Sha256

    OUTPUTS = TypeAdapter(dict[str, Output])
    found = parse_json(content, OUTPUTS, where="outputs.json", remedy="delete it")
    # outputs.json: ['a.bin'].bytes: found -5, wanted greater than or equal to 0; delete it

`storage.errors.DamagedFile` is the error of files. `check_json` raises `Mismatch`, for callers
with errors of their own.
"""

from __future__ import annotations

import json
import reprlib
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from storage.errors import DamagedFile

# The largest integer of numpy's and Arrow's signed types.
MAX_INTEGER = 2**63 - 1

Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Seconds = Annotated[float, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

# Shows deep and long values in bounded time; `repr` raises RecursionError for deep ones.
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


class JsonObject(BaseModel):
    """A JSON object with known keys. true and 1.0 are no integers, and NaN is no number."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class OpenJsonObject(JsonObject):
    """A JSON object that may have other keys, too, with any values."""

    model_config = ConfigDict(extra="ignore")


class Mismatch(ValueError):
    """A value does not fit.

    Attributes:
        key: its place in the checked value, such as `outputs['a.bin'].bytes`; "": the value itself.
        found: the start of its repr.
        wanted: what is allowed.
    """

    def __init__(self, key: str, found: str, wanted: str) -> None:
        super().__init__(key, found, wanted)
        self.key, self.found, self.wanted = key, found, wanted

    def __str__(self) -> str:
        place = f"{self.key}: " if self.key else ""
        return f"{place}found {self.found}, wanted {self.wanted}"


def parse_json(content: bytes, schema: TypeAdapter[Any], where: str, remedy: str) -> Any:
    """Return the value of a JSON file.

    Args:
        content: the bytes of the file.
        schema: what the value must be.
        where: the path or address, for the message.
        remedy: how to repair the file, for the message.

    Raises:
        DamagedFile: the content is not JSON, or the value does not fit.
    """
    try:
        value = load_json(content)
        check_json(value, schema)
    except Mismatch as mismatch:
        place = ": ".join(filter(None, (where, mismatch.key)))
        raise DamagedFile(place, mismatch.found, mismatch.wanted, remedy) from None
    return value


def load_json(content: bytes) -> Any:
    """Return the value of JSON in UTF-8. NaN and Infinity are no JSON.

    Raises:
        Mismatch: the content is not JSON.
    """
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        # Invalid UTF-8, and integers of more than 4,300 digits, are ValueErrors too.
        found = f"{len(content)} bytes that are not JSON ({error})"
        raise Mismatch("", found, "JSON") from None


def check_json(value: Any, schema: TypeAdapter[Any]) -> None:
    """Check a JSON value.

    Raises:
        Mismatch: it does not fit. Names the first place.
    """
    try:
        schema.validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        found, wanted = show_value(first["input"]), first["msg"]
        if first["type"] == "missing":
            found, wanted = "nothing", "a value"
        elif first["type"] == "extra_forbidden":
            wanted = "no such key"
        wanted = wanted.removeprefix("Input should be ")
        wanted = wanted.replace("String should match pattern", "a match of")
        raise Mismatch(_format_place(first["loc"]), found, wanted) from None


def show_value(value: Any) -> str:
    """Return the start of a value's repr, for messages."""
    return _REPR.repr(value)


def _format_place(steps: tuple[str | int, ...]) -> str:
    place = ""
    for step in steps:
        if step != "[key]":  # pydantic adds it to the place of a dict's key
            is_name = isinstance(step, str) and step.isidentifier()
            place += f".{step}" if is_name else f"[{show_value(step)}]"
    return place.removeprefix(".")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
