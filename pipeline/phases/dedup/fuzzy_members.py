"""The phases fuzzy_members and fuzzy_member_ngrams: send the n-grams of clusters whose documents are still to be compared.

fuzzy_merge: clusters.arrow ──▶ p000of002.wanted.arrow ──▶ s000000.sets.arrow ──▶ fuzzy_dedup
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.fuzzy_candidates import Rule
from pipeline.phases.dedup.merge_clusters import FuzzyMerge
from pipeline.phases.dedup.sent_ngrams import SETS, WANTED, SendNgrams, WantedSets
from pipeline.phases.phase import PartitionPhase
from stages.contract import Counters
from stages.dedup.minhash import flatten_lists


class FuzzyMembers(PartitionPhase):
    """List the documents that fuzzy_dedup compares, by its tasks."""

    name = "fuzzy_members"
    section = "fuzzy_dedup"
    version = 1
    parents = (Annotate, FuzzyMerge)

    # a segment per source
    wanted = Artifact("wanted.arrow", WANTED, last_use="run", has_segments=True)

    def task_ids(self) -> list[str]:
        """Return the ids of the tasks of fuzzy_dedup; none without a rule."""
        has_rule = Rule.from_config(self.config) is not None
        return list(FuzzyMerge(self.plan).batches_of_tasks) if has_rule else []

    def run(self, task_id: str) -> None:
        """Write the places of the documents' n-grams."""
        rule = Rule.from_config(self.config)
        assert rule is not None
        counters, wanted = Counters(), WantedSets()
        merge = FuzzyMerge(self.plan)
        for index in merge.batches_of_tasks[task_id]:
            clusters = merge.read_clusters(index)
            compared = clusters.filter(pa.array(~are_decided(clusters, rule)))
            (_, documents), (_, places) = map(
                flatten_lists, (compared["documents"], compared["ngrams"])
            )
            wanted.add(documents, places)
        with self.folder.commit(task_id) as output:
            num_wanted = wanted.write(self, output, self.wanted.file_name(task_id))
            counters.add("sets_wanted", num_wanted)
            output.record = {"counters": counters.to_json()}


class FuzzyMemberNgrams(SendNgrams):
    """Send the n-grams of the documents that fuzzy_dedup compares."""

    name = "fuzzy_member_ngrams"
    section = "fuzzy_dedup"
    version = 1
    parents = (Annotate, FuzzyMembers)
    asked_by = (FuzzyMembers, FuzzyMembers.wanted)

    sets = Artifact("sets.arrow", SETS, last_use="run", has_segments=True)


def are_decided(clusters: pa.RecordBatch, rule: Rule | None) -> NDArray[np.bool_]:
    """Return whether it is known without n-grams that the first document represents the others, (n,)."""
    if rule is None:
        return np.ones(clusters.num_rows, np.bool_)
    # That one of the two contains the other does not say which one.
    was_compared = clusters["was_compared"].to_numpy(zero_copy_only=False)
    return was_compared & (not rule.must_contain)
