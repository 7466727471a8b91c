"""The command `clean`: removes outputs that are not needed any more from a finished run."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.terminal import RunAddress, answer, console
from terminal_output import format_command, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.execution.clean import Removal


class Keep(Enum):
    """What stays possible without computing removed outputs again."""

    explain = "explain"
    previous_runs = "previous_runs"
    dataset = "dataset"


# docs/outputs.md has the same as a table.
_AFTERWARDS = {
    Keep.explain: "All commands still work, with changed thresholds and in previous_runs too.",
    Keep.previous_runs: (
        "status, report, verify and retract still work, and later runs may name the run in previous_runs. explain, "
        "samples, preview, browse, diff and export need --restore. Changed settings start again from the input."
    ),
    Keep.dataset: (
        "status, report, verify and retract still work. explain, samples, preview, browse, diff, export and "
        "previous_runs need --restore. Changed settings start again from the input."
    ),
}


def clean(
    run: RunAddress,
    keep: Annotated[
        Keep,
        typer.Option(
            help="explain: what the commands read; previous_runs: what later runs read; "
            "dataset: only the dataset, decisions, reports and records."
        ),
    ] = Keep.explain,
    yes: Annotated[bool, typer.Option("--yes", help="Remove the files.")] = False,
    restore: Annotated[
        bool,
        typer.Option(
            "--restore", help="Let the next run of the config make removed files again."
        ),
    ] = False,
) -> None:
    """Remove outputs that are not needed any more from a finished run.

    Shows what would be removed; --yes removes it. Folders of phases that were made with earlier
    settings are removed too. The dataset, decisions, reports and records always stay.
    """
    from pipeline.execution import clean as cleaning
    from pipeline.runs.run_folder import RunFolder

    found = RunFolder.open(run)
    removals = [] if restore else cleaning.list_removals(found, keep.value)
    if restore:
        cleaning.restore(found)
    elif yes:
        cleaning.clean(found, keep.value)

    def show() -> None:
        if restore:
            console.print(f"{run}: run its config again, it makes the removed files again")
            return
        _print_removals(removals)
        console.print(_AFTERWARDS[keep])
        if not yes:
            command = f"{format_command('pipeline')} clean {run} --keep {keep.value} --yes"
            console.print(f"Nothing was removed yet: {command}")

    value = {"is_removed": yes, "removals": [_to_json(each) for each in removals]}
    answer(value, show)


def _to_json(removal: Removal) -> dict[str, object]:
    return {
        "folder": str(removal.folder.root),
        "suffixes": list(removal.suffixes),
        "num_files": len(removal.files),
        "num_bytes": removal.num_bytes,
    }


def _print_removals(removals: Sequence[Removal]) -> None:
    from pipeline.inputs.inspect_files import format_bytes

    for removal in removals:
        what = ", ".join(removal.suffixes) or "all files, of an earlier config"
        size = format_bytes(removal.num_bytes)
        console.print(f"{size:>10}  {removal.folder.root.name}: {what}")
    total = format_bytes(sum(removal.num_bytes for removal in removals))
    folders = format_count(len(removals), "folder")
    console.print(f"{total:>10}  in {folders}")
