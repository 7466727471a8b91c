"""Run a benchmark in a separate environment, in which the programs to compare are installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.result_file import REPOSITORY

_VARIABLE = "CORPUSMILL_PEERS"


def run_with_peers(module: str, requirements: Path) -> bool:
    """Run this command in the environment of the peers and return True; False if this is it.

    The environment is made in the user's cache by the first run, one per content of `requirements`.

    Raises:
        subprocess.CalledProcessError: if the peers cannot be installed, or the run fails.
    """
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    if os.environ.get(_VARIABLE) == digest:
        return False
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "corpusmill" / f"peers-{requirements.stem}-{digest}"
    python = folder / "bin" / "python"
    installed = folder / "installed"
    if not installed.exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "-r", requirements]
        subprocess.run(install, check=True)
        installed.touch()
    environment = os.environ | {_VARIABLE: digest, "PYTHONPATH": str(REPOSITORY)}
    command = [python, "-m", module, *sys.argv[1:]]
    subprocess.run(command, env=environment, check=True)
    return True
