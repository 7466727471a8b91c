"""Commands in messages can be pasted into the shell from which the program was started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from terminal_output import format_command


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Create a virtual environment that is not in PATH, and act as a program started from it."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "corpusmill"):
        (folder / name).touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "training" / "__main__.py")])
    return folder


def test_a_python_that_is_not_in_path_has_its_folder() -> None:
    """Relative to the current folder, as a person types it."""
    assert format_command("training") == ".venv/bin/python -m training"


def test_a_python_in_path_has_only_its_name(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an activated environment."""
    monkeypatch.setenv("PATH", str(environment))
    assert format_command("training") == "python -m training"


def test_a_python_elsewhere_has_its_whole_path(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blanks are quoted."""
    other = environment / "my work"
    other.mkdir()
    monkeypatch.chdir(other)
    monkeypatch.setattr(sys, "executable", str(environment / "a b"))
    assert format_command("pipeline") == f"'{environment}/a b' -m pipeline"


def test_the_installed_command_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages other than the pipeline are groups of it."""
    monkeypatch.setattr(sys, "argv", ["corpusmill training", "run"])
    assert format_command("training") == ".venv/bin/corpusmill training"
    assert format_command("pipeline") == ".venv/bin/corpusmill"
