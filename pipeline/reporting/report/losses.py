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
from pipeline.phases.phase import SplitPhase
from pipeline.phases.registry import DECIDING_PHASES
from pipeline.phases.select import Select
from pipeline.reporting.browse.index import sample_splits
from pipeline.runs.run_folder import RunFolder, RunSplit
from pipeline.runs.split_output import read_table
from stages.warc.documents import extract_source_domains
from storage.errors import DamagedFile

log = logging.getLogger(__name__)

KEPT = "kept"

# Rules that name what a config does not want. Such documents are not counted at all.
UNWANTED = r"^(url\.|language\.not_wanted$)"

# Decisions that are read, on average: of a larger run, every n-th input split. 2**24 take 30
# seconds, and 1 GB if every document has another domain.
MAX_DOCS_READ = 2**24

# Rows of sums that are held before they are added up.
MAX_ROWS_HELD = 2**22

# Losses of a kind that a report holds, those with most documents.
NUM_REPORTED = 100

# Documents of a group with a decision of a phase. A group is a domain, a language or a split.
SUMS = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("phase", pa.string()),
        pa.field("decision", pa.string()),
        pa.field("num_docs", pa.int64()),
    ]
)


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
    domains, languages = _Sums("domain"), _Sums("language")
    for decisions in _read_decisions(run):
        names = extract_source_domains(decisions.column("url"))
        domains.add(decisions.append_column("name", names))
        languages.add(decisions.rename_columns({"language": "name"}))
    splits = _Sums("input split")
    splits.add(_read_counters(run))
    found: list[Loss] = []
    num_others = 0
    for sums in (domains, languages, splits):
        losses, num_more = _find_lost(sums, settings)
        found += losses
        num_others += num_more
    found = [_name_files(run, loss) if loss.kind == splits.kind else loss for loss in found]
    found.sort(key=lambda loss: (-loss.num_lost, loss.kind, loss.name))
    return Losses(tuple(found), num_others, domains.num_docs)


class _Sums:
    """Numbers of documents by group, phase and decision, added up as SUMS."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.num_docs = 0
        self._tables = [SUMS.empty_table()]
        self._max_rows = MAX_ROWS_HELD

    def add(self, documents: pa.Table) -> None:
        """Add rows with the columns of SUMS. The names of unknown groups are null or empty."""
        self.num_docs += pc.sum(documents.column("num_docs")).as_py() or 0
        is_known = pc.greater(pc.binary_length(documents.column("name")), 0)
        is_wanted = pc.invert(
            pc.match_substring_regex(documents.column("decision"), UNWANTED)
        )
        counted = documents.filter(pc.and_(is_known, is_wanted))
        self._tables.append(_sum_docs(counted, SUMS.names[:3]).cast(SUMS))
        if sum(table.num_rows for table in self._tables) > self._max_rows:
            self._tables = [self.total()]
            # So that each row is added up a few times only, however many groups there are.
            self._max_rows = max(MAX_ROWS_HELD, 2 * self._tables[0].num_rows)

    def total(self) -> pa.Table:
        """Return the sums."""
        return _sum_docs(pa.concat_tables(self._tables), SUMS.names[:3]).cast(SUMS)


def _sum_docs(rows: pa.Table, keys: list[str]) -> pa.Table:
    """Return the sum of `num_docs` by keys."""
    sums = rows.group_by(keys, use_threads=False).aggregate([("num_docs", "sum")])
    return sums.rename_columns([*keys, "num_docs"])


def _find_lost(sums: _Sums, settings: ReportConfig) -> tuple[list[Loss], int]:
    """Return the largest losses, and the number of others."""
    rows = sums.total()
    totals = _sum_docs(rows, ["name"])
    is_large = pc.greater_equal(totals.column("num_docs"), settings.alarm_min_documents)
    totals = totals.filter(is_large).rename_columns(["name", "total"])
    dropped = rows.filter(pc.not_equal(rows.column("decision"), KEPT))
    # The join also leaves out the groups that are too small.
    lost = _sum_docs(dropped, ["name", "phase"]).join(totals, "name", join_type="inner")
    limit = pc.multiply(lost.column("total"), settings.alarm_lost_share)
    lost = lost.filter(pc.greater_equal(lost.column("num_docs"), limit))
    lost = lost.sort_by([("num_docs", "descending"), ("name", "ascending")])
    losses: list[Loss] = []
    for row in lost.slice(0, NUM_REPORTED).to_pylist():
        reason = _find_reason(dropped, row["name"], row["phase"])
        numbers = (row["total"], row["phase"], row["num_docs"])
        losses.append(Loss(sums.kind, row["name"], *numbers, reason))
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
            # A damaged file is reported by `verify`; the report needs no exact number here.
            try:
                yield _read_split(run, split, phase)
            except DamagedFile as fault:
                log.warning("the decisions in it are not counted: %s", fault)


def _read_split(run: RunFolder, split: RunSplit, phase: type[SplitPhase]) -> pa.Table:
    file_name = phase.decisions.file_name(split.key)
    source = run.folder(phase.name).open(file_name)
    rows = read_table(source, ["url", "language", "decision"])
    ones = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
    phases = pa.repeat(phase.name, rows.num_rows)
    return rows.append_column("phase", phases).append_column("num_docs", ones)


def _read_counters(run: RunFolder) -> pa.Table:
    """Return the numbers of documents of each input split, as SUMS."""
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
    columns = zip(*rows, strict=True) if rows else [()] * len(SUMS)
    return pa.table([pa.array(column) for column in columns], schema=SUMS)


def _name_files(run: RunFolder, loss: Loss) -> Loss:
    """Return the loss of an input split with the names of its files, as far as they are stored."""
    file_name = Extract.documents.file_name(loss.name)
    try:
        source = run.folder(Extract.name).open(file_name)
        files = pc.unique(read_table(source, ["warc_file"]).column(0))
    except DamagedFile as fault:
        log.warning("%s", fault)
        return loss
    if not len(files):
        return loss
    others = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return replace(loss, name=f"{loss.name} ({files[0]}{others})")
