"""The command `export`: writes the kept documents of a run as text, with metadata and scores."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from pipeline.terminal import RunAddress, answer, console
from terminal_output import format_count


class ExportFormat(Enum):
    """The formats of `export`."""

    parquet = "parquet"
    jsonl = "jsonl"
    ccnet = "ccnet"


def export(
    run: RunAddress,
    to: Annotated[
        str,
        typer.Option(help="Folder to create, or s3://bucket/folder.", metavar="PLACE"),
    ],
    format: Annotated[
        ExportFormat,
        typer.Option(
            help="parquet or jsonl for Hugging Face, or CCNet's JSON lines by language."
        ),
    ] = ExportFormat.parquet,
) -> None:
    """Write the kept texts with their scores.

    Adds a dataset card and Croissant metadata to parquet and jsonl. Continues an export that was
    interrupted. `python -m loader export` writes tokens instead, for Megatron and others.
    """
    from pipeline.reporting.export import export_run
    from pipeline.runs.run_folder import RunFolder

    exported = export_run(RunFolder.open(run), to, format.value)

    def show() -> None:
        for name, num_docs in exported.files.items():
            console.print(f"{num_docs:>10,}  {exported.address}/{name}")
        total = format_count(sum(exported.files.values()), "document")
        files = format_count(len(exported.files), "file")
        console.print(f"{total} in {files}: {exported.address}")

    answer(exported, show)
