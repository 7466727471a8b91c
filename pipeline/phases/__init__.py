"""What each phase does with one unit or one partition, in terms of stages and shard writing. No Ray here.

Promises: a phase reads what its parents committed and commits its own outputs through store.py; what it commits
depends on nothing but the plan; every count that a report shows is a sum of the tallies in the done-records.
Leaves to others: which work is still to be done, where and how often it is tried (engine.py).

The files of a phase, per unit or partition (all of them read back by range, none of them moved between machines):

    extract      <unit>.documents.parquet  <unit>.hashes.arrow  <unit>.decisions.parquet  <unit>.quarantine.jsonl
    copies       <unit>.contents.arrow  exact_dedup.arrow: per unit which records have to go, and who stays
    deduplicate  g000-p000of001.duplicate_lines.arrow   per unit of the group: which lines of which records have to go
    annotate     <unit>.documents.parquet  <unit>.decisions.parquet  <unit>.bands.arrow
                 <unit>.signatures.arrow or <unit>.ngrams.arrow, to verify by
    fuzzy_dedup  p000of001.forest.arrow    near_duplicates.arrow: per unit which records have to go, and who stays
    select       <unit>.decisions.parquet      every document that got this far, kept or not
    tokenize     <unit>.tokens.bin  <unit>.documents.arrow      both in the order of the global shuffle
    write_shards shard-000000.tar  shard-000000.idx  ...  manifest.json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.phases.annotate import Annotate
from pipeline.phases.exact_dedup import ExactDedup
from pipeline.phases.extract import Extract
from pipeline.phases.fuzzy_dedup import FuzzyDedup
from pipeline.phases.paragraph_dedup import ParagraphDedup
from pipeline.phases.phase import PartitionPhase, Phase, SplitPhase
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments
from pipeline.phases.write_shards import WriteShards
from pipeline.planning.plan import RunPlan

PHASES: Mapping[str, Callable[[RunPlan], Phase]] = {
    phase.name: phase
    for phase in (
        Extract,
        ExactDedup,
        ParagraphDedup,
        Annotate,
        FuzzyDedup,
        Select,
        TokenizeDocuments,
        WriteShards,
    )
}
"""By name, in the order they run."""

__all__ = ["PHASES", "PartitionPhase", "Phase", "SplitPhase"]
