"""The command line starts fast, documents its commands, and turns errors into exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.conftest import REPOSITORY
from training.cli import ExitCode, app, main

COMMANDS = (
    "run",
    "eval",
    "bench",
    "sweep",
    "plan",
    "import",
    "export",
    "verify",
    "report",
)

PRINT_HEAVY_MODULES = """
import runpy, sys
sys.argv = ["training", *sys.argv[1:]]
try:
    runpy.run_module("training", run_name="__main__")
except SystemExit:
    pass
print([name for name in ("torch", "ray", "numpy") if name in sys.modules])
"""


@pytest.mark.parametrize(
    "arguments", [("--help",), *((name, "--help") for name in COMMANDS)]
)
def test_help_imports_no_heavy_library(arguments: tuple[str, ...]) -> None:
    """Only commands that need torch import it, because that takes seconds."""
    command = [sys.executable, "-c", PRINT_HEAVY_MODULES, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert "Usage: " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_the_commands_and_exit_codes() -> None:
    """Each command has a line, and each exit code a meaning."""
    output = CliRunner().invoke(app, ["--help"]).output
    assert all(f"\n  {name} " in output for name in COMMANDS)
    assert all(f"{code.value} " in output for code in ExitCode)
    assert "..." not in output.partition("Commands:")[2], "the line of a command is cut off"


def test_a_wrong_config_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the key; there is no traceback."""
    monkeypatch.setattr(
        sys, "argv", ["training", "run", "train-tiny.yaml", "--set", "steps=0"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.WRONG_USAGE
    error = capsys.readouterr().err
    assert error.startswith("--set steps: steps is 0")
    assert "Traceback" not in error
