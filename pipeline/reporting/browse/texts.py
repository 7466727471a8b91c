"""Read the texts of some documents, and search texts for a limited time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.extract import Extract
from pipeline.reporting.browse.index import Index
from pipeline.reporting.browse.search import describe_rows
from pipeline.reporting.queries import open_output
from pipeline.runs.run_folder import RunFolder

EXCERPT_CHARS = 300

# A request ends with the documents that it has found by then; the next one goes on.
MAX_SEARCH_S = 0.6


@dataclass(frozen=True)
class TextSearch:
    """The result of a search in texts.

    Attributes:
        rows: rows of the index whose documents have the text, ascending.
        num_searched: documents whose texts were looked at.
        next_row: where to go on; None: all wanted texts were searched.
    """

    rows: list[int]
    num_searched: int
    next_row: int | None


def search_texts(
    index: Index,
    found: NDArray[np.bool_],
    wanted: str,
    *,
    first_row: int = 0,
    max_found: int = 20,
    max_search_s: float = MAX_SEARCH_S,
) -> TextSearch:
    """Search the texts of documents, until enough are found or the time is over.

    A document that annotate has stored is searched as annotate left it, one that was dropped there
    as it was extracted. Documents that extract dropped have no stored text.

    Args:
        index: the index.
        found: (n,) the documents to search.
        wanted: a part of the text, in any case.
        first_row: the first row of the index to search.
        max_found: the search ends at the row group in which this number is reached.
        max_search_s: the search ends at the row group in which this time is over.
    """
    end = time.monotonic() + max_search_s
    rows = np.flatnonzero(found)
    rows = rows[np.searchsorted(rows, first_row) :]
    hits: list[int] = []
    num_searched = 0
    for artifact, part in _list_parts(index, rows):
        ids = index.doc_ids[part]
        for texts in _read_texts(index.run, artifact, ids):
            is_hit = pc.match_substring(texts.column("text"), wanted, ignore_case=True)
            matching = texts.filter(pc.fill_null(is_hit, False)).column("doc_id").to_numpy()
            hits += part[np.searchsorted(ids, matching)].tolist()
            if len(hits) >= max_found or time.monotonic() > end:
                last_id = texts.column("doc_id")[-1].as_py()
                num_searched += int(np.searchsorted(ids, np.uint64(last_id), side="right"))
                next_row = None if num_searched == len(rows) else int(rows[num_searched])
                return TextSearch(hits, num_searched, next_row)
        num_searched += len(part)
    return TextSearch(hits, num_searched, None)


def read_excerpts(index: Index, rows: NDArray[np.int64]) -> dict[int, str]:
    """Return doc_id -> the first EXCERPT_CHARS characters of the text, where one is stored."""
    excerpts: dict[int, str] = {}
    for texts in read_texts(index, rows):
        cut = pc.utf8_slice_codeunits(texts.column("text"), 0, EXCERPT_CHARS)
        ids = texts.column("doc_id").to_pylist()
        excerpts.update(zip(ids, cut.to_pylist(), strict=True))
    return excerpts


def describe_documents(index: Index, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return documents as `describe_rows` does, with the beginnings of their texts."""
    excerpts = read_excerpts(index, rows)
    documents = describe_rows(index, rows)
    return [{**one, "excerpt": excerpts.get(int(one["doc_id"]))} for one in documents]


def read_texts(index: Index, rows: NDArray[np.int64]) -> Iterator[pa.Table]:
    """Yield tables of doc_id and text of some documents, in the order of the index."""
    for artifact, part in _list_parts(index, np.sort(rows)):
        yield from _read_texts(index.run, artifact, index.doc_ids[part])


def _list_parts(
    index: Index, rows: NDArray[np.int64]
) -> Iterator[tuple[Artifact, NDArray[np.int64]]]:
    """Yield the rows of each file, in order, with the kind of file that has their texts."""
    is_scored = rows < index.num_scored
    of_artifact = ((Annotate.documents, is_scored), (Extract.documents, ~is_scored))
    for artifact, is_stored in of_artifact:
        stored = rows[is_stored]
        splits = index.doc_ids[stored] >> np.uint64(32)
        for part in np.split(stored, np.flatnonzero(np.diff(splits)) + 1):
            if len(part):
                yield artifact, part


def _read_texts(
    run: RunFolder, artifact: Artifact, doc_ids: NDArray[np.uint64]
) -> Iterator[pa.Table]:
    """Yield doc_id and text of documents of one split, a table for each row group with some.

    Args:
        run: the run.
        artifact: the kind of file.
        doc_ids: ascending; those that are not in the file are left out.
    """
    split = run.splits[int(doc_ids[0]) >> 32]
    source = open_output(run, artifact, split.key)
    with source, pq.ParquetFile(source, pre_buffer=False) as file:
        id_column = file.schema_arrow.get_field_index("doc_id")
        for number in range(file.num_row_groups):
            statistics = file.metadata.row_group(number).column(id_column).statistics
            first = np.searchsorted(doc_ids, np.uint64(statistics.min))
            stop = np.searchsorted(doc_ids, np.uint64(statistics.max), side="right")
            if first == stop:
                continue
            rows = file.read_row_group(number, ["doc_id", "text"], use_threads=False)
            wanted = pa.array(doc_ids[first:stop])
            texts = rows.filter(pc.is_in(rows.column("doc_id"), value_set=wanted))
            if texts.num_rows:
                yield texts
