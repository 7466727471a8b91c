"""Rates and durations as text for people."""

from __future__ import annotations

from datetime import timedelta

# Slower than this, a rate is given per minute.
MIN_RATE_PER_S = 1.0


def format_duration(seconds: float) -> str:
    """Return `0:01:40` for 100 s."""
    return str(timedelta(seconds=round(seconds)))


def format_rate(number: float, seconds: float, items: str) -> str:
    """Return `812 documents/s`, or `4.5 tasks/min` where that is below one per second."""
    rate = number / max(seconds, 1e-9)
    if rate < MIN_RATE_PER_S:
        return f"{_format_number(rate * 60)} {items}/min"
    return f"{_format_number(rate)} {items}/s"


def _format_number(number: float) -> str:
    return f"{number:,.1f}" if number < 10 else f"{number:,.0f}"
