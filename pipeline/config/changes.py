"""The keys in which two configs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Config key -> value before and after.
Changes = Mapping[str, tuple[Any, Any]]


def list_changes(
    before: Any, after: Any, key: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the keys whose values differ, the innermost ones that both configs have.

    Args:
        before: a config as a JSON value.
        after: another one.
        key: of the section that they are; "": they are whole configs.
    """
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        if before != after:
            yield key, (before, after)
        return
    names = dict.fromkeys([*before, *after])  # in order, each once
    for name in names:
        inner_key = f"{key}.{name}" if key else name
        yield from list_changes(before.get(name), after.get(name), inner_key)
