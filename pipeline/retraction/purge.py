"""Remove the texts and URLs of retracted documents from the files that a run has stored.

Rows stay, with empty strings, because phases are joined by rows and the report adds them up. Hashes
and scores stay too. Only the folders of the current phases are changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.extract import Extract
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments
from pipeline.retraction.apply import read_manifest
from pipeline.retraction.retracted import read_retracted
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import ROWS_PER_GROUP, RowGroups
from pipeline.runs.verified_file import DamagedOutput

# The columns that identify a document; `detail` may hold a part of its URL or text.
REMOVED_COLUMNS = (
    "url",
    "source_domain",
    "title",
    "text",
    "page_sample",
    "digest",
    "detail",
)

_TABLES = (
    Extract.documents,
    Extract.decisions,
    Annotate.documents,
    Annotate.decisions,
    Select.decisions,
    TokenizeDocuments.decisions,
)


def purge_texts(run: RunFolder) -> int:
    """Remove texts, titles, URLs and tokens of all retracted documents from a run's files.

    Call this with the run lock held. After a crash, the next call continues.

    Returns:
        The number of files that were replaced.

    Raises:
        DamagedOutput: a file was changed since it was written.
    """
    ids = read_retracted(run).ids
    num_replaced = 0
    for index in np.unique(ids >> np.uint64(32)).tolist():
        of_split = ids[ids >> np.uint64(32) == np.uint64(index)]
        key = run.splits[index].key
        for artifact in _TABLES:
            num_replaced += _purge_table(run, artifact, key, of_split)
        num_replaced += _purge_tokens(run, key, of_split)
    return num_replaced


def _purge_table(
    run: RunFolder, artifact: Artifact, key: str, ids: NDArray[np.uint64]
) -> bool:
    """Remove the texts of documents from a Parquet file; return whether it was replaced."""
    folder, name = run.folder(artifact.phase), artifact.file_name(key)
    if not folder.root.exists(name):
        return False
    with folder.root.staging_folder(f"purge-{key}") as staging:
        source, target = staging / "source", staging / name
        is_intact = _copy(folder, name, source)
        is_purged = True
        with pq.ParquetFile(source, pre_buffer=False) as file, RowGroups(target) as rows:
            rows.start(file.schema_arrow)
            for batch in file.iter_batches(ROWS_PER_GROUP):
                before = pa.Table.from_batches([batch])
                after = _empty_strings(before, ids)
                is_purged = is_purged and after.equals(before)
                rows.add(after)
        return _replace(folder, key, target, is_intact, is_purged)


def _empty_strings(documents: pa.Table, ids: NDArray[np.uint64]) -> pa.Table:
    """Return a table with empty strings in the removed columns of some documents."""
    is_chosen = pc.is_in(documents.column("doc_id"), value_set=pa.array(ids))
    for name in REMOVED_COLUMNS:
        if name in documents.column_names:
            place = documents.schema.get_field_index(name)
            field = documents.schema.field(place)
            is_text = pc.and_(is_chosen, pc.is_valid(documents.column(place)))
            empty = pa.scalar("", field.type)
            column = pc.if_else(is_text, empty, documents.column(place))
            documents = documents.set_column(place, field, column)
    return documents


def _purge_tokens(run: RunFolder, key: str, ids: NDArray[np.uint64]) -> int:
    """Remove tokens and URLs of documents from the files of tokenize."""
    folder = run.folder(TokenizeDocuments.name)
    index_name = TokenizeDocuments.documents.file_name(key)
    tokens_name = TokenizeDocuments.tokens.file_name(key)
    if not folder.root.exists(index_name):
        return 0
    with folder.root.staging_folder(f"purge-{key}") as staging:
        source, index = staging / "source", staging / index_name
        is_intact, is_purged = _copy(folder, index_name, source), True
        ranges: list[tuple[int, int]] = []
        with pa.ipc.open_file(source) as file, pa.ipc.new_file(index, file.schema) as out:
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                before = pa.Table.from_batches([batch])
                after = _empty_strings(before, ids)
                is_purged = is_purged and after.equals(before)
                ranges += _list_ranges(after, ids)
                # A table without rows has no batches.
                out.write_batch(
                    after.combine_chunks().to_batches()[0] if len(after) else batch
                )
        replaced = folder.root.exists(tokens_name) and _purge_token_ranges(
            run, folder, key, staging / tokens_name, ranges
        )
        return replaced + _replace(folder, key, index, is_intact, is_purged)


def _list_ranges(index: pa.Table, ids: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Yield first token and number of tokens of each chosen document."""
    rows = index.filter(pc.is_in(index.column("doc_id"), value_set=pa.array(ids)))
    for row in rows.select(["token_start", "num_tokens"]).to_pylist():
        yield row["token_start"], row["num_tokens"]


def _purge_token_ranges(
    run: RunFolder, folder: PhaseFolder, key: str, path: Path, ranges: list[tuple[int, int]]
) -> bool:
    """Replace ranges of a file of tokens by the end-of-document id."""
    tokenizer = read_manifest(run.dataset).tokenizer
    is_intact, is_purged = _copy(folder, path.name, path), True
    itemsize = tokenizer.token_dtype.itemsize
    with path.open("r+b") as file:
        for start, num_tokens in ranges:
            blank = np.full(num_tokens, tokenizer.end_of_document, tokenizer.token_dtype)
            file.seek(start * itemsize)
            is_purged = is_purged and file.read(blank.nbytes) == blank.tobytes()
            file.seek(start * itemsize)
            file.write(blank.tobytes())
    return _replace(folder, key, path, is_intact, is_purged)


def _copy(folder: PhaseFolder, name: str, target: Path) -> bool:
    """Copy an output to a local file; return whether it is as its done-record says."""
    try:
        with folder.open(name) as source:
            target.write_bytes(source.read())
    except DamagedOutput:
        with folder.root.open(name) as source:
            target.write_bytes(source.read())
        return False
    return True


def _replace(
    folder: PhaseFolder, task_id: str, file: Path, is_intact: bool, is_purged: bool
) -> bool:
    """Replace an output, unless it has no text of the documents.

    A file without their texts that differs from its done-record is from a killed call, which did
    not come to the record.

    Raises:
        DamagedOutput: it differs from its record, and still has texts.
    """
    if is_intact and is_purged:
        return False
    if not is_intact and not is_purged:
        with folder.open(file.name) as source:
            source.read()
    folder.replace_output(task_id, file, file.name)
    return True
