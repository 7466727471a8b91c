"""What the tasks of each phase cost: the table from which the cost model and the fit of its rates read.

An amount is a quantity of the input that the phases count, such as its documents or its tokens. The measured rates,
seconds and bytes per amount, are in `calibration.json`; this table says which amount they are multiplied with, and
which files the tasks read by how many requests.

A phase that is not in the table has one task per input split, which holds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pipeline.capacity.calibration import Line
from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.exact_dedup import BYTES_PER_DOCUMENT, ExactDedup, ExactHashes
from pipeline.phases.dedup.fuzzy_candidates import (
    BYTES_PER_BAND_HASH,
    FuzzyCandidates,
    FuzzyNgrams,
    Rule,
)
from pipeline.phases.dedup.fuzzy_clusters import FuzzyClusters
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.dedup.fuzzy_members import FuzzyMemberNgrams, FuzzyMembers
from pipeline.phases.dedup.merge_clusters import (
    BYTES_PER_PAIR,
    MEMBERS_PER_BATCH,
    FuzzyMerge,
    FuzzyRanges,
    count_tasks,
)
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
from pipeline.runs.split_output import ROWS_PER_GROUP
from storage.object_file import GAP_BYTES, REQUEST_BYTES, TAIL_BYTES
from storage.object_store import PART_BYTES, SINGLE_PUT_BYTES

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

# ---- An exchange of rows between all splits. A cell is what one task reads of one file.

GETS_PER_CELL = 1  # of exactly its rows
GETS_PER_INDEX = 3  # of a task, for the places of its rows in all files
GETS_PER_HASH_FILE = 8  # of one task that reads a file of segments as a whole
GETS_PER_MERGED_FILE = 2  # the tail, and the part of a task
GETS_PER_TOKEN_CELL = 2  # of each of the two files that write_shards reads
GETS_PER_RECORD = 1  # a done-record; its task's outputs are verified with it

# ---- An object store

PUTS_PER_TASK = 1  # the done-record
REQUESTS_PER_PHASE = 1  # its summary
# Amazon S3, us-east-1, standard storage (aws.amazon.com/s3/pricing, 2026): $ per request.
GET_PRICE, PUT_PRICE = 0.40e-6, 5e-6
# Of one prefix, before S3 has divided it (docs.aws.amazon.com, "Optimizing Amazon S3 performance").
MAX_GETS_PER_S = 5_500
# Time until the first byte: a typical one, by the same page ("100-200 ms" at most).
# Cells are requested by several threads of a task, other ranges one after another.
LATENCY_S = 0.025
# CPU seconds per request (benchmarks/results/2026-11-22-object_storage.json: 0.81 s for 398).
REQUEST_CPU_S = 0.0015

# ---- Tasks and the driver

# The largest task takes this times the mean. Files of a snapshot have 65 to 80 MB, so splits of
# nine differ by less, and a hash takes a row per split at most, however often it occurs there.
LARGEST_TASK = 1.1

# Share of paragraphs that annotate removes, at most: CCNet (Wenzek et al. 2020, section 3.1) removed
# 70 %. It holds 24 bytes for each.
BYTES_PER_PARAGRAPH = 0.7 * 24

# Share of band hashes that several documents have: 1 to 10 %. An assumption, where it was not
# measured. Each of the 16 bands of a document may ask for its n-grams, 0.65 bytes per character.
SHARED_BANDS = 0.1

# Pairs of all partitions per document with near-duplicates: of 14 bands, two of them have about 10 in
# common, and clusters are small.
PAIRS_PER_DOCUMENT = 7

# From 2**32 documents with near-duplicates on, their merge holds so much more for each.
WIDE_MERGE_BYTES = 8

# Memory of the driver with Ray's processes of the head, per task, and while fuzzy_dedup sorts the
# documents to drop: 24 bytes each, and some at a time.
DRIVER_BYTES, DRIVER_BYTES_PER_TASK = 2e9, 1_000
DRIVER_BYTES_PER_DROPPED, MAX_DROPPED_BYTES = 24, 1.4e9
# Seconds of the driver per done-record (benchmarks/results/2026-11-22-driver_scale.json).
RECORD_S = 60e-6

# As `cut_by`: a file that `finish` writes, with a part for each task that reads it.
MERGED = "finish"

# The share of the documents with near-duplicates that are in a cluster of three or more, and the bytes of the
# n-grams of a document of a WET file, 0.65 per character. Assumptions, where they were not measured.
LARGER_CLUSTERS, SET_BYTES = 0.5, 3_600


@dataclass(frozen=True)
class Read:
    """How the tasks of a phase read one kind of file.

    Attributes:
        artifact: the file.
        cut_by: the phase whose tasks are ranges of the file, or MERGED. None: each task reads the
            file of its split, from its start to its end.
        gets: requests per range. Of a whole file, None: those of a sequential read.
        small_columns_of: the amount of the rows, where only columns without the text are read.
        has_crcs: its parts have CRCs of their own, so the record of its task is not read.
    """

    artifact: Artifact
    cut_by: str | None = None
    gets: int | None = None
    small_columns_of: str | None = None
    has_crcs: bool = False


@dataclass(frozen=True)
class PhaseCost:
    """What the tasks of a phase cost.

    Attributes:
        grows_with: the amount that CPU seconds and bytes written grow with.
        steps: other amounts for single steps: `read`, `write`, or the name of a stage.
        holds: amount -> memory per item that a task holds until its end.
        reads: the parents' files that the tasks read.
        count_tasks: by the config, the amounts and the number of splits, of previous runs too; to be rounded
            up. None: a task per input split, or as many as `exchanges` gives.
        exchanges: the amount of the rows that tasks exchange between all splits, by ranges.
        bytes_per_row: memory per row of a range.
        uses_scratch: whether a range is always in local scratch, not only if memory is too small.
        assumed: kind of file -> its bytes, where they were not measured.
    """

    grows_with: str = "documents"
    steps: Mapping[str, str] = field(default_factory=dict[str, str])
    holds: Mapping[str, float] = field(default_factory=dict[str, float])
    reads: tuple[Read, ...] = ()
    count_tasks: Callable[[RunConfig, Mapping[str, float], int], float] | None = None
    exchanges: str | None = None
    bytes_per_row: float = 0.0
    uses_scratch: bool = False
    assumed: Mapping[str, Line] = field(default_factory=dict[str, Line])

    def step_amount(self, step: str) -> str:
        """Return the amount that the CPU seconds of a step grow with."""
        return self.steps.get(step, self.grows_with)

    def artifact_amount(self, artifact: Artifact) -> str:
        """Return the amount that the bytes of an artifact grow with."""
        return artifact.grows_with or self.grows_with


def find_cost(phase: type[Phase]) -> PhaseCost:
    """Return what the tasks of a phase cost."""
    return COSTS.get(phase.name, PhaseCost())


def list_reads(phase: type[Phase], config: RunConfig) -> list[Read]:
    """Return what the tasks of a phase read with this config."""
    return [read for read in find_cost(phase).reads if _is_read(read, phase, config)]


def is_written(artifact: Artifact, config: RunConfig) -> bool:
    """Return whether the tasks write this file with this config."""
    minhash = config.annotate.minhash
    if artifact is Annotate.ngrams:
        return minhash is not None and minhash.store_ngrams
    return artifact is not Annotate.bands or minhash is not None


def count_sequential_gets(num_bytes: float) -> int:
    """Return the requests that read an object from its start to its end (storage/object_file.py)."""
    count, stride, left = 1, TAIL_BYTES, num_bytes - TAIL_BYTES
    while left > 0:
        count, left, stride = count + 1, left - stride, min(2 * stride, REQUEST_BYTES)
    return count


def measure_small_columns(num_bytes: float, num_rows: float) -> tuple[float, float]:
    """Return the requests and bytes that read an object's columns without the text.

    Texts larger than GAP_BYTES are skipped: each row group takes a request.
    """
    num_groups = math.ceil(num_rows / ROWS_PER_GROUP)
    if num_bytes > num_groups * (GAP_BYTES + TAIL_BYTES):
        return 1 + num_groups, (1 + num_groups) * TAIL_BYTES
    return count_sequential_gets(num_bytes), num_bytes


def count_puts(num_bytes: float) -> int:
    """Return the requests that upload a file of that size."""
    return 1 if num_bytes <= SINGLE_PUT_BYTES else math.ceil(num_bytes / PART_BYTES) + 2


def _has_rule(config: RunConfig) -> bool:
    return Rule.from_config(config) is not None


def _count_sources_compared(
    config: RunConfig, amounts: Mapping[str, float], num_sources: int
) -> int:
    """Return a task per split; 0 where no n-grams are compared."""
    del amounts
    return num_sources * _has_rule(config)


def _count_cluster_tasks(
    config: RunConfig, amounts: Mapping[str, float], num_sources: int
) -> int:
    """Return the tasks of fuzzy_dedup."""
    num_batches = max(1, math.ceil(amounts["clustered"] / MEMBERS_PER_BATCH))
    ngram_bytes = amounts["clustered"] * SET_BYTES * _has_rule(config)
    return count_tasks(num_batches, num_sources, ngram_bytes)


def _count_merged_ranges(
    config: RunConfig, amounts: Mapping[str, float], num_sources: int
) -> int:
    """Return 0 where one task can merge all pairs."""
    del num_sources
    num_pairs = math.ceil(amounts["clustered"] * PAIRS_PER_DOCUMENT)
    memory_mb = config.engine.get_memory_mb(FuzzyRanges.name)
    num_tasks = count_partitions(num_pairs, BYTES_PER_PAIR, memory_mb, NUM_RANGES)
    return num_tasks if num_tasks > 1 else 0


def _is_read(read: Read, phase: type[Phase], config: RunConfig) -> bool:
    if read.artifact is Extract.hashes and phase is ExactHashes:
        return config.exact_dedup is not None and config.exact_dedup.by == "text"
    return read.artifact is not Extract.hashes or config.paragraph_dedup.keep != "keep_all"


# The filters of select read all columns but the text.
_SCORES = Read(Annotate.documents, small_columns_of="scored")
_FILTERED = PhaseCost(
    "scored", reads=(_SCORES, Read(FuzzyDedup.dropped, MERGED, GETS_PER_MERGED_FILE))
)

_NGRAMS = Read(Annotate.ngrams, has_crcs=True)

COSTS: dict[str, PhaseCost] = {
    "extract": PhaseCost("text", steps={"read": "content"}, holds={"paragraphs": 64}),
    "exact_hashes": PhaseCost(
        holds={"documents": 16},
        reads=(
            Read(Extract.documents, small_columns_of="documents"),
            Read(Extract.hashes),
        ),
    ),
    "exact_dedup": PhaseCost(
        reads=(Read(ExactHashes.contents, "exact_dedup"),),
        exchanges="documents",
        bytes_per_row=BYTES_PER_DOCUMENT,
    ),
    "paragraph_dedup": PhaseCost(
        "distinct_paragraphs",
        reads=(Read(Extract.distinct_hashes, "paragraph_dedup"),),
        exchanges="distinct_paragraphs",
        bytes_per_row=BYTES_PER_HASH,
    ),
    "substring_hashes": PhaseCost("text", reads=(Read(Extract.documents),)),
    "substring_dedup": PhaseCost(
        "text",
        reads=(Read(SubstringHashes.windows, "substring_dedup"),),
        exchanges="text",
        bytes_per_row=BYTES_PER_WINDOW / BYTES_PER_WORD,
    ),
    "annotate": PhaseCost(
        "left",
        steps={"read": "text", "paragraphs": "text"},
        holds={"band_hashes": 64, "paragraphs": BYTES_PER_PARAGRAPH},
        reads=(
            Read(Extract.documents),
            Read(Extract.hashes, gets=GETS_PER_HASH_FILE),
            Read(ExactDedup.found, MERGED, GETS_PER_MERGED_FILE),
            Read(ParagraphDedup.found, "paragraph_dedup"),
            Read(SubstringDedup.found, "substring_dedup"),
        ),
    ),
    "fuzzy_candidates": PhaseCost(
        "band_hashes",
        reads=(Read(Annotate.bands, "fuzzy_candidates"),),
        exchanges="band_hashes",
        bytes_per_row=BYTES_PER_BAND_HASH,
        assumed={
            "candidates": Line(rate=25 * SHARED_BANDS),
            "wanted": Line(rate=8 * SHARED_BANDS),
        },
    ),
    "fuzzy_ngrams": PhaseCost(
        "left",
        reads=(Read(FuzzyCandidates.wanted, "fuzzy_candidates"), _NGRAMS),
        assumed={"sets": Line(rate=0.65 * 16 * SHARED_BANDS)},
        count_tasks=_count_sources_compared,
    ),
    "fuzzy_clusters": PhaseCost(
        "band_hashes",
        reads=(
            Read(FuzzyCandidates.candidates),
            Read(FuzzyNgrams.sets, "fuzzy_clusters"),
        ),
        exchanges="band_hashes",
        bytes_per_row=BYTES_PER_BAND_HASH,
        uses_scratch=True,
    ),
    "fuzzy_ranges": PhaseCost(
        "clustered",
        exchanges="clustered",
        bytes_per_row=PAIRS_PER_DOCUMENT * BYTES_PER_PAIR,
        reads=(Read(FuzzyClusters.forest, MERGED, NUM_RANGES),),
        count_tasks=_count_merged_ranges,
    ),
    "fuzzy_merge": PhaseCost(
        "clustered",
        holds={"clustered": HELD_BYTES},
        reads=(Read(FuzzyRanges.forest, MERGED, NUM_RANGES),),
        count_tasks=lambda *_: 1,
    ),
    "fuzzy_members": PhaseCost(
        "clustered",
        reads=(Read(FuzzyMerge.clusters, MERGED, GETS_PER_MERGED_FILE),),
        assumed={"wanted": Line(rate=8 * LARGER_CLUSTERS)},
        count_tasks=lambda config, amounts, num_sources: (
            _count_cluster_tasks(config, amounts, num_sources) if _has_rule(config) else 0
        ),
    ),
    "fuzzy_member_ngrams": PhaseCost(
        "clustered",
        reads=(Read(FuzzyMembers.wanted, "fuzzy_members"), _NGRAMS),
        assumed={"sets": Line(rate=SET_BYTES * LARGER_CLUSTERS)},
        count_tasks=_count_sources_compared,
    ),
    "fuzzy_dedup": PhaseCost(
        "clustered",
        holds={"clustered": 100},
        reads=(
            Read(FuzzyMerge.clusters, MERGED, GETS_PER_MERGED_FILE),
            Read(FuzzyMemberNgrams.sets, "fuzzy_members"),
        ),
        count_tasks=_count_cluster_tasks,
        uses_scratch=True,
    ),
    "signal_percentiles": PhaseCost("scored", reads=(_SCORES,)),
    "percentiles": _FILTERED,
    "mix_percentiles": _FILTERED,
    "select": replace(_FILTERED, holds={"scored": 100}),
    "tokenize": PhaseCost(
        "tokens",
        steps={"read": "left"},
        holds={"tokens": 4},
        reads=(
            Read(Annotate.documents),
            Read(Select.decisions),
            Read(Select.scores),
        ),
    ),
    "write_shards": PhaseCost(
        "tokens",
        holds={"tokens": BYTES_PER_TOKEN},
        reads=(
            Read(TokenizeDocuments.tokens, "write_shards", GETS_PER_TOKEN_CELL),
            Read(TokenizeDocuments.documents, "write_shards", GETS_PER_TOKEN_CELL),
        ),
        count_tasks=lambda config, amounts, _: (
            amounts["tokens"] / config.write_shards.shard_tokens
        ),
        uses_scratch=True,
    ),
}
