"""The phase extract: make documents of records or rows, and hash every paragraph.

Files of hashes are sorted and have one Arrow record batch per range of hash space, so that paragraph_dedup reads any
range of any split without reading the rest.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.inputs.input_splits import get_files_per_split, make_sample_crawl
from pipeline.inputs.read_file import read_file
from pipeline.phases.artifact import Artifact
from pipeline.phases.phase import SplitPhase
from pipeline.runs.exchange import (
    SegmentWriter,
    find_bounds,
    group_by_range,
    sort_by_hash,
)
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import DECISIONS, RowGroups, SplitWriter
from stages.contract import DOCUMENT
from stages.dedup.paragraphs import ParagraphHashes
from stages.filters.length import Length
from stages.filters.url import Url
from stages.html.extraction import list_engine_versions
from stages.html.trafilatura import ExtraNotInstalled
from stages.transform.unicode import Unicode
from stages.warc.read_report import Quarantined

EXTRACTED = pa.schema(
    [
        *DOCUMENT,
        pa.field("original_num_chars", pa.int64()),
        pa.field("original_num_lines", pa.int64()),
    ]
)

# Of each paragraph, sorted by hash; equal hashes are in the order of the input.
HASHES = pa.schema(
    [
        pa.field("hash", pa.uint64()),
        pa.field("record", pa.uint32()),
        pa.field("line", pa.uint32()),
    ]
)

# Each hash of HASHES once, sorted: what other splits need to know of this one.
DISTINCT_HASHES = pa.schema([HASHES.field("hash")])


class Extract(SplitPhase):
    """Read records, make documents of them, and hash every paragraph."""

    name = "extract"
    version = 14
    stages = (Url, Unicode, Length, ParagraphHashes)
    schema = DOCUMENT

    documents = Artifact("documents.parquet", EXTRACTED)
    # both by hash
    hashes = Artifact("hashes.arrow", HASHES, grows_with="paragraphs", has_segments=True)
    distinct_hashes = Artifact(
        "distinct_hashes.arrow",
        DISTINCT_HASHES,
        grows_with="distinct_paragraphs",
        has_segments=True,
    )
    decisions = Artifact("decisions.parquet", DECISIONS, grows_with="documents")
    quarantine = Artifact("quarantine.jsonl", grows_with="documents")

    @classmethod
    def fingerprint_inputs(cls, config: RunConfig, num_files: int) -> dict[str, Any]:
        """Return the number of files per split, the versions of the rules for HTML, and columns.

        Raises:
            ConfigError: the extra of the engine for HTML is not installed.
        """
        inputs: dict[str, Any] = {
            "files_per_split": get_files_per_split(config.input, num_files)
        }
        # Left out where the rules have no version: it would change every fingerprint.
        try:
            versions = list_engine_versions(config.extract.warc.html)
        except ExtraNotInstalled as error:
            raise ConfigError([str(error)]) from error
        if versions:
            inputs["html_engine"] = versions
        if config.input.text is not None:
            inputs["text"] = config.input.text.model_dump(exclude={"files"})
        return inputs

    def read(self, task_id: str, writer: _ExtractWriter) -> Generator[pa.Table]:
        """Yield the documents of the split's files, one file after another.

        Raises:
            OSError: a file cannot be read, or has changed since the run was planned.
        """
        split = self.split(task_id)
        if crawl := self.config.input.sample_crawl:
            # On a cluster, each machine may have its own cache.
            make_sample_crawl(crawl)
        num_records = 0
        for file in split.files:
            report = yield from read_file(
                file,
                self.config,
                split=split.index,
                num_splits=len(self.plan.splits),
                first_record=num_records,
                page_timeout=writer.page_timeout,
            )
            num_records += report.num_records
            writer.counters += report.counters()
            writer.quarantine += report.quarantine

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer of documents, hashes, decisions and quarantine."""
        return _ExtractWriter(output, task_id)


class _ExtractWriter(SplitWriter):
    def __init__(self, output: PendingOutput, task_id: str) -> None:
        super().__init__(output, task_id)
        self._documents = RowGroups(output.path(Extract.documents.file_name(task_id)))
        self.quarantine: list[Quarantined] = []
        self._hashes: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        self._lines: list[np.ndarray[Any, np.dtype[np.uint64]]] = []  # record << 32 | line

    def write_kept(self, batch: pa.Table) -> None:
        hashes = batch.column("paragraph_hashes").combine_chunks()
        counts = np.diff(hashes.offsets.to_numpy())  # paragraphs per document
        records = batch.column("doc_id").to_numpy() & np.uint64(0xFFFF_FFFF)
        first_of_document = np.repeat(np.cumsum(counts) - counts, counts)
        lines = np.arange(len(first_of_document)) - first_of_document
        self._hashes.append(hashes.flatten().to_numpy())
        self._lines.append(
            np.repeat(records << np.uint64(32), counts) | lines.astype(np.uint64)
        )
        self.counters.add("paragraphs", len(lines))
        self.counters.add("chars", pc.sum(batch.column("original_num_chars")).as_py())
        self._documents.add(batch.drop_columns("paragraph_hashes"))

    def close(self) -> None:
        """Write the hashes by range, and the quarantine."""
        super().close()
        self._documents.start(EXTRACTED)
        self._documents.close()
        self._write_hashes()
        quarantine = b"".join(
            json.dumps(asdict(entry), sort_keys=True).encode() + b"\n"
            for entry in self.quarantine
        )
        self.output.path(Extract.quarantine.file_name(self.task_id)).write_bytes(quarantine)

    def _write_hashes(self) -> None:
        empty = np.empty(0, np.uint64)
        hashes = np.concatenate([empty, *self._hashes])
        lines = np.concatenate([empty, *self._lines])
        records = (lines >> np.uint64(32)).astype(np.uint32)
        rows = pa.record_batch([hashes, records, lines.astype(np.uint32)], schema=HASHES)
        name = Extract.hashes.file_name(self.task_id)
        distinct_name = Extract.distinct_hashes.file_name(self.task_id)
        with (
            SegmentWriter(self.output, name, HASHES) as all_hashes,
            SegmentWriter(self.output, distinct_name, DISTINCT_HASHES) as distinct_hashes,
        ):
            for group in group_by_range(rows):
                segment = sort_by_hash(group)
                all_hashes.write(segment)
                distinct = select_distinct(segment)
                distinct_hashes.write(distinct)
                self.counters.add("distinct_paragraphs", distinct.num_rows)


def select_distinct(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return each hash of some rows of HASHES, sorted by hash, once, as DISTINCT_HASHES."""
    is_first = find_bounds(rows["hash"].to_numpy())[:-1]
    return rows.select(DISTINCT_HASHES.names).take(pa.array(is_first))
