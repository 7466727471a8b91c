"""Tests are distributed over processes by file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest


def test_all_tests_of_a_file_run_in_one_process(
    request: pytest.FixtureRequest, worker_id: str
) -> None:
    """pytest-xdist distributes tests by the group at the end of their ids."""
    if worker_id == "master":
        pytest.skip("pytest-xdist is not in use")
    assert request.node.nodeid.endswith(f"@{request.path}")


def test_ids_of_tests_are_equal_in_all_processes() -> None:
    """The header of gzip has the time, so bytes with it are no parameter of a test."""
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "gzip.compress":
                keywords = {keyword.arg for keyword in call.keywords}
                assert "mtime" in keywords, f"{path}:{call.lineno}: add mtime=0"
