"""The list of all phases. A new phase is added here, and nowhere else but its own file and `RunConfig`."""

from __future__ import annotations

from typing import Any

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.exact_dedup import ExactDedup, ExactHashes
from pipeline.phases.dedup.fuzzy_candidates import FuzzyCandidates, FuzzyNgrams
from pipeline.phases.dedup.fuzzy_clusters import FuzzyClusters
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.dedup.fuzzy_members import FuzzyMemberNgrams, FuzzyMembers
from pipeline.phases.dedup.merge_clusters import FuzzyMerge, FuzzyRanges
from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from pipeline.phases.dedup.substring_dedup import SubstringDedup, SubstringHashes
from pipeline.phases.extract import Extract
from pipeline.phases.histograms import Percentiles, SignalPercentiles
from pipeline.phases.mix_percentiles import MixPercentiles
from pipeline.phases.phase import Phase, SplitPhase
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments
from pipeline.phases.write_shards import WriteShards
from stages.contract import Stage

# In the order in which they run: parents come before the phases that read them.
PHASES: tuple[type[Phase], ...] = (
    Extract,
    ExactHashes,
    ExactDedup,
    ParagraphDedup,
    SubstringHashes,
    SubstringDedup,
    Annotate,
    FuzzyCandidates,
    FuzzyNgrams,
    FuzzyClusters,
    FuzzyRanges,
    FuzzyMerge,
    FuzzyMembers,
    FuzzyMemberNgrams,
    FuzzyDedup,
    SignalPercentiles,
    Percentiles,
    MixPercentiles,
    Select,
    TokenizeDocuments,
    WriteShards,
)

# Each document has one decision in the files of these phases: it was dropped there, or select
# kept it. A document without a token is dropped later, and counts as kept here.
DECIDING_PHASES: tuple[type[SplitPhase], ...] = (Extract, Annotate, Select)


def find_phase(name: str) -> type[Phase]:
    """Return the phase with that name."""
    return next(phase for phase in PHASES if phase.name == name)


def list_enabled(config: RunConfig) -> list[type[Phase]]:
    """Return the phases that are on, in the order in which they run."""
    return [phase for phase in PHASES if phase.is_enabled(config)]


def list_phase_names() -> list[str]:
    """Return the names of all phases, in the order in which they run."""
    return [phase.name for phase in PHASES]


def list_stages() -> list[type[Stage[Any]]]:
    """Return the stages of all phases, in the order in which they run."""
    return [stage for phase in PHASES for stage in phase.stages]
