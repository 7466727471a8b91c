"""The limit on the CPU time of one document in one step of a task."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import EngineConfig
from pipeline.execution.watchdog import get_watchdog
from pipeline.phases.phase import Phase
from pipeline.runs.slow_documents import read_notes
from stages.warc.reader import PageTimeout

# The step in which extract parses pages. Every other step is a stage.
READ = "read"


class DocumentTimeout:
    """The slow documents of a task that earlier tries found, and the watchdog for the others.

    Attributes:
        num_notes: notes about the task. For each of them, its process was killed.
    """

    def __init__(self, phase: Phase, task_id: str, settings: EngineConfig) -> None:
        limit_s = settings.document_timeout_s
        root = phase.folder.root
        notes = [] if limit_s is None else read_notes(root, task_id, limit_s)
        self.num_notes = len(notes)
        self._watchdog = get_watchdog(limit_s)
        self._limit_s = limit_s
        self._phase, self._task_id = phase, task_id
        self._requests: dict[str, bytes] = {}
        # Step -> doc_id -> limit: documents to leave out.
        self._slow: dict[str, dict[int, int]] = {}
        # Step -> first and last document: to process one by one.
        self._suspects: dict[str, list[tuple[int, int]]] = {}
        for note in notes:
            if note.first == note.last:
                self._slow.setdefault(note.step, {})[note.first] = note.limit_s
            else:
                self._suspects.setdefault(note.step, []).append((note.first, note.last))

    def watch(self, step: str, first: int, last: int) -> AbstractContextManager[None]:
        """Limit the CPU time of a block that processes the documents from `first` to `last`."""
        if self._watchdog is None:
            return contextlib.nullcontext()
        return self._watchdog.watch(self._make_request(step), first, last)

    def limit_pages(self) -> PageTimeout:
        """Return the limits for the pages that extract parses."""
        return PageTimeout(
            too_slow=self._slow.get(READ, {}),
            watch=lambda doc_id: self.watch(READ, doc_id, doc_id),
        )

    def _make_request(self, step: str) -> bytes:
        """Return the request for a note about this task and step; see `Watchdog.watch`."""
        if step not in self._requests:
            storage = self._phase.config.storage.to_settings()
            request = {
                "phase": str(self._phase.folder.root),
                "storage": asdict(storage),
                "task_id": self._task_id,
                "note": {"step": step, "limit_s": self._limit_s},
            }
            self._requests[step] = json.dumps(request).encode()
        return self._requests[step]

    def find_limit(self, step: str, doc_id: int) -> int | None:
        """Return the seconds that a document exceeded in a step; None if it did not."""
        return self._slow.get(step, {}).get(doc_id)

    def divide(self, step: str, batch: pa.Table) -> Iterator[pa.Table]:
        """Yield a batch in parts, in order: each slow or suspected document is alone."""
        doc_ids: NDArray[np.uint64] = batch.column("doc_id").to_numpy()
        is_alone = np.isin(doc_ids, np.array([*self._slow.get(step, {})], np.uint64))
        for first, last in self._suspects.get(step, ()):
            is_alone |= (first <= doc_ids) & (doc_ids <= last)
        start = 0
        for row in [*np.flatnonzero(is_alone).tolist(), batch.num_rows]:
            if start < row:
                yield batch.slice(start, row - start)
            if row < batch.num_rows:
                yield batch.slice(row, 1)
            start = row + 1
