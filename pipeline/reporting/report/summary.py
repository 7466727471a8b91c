"""The report of a run as a value: sums of the counters that the phases have committed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.config import InputConfig
from pipeline.execution.task import TOO_SLOW
from pipeline.phases import registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.extract import Extract
from pipeline.phases.phase import Phase
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments
from pipeline.phases.write_shards import WriteShards
from pipeline.reporting.report.losses import Losses, find_losses
from pipeline.reporting.report.mix import MixReport, make_mix_report
from pipeline.retraction.apply import list_retractions
from pipeline.runs.run_folder import RunFolder
from shardwriter.format import RetractionEntry
from stages.contract import DocumentCountError, Stage
from stages.dedup.paragraphs import ParagraphRemoval
from stages.dedup.substring_dedup import RepeatedSpans
from stages.filters.lines import Lines
from stages.histograms import RunLimit
from terminal_output import escape

# Values of a list that are shown. The others are added up in one row.
NUM_SHOWN = 12


@dataclass(frozen=True)
class Step:
    """The documents and characters that are left after one step of the pipeline."""

    name: str
    num_docs: int
    num_chars: int
    reasons: tuple[str, ...] = ()  # why documents were dropped in this step


@dataclass(frozen=True)
class Report:
    """The results of a run.

    Attributes:
        steps: from the documents read to those kept.
        reasons: drop reason -> documents, largest first.
        losses: domains, languages and input splits of which one phase dropped nearly all.
        quarantine: cause -> broken records.
        lost_files: name of an input file that gave no record -> number of files of that name.
        num_files: input files read.
        num_records: records read, including broken ones.
        languages: language -> kept documents, largest first.
        buckets: perplexity bucket -> kept documents.
        language_tokens: language -> tokens, largest first.
        seconds: `phase: step` -> worker seconds, over all starts of the run.
        counters: phase -> counter -> number. What a stage declares is included even if it is zero.
        cuts: limits that select has set for each language: percentiles of this run, and cutoffs.
        retractions: requests that took documents out of the dataset. Other numbers include them.
        mix: copies by quality bin, and the budget; None without `select.mix`.
    """

    run_dir: str
    dataset: str
    steps: tuple[Step, ...]
    reasons: Mapping[str, int]
    losses: Losses
    quarantine: Mapping[str, int]
    lost_files: Mapping[str, int]
    num_files: int
    num_records: int
    languages: Mapping[str, int]
    buckets: Mapping[str, int]
    language_tokens: Mapping[str, int]
    num_tokens: int
    num_shards: int
    seconds: Mapping[str, float]
    counters: Mapping[str, Mapping[str, int]]
    cuts: tuple[RunLimit, ...] = ()
    retractions: tuple[RetractionEntry, ...] = ()
    mix: MixReport | None = None

    @property
    def quarantined_share(self) -> float:
        """Share of broken records among all records, 0..1."""
        return sum(self.quarantine.values()) / max(1, self.num_records)

    @property
    def lost_files_share(self) -> float:
        """Share of the input files that gave no record, 0..1."""
        return sum(self.lost_files.values()) / max(1, self.num_files)

    @property
    def num_docs_read(self) -> int:
        """Documents read from the input."""
        return self.steps[0].num_docs if self.steps else 0


@dataclass(frozen=True)
class StageCounters:
    """What one stage has counted, for display."""

    phase: str
    stage: str
    rows: Mapping[str, int]  # display name -> number


# Phase -> its counters; empty for a phase that is not complete.
Counts = Mapping[str, Counter[str]]


def make_report(run: RunFolder) -> Report:
    """Add up the counters of the phases that are complete.

    Raises:
        DocumentCountError: a phase read another number of documents than the phase before it kept.
    """
    counts: dict[str, Counter[str]] = {}
    num_shards = 0
    for name in registry.list_phase_names():
        counts[name] = Counter()
        if run.has_finished(name):
            summary = run.folder(name).summary()
            counts[name].update(summary["counters"]["counts"])
            if name == WriteShards.name:
                num_shards = summary["task_ids"]
    reasons: Counter[str] = Counter()
    for phase in registry.PHASES:
        # Only phases with stages drop documents; dedup phases record what a later stage drops.
        if phase.stages:
            reasons.update(take_family(counts[phase.name], "dropped."))
    extract, select = counts[Extract.name], counts[Select.name]
    tokenize = counts[TokenizeDocuments.name]
    return Report(
        run_dir=str(run.run_dir),
        dataset=str(run.dataset),
        steps=tuple(_list_steps(run, counts)),
        reasons=dict(reasons.most_common()),
        losses=find_losses(run),
        quarantine=take_family(extract, "quarantined."),
        lost_files=take_family(extract, "lost_file."),
        num_files=extract["num_files"],
        num_records=extract["num_records"],
        languages=sort_by_number(take_family(select, "language.")),
        buckets=take_family(select, "bucket."),
        language_tokens=sort_by_number(take_family(tokenize, "language_tokens.")),
        num_tokens=tokenize["tokens"] + tokenize["extra_tokens"],
        num_shards=num_shards,
        seconds=_sum_seconds(run),
        counters=_add_declared(run, counts),
        cuts=(
            Select.read_cuts(run.folder(Select.name))
            if run.has_finished(Select.name)
            else ()
        ),
        retractions=list_retractions(run),
        mix=make_mix_report(run.config, counts),
    )


def list_exceeded_limits(report: Report, config: InputConfig) -> list[str]:
    """Return a message for each limit on unreadable input that a run exceeds."""
    faults: list[str] = []
    if report.lost_files_share > config.max_lost_files_share:
        names = [name for name, _ in take_largest(report.lost_files)]
        faults.append(
            f"{report.lost_files_share:.2%} of the {report.num_files:,} input files gave no "
            f"record, input.max_lost_files_share allows {config.max_lost_files_share:.2%}: "
            f"{', '.join(names)}"
        )
    if report.quarantined_share > config.max_quarantined_share:
        faults.append(
            f"{report.quarantined_share:.2%} of the records are quarantined, "
            f"input.max_quarantined_share allows {config.max_quarantined_share:.2%}"
        )
    return faults


def to_json(report: Report, against: Mapping[str, Any] | None = None) -> str:
    """Return the report as JSON text that can be shown on a terminal.

    Args:
        report: the report.
        against: the comparison with another run.
    """
    value = asdict(report)
    if against is not None:
        value["against"] = against
    return escape(json.dumps(value, indent=1, ensure_ascii=False)) + "\n"


def describe_reasons() -> dict[str, str]:
    """Return drop reason -> its meaning in one sentence."""
    sentences: dict[str, str] = {}
    for stage in registry.list_stages():
        sentences.update(stage.reasons)
    return sentences


def describe_reason(reason: str) -> str:
    """Return what a row of the table of reasons means; "" for the sum of the smaller rows."""
    if ".error_" in reason:
        return "The stage raised an error; `explain` shows it."
    if reason.endswith(f".{TOO_SLOW}"):
        return "It took longer in the stage than engine.document_timeout_s."
    return describe_reasons().get(reason, "")


def list_stage_counters(report: Report) -> list[StageCounters]:
    """Return the counters that stages declare, with their display names, stage by stage."""
    found: list[StageCounters] = []
    for phase in registry.PHASES:
        numbers = report.counters.get(phase.name, {})
        for stage in phase.stages:
            rows: dict[str, int] = {}
            for name in numbers:
                if is_declared(stage, name):
                    rows[stage.counter_display_name(name)] = numbers[name]
            if rows:
                found.append(StageCounters(phase.name, stage.name, rows))
    return found


def is_declared(stage: type[Stage[Any]], counter: str) -> bool:
    """Return whether a stage declares this counter, by itself or through its family."""
    family, dot, _ = counter.partition(".")
    return counter in stage.counters or family + dot in stage.counters


def take_family(counts: Mapping[str, int], prefix: str) -> dict[str, int]:
    """Return the counters of a family without their prefix: `en` for `language.en`."""
    members: dict[str, int] = {}
    for name, number in counts.items():
        if name.startswith(prefix):
            members[name.removeprefix(prefix)] = number
    return members


def sort_by_number(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the same, largest first, equal ones by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def take_largest(
    counts: Mapping[str, int], among: Mapping[str, int] | None = None
) -> list[tuple[str, int]]:
    """Return the largest values, and the sum of the others as one row.

    Args:
        counts: name -> number.
        among: return the numbers of the names that are largest here; default: in `counts`.
    """
    names = list(sort_by_number(counts if among is None else among))
    rows = [(name, counts.get(name, 0)) for name in names[:NUM_SHOWN]]
    others = names[NUM_SHOWN:]
    if others:
        rows.append((f"{len(others)} more", sum(counts.get(name, 0) for name in others)))
    return rows


def _add_declared(run: RunFolder, counts: Counts) -> dict[str, dict[str, int]]:
    """Return the counters of each complete phase, with zeros for what its stages declare."""
    complete: dict[str, dict[str, int]] = {}
    for phase in registry.PHASES:
        if not run.has_finished(phase.name):
            continue
        declared: dict[str, int] = {}
        for spec in phase.plan_stages(run.config):
            for name in spec.stage.expected_counters(spec.settings):
                declared[name] = 0
        # Counters do not store zeros, but "0 e-mail addresses replaced" is a result too.
        complete[phase.name] = {**declared, **counts[phase.name]}
    return complete


def _list_steps(run: RunFolder, counts: Counts) -> Iterator[Step]:
    """Yield what is left after each stage that drops documents or removes text."""
    extract = counts[Extract.name]
    num_docs = extract["documents"]
    num_chars = extract["chars"] + sum(take_family(extract, "dropped_chars.").values())
    yield Step("read", num_docs, num_chars)
    for phase in registry.PHASES:
        if not phase.stages or not phase.is_enabled(run.config):
            continue
        if not run.has_finished(phase.name):
            return
        of_phase = counts[phase.name]
        _check_num_docs(phase, of_phase["documents"], num_docs)
        for stage in phase.stages:
            dropped = take_family(of_phase, f"dropped.{stage.name}.")
            reasons = [f"{stage.name}.{fault}" for fault in dropped]
            left = _count_chars_left(phase, stage, of_phase, num_chars, reasons)
            num_docs -= sum(dropped.values())
            if dropped or left != num_chars:
                num_chars = left
                name = f"{phase.name}: {stage.name}"
                yield Step(name, num_docs, num_chars, tuple(sorted(reasons)))


def _check_num_docs(phase: type[Phase], num_read: int, num_left: int) -> None:
    if num_read != num_left:
        raise DocumentCountError(
            f"{phase.name} read {num_read} documents, but {num_left} were kept before it; "
            f"this is a bug, not a fault of the input"
        )


def _count_chars_left(
    phase: type[Phase],
    stage: type[Stage[Any]],
    counts: Counter[str],
    num_chars: int,
    reasons: list[str],
) -> int:
    """Return the characters that are left after a stage.

    A dropped document is counted with the characters that it had when it was dropped. Three stages
    of annotate also remove text from documents that they keep. What paragraph_dedup removed is not
    counted, so the characters after it are added up from those that later stages keep and drop.
    """
    if phase is Annotate and stage is ParagraphRemoval:
        left = counts["chars"] + counts["chars_removed"]
        for reason, dropped_chars in take_family(counts, "dropped_chars.").items():
            if not reason.startswith(f"{ParagraphRemoval.name}."):
                left += dropped_chars
        return left
    left = num_chars - sum(counts[f"dropped_chars.{reason}"] for reason in reasons)
    if stage is RepeatedSpans:
        return left - counts["repeated_chars"]
    return left - counts["chars_removed"] if stage is Lines else left


def _sum_seconds(run: RunFolder) -> dict[str, float]:
    """Return `phase: step` -> worker seconds, from the event log."""
    total: Counter[str] = Counter()
    for event in run.read_events():
        if event["event"] != "TaskFinished":
            continue
        for step, seconds in event["seconds"].items():
            name = step if step == event["phase"] else f"{event['phase']}: {step}"
            total[name] += seconds
    return dict(total)
