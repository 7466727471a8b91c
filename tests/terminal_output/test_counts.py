"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from terminal_output import format_count, format_short


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 copies"), (1, "1 copy"), (1234, "1,234 copies")]
)
def test_only_one_has_the_singular(number: int, text: str) -> None:
    """Zero and many have the plural, and thousands are separated."""
    assert format_count(number, "copy", "copies") == text


def test_a_plural_ends_with_s_by_default() -> None:
    """No plural needs to be passed for most nouns."""
    assert format_count(2, "file") == "2 files"


def test_large_numbers_have_about_three_digits() -> None:
    """Parameters and tokens of a small and of a large run."""
    numbers = (950, 81_920, 6_476_000, 70.6e9, 999e9)
    assert [format_short(number) for number in numbers] == [
        "950",
        "81.9 k",
        "6.48 M",
        "70.6 B",
        "999 B",
    ]
