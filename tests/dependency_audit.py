"""Audit the pinned dependencies for known vulnerabilities; part of `make check`.

    python -m tests.dependency_audit

It runs pip-audit (in a separate environment, by `uv tool run`) on constraints.txt. An audit counts
only if every package was looked up: pip-audit itself reports success when it could look up none. The
date of the last audit that counts is stored in LAST_AUDIT. Exit code 1: a package has a known
vulnerability. Without a network the audit is skipped, and one line says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent
CONSTRAINTS = REPOSITORY / "constraints.txt"
LAST_AUDIT = REPOSITORY / "docs" / "dependency-audit.json"

TIMEOUT_S = 300
COMMAND = (
    str(Path(sys.executable).with_name("uv")), "tool", "run", "pip-audit",
    "--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off",
    "--timeout", "20", "--requirement",
)  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        num_packages: packages that were looked up.
        skipped: why the audit does not count; empty if it does.
        vulnerable: a line for each vulnerability.
    """

    num_packages: int = 0
    skipped: str = ""
    vulnerable: Sequence[str] = ()


def audit(constraints: Path = CONSTRAINTS, command: Sequence[str] = COMMAND) -> Audit:
    """Audit the first package of a file; if it was looked up, audit all of them."""
    pins = [line for line in constraints.read_text().splitlines() if "==" in line]
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.txt"
        first.write_text(f"{pins[0]}\n")
        probe = run_audit(first, command)
    return probe if probe.skipped else run_audit(constraints, command)


def run_audit(requirements: Path, command: Sequence[str] = COMMAND) -> Audit:
    """Run pip-audit on a file and read its report."""
    try:
        done = subprocess.run(
            [*command, str(requirements)],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        report = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Audit(skipped=f"pip-audit gave no report ({type(error).__name__})")
    return read_report(report)


def read_report(report: Mapping[str, Any]) -> Audit:
    """Return what a report of pip-audit in JSON says."""
    packages = report["dependencies"]
    missing = [package for package in packages if "skip_reason" in package]
    vulnerable: list[str] = []
    for package in packages:
        for found in package.get("vulns", ()):
            fixed = ", ".join(found["fix_versions"]) or "none"
            name = f"{package['name']} {package['version']}"
            vulnerable.append(f"{name}: {found['id']}, fixed in: {fixed}")
    skipped = ""
    if missing or not packages:
        reason = missing[0]["skip_reason"] if missing else "the report is empty"
        skipped = (
            f"{len(missing)} of {len(packages)} packages were not looked up ({reason})"
        )
    return Audit(len(packages) - len(missing), skipped, tuple(vulnerable))


def read_last_date() -> str:
    """Return the date of the last audit that counts."""
    return json.loads(LAST_AUDIT.read_text())["date"] or "never"


def main() -> None:
    """Run the audit, print its result, and store the date."""
    result = audit()
    for line in result.vulnerable:
        print(line)
    if result.vulnerable:
        sys.exit(f"dependency audit: {len(result.vulnerable)} known vulnerabilities")
    if result.skipped:
        print(f"dependency audit SKIPPED: {result.skipped}; last audit: {read_last_date()}")
        return
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    record = {"date": today, "num_packages": result.num_packages}
    LAST_AUDIT.write_text(json.dumps(record, indent=1) + "\n")
    print(f"dependency audit: {result.num_packages} packages, no known vulnerability")


if __name__ == "__main__":
    main()
