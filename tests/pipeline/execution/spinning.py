"""A call that does not end. This module imports nothing, because programs of tests import it."""

from __future__ import annotations


def spin() -> None:
    """Spend hours of CPU time in one call that holds the GIL and handles no signal."""
    _ = 3 ** (1 << 40)
