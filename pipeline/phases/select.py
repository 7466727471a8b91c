"""The phase select: apply thresholds to the stored scores, and decide on each document.

Every document that annotate stored gets one decision: "kept", or the reason of the first filter that drops it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact, MergedArtifact
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.filter_phase import FILTERS, FilterPhase
from pipeline.phases.histograms import Percentiles, SignalPercentiles
from pipeline.phases.mix_percentiles import MixPercentiles
from pipeline.runs.phase_folder import PendingOutput, PhaseFolder
from pipeline.runs.split_output import (
    DECISIONS,
    SplitWriter,
    make_decisions,
    write_parquet,
)
from stages.contract import DOC_ID
from stages.filters.score import QUALITY_SCORE
from stages.histograms import RunLimit, name_languages
from stages.mixing.mix import NUM_COPIES, QUALITY_BIN, Mix

# Those of `select.score` and of `select.mix`.
SCORES = pa.schema([DOC_ID, QUALITY_SCORE, *Mix.adds])


class Select(FilterPhase):
    """Apply thresholds to the stored scores, and decide on each document."""

    name = "select"
    section = "select"
    version = 3
    parents = (Annotate, FuzzyDedup, SignalPercentiles, Percentiles, MixPercentiles)
    stages = FILTERS

    decisions = Artifact("decisions.parquet", DECISIONS)
    scores = Artifact(
        "scores.parquet", SCORES
    )  # of kept documents; see `list_score_columns`
    cuts = MergedArtifact("cuts.json")  # the limits that come from the run's scores

    @classmethod
    def list_score_columns(cls, config: RunConfig) -> pa.Schema:
        """Return the columns of `scores` beside doc_id; none if the phase does not write it."""
        quality = [] if config.select.score is None else [QUALITY_SCORE]
        mix = [] if config.select.mix is None else list(Mix.adds)
        return pa.schema([*quality, *mix])

    def compute_cuts(self) -> list[RunLimit]:
        """Return the limits that come from the scores of the run. Call it when the parents are complete."""
        return [limit for stage in self.open_filters() for limit in stage.list_run_limits()]

    def finish(self) -> None:
        """Write the limits that come from the scores of the run."""
        with self.folder.commit(self.cuts.name) as output:
            content = dump_cuts(self.compute_cuts())
            output.path(self.cuts.file_name).write_bytes(content)

    @classmethod
    def read_cuts(cls, folder: PhaseFolder) -> tuple[RunLimit, ...]:
        """Read the limits that a finished select has written; none before it has finished."""
        if cls.cuts.name not in folder.list_done():
            return ()
        with folder.open(cls.cuts.file_name) as file:
            return tuple(RunLimit(**cut) for cut in json.loads(file.read()))

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer of the decision on every document that reached this phase."""
        return _SelectWriter(output, task_id, self.list_score_columns(self.config))


def dump_cuts(cuts: Iterable[RunLimit]) -> bytes:
    """Return limits as the JSON that `Select.read_cuts` reads."""
    return (json.dumps([asdict(cut) for cut in cuts], indent=1) + "\n").encode()


class _SelectWriter(SplitWriter):
    def __init__(
        self, output: PendingOutput, task_id: str, score_columns: pa.Schema
    ) -> None:
        super().__init__(output, task_id)
        self._scores = pa.schema([DOC_ID, *score_columns])
        self._scored = [self._scores.empty_table()]

    def write_kept(self, batch: pa.Table) -> None:
        self.counters.add("chars", pc.sum(batch.column("num_chars")).as_py())
        for name in ("language", "bucket"):
            if name in batch.column_names:
                self.counters.add_values(f"{name}.", batch.column(name))
        if NUM_COPIES.name in batch.column_names:
            self._count_copies(batch)
        kept = pa.repeat("kept", batch.num_rows)
        self._decisions.append(make_decisions(batch, kept, batch.column("num_chars")))
        self._scored.append(batch.select(self._scores.names))

    def _count_copies(self, batch: pa.Table) -> None:
        """Count documents, copies, and characters with all copies."""
        copies = pc.cast(batch.column(NUM_COPIES.name), pa.int64())
        counted = pa.table(
            {
                "bin": batch.column(QUALITY_BIN.name),
                "language": name_languages(batch),
                "num_copies": copies,
                "chars": pc.multiply(copies, batch.column("num_chars")),
            }
        )
        bins = counted.group_by("bin", use_threads=False)
        for row in bins.aggregate(
            [("num_copies", "count"), ("num_copies", "sum")]
        ).to_pylist():
            self.counters.add(f"bin_documents.{row['bin']}", row["num_copies_count"])
            self.counters.add(f"bin_copies.{row['bin']}", row["num_copies_sum"])
        groups = counted.group_by("language", use_threads=False)
        for row in groups.aggregate([("chars", "sum")]).to_pylist():
            self.counters.add(f"copied_chars.{row['language']}", row["chars_sum"])

    def close(self) -> None:
        """Write the decisions and the scores."""
        super().close()
        if len(self._scores) > 1:
            scores = pa.concat_tables(self._scored).sort_by("doc_id")
            file_name = Select.scores.file_name(self.task_id)
            write_parquet(scores, self.output.path(file_name))
