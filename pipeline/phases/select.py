"""The phase select: apply thresholds to the stored scores, and decide on each document.

Every document that annotate stored gets one decision: "kept", or the reason of the first filter that drops it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.phases.annotate import Annotate
from pipeline.phases.cuts import Cut, dump_cuts, list_cuts, parse_cuts
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.filter_phase import FILTERS, REPRESENTATIVE, FilterPhase
from pipeline.phases.percentiles import Percentiles
from pipeline.phases.phase import Artifact, MergedArtifact, TaskCost
from pipeline.phases.signal_percentiles import SignalPercentiles
from pipeline.runs.phase_folder import PendingOutput, PhaseFolder
from pipeline.runs.split_output import (
    DECISIONS,
    SplitWriter,
    make_decisions,
    write_parquet,
)
from stages.contract import DOC_ID
from stages.counters import Counters
from stages.dedup.minhash import MinHashFilter
from stages.filters.score import QUALITY_SCORE

__all__ = ["REPRESENTATIVE", "Select"]

SCORES = pa.schema([DOC_ID, QUALITY_SCORE])


class Select(FilterPhase):
    """Apply thresholds to the stored scores, and decide on each document."""

    name = "select"
    section = "select"
    version = 2
    parents = (Annotate, FuzzyDedup, SignalPercentiles, Percentiles)
    stages = FILTERS
    filters = {MinHashFilter: FuzzyDedup}

    decisions = Artifact("decisions.parquet", DECISIONS)
    scores = Artifact("scores.parquet", SCORES)  # of kept documents, with `select.score`
    cuts = MergedArtifact("cuts.json")  # the limits that come from the run's scores

    cost = TaskCost(grows_with="scored", held_bytes=100)

    def percentiles(self) -> Percentiles:
        """Return the phase that counts scores."""
        return Percentiles(self.plan)

    def count_scores(self) -> Counters:
        """Return the scores that percentiles has counted."""
        if not Percentiles.is_enabled(self.config):
            return Counters()
        return self.percentiles().counters()

    def compute_cuts(self) -> list[Cut]:
        """Return the limits that come from the scores of the run. Call it when the parents are complete."""
        counters = Annotate(self.plan).counters() + self.count_scores()
        has_score = self.config.select.score is not None
        score_cuts = self.score_settings.cuts if has_score else {}
        limits = self.classifiers_settings.limits
        cutoffs = self.find_cutoffs()
        return list_cuts(self.min_scores, cutoffs, limits, score_cuts, counters)

    def finish(self) -> None:
        """Write the limits that come from the scores of the run."""
        with self.folder.commit(self.cuts.name) as output:
            output.path(self.cuts.file_name).write_bytes(dump_cuts(self.compute_cuts()))

    @classmethod
    def read_cuts(cls, folder: PhaseFolder) -> tuple[Cut, ...]:
        """Read the limits that a finished select has written; none in runs of old versions."""
        if cls.cuts.name not in folder.done():
            return ()
        with folder.open(cls.cuts.file_name) as file:
            return parse_cuts(file.read())

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer of the decision on every document that reached this phase."""
        has_score = self.config.select.score is not None
        return _SelectWriter(output, task_id, has_score)


class _SelectWriter(SplitWriter):
    def __init__(self, output: PendingOutput, task_id: str, has_score: bool) -> None:
        super().__init__(output, task_id)
        self._scores = [SCORES.empty_table()] if has_score else None

    def write_kept(self, batch: pa.Table) -> None:
        self.counters.add("chars", pc.sum(batch.column("num_chars")).as_py())
        for name in ("language", "bucket"):
            if name in batch.column_names:
                self.counters.add_values(f"{name}.", batch.column(name))
        kept = pa.repeat("kept", batch.num_rows)
        self._decisions.append(make_decisions(batch, kept, batch.column("num_chars")))
        if self._scores is not None:
            self._scores.append(batch.select(SCORES.names))

    def close(self) -> None:
        """Write the decisions and the scores."""
        super().close()
        if self._scores is not None:
            scores = pa.concat_tables(self._scores).sort_by("doc_id")
            file_name = Select.scores.file_name(self.task_id)
            write_parquet(scores, self.output.path(file_name))
