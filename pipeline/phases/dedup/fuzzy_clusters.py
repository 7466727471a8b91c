"""The phase fuzzy_clusters: compare candidates for near-duplicates, and find pairs of similar documents.

Similar pairs, also of other partitions, connect the documents of a cluster (merge_clusters.py). Which of them are dropped
is decided in fuzzy_dedup.

    fuzzy_candidates: candidates.arrow ──▶ p000of002.forest.arrow: pairs, scores
    fuzzy_ngrams: sets.arrow               p001of002.forest.arrow: pairs, scores

The place of a set is stored beside the band hashes, and goes with the document to fuzzy_dedup (pipeline/runs/ngram_sets.py).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.fuzzy_candidates import FuzzyCandidates, FuzzyNgrams, Rule
from pipeline.phases.dedup.merge_forests import (
    FOREST,
    Components,
    Forest,
    list_stars,
)
from pipeline.phases.phase import PartitionPhase
from pipeline.runs.exchange import SegmentWriter, name_partitions, write_by_hash
from pipeline.runs.ngram_sets import LocalSets
from stages.contract import Counters
from stages.dedup import connected_components as components
from stages.kernels.dedup import near_duplicates as kernel


class FuzzyClusters(PartitionPhase):
    """Find pairs of similar documents by ranges of band hashes, and join them to clusters."""

    name = "fuzzy_clusters"
    section = "fuzzy_dedup"
    version = 3
    parents = (Annotate, FuzzyCandidates, FuzzyNgrams)

    # sorted by the hash of the lowest document of each tree
    forest = Artifact("forest.arrow", FOREST, last_use="run", has_segments=True)

    def task_ids(self) -> list[str]:
        """Return the names of the partitions."""
        if self.folder.is_complete():
            return name_partitions(self.folder.summary()["task_ids"])
        return FuzzyCandidates(self.plan).task_ids()

    def run(self, task_id: str) -> None:
        """Compare the candidates of a partition, and write a spanning forest of its pairs, with scores."""
        candidates = FuzzyCandidates(self.plan)
        name = candidates.candidates.file_name(task_id)
        with (
            FuzzyNgrams(self.plan).receive(self, task_id) as sets,
            candidates.folder.open(name) as source,
        ):
            file = pa.ipc.open_file(source)
            batches = map(file.get_batch, range(file.num_record_batches))
            found = [self._find_pairs(batch, sets) for batch in batches]
        stars = list_stars(Components.merge(lambda: found))
        counters = Counters()
        counters.add("pairs", stars.num_rows)
        with self.folder.commit(task_id) as output:
            with SegmentWriter(output, self.forest.file_name(task_id), FOREST) as file:
                write_by_hash(file, stars)
            output.record = {"counters": counters.to_json()}

    def _find_pairs(self, candidates: pa.RecordBatch, sets: LocalSets | None) -> Forest:
        """Return pairs that connect the similar documents of each group, or all of them without a rule."""
        documents, scores, places, is_first = (
            column.to_numpy(zero_copy_only=False) for column in candidates.columns
        )
        starts = np.append(np.flatnonzero(is_first), len(documents))
        rule = Rule.from_config(self.config)
        if rule is None or sets is None:
            pairs = components.pair_with_first(documents, starts)
        else:
            pairs = kernel.find_similar_pairs(
                documents,
                starts,
                *sets.read(documents, places),
                rule.min_jaccard,
                rule.must_contain,
            )
        ids, firsts = np.unique(documents, return_index=True)
        rows = firsts[np.searchsorted(ids, pairs)]
        return pairs, scores[rows], places[rows]
