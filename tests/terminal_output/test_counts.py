"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from terminal_output import format_count


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 copies"), (1, "1 copy"), (1234, "1,234 copies")]
)
def test_only_one_has_the_singular(number: int, text: str) -> None:
    """Zero and many have the plural, and thousands are separated."""
    assert format_count(number, "copy", "copies") == text


def test_a_plural_ends_with_s_by_default() -> None:
    """No plural needs to be passed for most nouns."""
    assert format_count(2, "file") == "2 files"
