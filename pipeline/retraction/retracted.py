"""Which documents of a run are retracted, and by which request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.retraction.apply import get_own_ids, read_log, read_tombstone_tables
from pipeline.retraction.records import RequestRecord, list_doc_ids, read_records
from pipeline.runs.run_folder import RunFolder
from shardwriter.format import MANIFEST_FILE


@dataclass(frozen=True, eq=False)
class Retracted:
    """The n retracted documents of a run.

    Attributes:
        ids: (n,) uint64, sorted.
        numbers: (n,) index in `records` of the request that named each document first.
        records: the requests of the run, oldest first.
    """

    ids: NDArray[np.uint64]
    numbers: NDArray[np.int64]
    records: tuple[RequestRecord, ...]

    def find(self, doc_id: int) -> RequestRecord | None:
        """Return the request that retracted a document, or None."""
        place = int(np.searchsorted(self.ids, np.uint64(doc_id)))
        if place == len(self.ids) or self.ids[place] != doc_id:
            return None
        return self.records[int(self.numbers[place])]


def read_retracted(run: RunFolder) -> Retracted:
    """Read the retracted documents of a run: those in its dataset, and those that were dropped.

    Without requests, this costs one listing of a folder.
    """
    records = read_records(run.run_dir)
    ids: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    numbers: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    in_dataset = _read_ids_of_dataset(run) if records else {}
    for number, record in enumerate(records):
        named = np.fromiter(list_doc_ids(run, record), np.uint64)
        both = np.concatenate([named, in_dataset.get(record.sha256, named[:0])])
        ids.append(both)
        numbers.append(np.full(len(both), number))
    # np.unique returns the first occurrence, which is the oldest request.
    distinct, firsts = np.unique(np.concatenate(ids), return_index=True)
    return Retracted(distinct, np.concatenate(numbers)[firsts], tuple(records))


def _read_ids_of_dataset(run: RunFolder) -> dict[str, NDArray[np.uint64]]:
    """Return digest of a request -> ids of the documents that it retracted in the dataset."""
    dataset = run.dataset
    if not dataset.exists(MANIFEST_FILE):
        return {}
    log = read_log(dataset)
    tables = zip(log.entries, read_tombstone_tables(dataset, log), strict=True)
    return {entry.request_sha256: get_own_ids(table[:, 1]) for entry, table in tables}
