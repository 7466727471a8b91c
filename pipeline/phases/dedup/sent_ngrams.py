"""The n-gram sets that tasks compare: each split's file is read once, and its sets are sent.

A phase lists the sets that each of its tasks wants, as WANTED. A task for each split, also of previous runs, reads
them from its file in order. The tasks that compare them keep them in a local file.

    fuzzy_candidates: p000of002.wanted.arrow, a segment per source ──┐
    annotate: SPLIT.ngrams.bin ──────────────────────────────────────┴▶ fuzzy_ngrams: s000000.sets.arrow, a segment per task
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.phase import PartitionPhase
from pipeline.runs.exchange import ExchangedFiles, SegmentWriter
from pipeline.runs.ngram_sets import LocalSets, make_keys, read_places
from pipeline.runs.phase_folder import PendingOutput
from stages.dedup.minhash import flatten_lists

# The places of the sets of one source that a task wants, sorted, each once.
WANTED = pa.schema([pa.field("place", pa.uint64())])

# The sets that one source sends to one task, in the order of their places.
SETS = pa.schema(
    [pa.field("place", pa.uint64()), pa.field("ngram_set", pa.large_list(pa.uint32()))]
)


class WantedSets:
    """The sets that a task wants, collected part by part."""

    def __init__(self) -> None:
        self._parts = [np.empty((0, 2), np.uint64)]  # key and place

    def add(self, documents: NDArray[np.uint64], places: NDArray[np.uint64]) -> None:
        """Add the sets of documents, (n,) index of the source << 32 | record."""
        keys, rows = np.unique(make_keys(documents, places), return_index=True)
        self._parts.append(np.stack([keys, places[rows]], axis=1))

    def write(self, phase: PartitionPhase, output: PendingOutput, name: str) -> int:
        """Write a file of WANTED with a segment per source; return the number of sets."""
        keys, places = np.concatenate(self._parts).T
        keys, rows = np.unique(keys, return_index=True)
        places = places[rows]
        sources = np.arange(len(phase.sources(Annotate.name)) + 1, dtype=np.uint64)
        bounds = np.searchsorted(keys, sources << np.uint64(32)).tolist()
        with SegmentWriter(output, name, WANTED) as file:
            for start, end in itertools.pairwise(bounds):
                file.write(pa.record_batch([places[start:end]], schema=WANTED))
        return len(places)


class SendNgrams(PartitionPhase):
    """A phase that reads the n-grams of each split once, and writes for each task the sets that it wants.

    Class attributes:
        asked_by: the phase whose tasks want sets, and its files of WANTED.
        sets: the files of SETS, with a segment per task of that phase.
    """

    asked_by: ClassVar[tuple[type[PartitionPhase], Artifact]]
    sets: ClassVar[Artifact]

    def task_ids(self) -> list[str]:
        """Return a name per split, of previous runs first; none where nothing is wanted."""
        asking, _ = self.asked_by
        if not asking(self.plan).counters().counts.get("sets_wanted"):
            return []
        return [f"s{index:06d}" for index in range(len(self.sources(Annotate.name)))]

    def run(self, task_id: str) -> None:
        """Write the sets of one source that tasks want."""
        source = int(task_id.removeprefix("s"))
        asking, artifact = self.asked_by
        phase = asking(self.plan)
        files = ExchangedFiles([(phase.folder, phase.task_ids())], artifact)
        wanted = [
            rows["place"].to_numpy()
            for rows in files.read_rows(files.find(source, source + 1))
        ]
        folder, key = self.sources(Annotate.name)[source]
        found = read_places(
            folder, Annotate.ngrams.file_name(key), np.unique(np.concatenate(wanted))
        )
        with self.folder.scratch(task_id) as scratch, self.folder.commit(task_id) as output:
            sets = LocalSets(scratch / "sets.bin", ((0, *some) for some in found))
            with SegmentWriter(output, self.sets.file_name(task_id), SETS) as file:
                for places in wanted:
                    starts, values = sets.read(np.zeros_like(places), places)
                    ngrams = pa.LargeListArray.from_arrays(starts, values)
                    file.write(pa.record_batch([pa.array(places), ngrams], schema=SETS))

    @contextlib.contextmanager
    def receive(self, reader: PartitionPhase, task_id: str) -> Generator[LocalSets | None]:
        """Keep the sets that a task of `reader` wants in a local file; None where no task wants any."""
        sources = self.task_ids()
        if not sources:
            yield None
            return
        index = self.asked_by[0](self.plan).task_ids().index(task_id)
        files = ExchangedFiles([(self.folder, sources)], self.sets)
        sent = (
            (source, rows["place"].to_numpy(), flatten_lists(rows["ngram_set"])[1])
            for source, rows in enumerate(files.read_rows(files.find(index, index + 1)))
        )
        with reader.folder.scratch(task_id) as folder:
            yield LocalSets(folder / "sets.bin", sent)
