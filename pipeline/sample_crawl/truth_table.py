"""The truth table: one row per page with its kind, its source and the decision a run must make."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.sample_crawl.pages import Page

# One row per page, in the order of the files.
#
# The two counts are of the WET's lines in CCNet's normal form, without the first line (the title).
# They are null for pages that are too short or damaged, because no other page shares a paragraph
# with these. With `format="warc"` they count the lines written into the HTML, some of which an
# extractor may join or cut.
TRUTH = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),  # unique in the crawl
        # relative to the crawl's folder, with "/"
        pa.field("file", pa.string(), nullable=False),
        # Number of the page in its file, from 0; damaged pages count.
        pa.field("record", pa.int32(), nullable=False),
        # WARC-Record-ID of the conversion or response record.
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # a name in KINDS
        pa.field("language", pa.string(), nullable=False),  # ISO 639-1, of the text
        pa.field("site", pa.string(), nullable=False),  # host of the URL
        # the page whose paragraphs it copies; null: none
        pa.field("source_url", pa.string()),
        pa.field("expected_decision", pa.string(), nullable=False),  # an ExpectedDecision
        pa.field("num_unique_lines", pa.int32()),  # lines that no other page has
        # Lines that another page of 300 characters or more has.
        pa.field("num_repeated_lines", pa.int32()),
    ]
)

ROWS_PER_GROUP = 2_000

TruthRow = tuple[object, ...]


def make_row(page: Page, file: str, record: int, record_id: str) -> TruthRow:
    """Return the row of a page, with the columns of TRUTH."""
    spec = page.spec
    is_uncounted = page.expected in {"too_short", "quarantined"}
    if is_uncounted or spec.kind.startswith("damaged"):
        num_unique, num_repeated = None, None
    else:
        num_repeated = len(page.nav) + len(page.footer) + page.num_shared_paragraphs
        num_unique = len(page.lines) - num_repeated
    return (
        spec.url,
        file,
        record,
        record_id,
        spec.kind,
        spec.language,
        spec.site.host,
        page.source_url,
        page.expected,
        num_unique,
        num_repeated,
    )


@contextlib.contextmanager
def open_truth_writer(path: Path) -> Generator[Callable[[TruthRow], None]]:
    """Yield a function that writes one row. At most one row group is held in memory."""
    rows: list[TruthRow] = []

    def flush() -> None:
        columns: list[pa.Array] = []
        for values, column in zip(zip(*rows, strict=True), TRUTH, strict=True):
            columns.append(pa.array(values, column.type))
        writer.write_table(pa.table(columns, schema=TRUTH))
        rows.clear()

    def write_row(row: TruthRow) -> None:
        rows.append(row)
        if len(rows) == ROWS_PER_GROUP:
            flush()

    with pq.ParquetWriter(path, TRUTH, compression="zstd") as writer:
        yield write_row
        if rows:
            flush()
