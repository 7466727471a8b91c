"""Damage JSON files in every way that a disk or an editor can."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

# Values that readers have stumbled over, beside arbitrary ones.
HOSTILE = st.sampled_from(
    [
        None,
        True,
        -1,
        -5,
        1.5,
        2**63,
        2**70,
        -(2**70),
        1e308,
        float("nan"),
        float("inf"),
        "",
        "..",
        "../../etc/passwd",
        "a\x00b",
        "\ud800",
        "٣",
        [],
        {},
        [[[[]]]],
    ]
)
ANY_JSON = st.recursive(
    HOSTILE | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def damaged_json(draw: st.DrawFn, value: Any) -> bytes:
    """The bytes of a JSON file in which one place is changed, or whose bytes are damaged."""
    how = draw(
        st.sampled_from(["replace", "delete", "add", "cut", "flip", "deep", "bytes"])
    )
    content = json.dumps(value).encode()
    if how == "cut":
        return content[: draw(st.integers(0, len(content) - 1))]
    if how == "flip":
        place = draw(st.integers(0, len(content) - 1))
        flipped = content[place] ^ draw(st.integers(1, 255))
        return content[:place] + bytes([flipped]) + content[place + 1 :]
    if how == "deep":
        return b"[" * draw(st.sampled_from([900, 990, 100_000]))
    if how == "bytes":
        return draw(st.binary(max_size=20))
    changed = copy.deepcopy(value)
    _change(draw, changed, how)
    return json.dumps(changed).encode()


def _change(draw: st.DrawFn, value: Any, how: str) -> None:
    """Change one place of a JSON value."""
    *parents, last = draw(st.sampled_from(list(_list_places(value))))
    for step in parents:
        value = value[step]
    if how == "replace":
        value[last] = draw(ANY_JSON)
    elif how == "delete":
        del value[last]
    elif isinstance(value, list):
        value.append(draw(ANY_JSON))
    else:
        value[draw(st.text(max_size=8))] = draw(ANY_JSON)


def _list_places(value: Any, place: Path = ()) -> Iterator[Path]:
    """Yield the keys that lead to each value inside a value."""
    if isinstance(value, dict):
        items: list[tuple[str | int, Any]] = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return
    for key, inner in items:
        yield (*place, key)
        yield from _list_places(inner, (*place, key))
