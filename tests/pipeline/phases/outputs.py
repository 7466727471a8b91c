"""Write small inputs, and read what the phases of a small run stored."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.reporting.report import make_report, print_report
from pipeline.runs.run_folder import RunFolder
from terminal_output.console import SafeConsole
from tests.conftest import wet_record


def write_wet(path: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Write a WET file of pages with these texts and return the config's `input` section."""
    records = [
        wet_record(f"https://example.org/{i}", f"Title\n{text}")
        for i, text in enumerate(texts)
    ]
    path.write_bytes(b"".join(records))
    return {"files": [str(path)]}


def read_documents(run: RunFolder, phase: str) -> pa.Table:
    """Return the documents of the first input split, as a phase stored them."""
    return pq.read_table(run.folder(phase).path(f"{run.splits[0].key}.documents.parquet"))


def read_decisions(run: RunFolder, phase: str) -> list[dict[str, Any]]:
    """Return the decisions of the first input split, as a phase stored them."""
    name = f"{run.splits[0].key}.decisions.parquet"
    return pq.read_table(run.folder(phase).path(name)).to_pylist()


def read_sample_metadata(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Return URL -> metadata of the documents of the first shard."""
    rows: list[dict[str, Any]] = []
    with tarfile.open(Path(run.dataset) / "shard-000000.tar") as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None and member.name.endswith(".json"):
                rows += json.load(file)
    return {row["url"]: row for row in rows}


def format_report(run: RunFolder) -> str:
    """Return the report as the terminal shows it."""
    console = SafeConsole(width=120, record=True, file=StringIO())
    print_report(make_report(run), console)
    return console.export_text()
