"""Run commands of the pipeline as a user does: each in a process."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import REPOSITORY


def run_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m pipeline` with these words."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
