"""The phase signal_percentiles: count the values of the signals that the quality score is made of.

The percentile ranks of `select.score` come from these counts. The phase is off without that section.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.phase import SplitPhase, TaskCost
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import SplitWriter, read_row_groups
from stages.filters.score import count_signal


class SignalPercentiles(SplitPhase):
    """Count the signals of all scored documents, by language."""

    name = "signal_percentiles"
    section = "select"
    unused_settings = frozenset({"mix"})
    version = 1
    parents = (Annotate,)
    reads = (Annotate.documents,)  # a few columns: the cost estimate is an upper bound
    cost = TaskCost(grows_with="scored")

    @classmethod
    def is_enabled(cls, config: RunConfig) -> bool:
        """Return whether documents get a quality score."""
        return config.select.score is not None

    @classmethod
    def was_off(cls, recorded: Mapping[str, Any]) -> bool:
        """Return whether a run with this stored config has no quality score."""
        return (recorded.get(cls.section) or {}).get("score") is None

    @cached_property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        """The id, the language and the signals."""
        stored = Annotate(self.plan).stored
        names = ["doc_id", "language", *sorted(self.config.score_weights)]
        return pa.schema([stored.field(name) for name in names])

    def read(self, task_id: str, writer: SplitWriter) -> Generator[pa.Table]:
        """Yield the stored signals."""
        del writer
        documents = self.plan.folder(Annotate.name).open(
            Annotate.documents.file_name(task_id)
        )
        batch_mb = self.config.engine.advanced.batch_mb
        yield from read_row_groups(documents, self.schema.names, batch_mb)

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer that counts the signals. The task has no files."""
        return _Counter(output, task_id, tuple(sorted(self.config.score_weights)))


class _Counter(SplitWriter):
    """Counts the signals of documents by language."""

    def __init__(
        self, output: PendingOutput, task_id: str, signals: tuple[str, ...]
    ) -> None:
        super().__init__(output, task_id)
        self._signals = signals

    def write_kept(self, batch: pa.Table) -> None:
        for name in self._signals:
            count_signal(self.counters, name, batch)

    def close(self) -> None:
        """Write no file."""
