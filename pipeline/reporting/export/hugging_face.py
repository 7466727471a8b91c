"""The kept documents of a run as a dataset in the layout of Hugging Face.

data/train-00000-of-00007.parquet, ... (or .jsonl.gz), each with the documents of consecutive
input splits, so that a finished file need not be written again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.phases.select import Select
from pipeline.reporting.export.ccnet import dump_json, open_gzip
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.run_folder import RunSplit
from pipeline.runs.split_output import RowGroups

DATA_FOLDER = "data"

# Characters of a file, unless one input split has more: about 200 MB of Parquet. Hugging Face
# cuts its own files at 500 MB in memory (`max_shard_size` of `Dataset.push_to_hub`).
FILE_CHARS = 2**29

SUFFIXES = {"parquet": ".parquet", "jsonl": ".jsonl.gz"}


@dataclass(frozen=True)
class DataFile:
    """A file of the dataset and the input splits whose documents it has."""

    stem: str  # its name without the suffix
    splits: tuple[RunSplit, ...]


def plan_files(documents: KeptDocuments, file_chars: int) -> list[DataFile]:
    """Return the files of a dataset, each of about `file_chars` characters.

    Splits without kept documents are in no file.
    """
    run = documents.run
    groups: list[list[RunSplit]] = []
    num_chars = math.inf
    records = run.folder(Select.name).records(split.key for split in run.splits)
    for split, record in zip(run.splits, records, strict=True):
        counts = record["counters"]["counts"]
        if not counts.get("documents_kept"):
            continue
        num_chars += counts["chars"]
        if num_chars > file_chars:
            groups.append([])
            num_chars = counts["chars"]
        groups[-1].append(split)
    return [
        DataFile(f"train-{number:05d}-of-{len(groups):05d}", tuple(group))
        for number, group in enumerate(groups)
    ]


def write_file(
    documents: KeptDocuments, file: DataFile, format: str, output: PendingOutput
) -> dict[str, int]:
    """Write one file; return its name -> number of documents."""
    name = file.stem + SUFFIXES[format]
    path = output.path(name)
    num_docs = 0
    if format == "parquet":
        with RowGroups(path) as rows:
            rows.start(documents.schema)
            for table in documents.read(file.splits):
                rows.add(table)
                num_docs += table.num_rows
        return {name: num_docs}
    with path.open("xb") as raw, open_gzip(raw) as lines:
        for table in documents.read(file.splits):
            for document in _make_json_values(table).to_pylist():
                lines.write(dump_json(document))
            num_docs += table.num_rows
    return {name: num_docs}


def _make_json_values(table: pa.Table) -> pa.Table:
    """Replace numbers that JSON does not have, such as infinity, by null."""
    for index, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            column = table.column(index)
            finite = pc.if_else(pc.is_finite(column), column, None)
            table = table.set_column(index, field, finite)
    return table
