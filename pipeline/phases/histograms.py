"""The phases that count the histograms which filters of select declare: nothing but counters.

A filter whose limit is a percentile of the run declares a histogram (`Stage.histograms`). The phase that counts it is
on where a filter of the config has declared one:

    signal_percentiles  of all documents that annotate has stored
    percentiles         of those that all filters keep without any `keep_top`
    mix_percentiles     of those that all filters but `mix` keep
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.filter_phase import FILTERS, FilterPhase
from pipeline.phases.phase import plan_stages
from pipeline.phases.stage_spec import StageSpec
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import SplitWriter, read_row_groups
from stages.histograms import Histogram
from stages.mixing.mix import Mix


class HistogramPhase(FilterPhase):
    """A phase that counts the histograms of one kind of documents.

    Class attributes:
        counted: the documents, `Histogram.of`.
    """

    counted: ClassVar[str]

    @classmethod
    def list_histograms(cls, config: RunConfig) -> tuple[Histogram, ...]:
        """Return the histograms that the filters of the config need from this phase."""
        found: list[Histogram] = []
        for spec in plan_stages(config, cls.section, FILTERS):
            declared = spec.stage.histograms(spec.settings)
            found += [each for each in declared if each.of == cls.counted]
        return tuple(found)

    @classmethod
    def is_enabled(cls, config: RunConfig) -> bool:
        """Return whether a filter needs a histogram of the phase."""
        return bool(cls.list_histograms(config))

    @classmethod
    def plan_stages(cls, config: RunConfig) -> tuple[StageSpec, ...]:
        """Return the filters that documents pass before they are counted."""
        if not cls.is_enabled(config):
            return ()
        return plan_stages(
            config, cls.section, [each for each in FILTERS if each is not Mix]
        )

    @classmethod
    def fingerprint_inputs(cls, config: RunConfig, num_files: int) -> dict[str, Any]:
        """Return the filters before the histograms, and the histograms."""
        del num_files
        filters = cls.plan_stages(config)
        return {
            "settings": [spec.settings.model_dump() for spec in filters],
            "histograms": [asdict(each) for each in cls.list_histograms(config)],
        }

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer that counts the documents. The task has no files."""
        return HistogramWriter(output, task_id, self.list_histograms(self.config))


class HistogramWriter(SplitWriter):
    """Counts documents in histograms, and writes no file."""

    def __init__(
        self, output: PendingOutput, task_id: str, histograms: Sequence[Histogram]
    ) -> None:
        super().__init__(output, task_id)
        self._histograms = histograms

    def add_dropped(self, batch: pa.Table, dropped: pa.Table) -> None:
        """Count the documents. `select` writes the decisions on them."""
        del batch
        self.counters.add("documents", dropped.num_rows)

    def write_kept(self, batch: pa.Table) -> None:
        """Count documents that the filters keep."""
        for histogram in self._histograms:
            histogram.count(self.counters, batch)

    def close(self) -> None:
        """Write no file."""


class SignalPercentiles(HistogramPhase):
    """Count all documents that annotate has stored: percentile ranks do not depend on the filters."""

    name = "signal_percentiles"
    section = "select"
    version = 2
    counted = "scored"
    parents = (Annotate,)
    depends_on_all_splits = False

    @classmethod
    def plan_stages(cls, config: RunConfig) -> tuple[StageSpec, ...]:
        """Return no filters."""
        del config
        return ()

    @cached_property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        """The id, the language and the counted numbers."""
        stored = Annotate(self.plan).stored
        columns = sorted({each.column for each in self.list_histograms(self.config)})
        return pa.schema([stored.field(name) for name in ("doc_id", "language", *columns)])

    def read(self, task_id: str, writer: SplitWriter) -> Generator[pa.Table]:
        """Yield the stored numbers."""
        del writer
        file_name = Annotate.documents.file_name(task_id)
        documents = self.plan.folder(Annotate.name).open(file_name)
        batch_mb = self.config.engine.advanced.batch_mb
        yield from read_row_groups(documents, self.schema.names, batch_mb)


class Percentiles(HistogramPhase):
    """Count the documents that all filters keep without any `keep_top`, of which that is a share."""

    name = "percentiles"
    section = "select"
    version = 2
    counted = "candidates"
    parents = (Annotate, FuzzyDedup, SignalPercentiles)
