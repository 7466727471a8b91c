"""The commands `init`, which writes a config, and `schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.terminal import WRONG_USAGE, answer, console, errors, fail
from terminal_output import format_command


def init(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Folders, files, patterns, or s3 and https addresses.", metavar="INPUT..."
        ),
    ],
    to: Annotated[Path, typer.Option(help="The config to write.")] = Path("ccnet.yaml"),
    recipe: Annotated[
        str,
        typer.Option(
            metavar="ccnet|c4|fineweb|refinedweb|dclm-baseline|pile-cc",
            help="The shipped config whose stages and limits are used.",
        ),
    ] = "ccnet",
) -> None:
    """Write a config for your files.

    Reads the beginning of each file to find out what it is. The config is ready for `plan`.
    """
    from pipeline.inputs.inspect_files import describe_rejected, inspect_files
    from pipeline.inputs.new_config import make_config

    if to.exists():
        fail(f"{to} exists and is not replaced; name another file with --to", WRONG_USAGE)
    found = inspect_files(inputs)
    text = make_config(found, recipe, str(to))
    console.print(f"Found {found.summary}.")
    for line in describe_rejected(found.rejected):
        errors.print(line, style="yellow")
    _write(to, text)
    value = {"config": str(to), "found": found.summary}
    answer(value, lambda: _print_next(to))


def _write(to: Path, text: str) -> None:
    """Write a file that does not exist yet."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("x", encoding="utf-8") as file:
        file.write(text)


def _print_next(to: Path) -> None:
    import shlex

    name, command = shlex.quote(str(to)), format_command("pipeline")
    console.print(
        f"Wrote {to}: these files as input, and all other settings of the recipe.\n"
        f"Next:  {command} plan {name}     what a run does, takes and costs\n"
        f"       {command} run {name}"
    )


def schema() -> None:
    """Print the JSON Schema of a config.

    Editors complete and check keys with it. The shipped configs name it in their first line.
    """
    from config_files.editor_schema import make_schema
    from pipeline.config import RunConfig

    text = make_schema(RunConfig, "Config of a corpusmill pipeline")
    answer(text, lambda: console.print(text, end=""))
