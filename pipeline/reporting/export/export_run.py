"""Write the kept documents of a run into a folder or a bucket, in one of the formats."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.phases.annotate import Annotate
from pipeline.phases.select import Select
from pipeline.reporting.cards import make_croissant, make_dataset_card
from pipeline.reporting.export.ccnet import write_ccnet
from pipeline.reporting.export.destination import Destination
from pipeline.reporting.export.hugging_face import (
    DATA_FOLDER,
    FILE_CHARS,
    plan_files,
    write_file,
)
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.runs.run_folder import RunFolder
from storage import Store, open_store

FORMATS = ("parquet", "jsonl", "ccnet")


@dataclass(frozen=True)
class Exported:
    """A finished export.

    Attributes:
        address: its folder or bucket.
        files: data file -> number of documents, sorted by name.
    """

    address: str
    files: Mapping[str, int]


def export_run(
    run: RunFolder, to: str | Path | Store, format: str, file_chars: int = FILE_CHARS
) -> Exported:
    """Write the kept documents of a run. An interrupted export is continued.

    Memory holds some MB of documents. A file that goes into a bucket is first written to the
    scratch directory; the files of `ccnet` are there all together.

    Args:
        run: the run.
        to: a folder to make, or the address of a folder in a bucket.
        format: one of FORMATS.
        file_chars: characters per file of parquet and jsonl.

    Raises:
        RunNotFound: select is not done yet.
        OutputExists: the folder exists already.
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}, expected one of {', '.join(FORMATS)}")
    documents = KeptDocuments(run)
    identity = _identify(documents, format, file_chars)
    target = open_store(to)
    if format == "ccnet":
        destination = Destination(target, identity, "")
        # One task: each input split has documents of every file.
        files = destination.write("ccnet", functools.partial(write_ccnet, documents))
        content: dict[str, bytes] = {}
    else:
        destination = Destination(target, identity, DATA_FOLDER)
        files = {}
        for file in plan_files(documents, file_chars):
            write = functools.partial(write_file, documents, file, format)
            files |= destination.write(file.stem, write)
        content = {
            "README.md": make_dataset_card(documents, target.name),
            "croissant.json": make_croissant(documents, target.name, format),
        }
    num_docs = {name: entry["num_docs"] for name, entry in files.items()}
    record = {**identity, "files": files, "num_docs": sum(num_docs.values())}
    destination.finish(content, record)
    return Exported(str(target), num_docs)


def _identify(documents: KeptDocuments, format: str, file_chars: int) -> dict[str, Any]:
    """Return everything that the content of an export depends on, as JSON."""
    run = documents.run
    pii = run.config.tokenize.pii
    return {
        "corpusmill": metadata.version("corpusmill"),
        "format": format,
        "file_chars": file_chars,
        "pii": None if pii is None else pii.model_dump(mode="json"),
        "retracted": hashlib.sha256(documents.retracted.tobytes()).hexdigest(),
        "phases": {name: run.folders[name] for name in (Annotate.name, Select.name)},
    }
