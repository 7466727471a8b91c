"""Tests are distributed over processes by file."""

from __future__ import annotations

import pytest


def test_all_tests_of_a_file_run_in_one_process(
    request: pytest.FixtureRequest, worker_id: str
) -> None:
    """pytest-xdist distributes tests by the group at the end of their ids."""
    if worker_id == "master":
        pytest.skip("pytest-xdist is not in use")
    assert request.node.nodeid.endswith(f"@{request.path}")
