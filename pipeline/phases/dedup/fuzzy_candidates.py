"""The phases fuzzy_candidates and fuzzy_ngrams: find the documents that may be similar, and send their n-grams.

Documents that share a band hash are candidates. A task reads one range of the band hashes of all splits. Of the documents
that share one, it wants only those n-gram sets that another set in their group can be similar to (sent_ngrams.py).

    annotate: SPLIT.bands.arrow ──▶ p000of002.candidates.arrow  p000of002.wanted.arrow
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.hash_phase import HashPhase
from pipeline.phases.dedup.sent_ngrams import SETS, WANTED, SendNgrams, WantedSets
from pipeline.phases.previous_runs import (
    find_other_version,
    find_unfinished,
    find_unreadable,
)
from pipeline.runs.exchange import (
    Partition,
    take_rows,
)
from pipeline.runs.ngram_sets import count_ngrams
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters
from stages.dedup import connected_components as components
from stages.dedup.candidate_groups import divide_groups, find_comparable
from stages.dedup.minhash import MinHash, MinHashSettings, compute_bands

# Memory of a partition per band hash if all documents are near-duplicates: 28 as read; then 32 for
# group, score and place, and as much again while they are written. The rest is for their keys.
BYTES_PER_BAND_HASH = 112

# Candidates, group after group, by ids in the order of `sources`. A document with a higher score is
# preferred. `place` is that of its n-grams; 0 without a rule. A batch has the groups whose n-grams a task
# can hold at a time.
CANDIDATES = pa.schema(
    [
        pa.field("document", pa.uint64()),
        pa.field("score", pa.float64()),
        pa.field("place", pa.uint64()),
        pa.field("is_first_of_group", pa.bool_()),
    ]
)

# Documents of all groups, group after group; the sizes of the groups; and the ranking value
# of each document, and the place of its n-grams.
Groups = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[Any], NDArray[np.uint64]]


@dataclass(frozen=True)
class Rule:
    """When two documents with a common band are similar.

    Attributes:
        min_jaccard: Jaccard similarity that they reach; 0: any.
        must_contain: the representative contains all n-grams of the document that is dropped.
    """

    min_jaccard: float
    must_contain: bool

    @classmethod
    def from_config(cls, config: RunConfig) -> Rule | None:
        """Return the rule of the config; None: candidates are not compared."""
        dedup, minhash = config.fuzzy_dedup, config.annotate.minhash
        if dedup is None or minhash is None or dedup.rule is None:
            return None
        threshold = dedup.threshold or minhash.threshold
        return cls(
            min_jaccard=0.0 if dedup.rule == "contained" else threshold,
            must_contain=dedup.rule != "jaccard",
        )


class FuzzyCandidates(HashPhase):
    """Find documents that share a band hash, by ranges of band hashes."""

    name = "fuzzy_candidates"
    section = "fuzzy_dedup"
    version = 1
    parents = (Annotate,)
    compared = (Annotate.bands, "band_hashes")
    bytes_per_row = BYTES_PER_BAND_HASH

    candidates = Artifact("candidates.arrow", CANDIDATES, last_use="run")
    # a segment per source
    wanted = Artifact("wanted.arrow", WANTED, last_use="run", has_segments=True)

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return annotate, for its band hashes and n-grams."""
        return (Annotate.name,) if cls.is_enabled(config) else ()

    @classmethod
    def check_previous_run(cls, config: RunConfig, run: RunFolder) -> Iterator[str]:
        """Yield the reasons why documents cannot be compared."""
        if config.fuzzy_dedup is None:
            return
        ours, theirs = config.annotate.minhash, run.config.annotate.minhash
        assert ours is not None, "the config requires it"
        if theirs is None:
            yield (
                "its annotate.minhash is null, so it has no signatures; "
                "run it again with annotate.minhash: {...}"
            )
            return
        yield from find_unreadable(run, Annotate.bands)
        yield from find_unfinished(run, "fuzzy_dedup")
        yield from find_other_version(run, Annotate.name, MinHash)
        yield from _compare_minhash(ours, theirs, config.fuzzy_dedup.rule is not None)

    def run(self, task_id: str) -> None:
        """Read one range of the band hashes of all splits, and write the documents to compare."""
        counters, wanted = Counters(), WantedSets()
        with self.folder.commit(task_id) as output:
            path = output.path(self.candidates.file_name(task_id))
            with pa.ipc.new_file(path, CANDIDATES) as file:
                for part in self.read_parts(task_id):
                    counters.add("band_hashes", sum(rows.num_rows for rows in part.files))
                    for batch in self._find_candidates(part, counters):
                        file.write_batch(batch)
                        if Rule.from_config(self.config) is not None:
                            wanted.add(
                                batch["document"].to_numpy(), batch["place"].to_numpy()
                            )
            num_wanted = wanted.write(self, output, self.wanted.file_name(task_id))
            counters.add("sets_wanted", num_wanted)
            output.record = {"counters": counters.to_json()}

    def _find_candidates(
        self, part: Partition, counters: Counters
    ) -> Iterator[pa.RecordBatch]:
        """Yield the groups of a part, as CANDIDATES."""
        documents, sizes, values, places = self._find_groups(part)
        counters.add("band_hashes_shared", len(documents))
        starts = np.append(0, np.cumsum(sizes))
        num_ngrams = count_ngrams(places)
        rule = Rule.from_config(self.config)
        rows = np.arange(len(documents))
        if rule is not None:
            rows, starts = find_comparable(documents, starts, num_ngrams, rule.min_jaccard)
        is_first = np.zeros(len(rows), np.bool_)
        is_first[starts[:-1]] = True
        memory_mb = self.config.engine.memory_mb
        for some in divide_groups(starts, num_ngrams[rows], memory_mb):
            here = slice(starts[some.start], starts[some.stop])
            chosen = rows[here]
            scores = self._compute_scores(values[chosen])
            columns = [documents[chosen], scores, places[chosen], is_first[here]]
            yield pa.record_batch([pa.array(each) for each in columns], schema=CANDIDATES)

    def _find_groups(self, part: Partition) -> Groups:
        """Return the documents of a part that share a band hash."""
        num_previous = len(self.plan.previous_splits)
        values = [self._read_values(i, rows) for i, rows in enumerate(part.files)]
        places = [self._read_places(rows) for rows in part.files]
        found: list[Groups] = []
        for chunk in part.chunks():
            hashes, ids = part.gather(chunk)
            rows, starts = components.group_equal_hashes(hashes, np.arange(len(ids)))
            if num_previous:
                # Groups inside previous runs were decided there.
                is_own = ids[rows[starts[1:] - 1]] >= num_previous << 32
                rows, starts = components.select_groups(rows, starts, is_own)
            ranking, found_places = (
                take_rows(columns, chunk)[rows] for columns in (values, places)
            )
            found.append((ids[rows], np.diff(starts), ranking, found_places))
        documents, sizes, ranking, found_places = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        return documents, sizes, ranking, found_places

    def _read_values(self, index: int, rows: pa.RecordBatch) -> NDArray[Any]:
        """Return the values that rank the documents of a file, shape (n,).

        They are 0 for previous runs, whose documents always come first.
        """
        assert self.config.fuzzy_dedup is not None
        keep = self.config.fuzzy_dedup.keep
        if keep == "first" or index < len(self.plan.previous_splits):
            return np.broadcast_to(np.float32(0), rows.num_rows)
        column = rows["num_chars" if keep == "longest" else "perplexity"]
        return column.to_numpy(zero_copy_only=False)

    def _read_places(self, rows: pa.RecordBatch) -> NDArray[np.uint64]:
        """Return the places of the documents' n-grams, shape (n,); 0 without a rule."""
        if Rule.from_config(self.config) is None:
            return np.broadcast_to(np.uint64(0), rows.num_rows)
        return rows["ngrams"].to_numpy()

    def _compute_scores(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return scores that rise with the number of characters, or fall with the perplexity."""
        assert self.config.fuzzy_dedup is not None
        scores = values.astype(np.float64)
        if self.config.fuzzy_dedup.keep != "best":
            return scores
        # A document without a perplexity has NaN here, and gets 0: the comparison is false.
        return np.divide(1.0, scores, out=np.zeros_like(scores), where=scores > 0)


class FuzzyNgrams(SendNgrams):
    """Send the n-grams of candidates."""

    name = "fuzzy_ngrams"
    section = "fuzzy_dedup"
    version = 1
    parents = (Annotate, FuzzyCandidates)
    asked_by = (FuzzyCandidates, FuzzyCandidates.wanted)

    sets = Artifact("sets.arrow", SETS, last_use="run", has_segments=True)


def _compare_minhash(
    ours: MinHashSettings, theirs: MinHashSettings, are_compared: bool
) -> Iterator[str]:
    for name in ("num_permutations", "ngram_words"):
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            yield (
                f"its annotate.minhash.{name} is {there}, ours {here}: "
                f"their signatures cannot be compared"
            )
    if compute_bands(ours) != compute_bands(theirs):
        yield (
            f"its annotate.minhash.threshold is {theirs.threshold} (bands and rows "
            f"{compute_bands(theirs)}), ours {ours.threshold} ({compute_bands(ours)}): bands with another "
            f"number of rows never have equal hashes"
        )
    if are_compared and not theirs.store_ngrams:
        yield (
            "its annotate.minhash.store_ngrams is false: it has not stored the n-grams that "
            "our fuzzy_dedup.rule compares"
        )
