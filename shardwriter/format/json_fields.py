"""Check the keys and types of JSON objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardwriter.format.errors import EDITED, FormatError

_SHA256 = re.compile("[0-9a-f]{64}")
_MAX_SHOWN_CHARS = 80


def check_fields(value: Any, where: str, types: Mapping[str, type]) -> dict[str, Any]:
    """Check that a JSON object has exactly these keys, with values of these types.

    Integers must be at least 0. Values of keys that end in "sha256" must be hexadecimal digests.

    Args:
        value: a value read from JSON.
        where: place of the value, for error messages.
        types: key -> type.

    Returns:
        A copy of the object.

    Raises:
        FormatError: the value is not such an object.
    """
    if not isinstance(value, dict):
        raise FormatError(where, show_value(value), "a JSON object", EDITED)
    if value.keys() != types.keys():
        missing = sorted(types.keys() - value.keys())
        unknown = sorted(value.keys() - types.keys())
        found = f"keys missing {missing} and unknown {unknown}"
        raise FormatError(where, found, f"the keys {sorted(types)}", EDITED)
    for key, wanted_type in types.items():
        _check_field(value[key], f"{where}.{key}", wanted_type)
        if key.endswith("sha256") and not _SHA256.fullmatch(value[key]):
            raise FormatError(
                f"{where}.{key}", show_value(value[key]), "64 hexadecimal digits", EDITED
            )
    return dict(value)


def _check_field(value: Any, where: str, wanted_type: type) -> None:
    # `type(...) is`, because bool is a subclass of int.
    is_negative = wanted_type is int and isinstance(value, int) and value < 0
    if type(value) is not wanted_type or is_negative:
        if wanted_type is int:
            wanted = "a number of at least 0"
        else:
            wanted = f"a value of type {wanted_type.__name__}"
        raise FormatError(where, show_value(value), wanted, EDITED)


def show_value(value: Any) -> str:
    """Return the start of a value's repr, for error messages."""
    return repr(value)[:_MAX_SHOWN_CHARS]
