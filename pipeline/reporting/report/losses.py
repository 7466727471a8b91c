"""Domains, languages and input splits of which one phase drops nearly all documents.

The numbers of domains and languages come from the stored decisions, those of input splits from counters. Both are added
up in any order, so the result depends on the decisions alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import ReportConfig
from pipeline.phases.extract import Extract
from pipeline.phases.registry import DECIDING_PHASES
from pipeline.phases.select import Select
from pipeline.reporting.browse.index import sample_splits
from pipeline.reporting.explain.trace import KEPT
from pipeline.reporting.queries import Totals, add_ones, add_up, read_output
from pipeline.runs.run_folder import RunFolder
from stages.warc.documents import extract_source_domains
from storage.errors import DamagedFile

log = logging.getLogger(__name__)

SPLIT = "input split"
KINDS = ("domain", "language", SPLIT)

# Rules that name what a config does not want. Such documents are not counted at all.
UNWANTED = r"^(url\.|language\.not_wanted$)"

# Decisions that are read, on average: of a larger run, every n-th input split. 2**24 take 30
# seconds, and 1 GB if every document has another domain.
MAX_DOCS_READ = 2**24

# Losses of a kind that a report holds, those with most documents.
NUM_REPORTED = 100

# Documents are counted by group (a domain, a language or a split), phase and decision.
KEYS = ("name", "phase", "decision")


@dataclass(frozen=True)
class Loss:
    """A group of documents of which one phase has dropped nearly all.

    Attributes:
        kind: domain, language or input split.
        name: name of the group.
        num_docs: its documents that were read, without those that the config does not want.
        num_lost: those of them that the phase has dropped.
        reason: the most frequent drop reason.
    """

    kind: str
    name: str
    num_docs: int
    phase: str
    num_lost: int
    reason: str


@dataclass(frozen=True)
class Losses:
    """The losses of a run.

    Attributes:
        found: the largest ones of each kind, largest first.
        num_others: the number of losses that `found` leaves out.
        num_docs_read: documents whose decisions were read for domains and languages.
    """

    found: tuple[Loss, ...] = ()
    num_others: int = 0
    num_docs_read: int = 0


def find_losses(run: RunFolder) -> Losses:
    """Return the losses of a run; none before `select` is complete."""
    settings = run.config.report
    has_decisions = all(run.has_finished(phase.name) for phase in DECIDING_PHASES)
    if settings.alarm_lost_share is None or not has_decisions:
        return Losses()
    totals = {kind: Totals(KEYS, ["num_docs"]) for kind in KINDS}
    num_docs_read = 0
    for decisions in _read_decisions(run):
        num_docs_read += decisions.num_rows
        names = extract_source_domains(decisions.column("url"))
        totals["domain"].add(_leave_out(decisions.append_column("name", names)))
        languages = decisions.rename_columns({"language": "name"})
        totals["language"].add(_leave_out(languages))
    totals[SPLIT].add(_leave_out(_read_counters(run)))
    found: list[Loss] = []
    num_others = 0
    for kind, counted in totals.items():
        losses, num_more = _find_lost(kind, counted.total(), settings)
        found += losses
        num_others += num_more
    found = [_name_files(run, loss) if loss.kind == SPLIT else loss for loss in found]
    found.sort(key=lambda loss: (-loss.num_lost, loss.kind, loss.name))
    return Losses(tuple(found), num_others, num_docs_read)


def _leave_out(documents: pa.Table) -> pa.Table:
    """Leave out documents that the config does not want, or whose group is unknown: null or empty."""
    is_known = pc.greater(pc.binary_length(documents.column("name")), 0)
    is_unwanted = pc.match_substring_regex(documents.column("decision"), UNWANTED)
    return documents.filter(pc.and_(is_known, pc.invert(is_unwanted)))


def _find_lost(kind: str, rows: pa.Table, settings: ReportConfig) -> tuple[list[Loss], int]:
    """Return the largest losses, and the number of others."""
    totals = add_up(rows, ["name"], ["num_docs"])
    is_large = pc.greater_equal(totals.column("num_docs"), settings.alarm_min_documents)
    totals = totals.filter(is_large).rename_columns(["name", "total"])
    dropped = rows.filter(pc.not_equal(rows.column("decision"), KEPT))
    # The join also leaves out the groups that are too small.
    lost = add_up(dropped, ["name", "phase"], ["num_docs"]).join(
        totals, "name", join_type="inner"
    )
    limit = pc.multiply(lost.column("total"), settings.alarm_lost_share)
    lost = lost.filter(pc.greater_equal(lost.column("num_docs"), limit))
    lost = lost.sort_by([("num_docs", "descending"), ("name", "ascending")])
    losses: list[Loss] = []
    for row in lost.slice(0, NUM_REPORTED).to_pylist():
        reason = _find_reason(dropped, row["name"], row["phase"])
        numbers = (row["total"], row["phase"], row["num_docs"])
        losses.append(Loss(kind, row["name"], *numbers, reason))
    return losses, lost.num_rows - len(losses)


def _find_reason(dropped: pa.Table, name: str, phase: str) -> str:
    """Return the most frequent drop reason of a group in a phase."""
    is_name = pc.equal(dropped.column("name"), name)
    is_phase = pc.equal(dropped.column("phase"), phase)
    rows = dropped.filter(pc.and_(is_name, is_phase))
    order = [("num_docs", "descending"), ("decision", "ascending")]
    return rows.sort_by(order).column("decision")[0].as_py()


def _read_decisions(run: RunFolder) -> Iterator[pa.Table]:
    """Yield the decisions on the documents of input splits, with a column `num_docs` of ones."""
    for split in sample_splits(run, MAX_DOCS_READ):
        for phase in DECIDING_PHASES:
            columns = ["url", "language", "decision"]
            # A damaged file is reported by `verify`; the report needs no exact number here.
            try:
                rows = read_output(run, phase.decisions, split.key, columns)
            except DamagedFile as fault:
                log.warning("the decisions in it are not counted: %s", fault)
                continue
            phases = pa.repeat(phase.name, rows.num_rows)
            yield add_ones(rows.append_column("phase", phases))


def _read_counters(run: RunFolder) -> pa.Table:
    """Return the numbers of documents of each input split, by phase and decision."""
    rows: list[tuple[str, str, str, int]] = []
    keys = [split.key for split in run.splits]
    for phase in DECIDING_PHASES:
        for record in run.folder(phase.name).intact_records(keys):
            counts = record["counters"]["counts"]
            name = record["task_id"]
            for counter, number in counts.items():
                reason = counter.removeprefix("dropped.")
                if reason != counter:
                    rows.append((name, phase.name, reason, number))
            if phase is Select:
                rows.append((name, phase.name, KEPT, counts.get("documents_kept", 0)))
    columns = list(zip(*rows, strict=True)) or [()] * 4
    types = [pa.string()] * 3 + [pa.int64()]
    return pa.table(list(map(pa.array, columns, types)), names=[*KEYS, "num_docs"])


def _name_files(run: RunFolder, loss: Loss) -> Loss:
    """Return the loss of an input split with the names of its files, as far as they are stored."""
    try:
        rows = read_output(run, Extract.documents, loss.name, ["warc_file"])
        files = pc.unique(rows.column(0))
    except DamagedFile as fault:
        log.warning("%s", fault)
        return loss
    if not len(files):
        return loss
    others = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return replace(loss, name=f"{loss.name} ({files[0]}{others})")
