"""Numbers with their nouns, "1 file", "2 files", and large numbers in short: "1.18 B"."""

from __future__ import annotations


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, e.g. for a message.

    Args:
        number: how many.
        noun: the singular.
        plural: None: the singular with an "s".

    >>> format_count(1, "file"), format_count(1200, "file"), format_count(2, "query", "queries")
    ('1 file', '1,200 files', '2 queries')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_short(number: float) -> str:
    """Return a number in thousands, millions, billions or trillions, with about three digits.

    >>> format_short(950), format_short(6_476_000), format_short(1.18e9)
    ('950', '6.48 M', '1.18 B')
    """
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            value = number / size
            decimals = 2 if value < 10 else 1 if value < 100 else 0
            return f"{value:,.{decimals}f} {suffix}"
    return f"{number:,.0f}"
