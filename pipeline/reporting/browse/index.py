"""The columns of a run by which documents are found, in a memory-mapped scratch file.

Phases store documents in row groups of 512 rows, and every read verifies them. A question about a
million documents would take seconds there, so the columns are copied once. Texts are not copied.
The operating system keeps in memory as much of the file as it has room for.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import tempfile
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from config_files.reader import ConfigError
from pipeline.phases.annotate import Annotate
from pipeline.phases.extract import Extract
from pipeline.phases.filter_phase import NOT_READ
from pipeline.phases.histograms import SignalPercentiles
from pipeline.phases.select import Select
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.explain.trace import NOT_DECIDED
from pipeline.reporting.queries import open_output, read_output
from pipeline.runs.run_folder import RunFolder, RunNotFound, RunSplit
from stages.filters.score import QUALITY_SCORE, Score
from stages.settings.quality import ScoreSettings
from stages.warc.documents import extract_source_domains

log = logging.getLogger(__name__)

# Columns of annotate that are shown with one document only.
NOT_INDEXED = {
    *NOT_READ,
    "date",
    "digest",
    "warc_file",
    "warc_offset",
    "main_content_chars",
    "page_sample",
}

DECIDED = ("doc_id", "decision", "value", "limit", "representative")

# Stored as the number of a name: decisions, languages and domains repeat.
NAMED = ("decision", "language", "source_domain")

# Rows whose quality scores are computed at a time.
SCORED_ROWS = 2**17

# Reading is mostly decompression, which frees Python's lock.
NUM_THREADS = 4


@dataclass
class Names:
    """The different values of a column, numbered in the order in which they were seen."""

    values: list[str | None] = field(default_factory=list[str | None])
    _numbers: dict[str | None, int] = field(default_factory=dict[str | None, int])

    def encode(self, column: pa.ChunkedArray) -> pa.Array:
        """Return the number of each value, (n,) int32. A null is a value too."""
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        numbers: list[int] = []
        for value in encoded.dictionary.to_pylist():
            if value not in self._numbers:
                self._numbers[value] = len(self.values)
                self.values.append(value)
            numbers.append(self._numbers[value])
        return pa.array(numbers, pa.int32()).take(encoded.indices)

    def find(self, value: str | None) -> int:
        """Return the number of a value, or -1."""
        return self._numbers.get(value, -1)


@dataclass(frozen=True)
class Index:
    """The documents of a run, and the values by which they are found.

    Attributes:
        run: the run.
        documents: (n,) the columns; first the documents with scores, then those that were dropped
            before they got any. Both parts are in input order.
        num_scored: the number of documents with scores.
        names: column of NAMED -> its values.
        num_splits: the input splits that extract has finished.
    """

    run: RunFolder
    documents: pa.Table
    num_scored: int
    names: Mapping[str, Names]
    num_splits: int

    @property
    def num_docs(self) -> int:
        """The number of documents."""
        return self.documents.num_rows

    @cached_property
    def score_names(self) -> list[str]:
        """The numeric columns that annotate has stored, and the quality score."""
        found: list[str] = []
        for column in self.documents.schema:
            is_number = pa.types.is_floating(column.type) or pa.types.is_integer(
                column.type
            )
            if is_number and column.name not in {*DECIDED, *NAMED}:
                found.append(column.name)
        return found

    def read_numbers(self, column: str) -> NDArray[Any]:
        """Return a column of numbers, (n,). Nulls of scores are NaN."""
        return self.documents.column(column).to_numpy()

    def is_named(self, column: str, value: str | None) -> NDArray[np.bool_]:
        """Return where a column of NAMED has this value, (n,)."""
        return self.read_numbers(column) == self.names[column].find(value)

    def find_row(self, doc_id: int) -> int | None:
        """Return the row of a document."""
        for start, stop in ((0, self.num_scored), (self.num_scored, self.num_docs)):
            ids = self.doc_ids[start:stop]
            row = int(np.searchsorted(ids, np.uint64(doc_id)))
            if row < len(ids) and ids[row] == doc_id:
                return start + row
        return None

    def find_represented(self, doc_id: int) -> NDArray[np.int64]:
        """Return the rows of the documents in whose place this one is kept."""
        wanted = pa.scalar(doc_id, pa.uint64())
        is_represented = pc.equal(self.documents.column("representative"), wanted)
        return np.flatnonzero(pc.fill_null(is_represented, False).to_numpy())

    @cached_property
    def doc_ids(self) -> NDArray[np.uint64]:
        """The ids of the documents, (n,)."""
        return self.read_numbers("doc_id")


@contextlib.contextmanager
def build_index(
    run: RunFolder,
    splits: Sequence[RunSplit] | None = None,
    columns: Collection[str] | None = None,
) -> Generator[Index]:
    """Copy the columns of all finished input splits into a scratch file, and yield the index.

    Args:
        run: the run.
        splits: only these input splits of it.
        columns: of annotate, those of NAMED among them; None: all but the large ones.

    Raises:
        RunNotFound: extract has not finished an input split yet.
    """
    splits = run.splits if splits is None else splits
    names = {column: Names() for column in NAMED}
    with tempfile.TemporaryDirectory(prefix="browse-") as folder:
        parts: list[pa.Table] = []
        for name, read in (
            ("scored", functools.partial(_read_scored, columns)),
            ("unscored", _read_unscored),
        ):
            path = Path(folder) / f"{name}.arrow"
            if _write_part(path, _read_splits(run, splits, read), names):
                with pa.memory_map(str(path)) as file:
                    parts.append(pa.ipc.open_file(file).read_all())
            else:
                parts.append(pa.table({}))
        if not any(part.num_columns for part in parts):
            raise RunNotFound(f"{run.run_dir}: extract has not finished an input split yet")
        documents = pa.concat_tables(parts, promote_options="default")
        if columns is None:
            documents = _add_quality_scores(run, documents, parts[0].num_rows, names)
        num_splits = len(
            run.folder(Extract.name).list_done() & {split.key for split in splits}
        )
        yield Index(run, documents, parts[0].num_rows, names, num_splits)


def sample_splits(run: RunFolder, max_docs: int) -> Sequence[RunSplit]:
    """Return every n-th input split, so that they have about max_docs documents or fewer."""
    return run.splits[:: get_sampling_step(run, max_docs)]


def get_sampling_step(run: RunFolder, max_docs: int) -> int:
    """Return n, if every n-th input split is read; 1: all of them."""
    counts = run.folder(Extract.name).summary()["counters"]["counts"]
    return max(1, math.ceil(counts.get("documents", 0) / max_docs))


def _add_quality_scores(
    run: RunFolder, documents: pa.Table, num_scored: int, names: Mapping[str, Names]
) -> pa.Table:
    """Return the documents with their quality scores, if the run has any."""
    scored = decode_languages(documents.slice(0, num_scored), names)
    scores = _compute_quality_scores(run, scored)
    if scores is None:
        return documents
    missing = pa.nulls(documents.num_rows - num_scored, scores.type)
    column = pa.chunked_array([*scores.chunks, missing])
    return documents.append_column(QUALITY_SCORE.name, column)


def _compute_quality_scores(run: RunFolder, documents: pa.Table) -> pa.ChunkedArray | None:
    """Return the quality score of each document, (n,) float64; null without any signal.

    The scores do not depend on the limits of `select`.

    Args:
        run: the run.
        documents: with the languages and the stored scores.

    Returns:
        None if the run has no quality score, or has not counted the signals yet.
    """
    if not run.has_finished(SignalPercentiles.name):
        return None
    try:
        plan = load_plan(run)
        settings = plan.config.find_stage_settings(Select.name, Score.name)
    except ConfigError as error:  # the run of another version
        log.warning("no quality scores are shown: %s", error)
        return None
    if not isinstance(settings, ScoreSettings):
        return None
    settings = settings.model_copy(update={"min": None, "keep_top": None})
    stage = Score(settings, run_counters=SignalPercentiles(plan).counters())
    stage.open()
    documents = documents.select(Score.required_columns(settings).names)
    chunks: list[pa.Array] = []
    for start in range(0, documents.num_rows, SCORED_ROWS):
        scored = stage.apply(documents.slice(start, SCORED_ROWS)).kept
        chunks.append(scored.column(QUALITY_SCORE.name).combine_chunks())
    return pa.chunked_array(chunks, pa.float64())


def decode_languages(documents: pa.Table, names: Mapping[str, Names]) -> pa.Table:
    """Return documents of an index with the codes of their languages."""
    codes = pa.array(names["language"].values, pa.string())
    place = documents.schema.get_field_index("language")
    languages = codes.take(documents.column(place).combine_chunks())
    return documents.set_column(place, "language", languages)


def _read_splits(
    run: RunFolder, splits: Sequence[RunSplit], read: Any
) -> Iterator[pa.Table]:
    """Yield a table for each input split that has one, in input order."""
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        # A few at a time: `map` alone would read every split before the first is written.
        step = 4 * NUM_THREADS
        for start in range(0, len(splits), step):
            some = splits[start : start + step]
            for table in threads.map(lambda split: read(run, split), some):
                if table is not None:
                    yield table


def _write_part(path: Path, tables: Iterator[pa.Table], names: Mapping[str, Names]) -> bool:
    """Write tables into one Arrow file; return whether there were any."""
    writer: Any = None
    for table in tables:
        for column in NAMED:
            index = table.schema.get_field_index(column)
            numbers = names[column].encode(table.column(index))
            table = table.set_column(index, column, numbers)  # noqa: PLW2901
        if writer is None:
            writer = pa.ipc.new_file(path, table.schema)
        writer.write_table(table.combine_chunks())
    if writer is None:
        return False
    writer.close()
    return True


def _read_scored(
    columns: Collection[str] | None, run: RunFolder, split: RunSplit
) -> pa.Table | None:
    """Return columns of the documents that annotate has stored, with the decisions of select."""
    try:
        with open_output(run, Annotate.documents, split.key) as file:
            stored = pq.read_schema(file).names
    except FileNotFoundError:
        return None
    if columns is None:
        wanted = [name for name in stored if name not in NOT_INDEXED]
    else:
        wanted = [name for name in stored if name in columns]
    documents = read_output(run, Annotate.documents, split.key, wanted)
    decisions = _read_decisions(run, split, documents.column("doc_id"))
    for column in decisions.schema:
        documents = documents.append_column(column, decisions.column(column.name))
    return documents


def _read_decisions(run: RunFolder, split: RunSplit, doc_ids: pa.ChunkedArray) -> pa.Table:
    """Return the decisions of select on documents, in their order."""
    columns = [column for column in DECIDED if column != "doc_id"]
    try:
        rows = read_output(run, Select.decisions, split.key, DECIDED)
    except FileNotFoundError:  # the run has not come this far
        schema = Select.decisions.schema
        assert schema is not None
        rows = pa.table({c: pa.nulls(len(doc_ids), schema.field(c).type) for c in columns})
        return rows.set_column(0, "decision", pa.repeat(NOT_DECIDED, len(doc_ids)))
    places = pc.index_in(doc_ids, value_set=rows.column("doc_id"))
    return rows.select(columns).take(places)


def _read_unscored(run: RunFolder, split: RunSplit) -> pa.Table | None:
    """Return the documents that extract and annotate have dropped, sorted by id."""
    columns = [*DECIDED, "url", "language", "num_chars"]
    tables: list[pa.Table] = []
    for phase in (Extract, Annotate):
        with contextlib.suppress(FileNotFoundError):
            tables.append(read_output(run, phase.decisions, split.key, columns))
    if not tables:
        return None
    rows = pa.concat_tables(tables).sort_by("doc_id")
    domains = extract_source_domains(rows.column("url"))
    return rows.append_column("source_domain", domains)


def take_rows(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    """Return a few rows of a table. `Table.take` would copy each column with text as a whole."""
    return pa.concat_tables(
        [table.slice(0, 0), *(table.slice(row, 1) for row in rows.tolist())]
    )
