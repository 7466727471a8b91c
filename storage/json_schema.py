"""Schemas of the JSON files that are read back: keys, types and ranges.

A disk or a person may have changed such a file since it was written. Each reader states what it
needs, and a value that does not fit is reported with its place in the file.

    RECORD = Object({"task_id": Text(), "outputs": Table(Object({"bytes": Integer()}))})
    record = parse_json(content, RECORD, where="done/000007.json", remedy="delete it")
    # done/000007.json: outputs['a.bin'].bytes: found -5, wanted an integer in 0..2**63 - 1; delete it

`storage.errors.DamagedFile` is the error of files. `Schema.check` raises `Mismatch`, for callers
with errors of their own.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.errors import DamagedFile

# The largest integer of numpy's and Arrow's signed types.
MAX_INTEGER = 2**63 - 1

# Shows deep and long values in bounded time; `repr` raises RecursionError for deep ones.
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


class Mismatch(ValueError):
    """A value does not fit its schema.

    Attributes:
        found: the start of its repr.
        wanted: what the schema allows.
    """

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(found, wanted)
        self.found, self.wanted = found, wanted
        self._steps = ""

    @property
    def key(self) -> str:
        """Its place in the checked value, such as `outputs['a.bin'].bytes`; "": the value itself."""
        return self._steps.removeprefix(".")

    def __str__(self) -> str:
        place = f"{self.key}: " if self.key else ""
        return f"{place}found {self.found}, wanted {self.wanted}"

    def move_into(self, step: str) -> None:
        """Put `.name` or `[index]` of the enclosing value in front of the key."""
        self._steps = step + self._steps


class Schema(ABC):
    """What a JSON value must be."""

    @abstractmethod
    def check(self, value: Any) -> None:
        """Raise Mismatch if the value does not fit."""


@dataclass(frozen=True)
class Integer(Schema):
    """An integer in a range. true and 1.0 are no integers."""

    minimum: int = 0
    maximum: int = MAX_INTEGER

    def check(self, value: Any) -> None:
        """Raise Mismatch if the value does not fit."""
        # `type(...) is`, because bool is a subclass of int.
        if type(value) is not int or not self.minimum <= value <= self.maximum:
            maximum = "2**63 - 1" if self.maximum == MAX_INTEGER else self.maximum
            wanted = f"an integer in {self.minimum}..{maximum}"
            raise Mismatch(show_value(value), wanted)


@dataclass(frozen=True)
class Number(Schema):
    """A finite number of at least `minimum`."""

    minimum: float = 0.0

    def check(self, value: Any) -> None:
        """Raise Mismatch if the value does not fit."""
        is_number = type(value) is float or (
            type(value) is int and abs(value) <= MAX_INTEGER
        )
        if not is_number or not self.minimum <= value < math.inf:
            raise Mismatch(
                show_value(value), f"a finite number of at least {self.minimum:g}"
            )


@dataclass(frozen=True)
class Text(Schema):
    """A string that can be encoded as UTF-8.

    Attributes:
        pattern: matches the whole string; None: any string.
        wanted: the pattern in words.
    """

    pattern: re.Pattern[str] | None = None
    wanted: str = "a string"

    def check(self, value: Any) -> None:
        """Raise Mismatch if the value does not fit."""
        is_text = type(value) is str and (value.isascii() or _is_encodable(value))
        if not is_text or (self.pattern and not self.pattern.fullmatch(value)):
            raise Mismatch(show_value(value), self.wanted)


@dataclass(frozen=True)
class Choice(Schema):
    """One of some values, such as a fixed word, or true and false."""

    values: tuple[Any, ...]

    def check(self, value: Any) -> None:
        """Raise Mismatch if the value does not fit."""
        # Types are compared, because 1 == True.
        if not any(type(value) is type(v) and value == v for v in self.values):
            wanted = " or ".join(map(repr, self.values))
            raise Mismatch(show_value(value), wanted)


@dataclass(frozen=True)
class Nullable(Schema):
    """null, or a value of another schema."""

    schema: Schema

    def check(self, value: Any) -> None:
        """Raise Mismatch if the value does not fit."""
        if value is not None:
            self.schema.check(value)


@dataclass(frozen=True)
class Array(Schema):
    """A list whose items have one schema."""

    items: Schema

    def check(self, value: Any) -> None:
        """Raise Mismatch if the value does not fit."""
        if type(value) is not list:
            raise Mismatch(show_value(value), "a list")
        index = 0
        try:
            for index, item in enumerate(value):  # noqa: B007 - the handler needs it
                self.items.check(item)
        except Mismatch as mismatch:
            mismatch.move_into(f"[{index}]")
            raise


@dataclass(frozen=True)
class Table(Schema):
    """An object with any keys whose values have one schema.

    Attributes:
        values: the schema of the values.
        keys: the schema of the keys.
    """

    values: Schema
    keys: Text = Text()

    def check(self, value: Any) -> None:
        """Raise Mismatch if the value does not fit."""
        if type(value) is not dict:
            raise Mismatch(show_value(value), "an object")
        key = ""
        try:
            for key, item in value.items():
                self.keys.check(key)
                self.values.check(item)
        except Mismatch as mismatch:
            mismatch.move_into(f"[{show_value(key)}]")
            raise


@dataclass(frozen=True)
class Object(Schema):
    """An object with known keys.

    Attributes:
        fields: key -> schema; all of them are required.
        optional: key -> schema of keys that may be absent.
        is_open: whether there may be other keys, with any values.
    """

    fields: Mapping[str, Schema]
    optional: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    is_open: bool = False

    def check(self, value: Any) -> None:
        """Raise Mismatch if the value does not fit."""
        if type(value) is not dict:
            raise Mismatch(show_value(value), "an object")
        self._check_keys(value)
        for schemas in (self.fields, self.optional):
            for key, schema in schemas.items():
                if key not in value:
                    continue
                try:
                    schema.check(value[key])
                except Mismatch as mismatch:
                    mismatch.move_into(f".{key}")
                    raise

    def _check_keys(self, value: dict[str, Any]) -> None:
        missing = sorted(self.fields.keys() - value.keys())
        unknown = sorted(value.keys() - self.fields.keys() - self.optional.keys())
        if self.is_open:
            unknown = []
        if missing or unknown:
            found = f"keys missing {missing} and unknown {show_value(unknown)}"
            raise Mismatch(found, f"the keys {sorted(self.fields)}")


class Anything(Schema):
    """Any JSON value."""

    def check(self, value: Any) -> None:
        """Accept the value."""


SHA256 = Text(re.compile(r"[0-9a-f]{64}"), "64 hexadecimal digits")
BOOLEAN = Choice((True, False))


def parse_json(content: bytes, schema: Schema, where: str, remedy: str) -> Any:
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
        schema.check(value)
    except Mismatch as mismatch:
        place = f"{where}: {mismatch.key}" if mismatch.key else where
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
        raise Mismatch(found, "JSON") from None


def show_value(value: Any) -> str:
    """Return the start of a value's repr, for messages."""
    return _REPR.repr(value)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _is_encodable(value: str) -> bool:
    """Return whether a string has no half of a surrogate pair, which nothing can print."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
