"""The limits that fuzzing sets are noticed when they are broken."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from pipeline.errors import TaskFailed
from tests.faults.fuzz import mutations
from tests.faults.fuzz.mutations import allow_expected_errors, limit_memory, try_inputs


def fail_above_ten(value: int) -> None:
    """Raise our own error for most values, and another one for a few."""
    if value > 10:
        raise KeyError(value)
    raise TaskFailed("expected")


def test_an_unexpected_error_is_reported_with_the_smallest_input() -> None:
    """Errors with a message for the user are accepted."""
    check = allow_expected_errors(fail_above_ten)
    with pytest.raises(KeyError, match="11"):
        try_inputs(st.integers(), check, seed=1, num_inputs=100)
    assert try_inputs(st.integers(-100, 10), check, seed=1, num_inputs=50) == 50


def test_an_input_that_takes_too_long_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is CPU time, which does not depend on other programs."""
    monkeypatch.setattr(mutations, "MAX_CPU_S", 0.0)
    with pytest.raises(AssertionError, match="s of CPU"):
        try_inputs(st.integers(), lambda _: sum(range(100_000)), seed=1, num_inputs=5)


def test_memory_is_limited_inside_the_block_only() -> None:
    """An allocation beyond the limit fails."""
    with limit_memory(64 << 20), pytest.raises(MemoryError):
        bytearray(1 << 30)
    assert len(bytearray(1 << 30)) == 1 << 30
