"""What the tasks of each phase cost: the table from which the cost model and the fit of its rates read.

An amount is a quantity of the input that the phases count, such as its documents or its tokens. The measured rates,
seconds and bytes per amount, are in `calibration.json`; this table says which amount they are multiplied with.

A phase that is not in the table has one task per input split, which holds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.exact_dedup import BYTES_PER_DOCUMENT, ExactHashes
from pipeline.phases.dedup.fuzzy_candidates import (
    BYTES_PER_BAND_HASH,
    FuzzyCandidates,
    FuzzyNgrams,
)
from pipeline.phases.dedup.merge_clusters import BYTES_PER_PAIR, MAX_MEMBERS_PER_TASK
from pipeline.phases.dedup.merge_forests import HELD_BYTES
from pipeline.phases.dedup.paragraph_dedup import BYTES_PER_HASH, ParagraphDedup
from pipeline.phases.dedup.substring_dedup import (
    BYTES_PER_WINDOW,
    BYTES_PER_WORD,
    SubstringDedup,
    SubstringHashes,
)
from pipeline.phases.extract import Extract
from pipeline.phases.phase import Phase
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments
from pipeline.phases.write_shards import BYTES_PER_TOKEN
from pipeline.runs.exchange import NUM_RANGES, count_partitions

# Amount -> the phase that counts it, and the name of its counter.
AMOUNTS: Mapping[str, tuple[str, str]] = {
    "input": ("extract", "file_bytes"),
    "content": ("extract", "content_bytes"),
    "documents": ("extract", "documents"),
    "text": ("extract", "text_bytes"),
    "paragraphs": ("extract", "paragraphs"),
    "distinct_paragraphs": ("extract", "distinct_paragraphs"),
    "left": ("annotate", "chars"),
    "scored": ("annotate", "documents_kept"),
    "band_hashes": ("annotate", "band_hashes"),
    "clustered": ("fuzzy_dedup", "clustered"),
    "kept": ("tokenize", "documents_kept"),
    "tokens": ("tokenize", "tokens"),
}

# CPU seconds to open the files of one split in one task (benchmarks/runs/driver_scale.py, 2,000 splits).
_OPEN_S = 0.0006

# CPU seconds to open one file of a phase with as many files per split as it has tasks (10,000 splits).
_OPEN_PART_S = 0.0004

# Pairs of all partitions per document with near-duplicates: of 14 bands, two of them have about 10 in common,
# and clusters are small.
_PAIRS_PER_DOCUMENT = 7

# Config, number of input splits, amounts -> number of tasks.
_CountTasks: TypeAlias = Callable[[RunConfig, int, Mapping[str, float]], int]


@dataclass(frozen=True)
class PhaseCost:
    """What the tasks of a phase cost.

    Attributes:
        grows_with: the amount that CPU seconds and bytes written grow with.
        steps: other amounts for single steps: `read`, `write`, or the name of a stage.
        held_bytes: memory per item that a task holds until its end.
        held_per: the amount that is held; None: `grows_with`.
        reads: the parents' files that the tasks read.
        count_tasks: None: one task per input split.
        open_s: CPU seconds to open one split's files in one task, where every task opens all splits.
        open_artifact_s: CPU seconds to open one file of a parent that has as many files per split as tasks.
        is_hash_partitioned: tasks are ranges of hashes of `grows_with`, as many as memory requires.
    """

    grows_with: str = "documents"
    steps: Mapping[str, str] = field(default_factory=dict[str, str])
    held_bytes: int = 0
    held_per: str | None = None
    reads: tuple[Artifact, ...] = ()
    count_tasks: _CountTasks | None = None
    open_s: float = 0.0
    open_artifact_s: Mapping[Artifact, float] = field(default_factory=dict[Artifact, float])
    is_hash_partitioned: bool = False

    @property
    def held_amount(self) -> str:
        """The amount that a task holds in memory."""
        return self.held_per or self.grows_with

    def step_amount(self, step: str) -> str:
        """Return the amount that the CPU seconds of a step grow with."""
        return self.steps.get(step, self.grows_with)

    def artifact_amount(self, artifact: Artifact) -> str:
        """Return the amount that the bytes of an artifact grow with."""
        return artifact.grows_with or self.grows_with


def count_splits_per_task(phase: type[Phase], config: RunConfig, num_splits: int) -> int:
    """Return the number of splits whose files one task opens, where a task opens more than one."""
    if phase is ParagraphDedup:
        return min(num_splits, config.paragraph_dedup.group_splits or num_splits)
    return num_splits


def suggest_smaller_tasks(phase: type[Phase], room_bytes: float) -> str | None:
    """Return the setting with which a task fits into memory.

    Args:
        phase: the phase.
        room_bytes: memory for what a task holds.
    """
    if phase.name == "write_shards":
        return f"set write_shards.shard_tokens to {int(room_bytes / BYTES_PER_TOKEN):,}"
    return None


def estimate_num_tasks(
    phase: type[Phase], config: RunConfig, num_splits: int, amounts: Mapping[str, float]
) -> int:
    """Return the number of tasks of a phase for an input of that size."""
    if not phase.is_enabled(config):
        return 0
    count_tasks = find_cost(phase).count_tasks
    return count_tasks(config, num_splits, amounts) if count_tasks else num_splits


def find_cost(phase: type[Phase]) -> PhaseCost:
    """Return what the tasks of a phase cost."""
    return COSTS.get(phase.name, PhaseCost())


def _count_exact_tasks(
    config: RunConfig, num_splits: int, amounts: Mapping[str, float]
) -> int:
    num_rows = math.ceil(amounts["documents"])
    memory_mb = config.engine.memory_mb
    return count_partitions(num_rows, BYTES_PER_DOCUMENT, memory_mb, num_splits)


def _count_paragraph_tasks(
    config: RunConfig, num_splits: int, amounts: Mapping[str, float]
) -> int:
    """Return groups times partitions."""
    if config.paragraph_dedup.keep == "keep_all":
        return 0
    group_splits = count_splits_per_task(ParagraphDedup, config, num_splits)
    largest = math.ceil(amounts["distinct_paragraphs"] * group_splits / num_splits)
    memory_mb = config.engine.memory_mb
    num_partitions = count_partitions(largest, BYTES_PER_HASH, memory_mb, group_splits)
    return math.ceil(num_splits / group_splits) * num_partitions


def _count_substring_tasks(
    config: RunConfig, num_splits: int, amounts: Mapping[str, float]
) -> int:
    num_windows = math.ceil(amounts["text"] / BYTES_PER_WORD)
    memory_mb = config.engine.memory_mb
    return count_partitions(num_windows, BYTES_PER_WINDOW, memory_mb, num_splits)


def _count_cluster_tasks(
    config: RunConfig, num_splits: int, amounts: Mapping[str, float]
) -> int:
    num_hashes = math.ceil(amounts["band_hashes"])
    memory_mb = config.engine.memory_mb
    return count_partitions(num_hashes, BYTES_PER_BAND_HASH, memory_mb, num_splits)


def _count_ranges(config: RunConfig, num_splits: int, amounts: Mapping[str, float]) -> int:
    """Return 0 where one task can merge all pairs."""
    del num_splits
    num_pairs = math.ceil(amounts["clustered"] * _PAIRS_PER_DOCUMENT)
    memory_mb = config.engine.get_memory_mb("fuzzy_ranges")
    num_tasks = count_partitions(num_pairs, BYTES_PER_PAIR, memory_mb, NUM_RANGES)
    return num_tasks if num_tasks > 1 else 0


def _count_cluster_batches(
    config: RunConfig, num_splits: int, amounts: Mapping[str, float]
) -> int:
    del config, num_splits
    return max(1, math.ceil(amounts["clustered"] / MAX_MEMBERS_PER_TASK))


def _count_shards(config: RunConfig, num_splits: int, amounts: Mapping[str, float]) -> int:
    del num_splits
    return math.ceil(amounts["tokens"] / config.write_shards.shard_tokens)


# The filters read a few columns only: the cost estimate is an upper bound.
_SCORED = PhaseCost("scored", reads=(Annotate.documents,))

COSTS: dict[str, PhaseCost] = {
    "extract": PhaseCost(
        "text", steps={"read": "content"}, held_bytes=64, held_per="paragraphs"
    ),
    "exact_hashes": PhaseCost("documents", held_bytes=16, reads=(Extract.hashes,)),
    "exact_dedup": PhaseCost(
        "documents",
        held_bytes=BYTES_PER_DOCUMENT,
        reads=(ExactHashes.contents,),
        count_tasks=_count_exact_tasks,
        open_s=_OPEN_S,
        is_hash_partitioned=True,
    ),
    "paragraph_dedup": PhaseCost(
        "distinct_paragraphs",
        held_bytes=BYTES_PER_HASH,
        reads=(Extract.distinct_hashes,),
        count_tasks=_count_paragraph_tasks,
        open_s=_OPEN_S,
        is_hash_partitioned=True,
    ),
    "substring_hashes": PhaseCost("text", reads=(Extract.documents,)),
    "substring_dedup": PhaseCost(
        "text",
        held_bytes=BYTES_PER_WINDOW // BYTES_PER_WORD,
        reads=(SubstringHashes.windows,),
        count_tasks=_count_substring_tasks,
        open_s=_OPEN_S,
        is_hash_partitioned=True,
    ),
    "annotate": PhaseCost(
        "left",
        steps={"read": "text", "paragraphs": "text"},
        held_bytes=64,
        held_per="band_hashes",
        reads=(
            Extract.documents,
            Extract.hashes,
            ParagraphDedup.found,
            SubstringDedup.found,
        ),
        open_artifact_s={
            ParagraphDedup.found: _OPEN_PART_S,
            SubstringDedup.found: _OPEN_PART_S,
        },
    ),
    "fuzzy_candidates": PhaseCost(
        "band_hashes",
        held_bytes=BYTES_PER_BAND_HASH,
        reads=(Annotate.bands,),
        count_tasks=_count_cluster_tasks,
        open_s=_OPEN_S,
        is_hash_partitioned=True,
    ),
    "fuzzy_ngrams": PhaseCost("scored", reads=(FuzzyCandidates.wanted, Annotate.ngrams)),
    "fuzzy_clusters": PhaseCost(
        "band_hashes",
        reads=(FuzzyCandidates.candidates, FuzzyNgrams.sets),
        count_tasks=_count_cluster_tasks,
    ),
    "fuzzy_ranges": PhaseCost(
        "clustered",
        held_bytes=_PAIRS_PER_DOCUMENT * BYTES_PER_PAIR,
        count_tasks=_count_ranges,
    ),
    "fuzzy_merge": PhaseCost("clustered", held_bytes=HELD_BYTES, count_tasks=lambda *_: 1),
    "fuzzy_dedup": PhaseCost(
        "clustered",
        held_bytes=100,
        # of clusters of three and more documents: an upper bound
        reads=(Annotate.ngrams,),
        count_tasks=_count_cluster_batches,
    ),
    "signal_percentiles": _SCORED,
    "percentiles": _SCORED,
    "mix_percentiles": _SCORED,
    "select": PhaseCost("scored", held_bytes=100, reads=(Annotate.documents,)),
    "tokenize": PhaseCost(
        "tokens",
        steps={"read": "left"},
        held_bytes=4,
        reads=(Annotate.documents, Select.decisions, Select.scores),
    ),
    "write_shards": PhaseCost(
        "tokens",
        held_bytes=BYTES_PER_TOKEN,
        reads=(TokenizeDocuments.tokens, TokenizeDocuments.documents),
        count_tasks=_count_shards,
        open_s=_OPEN_S,
    ),
}
