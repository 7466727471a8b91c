"""Record a request of retraction in a run folder, and apply it to the dataset."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from pipeline.retraction.apply import apply_requests, read_log
from pipeline.retraction.documents import FoundDocuments, find_documents
from pipeline.retraction.records import RequestRecord, read_records, store_record
from pipeline.retraction.request import Request
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.run_lock import hold
from shardwriter.format import MANIFEST_FILE, RetractionEntry


@dataclass(frozen=True)
class Retraction:
    """The result of a retraction.

    Attributes:
        record: the request as it is recorded.
        found: the documents that it concerns.
        entries: what was added to the log of the dataset.
        is_new: whether the request was recorded now; not if it had been recorded before.
        digest_before: digest of the dataset before; None: there is no dataset yet.
        digest_after: digest of the dataset now.
    """

    record: RequestRecord
    found: FoundDocuments
    entries: tuple[RetractionEntry, ...]
    is_new: bool
    digest_before: str | None
    digest_after: str | None

    @property
    def num_docs(self) -> int:
        """Documents of the dataset that were retracted now."""
        return sum(entry.num_docs for entry in self.entries)

    @property
    def num_tokens(self) -> int:
        """Their tokens."""
        return sum(entry.num_tokens for entry in self.entries)

    def list_unmatched(self) -> list[str]:
        """Return the URLs and domains of the request that the run has not read."""
        request = self.record.request
        return sorted({*request.urls, *request.domains} - self.found.entries)

    def count_decisions(self) -> dict[str, int]:
        """Return decision -> number of documents that the request names."""
        return dict(Counter(self.found.named.column("decision").to_pylist()))


def retract(
    run: RunFolder,
    request: Request,
    *,
    reason: str,
    requested_by: str,
    is_dry_run: bool = False,
) -> Retraction:
    """Retract the documents of a request, or only find them.

    Args:
        run: the run.
        request: the URLs and domains.
        reason: why, for the record.
        requested_by: who asked for it, for the record.
        is_dry_run: write nothing.

    Raises:
        HeldByAnother: another process works in the run folder.
        FormatError, DamagedOutput: a file of the dataset or of the run is damaged.
    """
    if is_dry_run:
        record = _make_record(run, request, reason, requested_by)
        digest = _read_digest(run)
        return Retraction(record, find_documents(run, request), (), True, digest, digest)
    with hold(run.run_dir):
        return _retract(run, _make_record(run, request, reason, requested_by))


def _make_record(
    run: RunFolder, request: Request, reason: str, requested_by: str
) -> RequestRecord:
    """Return the record of a request with the next number."""
    return RequestRecord(
        number=len(read_records(run.run_dir)) + 1,
        recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        reason=reason,
        requested_by=requested_by,
        request=request,
    )


def _retract(run: RunFolder, record: RequestRecord) -> Retraction:
    digest_before = _read_digest(run)
    found = find_documents(run, record.request)
    same = [old for old in read_records(run.run_dir) if old.is_same_request(record)]
    if same:
        record = same[-1]
    else:
        store_record(run.run_dir, record, found.named)
    entries = apply_requests(run)
    return Retraction(
        record, found, tuple(entries), not same, digest_before, _read_digest(run)
    )


def _read_digest(run: RunFolder) -> str | None:
    """Return the digest of the dataset with its retractions; None: there is no dataset yet."""
    if not run.dataset.exists(MANIFEST_FILE):
        return None
    return read_log(run.dataset).lineage[-1]
