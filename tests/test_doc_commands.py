"""The commands of README and tutorial exist with their options, and the whole tutorial runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import loader.cli
import pipeline.cli
import training.cli
from tests.conftest import REPOSITORY
from tests.doc_blocks import Block, read_blocks

README = REPOSITORY / "README.md"
TUTORIAL = REPOSITORY / "docs" / "tutorial.md"
PAGES = (
    README,
    TUTORIAL,
    REPOSITORY / "docs" / "outputs.md",
    REPOSITORY / "CONTRIBUTING.md",
)

PROGRAMS: dict[str, Callable[[], typer.Typer]] = {
    "pipeline": pipeline.cli.make_program,
    "loader": lambda: loader.cli.app,
    "training": lambda: training.cli.app,
}

# Needs the user's files, or does not end.
NOT_RUN = re.compile(r"/data/crawl|mine\.yaml|browse|explain|pip install|s3://")


def list_block_commands(block: Block) -> Iterator[str]:
    """Yield the commands of a block, without comments. Blocks without a language may have output."""
    first = block.text.split(maxsplit=1)[0]
    if block.language != "sh" and first not in ("make", "python"):
        return
    for line in block.text.splitlines():
        if command := re.sub(r"(^|\s)#.*", "", line).strip():
            yield command


COMMANDS = [
    command
    for page in PAGES
    for block in read_blocks(page)
    for command in list_block_commands(block)
]


def test_the_pages_have_commands() -> None:
    """Of each program that a user calls."""
    for program in ("make", "-m pipeline", "-m loader", "-m training", "-m pip"):
        assert any(program in command for command in COMMANDS), program


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_the_command_and_its_options_exist(command: str) -> None:
    """It is parsed, but not run."""
    words = shlex.split(command)
    if words[0] == "make":
        targets = (REPOSITORY / "Makefile").read_text()
        assert f"\n{words[1]}: " in targets
    elif words[1:4] == ["-m", "pip", "install"]:
        (extra,) = re.findall(r"\[([\w,-]+)\]", command)
        extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
        assert extra in extras["project"]["optional-dependencies"]
    else:
        module = words.index("-m")
        parse(PROGRAMS[words[module + 1]](), words[module + 2 :])


def parse(program: typer.Typer, words: list[str]) -> None:
    """Parse the words of a command. A wrong word raises an error of usage."""
    group: Any = typer.main.get_command(program)
    with group.make_context("program", list(words)) as context:
        _, command, rest = group.resolve_command(context, words)
        command.make_context(words[0], rest, parent=context)


@pytest.mark.heavy
@pytest.mark.models
@pytest.mark.timeout(1800)
def test_every_block_of_the_tutorial_runs(tmp_path: Path) -> None:
    """In order, in a copy of the repository, in the environment of the tests."""
    folder = tmp_path / "corpusmill"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in tracked.split("\0"):
        if name and (REPOSITORY / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, target)
    (folder / ".venv").symlink_to((REPOSITORY / ".venv").resolve())
    for block in read_blocks(TUTORIAL):
        if block.language == "python":
            run_command([".venv/bin/python", "-c", block.text], folder)
        for command in list_block_commands(block):
            if not NOT_RUN.search(command):
                run_command(shlex.split(command), folder)


def run_command(words: list[str], folder: Path) -> None:
    """Run a command of the tutorial as a user would."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(folder)
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
