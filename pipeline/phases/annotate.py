"""annotate: drop repeated paragraphs, then score what is left. Every score is stored.

Promises: each document that still has text is stored with it and with all its scores; the tally holds histograms of
perplexity per language, from which select may take percentiles of the run.
Leaves to others: decisions (select).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.phases.base import RowGroups, UnitPhase, UnitSink, flow_schema, row_groups
from pipeline.phases.deduplicate import Deduplicate
from pipeline.phases.extract import EXTRACTED
from pipeline.store import Task
from stages import perplexity


class Annotate(UnitPhase):
    """Drop repeated paragraphs, then score what is left. Every score is stored."""

    name = "annotate"
    schema = pa.schema([*EXTRACTED, pa.field("duplicate_lines", pa.list_(pa.uint32()))])

    def read(self, work: str) -> Generator[pa.Table, None, dict[str, Any]]:
        """The unit's documents, with the lines that deduplicate found beside them."""
        unit = self.unit(work)
        repeats = Deduplicate(self.plan).repeats_of(unit)
        records, lines = repeats >> np.uint64(32), repeats.astype(np.uint32)
        for table in row_groups(self.plan.folder("extract").path(f"{work}.documents.parquet")):
            wanted = table.column("doc_id").to_numpy() & np.uint64(0xFFFF_FFFF)
            offsets = np.append(np.searchsorted(records, wanted), np.searchsorted(records, wanted[-1], side="right"))
            column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(lines))
            yield table.append_column(self.schema.field("duplicate_lines"), column)
        return {}

    def sink(self, work: str, task: Task) -> UnitSink:
        """Documents with their scores, fates, histograms of perplexity."""
        return _AnnotateSink(task, work, flow_schema(self))


class _AnnotateSink(UnitSink):
    def __init__(self, task: Task, work: str, schema: pa.Schema) -> None:
        super().__init__(task, work)
        self._schema = pa.schema([f for f in schema if f.name != "duplicate_lines"])
        self._documents = RowGroups(task.path(f"{work}.documents.parquet"))

    def take(self, kept: pa.Table) -> None:
        kept = kept.select(self._schema.names)
        self._documents.add(kept)
        self.tally.add("chars", pc.sum(kept.column("num_chars")).as_py())
        self.tally.add("paragraphs", pc.sum(kept.column("num_lines")).as_py())
        languages = kept.column("language")
        for count in pc.value_counts(languages.drop_null()).to_pylist():
            self.tally.add(f"language.{count['values']}", count["counts"])
        if "perplexity" in kept.column_names:
            for language in pc.unique(languages.filter(pc.is_valid(kept.column("perplexity")))).to_pylist():
                mine = kept.filter(pc.equal(languages, language)).column("perplexity").drop_null()
                self.tally.observe(f"perplexity.{language}", perplexity.bins(mine.to_numpy()).tolist())

    def close(self, report: Mapping[str, Any]) -> None:
        super().close(report)
        self._documents.start(self._schema)
        self._documents.close()
