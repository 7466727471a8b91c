"""Run Python, and commands of the pipeline, as a user does: each in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tests.conftest import REPOSITORY


def run_python(
    *arguments: str, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in this repository; the output is captured as text."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=check,
        **options,
    )


def run_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m pipeline` with these words."""
    return run_python("-m", "pipeline", *words, env={**os.environ, **environment})
