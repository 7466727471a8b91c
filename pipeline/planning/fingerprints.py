"""Fingerprints: short digests that are equal for equal values, in any process and on any machine."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any


def fingerprint(value: Any) -> str:
    """Return 16 hexadecimal digits: the start of the SHA-256 of the value as canonical JSON.

    Raises:
        TypeError: the value has a part without a stable JSON form (a set, an object, a NaN).
    """
    text = json.dumps(
        _check_stable(value, "value"),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_stable(value: Any, where: str) -> Any:
    """Return the value with tuples as lists; `where` is its path, for the error message."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _check_stable(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_check_stable(inner, f"{where}[{i}]") for i, inner in enumerate(value)]
    raise TypeError(
        f"{where} is {value!r}: only strings, finite numbers, lists and mappings with string keys "
        f"have a fingerprint; convert it to one of these, in a fixed order"
    )
