"""The phase paragraph_dedup: find paragraphs that occur more than once, over the whole crawl or in groups of splits.

A split sends each different hash once, and gets one bit for it: whether the rule removes it because of other splits. So
a paragraph that is on every page takes as many rows as there are splits. What happens inside of a split is decided
there, when its documents are read.

    extract: SPLIT.distinct_hashes.arrow ──▶ p000of002.repeated.arrow: a bit per hash of each split ──┐
             SPLIT.hashes.arrow ──────────────────────────────────────────────────────────────────────┴▶ annotate

The result depends on the paragraphs and the rule alone, not on the number of partitions. Paragraphs of previous runs
come before all of this run, in each of its groups. Paragraphs of exact copies of documents are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.exact_dedup import ExactDedup
from pipeline.phases.dedup.hash_phase import FindingPhase, Prepare, mask_rows
from pipeline.phases.extract import Extract, select_distinct
from pipeline.phases.previous_runs import find_other_version, find_unreadable
from pipeline.runs.exchange import (
    ExchangedFiles,
    Partition,
    count_partitions,
    find_bounds,
    join_batches,
    name_partitions,
    read_file,
)
from pipeline.runs.run_folder import RunFolder
from stages.dedup.duplicate_lines import find_duplicates
from stages.dedup.paragraphs import ParagraphHashes

# Memory of a partition per hash: 8 as read, 1 for the result, and 3 for one file and one chunk.
BYTES_PER_HASH = 12

# Of each hash that a split sends, in their order.
REPEATED = pa.schema([pa.field("is_repeated", pa.bool_())])


class ParagraphDedup(FindingPhase):
    """Find the hashes to remove, by ranges of hash space, in each group of splits.

    Source of the rule: CCNet (Wenzek et al. 2020, section 3.1; cc_net/dedup.py), see
    stages/dedup/duplicate_lines.py:find_duplicates.
    """

    name = "paragraph_dedup"
    version = 3
    parents = (Extract, ExactDedup)
    compared = (Extract.distinct_hashes, "distinct_paragraphs")
    bytes_per_row = BYTES_PER_HASH

    # a segment per split of the group
    found = Artifact("repeated.arrow", REPEATED, last_use="run", has_segments=True)

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return extract: its paragraphs there are compared too."""
        return () if config.paragraph_dedup.keep == "keep_all" else (Extract.name,)

    @classmethod
    def check_previous_run(cls, config: RunConfig, run: RunFolder) -> Iterator[str]:
        """Yield the reasons why paragraphs cannot be compared."""
        if config.paragraph_dedup.keep != "keep_all":
            yield from find_unreadable(run, Extract.distinct_hashes)
            yield from find_other_version(run, Extract.name, ParagraphHashes)

    def task_ids(self) -> list[str]:
        """Return the names of all partitions of all groups; none if duplicate paragraphs are kept."""
        if self.config.paragraph_dedup.keep == "keep_all":
            return []
        names = name_partitions(self.num_partitions)
        return [
            _name_task(group, name) for group in range(len(self.groups)) for name in names
        ]

    @cached_property
    def groups(self) -> list[tuple[InputSplit, ...]]:
        """The splits whose paragraphs are compared with each other."""
        splits = self.plan.splits
        group_splits = self.config.paragraph_dedup.group_splits or max(1, len(splits))
        return [splits[i : i + group_splits] for i in range(0, len(splits), group_splits)]

    @cached_property
    def num_partitions(self) -> int:
        """The number of partitions of a group. Each partition fits into the memory of a task."""
        if self.folder.is_complete():
            # As many as there were: `engine.memory_mb` may be another one by now.
            return self.folder.summary()["task_ids"] // len(self.groups)
        counts, num_previous = (
            self.counts(Extract.name, "distinct_paragraphs"),
            len(self.plan.previous_splits),
        )
        sizes = [
            sum(counts[num_previous + split.index] for split in group)
            for group in self.groups
        ]
        num_hashes = sum(counts[:num_previous]) + max(sizes, default=0)
        num_files = num_previous + len(self.groups[0])
        memory_mb = self.config.engine.memory_mb
        return count_partitions(num_hashes, BYTES_PER_HASH, memory_mb, num_files)

    def choose_files(self, task_id: str) -> tuple[ExchangedFiles, Prepare | None]:
        """Return the files of all previous splits and of the splits of a group."""
        splits = self.groups[int(task_id.split("-", maxsplit=1)[0].removeprefix("g"))]
        *tasks, (folder, _) = self.list_sources()
        tasks.append((folder, [split.key for split in splits]))
        if self.config.exact_dedup is None:
            return ExchangedFiles(tasks, Extract.distinct_hashes), None
        num_previous = len(self.plan.previous_splits)

        def select(index: int, rows: pa.RecordBatch) -> pa.RecordBatch:
            """Return each hash of the documents that exact_dedup keeps, once."""
            if index >= num_previous:
                copies = ExactDedup(self.plan).find_copies(splits[index - num_previous])
                rows = _leave_out(copies, rows)
            return select_distinct(rows)

        return ExchangedFiles(tasks, Extract.hashes), select

    def find(self, part: Partition) -> Sequence[pa.RecordBatch]:
        """Return whether each hash of each split is removed because of other splits."""
        keep = self.config.paragraph_dedup.keep
        assert keep != "keep_all"
        # Each file takes the place of a document, because it has each hash once.
        masks = mask_rows(part, lambda chunk: find_duplicates(*part.gather(chunk), keep))
        own = masks[len(self.plan.previous_splits) :]
        return [pa.record_batch([pa.array(mask)], schema=REPEATED) for mask in own]

    def count(self, segment: pa.RecordBatch) -> dict[str, int]:
        """Return the number of hashes, and of those that are removed."""
        num_repeated = pc.sum(segment["is_repeated"]).as_py() or 0
        return {
            "distinct_paragraphs": segment.num_rows,
            "distinct_paragraphs_repeated": num_repeated,
        }

    def find_duplicate_lines(self, split: InputSplit) -> NDArray[np.uint64]:
        """Return record << 32 | line of every line of a split to remove, sorted."""
        if self.config.paragraph_dedup.keep == "keep_all":
            return np.empty(0, np.uint64)
        is_repeated = self._read_repeated(split)
        found = [np.empty(0, np.uint64)]
        num_read = 0  # different hashes
        copies = ExactDedup(self.plan).find_copies(split)
        for segment in read_file(self.plan.folder(Extract.name), Extract.hashes, split.key):
            rows = _leave_out(copies, segment)
            bounds = find_bounds(rows["hash"].to_numpy())
            here = is_repeated[num_read : num_read + len(bounds) - 1]
            found.append(self._select_lines(rows, bounds, here))
            num_read += len(here)
        return np.sort(np.concatenate(found))

    def _read_repeated(self, split: InputSplit) -> NDArray[np.bool_]:
        """Return whether each hash of a split is removed because of other splits."""
        group = split.index // len(self.groups[0])
        index = split.index - self.groups[group][0].index
        names = [_name_task(group, name) for name in name_partitions(self.num_partitions)]
        files = ExchangedFiles([(self.folder, names)], self.found)
        rows = join_batches(REPEATED, list(files.read_rows(files.find(index, index + 1))))
        return rows["is_repeated"].to_numpy(zero_copy_only=False)

    def _select_lines(
        self,
        rows: pa.RecordBatch,
        bounds: NDArray[np.int64],
        is_repeated: NDArray[np.bool_],
    ) -> NDArray[np.uint64]:
        """Return the lines to remove.

        Args:
            rows: paragraphs, sorted by hash, as HASHES.
            bounds: (n + 1,) the start of each hash's rows.
            is_repeated: (n,) whether a hash is removed because of other splits.
        """
        records = rows["record"].to_numpy().astype(np.uint64)
        lines = records << np.uint64(32) | rows["line"].to_numpy()
        keeps_first = ~is_repeated
        if self.config.paragraph_dedup.keep == "drop_all_copies":
            keeps_first &= records[bounds[:-1]] == records[bounds[1:] - 1]  # one document
        is_removed = np.ones(len(lines), np.bool_)
        is_removed[bounds[:-1][keeps_first]] = False
        return lines[is_removed]


def _leave_out(copies: pa.RecordBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return paragraphs without those of documents that exact_dedup drops."""
    if not copies.num_rows:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows["record"], value_set=copies["record"])))


def _name_task(group: int, partition: str) -> str:
    return f"g{group:03d}-{partition}"
