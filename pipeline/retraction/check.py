"""Check that the requests of a run are in force in its dataset."""

from __future__ import annotations

from pipeline.retraction.apply import find_tombstones, read_log, read_manifest
from pipeline.retraction.records import read_records
from pipeline.runs.run_folder import RunFolder
from shardwriter.format import RETRACTIONS_FILE
from shardwriter.verification.findings import Finding
from terminal_output import format_count

_REMEDY = "run the config of this run again: it applies all requests"


def find_unretracted(run: RunFolder) -> list[Finding]:
    """Return one finding per request of which the dataset has a document without a tombstone.

    URLs and domains are matched again with everything that the run has read.

    Raises:
        FormatError: the manifest, an index or the log is damaged.
    """
    findings: list[Finding] = []
    records = read_records(run.run_dir)
    if not records:
        return findings
    dataset = run.dataset
    manifest = read_manifest(dataset)
    log = read_log(dataset, manifest)
    applied = {entry.request_sha256 for entry in log.entries}
    for record in records:
        left = find_tombstones(run, manifest, log, record)
        if len(left) or record.sha256 not in applied:
            documents = format_count(len(left), "document")
            found = f"request {record.number}, of which {documents} not masked"
            findings.append(Finding(RETRACTIONS_FILE, found, "none", _REMEDY))
    return findings
