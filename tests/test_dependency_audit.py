"""The audit of dependencies: what counts as one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dependency_audit import CONSTRAINTS, Audit, audit, read_report

CLEAN: dict[str, Any] = {"name": "numpy", "version": "2.3.1", "vulns": []}
NOT_FOUND = {"name": "ray", "skip_reason": "Dependency not found on PyPI"}
VULNERABLE = {
    "name": "requests",
    "version": "2.19.0",
    "vulns": [{"id": "PYSEC-2018-28", "fix_versions": ["2.20.0"], "aliases": []}],
}


def test_an_audit_of_all_packages_counts() -> None:
    """Every package was looked up, and none has a known vulnerability."""
    assert read_report({"dependencies": [CLEAN, CLEAN]}) == Audit(num_packages=2)


def test_a_package_that_was_not_looked_up_skips_the_audit() -> None:
    """pip-audit reports success without a database; that is not an audit."""
    found = read_report({"dependencies": [CLEAN, NOT_FOUND]})
    assert found.skipped == (
        "1 of 2 packages were not looked up (Dependency not found on PyPI)"
    )
    assert read_report({"dependencies": []}).skipped


def test_a_known_vulnerability_is_named() -> None:
    """Also if other packages were not looked up."""
    found = read_report({"dependencies": [VULNERABLE, NOT_FOUND]})
    assert found.vulnerable == ("requests 2.19.0: PYSEC-2018-28, fixed in: 2.20.0",)


@pytest.mark.parametrize(
    "command", [["/nowhere/uv"], [sys.executable, "-c", "print('no report')"]]
)
def test_an_audit_without_a_report_is_skipped(command: list[str]) -> None:
    """The tool cannot be installed, or the database does not answer."""
    assert audit(command=command).skipped.startswith("pip-audit gave no report")


def test_all_pinned_packages_are_audited_if_the_first_was_looked_up(tmp_path: Path) -> None:
    """Without a database, one package is asked for instead of all."""
    program = tmp_path / "tool.py"
    program.write_text(
        "import json, pathlib, sys\n"
        "lines = pathlib.Path(sys.argv[2]).read_text().split()\n"
        "found = {'vulns': []} if sys.argv[1] == 'online' else {'skip_reason': 'offline'}\n"
        "print(json.dumps({'dependencies': [{'name': line, **found} for line in lines]}))\n"
    )
    pins = tmp_path / "constraints.txt"
    pins.write_text("numpy==2.3.1\nray==2.60.0\n")
    tool = [sys.executable, str(program)]
    assert audit(pins, [*tool, "online"]) == Audit(num_packages=2)
    offline = audit(pins, [*tool, "offline"])
    assert offline == Audit(skipped="1 of 1 packages were not looked up (offline)")


def test_every_package_is_pinned() -> None:
    """An audit covers constraints.txt, which has the version of every package."""
    lines = CONSTRAINTS.read_text().splitlines()
    assert all("==" in line for line in lines if line and not line.startswith("#"))
