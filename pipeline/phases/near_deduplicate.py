"""near_deduplicate: which documents have to go because another says nearly the same, over the whole crawl.

Promises: documents with a band hash in common, and whoever hangs on them, are one group, of which one document stays;
the answer depends on the signatures and the rule alone, not on the number of partitions. A partition's memory is
bounded by `engine.memory_mb`; the merge holds one partition's pairs at a time, and parents in a sparse file of 8 bytes
per record of the input, of which only the pages with near-duplicates are ever written.
Leaves to others: signatures and bands (stages/minhash.py), forests and components (stages/components.py), dropping
(select). Thresholds on scores have no say in who stays: docs/decisions/0006-near-duplicates-before-thresholds.md.

    annotate: <unit>.bands.arrow ──▶ p000of002: pairs, a forest ──┐
                                     p001of002: pairs, a forest ──┴▶ finish: near_duplicates.arrow, a batch per unit
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.inputs import Unit
from pipeline.phases.annotate import bands_file, documents_file, signatures_file
from pipeline.phases.base import PartitionPhase
from pipeline.phases.buckets import bucket_range, partition_names, partitions_for, read_buckets
from stages import components
from stages.components import Pairs
from stages.contract import Tally

BYTES_PER_BAND_HASH = 128
"""Memory of a partition per band hash where all are near-duplicates: 12 as read, 16 for its pair, six times that while
the forest is made. Measured where one document in ten is: 23."""

SIGNATURES_AT_A_TIME = 2**16
"""Documents whose signatures `verify` holds at a time (512 bytes each by default), or one group if that is larger."""

NEAR_DUPLICATES = pa.schema([pa.field("record", pa.uint32()), pa.field("representative", pa.uint64())])
"""Of a unit, sorted: the record number of a document that has to go, and the doc_id of the one that stays."""

_MERGE = "near_duplicates"


class NearDeduplicate(PartitionPhase):
    """Which documents have to go because another says nearly the same, by ranges of band hashes."""

    name = "near_deduplicate"

    def works(self) -> list[str]:
        """As many partitions as the band hashes, counted by annotate, need; none where the phase is off."""
        return partition_names(self.num_partitions)

    @cached_property
    def num_partitions(self) -> int:
        """So many that one fits into a task's memory."""
        if self.config.near_deduplicate is None:
            return 0
        annotated = self.plan.folder("annotate")
        records = annotated.records(unit.key for unit in self.plan.units)
        counts = [record["tally"]["counts"].get("band_hashes", 0) for record in records]
        return partitions_for(sum(counts), BYTES_PER_BAND_HASH, self.config.engine.memory_mb)

    def run(self, work: str) -> None:
        """Read one range of every unit's band hashes and write a forest of the pairs in it."""
        annotated, buckets = self.plan.folder("annotate"), bucket_range(work)
        batches = [read_buckets(annotated.open(bands_file(unit.key)), *buckets) for unit in self.plan.units]
        found: list[Pairs] = [np.empty((0, 2), np.uint64)]
        tally = Tally()
        for bucket in zip(*batches, strict=True):  # one range of hashes, from every unit
            units = np.repeat(np.arange(len(bucket), dtype=np.uint64), [batch.num_rows for batch in bucket])
            records = np.concatenate([batch["record"].to_numpy() for batch in bucket])
            hashes = np.concatenate([batch["hash"].to_numpy() for batch in bucket])
            groups = components.groups_of_equal(hashes, units << np.uint64(32) | records)
            found.append(self._pairs(*groups))
            tally.add("band_hashes", len(hashes))
            tally.add("band_hashes_shared", len(groups[0]))
        forest = components.spanning_forest(np.concatenate(found))
        with self.folder.commit(work) as task:
            np.save(task.path(f"{work}.forest.npy"), forest)
            task.record = {"tally": tally.to_json()}

    def _pairs(self, documents: NDArray[np.uint64], starts: NDArray[np.int64]) -> Pairs:
        """The pairs of one bucket's groups that count."""
        settings = self.config.annotate.minhash
        assert settings is not None
        if not settings.verify:
            return components.stars(documents, starts)
        min_equal = settings.threshold * settings.num_permutations
        return np.concatenate(
            [
                np.empty((0, 2), np.uint64),
                *(
                    components.similar_pairs(some, begins, self._signatures(some), min_equal)
                    for some, begins in _in_pieces(documents, starts, SIGNATURES_AT_A_TIME)
                ),
            ]
        )

    def _signatures(self, documents: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """The signatures of documents, read where they lie."""
        settings = self.config.annotate.minhash
        assert settings is not None
        signatures = np.empty((len(documents), settings.num_permutations), np.uint32)
        units, records = documents >> np.uint64(32), documents.astype(np.uint32)
        for index in np.unique(units):
            name = signatures_file(self.plan.units[int(index)].key)
            mine = np.flatnonzero(units == index)
            with self.plan.folder("annotate").map(name) as source:
                stored = pa.ipc.open_file(source).get_batch(0)
                rows = np.searchsorted(stored["record"].to_numpy(), records[mine])
                values = stored["signature"].flatten().to_numpy().reshape(-1, settings.num_permutations)
                signatures[mine] = values[rows]
        return signatures

    def finish(self) -> None:
        """Merge the forests into components, and write for each unit who has to go, and who stays in its place."""
        if self.config.near_deduplicate is None:
            return
        with self.folder.commit(_MERGE) as task:
            files = [task.path("parents"), task.path("chosen"), task.path("best")]
            parents, chosen, best = (_zeros(file, int(self._starts[-1])) for file in files)
            for work in self.works():
                with self.folder.open(f"{work}.forest.npy") as file:
                    forest = np.load(file)
                components.unite(parents, self._positions(forest).astype(np.uint64))
            components.choose_roots(parents, chosen)
            for unit in self.plan.units if self.config.near_deduplicate.keep != "first" else ():
                components.choose_best(parents, chosen, best.view(np.float64), *self._scores(unit))
            tally = self._write(task.path(f"{_MERGE}.arrow"), parents, chosen)
            task.record = {"tally": tally.to_json()}
            for file in files:
                file.unlink()

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """(num_units + 1,) the position of each unit's first record among all records of the run."""
        extracted = self.plan.folder("extract")
        records = extracted.records(unit.key for unit in self.plan.units)
        counts = [record["tally"]["counts"].get("num_records", 0) for record in records]
        return np.append(0, np.cumsum(counts)).astype(np.int64)

    def _positions(self, doc_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        return self._starts[(doc_ids >> np.uint64(32)).astype(np.int64)] + doc_ids.astype(np.uint32)

    def _doc_ids(self, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        units = np.searchsorted(self._starts, positions, side="right") - 1
        return units.astype(np.uint64) << np.uint64(32) | (positions - self._starts[units]).astype(np.uint64)

    def _scores(self, unit: Unit) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Positions of a unit's documents, and how much each is wanted to stay: 0 where nothing speaks for it."""
        with self.plan.folder("annotate").open(documents_file(unit.key)) as file:
            names = [name for name in ("doc_id", "num_chars", "perplexity") if name in pq.read_schema(file).names]
            table = pq.read_table(file, columns=names)
        if self.config.near_deduplicate is not None and self.config.near_deduplicate.keep == "longest":
            scores = pc.cast(table.column("num_chars"), pa.float64())
        elif "perplexity" in names:
            scores = pc.fill_null(pc.divide(1.0, table.column("perplexity")), 0.0)
        else:
            scores = pa.nulls(table.num_rows, pa.float64()).fill_null(0.0)
        return self._positions(table.column("doc_id").to_numpy()), scores.to_numpy().copy()

    def _write(self, path: Path, parents: NDArray[np.uint64], chosen: NDArray[np.uint64]) -> Tally:
        """One record batch per unit; how many documents go, and how many stay in their place."""
        tally = Tally()
        with pa.ipc.new_file(path, NEAR_DUPLICATES) as file:
            for first, end in zip(self._starts[:-1], self._starts[1:], strict=True):
                members = first + np.flatnonzero((parents[first:end] != 0) | (chosen[first:end] != 0))
                stays = chosen[components.roots(parents, members)].astype(np.int64) - 1
                goes = stays != members
                tally.add("near_duplicates", int(goes.sum()))
                tally.add("representatives", int((~goes).sum()))
                records = (members[goes] - first).astype(np.uint32)
                file.write_batch(pa.record_batch([records, self._doc_ids(stays[goes])], schema=NEAR_DUPLICATES))
        return tally

    def sum_of_records(self) -> Tally:
        """The partitions' and the merge's."""
        if self.config.near_deduplicate is None:
            return Tally()
        return super().sum_of_records() + Tally.from_json(self.folder.record(_MERGE)["tally"])

    def near_duplicates_of(self, unit: Unit) -> pa.RecordBatch:
        """The documents of a unit that have to go, as NEAR_DUPLICATES; none where the phase is off."""
        if self.config.near_deduplicate is None:
            return pa.record_batch([pa.nulls(0, f.type) for f in NEAR_DUPLICATES], schema=NEAR_DUPLICATES)
        with self.folder.open(f"{_MERGE}.arrow") as source:
            return pa.ipc.open_file(source).get_batch(unit.index)


def _in_pieces(
    documents: NDArray[np.uint64], starts: NDArray[np.int64], num_documents: int
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Runs of whole groups of about so many documents, each as documents and starts."""
    begin = 0
    while begin < len(starts) - 1:
        end = max(begin + 1, int(np.searchsorted(starts, starts[begin] + num_documents, side="right")) - 1)
        yield documents[starts[begin] : starts[end]], starts[begin : end + 1] - starts[begin]
        begin = end


def _zeros(path: Path, num_positions: int) -> NDArray[np.uint64]:
    """(num_positions,) zeros in a sparse file: what is never written to takes neither memory nor disk."""
    mapped: np.memmap[Any, Any] = np.memmap(path, np.uint64, "w+", shape=(max(1, num_positions),))
    return mapped.view(np.ndarray)
