"""Numbers with their nouns: "1 file", "2 files"."""

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
