"""Run a benchmark in a separate environment, in which the programs to compare are installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.result_file import REPOSITORY

_VARIABLE = "CORPUSMILL_PEERS"


def run_with_peers(module: str, requirements: Path) -> bool:
    """Run this command in the environment of the peers and return True; False if this is it.

    Raises:
        subprocess.CalledProcessError: if the peers cannot be installed, or the run fails.
    """
    digest = _digest(requirements)
    if os.environ.get(_VARIABLE) == digest:
        return False
    python = prepare_environment(requirements)
    environment = os.environ | {_VARIABLE: digest, "PYTHONPATH": str(REPOSITORY)}
    command = [python, "-m", module, *sys.argv[1:]]
    subprocess.run(command, env=environment, check=True)
    return True


def prepare_environment(requirements: Path, *, with_dependencies: bool = True) -> Path:
    """Return the Python of an environment with these packages.

    It is made in the user's cache by the first call, one per content of `requirements`.

    Args:
        requirements: packages for uv.
        with_dependencies: False if the file names every package.

    Raises:
        subprocess.CalledProcessError: if a package cannot be installed. `stderr` has the reason.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    name = f"peers-{requirements.stem}-{_digest(requirements)}"
    folder = cache / "corpusmill" / name
    python, installed = folder / "bin" / "python", folder / "installed"
    if not installed.exists():
        uv = [sys.executable, "-m", "uv"]
        create = [*uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder]
        subprocess.run(create, check=True)
        install = [*uv, "pip", "install", "--quiet", "--python", python, "-r", requirements]
        if not with_dependencies:
            install.append("--no-deps")
        subprocess.run(install, check=True, stderr=subprocess.PIPE, text=True)
        installed.touch()
    return python


def _digest(requirements: Path) -> str:
    return hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
