"""The `corpusmill` command: the commands of `python -m pipeline`, and `loader` and `training` as groups.

The module imports nothing heavy. It can also be used in the light installation, where only the loader can run, and
names the extra to install for the rest.

    corpusmill run ccnet.yaml
    corpusmill loader inspect runs/ccnet/dataset
    corpusmill training run train-tiny.yaml
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import NoReturn

import typer

from pipeline import cli
from pipeline.supervisor import report_exit
from pipeline.terminal import errors
from terminal_output import escape_output

PROGRAM = "corpusmill"
# Typer's completion scripts set this variable when they ask for the words that may follow.
COMPLETION_VARIABLE = "_CORPUSMILL_COMPLETE"

# Exit code when a library of an extra is not installed.
MISSING_LIBRARY = 2

# Command groups that are packages of their own: name -> help text.
GROUPS = {
    "loader": "Inspect, check, time and export a dataset.",
    "training": "Train a model on a dataset, plan memory, convert checkpoints.",
}

# Libraries that need another extra than their command does.
EXTRA_OF_LIBRARY = {
    "obstore": "s3",
    "cmake": "train-models",
    "ninja": "train-models",
    "pyarrow": "pipeline",
    "ray": "pipeline",
}

EXTRA_OF_GROUP = {"loader": "train", "training": "train"}
OUR_PACKAGES = frozenset(
    {
        "config_files",
        "storage",
        "terminal_output",
        "stages",
        "shardwriter",
        "pipeline",
        *GROUPS,
    },
)


def main() -> NoReturn:
    """Run the command line. A library that is not installed becomes a message and exit code 2."""
    escape_output()
    words = sys.argv[1:]
    group = words[0] if words and words[0] in GROUPS else None
    try:
        _dispatch(words, group)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not library or library in OUR_PACKAGES:
            raise
        errors.print(_explain_missing(library, group))
        report_exit(MISSING_LIBRARY)
        sys.exit(MISSING_LIBRARY)
    sys.exit(0)


def _dispatch(words: list[str], group: str | None) -> None:
    """Call the command line of the group, or that of the pipeline. It ends the process."""
    if COMPLETION_VARIABLE in os.environ:
        make_app(_completed_group())(prog_name=PROGRAM)
    elif group is not None:
        sys.argv = [f"{PROGRAM} {group}", *words[1:]]
        sys.exit(_import_group(group).main())
    elif not words or words[0].startswith("-"):
        make_app()(prog_name=PROGRAM)
    else:
        cli.main()


def make_app(group: str | None = None) -> typer.Typer:
    """Return the whole command tree, for help and shell completion.

    Args:
        group: the group whose commands are loaded; the others have only their name and help text.
    """
    app = cli.make_program()
    for name, summary in GROUPS.items():
        commands = _import_group(name).app if name == group else typer.Typer()
        app.add_typer(commands, name=name, help=summary)
    return app


def _import_group(name: str) -> ModuleType:
    """Import the command line of a group. No other module of the pipeline may import these packages."""
    if name == "loader":
        from loader import cli as command_line
    else:
        from training import cli as command_line
    return command_line


def _completed_group() -> str | None:
    """Return the group on the command line that the shell completes, if there is one."""
    words = (
        os.environ.get("COMP_WORDS", "").split()
        or os.environ.get("_TYPER_COMPLETE_ARGS", "").split()
    )
    return next((word for word in words[1:2] if word in GROUPS), None)


def _explain_missing(library: str, group: str | None) -> str:
    """Return the message for a library that cannot be imported."""
    extra = EXTRA_OF_LIBRARY.get(library) or EXTRA_OF_GROUP.get(group or "", "pipeline")
    command = " ".join(sys.argv[:1] if group else [PROGRAM, *sys.argv[1:2]])
    return (
        f"error: `{command}` needs the library {library!r}, which is not installed here.\n"
        f"Install it with: pip install 'corpusmill[{extra}]'"
    )
