"""The command that started this program, for messages whose commands can be copied and run."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

INSTALLED_COMMAND = "corpusmill"


def format_command(package: str) -> str:
    """Return the command that starts the command line of a package from the current folder.

    For example `python -m training`, `.venv/bin/python -m training` if that folder is not in
    PATH, or `corpusmill training` in a process of the installed command.

    Args:
        package: pipeline, loader or training.
    """
    # The command line of a group has the name "corpusmill training".
    if Path(sys.argv[0].partition(" ")[0]).stem == INSTALLED_COMMAND:
        command = _shorten(Path(sys.executable).with_name(INSTALLED_COMMAND))
        return command if package == "pipeline" else f"{command} {package}"
    return f"{_shorten(Path(sys.executable))} -m {package}"


def _shorten(program: Path) -> str:
    """Return the shortest way to call a program: its name, or a path from the current folder."""
    found = shutil.which(program.name)
    # The folders are compared, because the python of every environment is a link to the same file.
    if found is not None and Path(found).parent == program.parent:
        return program.name
    folder = Path.cwd()
    shown = program.relative_to(folder) if program.is_relative_to(folder) else program
    return shlex.quote(str(shown))
