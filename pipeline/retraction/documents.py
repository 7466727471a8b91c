"""Find the documents that a request names, and other documents with the same content.

The decisions of a run have the URL of every document that was read, so no text is read. One input
split is in memory at a time, besides the documents that were found.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.extract import Extract
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments
from pipeline.retraction.request import Request
from pipeline.runs.run_folder import RunFolder, RunSplit
from pipeline.runs.split_output import read_table

# Each document is in one of the first three. Documents that tokenize drops are in two.
_DECISIONS = (
    Extract.decisions,
    Annotate.decisions,
    Select.decisions,
    TokenizeDocuments.decisions,
)

# A document that a retraction concerns.
DOCUMENTS = pa.schema(
    [
        pa.field("doc_id", pa.uint64(), nullable=False),
        # The input split, because the numbers of splits change when files are added to the input.
        pa.field("split", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("decision", pa.string(), nullable=False),
        # Of a copy or near-duplicate: the document that was kept in its place.
        pa.field("representative", pa.uint64()),
    ]
)


@dataclass(frozen=True)
class FoundDocuments:
    """The documents of a run that a request concerns.

    Attributes:
        named: the documents that the request names, as DOCUMENTS.
        removed_copies: documents that were dropped because they equal or resemble a named one.
        kept_copies: documents that were kept in place of a named one; their text is similar.
        entries: the URLs and domains of the request that were found.
    """

    named: pa.Table
    removed_copies: pa.Table
    kept_copies: pa.Table
    entries: frozenset[str] = field(default_factory=frozenset[str])


def find_documents(run: RunFolder, request: Request) -> FoundDocuments:
    """Find the documents of a request, and their copies, in the input splits done so far.

    Raises:
        DamagedOutput: a stored file was changed.
    """
    documents, entries = find_named(run, request)
    ids = documents.column("doc_id").combine_chunks()
    representatives = documents.column("representative").drop_null().combine_chunks()
    removed: list[pa.Table] = [DOCUMENTS.empty_table()]
    kept: list[pa.Table] = [DOCUMENTS.empty_table()]
    if len(ids):
        for split in run.splits:
            for rows in _read_decisions(run, split):
                is_removed = pc.is_in(rows.column("representative"), value_set=ids)
                removed.append(rows.filter(is_removed))
                is_kept = pc.is_in(rows.column("doc_id"), value_set=representatives)
                kept.append(rows.filter(is_kept))
    return FoundDocuments(
        documents,
        _without(pa.concat_tables(removed), ids),
        _without(_keep_last(pa.concat_tables(kept)), ids),
        entries,
    )


def find_named(run: RunFolder, request: Request) -> tuple[pa.Table, frozenset[str]]:
    """Return the documents that a request names, as DOCUMENTS, and the entries that were found.

    Raises:
        DamagedOutput: a stored file was changed.
    """
    named: list[pa.Table] = [DOCUMENTS.empty_table()]
    entries: set[str] = set()
    read = functools.partial(_find_in_split, run, request)
    for found, found_entries in run.run_dir.read_each(run.splits, read):
        named.append(found)
        entries |= found_entries
    return _keep_last(pa.concat_tables(named)), frozenset(entries)


def _find_in_split(
    run: RunFolder, request: Request, split: RunSplit
) -> tuple[pa.Table, set[str]]:
    """Return the documents of a split that a request names, and the entries that were found."""
    found: list[pa.Table] = [DOCUMENTS.empty_table()]
    entries: set[str] = set()
    for rows in _read_decisions(run, split):
        matches = request.find(rows.column("url"))
        found.append(rows.filter(matches.is_match))
        entries |= matches.list_entries()
    return pa.concat_tables(found), entries


def _read_decisions(run: RunFolder, split: RunSplit) -> Iterator[pa.Table]:
    """Yield the decisions of each phase that has done the split, as DOCUMENTS."""
    names = [name for name in DOCUMENTS.names if name != "split"]
    for artifact in _DECISIONS:
        with contextlib.suppress(FileNotFoundError):
            rows = read_table(_open(run, artifact, split), names)
            column = pa.repeat(pa.scalar(split.key), rows.num_rows)
            yield rows.add_column(1, DOCUMENTS.field("split"), column).cast(DOCUMENTS)


def _open(run: RunFolder, artifact: Artifact, split: RunSplit) -> pa.NativeFile:
    return run.folder(artifact.phase).open(artifact.file_name(split.key))


def _keep_last(documents: pa.Table) -> pa.Table:
    """Return one row per document: that of the last phase that decided on it."""
    last = {
        doc_id: row for row, doc_id in enumerate(documents.column("doc_id").to_pylist())
    }
    return documents.take(pa.array(sorted(last.values()), pa.int64()))


def _without(documents: pa.Table, ids: pa.Array) -> pa.Table:
    """Leave out the documents with these ids."""
    return documents.filter(pc.invert(pc.is_in(documents.column("doc_id"), value_set=ids)))
