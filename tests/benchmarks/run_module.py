"""Run a module of the repository as a program."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import REPOSITORY


def run_module(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Return the finished process, with its output."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
