"""What came out of a run, for people and for programs: the funnel, the reasons, languages, buckets, time.

Promises: every figure is a sum of tallies that the phases committed, and the accounts balance: documents in = kept +
dropped, in each step and over the run. One value (`Report`) is shown three ways: on the terminal, as one
self-contained HTML page, as JSON.
Leaves to others: single documents (ledger.py).

    report = make_report(RunFolder.open("runs/ccnet"))
    print_report(report, Console())
    Path("report.html").write_text(to_html(report))
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.planning.run_plan import RunPlan
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters, DocumentCountError
from stages.transform.pii import KINDS
from stages.warc.causes import CAUSES


@dataclass(frozen=True)
class Step:
    """What is left after one step of the chain."""

    name: str
    num_docs: int
    num_chars: int
    why: str = ""


@dataclass(frozen=True)
class Report:
    """The account of a run."""

    run_dir: str
    dataset: str
    steps: tuple[Step, ...]
    reasons: Mapping[str, int]  # documents, most first
    quarantine: Mapping[str, int]  # broken records, by cause
    num_records: int
    languages: Mapping[str, int]  # kept documents
    buckets: Mapping[str, int]
    language_tokens: Mapping[str, int]
    num_tokens: int
    num_shards: int
    seconds: Mapping[str, float]  # of workers, by phase and step
    lines: Mapping[
        str, int
    ]  # "removed" by line rules and "left", of the documents that annotate kept; empty: no rules
    placeholders: Mapping[
        str, int
    ]  # kind of personal data that is looked for -> how many, in kept documents
    overlaps: Mapping[
        str, Mapping[str, int]
    ]  # evaluation set -> documents that share words with it, words, dropped

    @property
    def quarantined_share(self) -> float:
        """Broken records among all records."""
        return sum(self.quarantine.values()) / max(1, self.num_records)


def make_report(run: RunFolder) -> Report:
    """Sum up a run, as far as it has got.

    Raises:
        DocumentCountError: a phase took in another number of documents than the one before it put out.
    """
    tallies = {name: _tally(run, name) for name in registry.list_phase_names()}
    extract, tokens = tallies["extract"], tallies["tokenize"].counts
    reasons: Counter[str] = Counter()
    with_stages = [phase.name for phase in registry.PHASES if phase.stages]
    for phase in with_stages:
        reasons.update(_with_prefix(tallies[phase].counts, "dropped."))
    return Report(
        run_dir=str(run.run_dir),
        dataset=str(run.dataset),
        steps=tuple(
            _steps(
                run,
                tallies,
                [phase for phase in with_stages if run.folder(phase).complete()],
            )
        ),
        reasons=dict(reasons.most_common()),
        quarantine=_with_prefix(extract.counts, "quarantined."),
        num_records=extract.counts["num_records"],
        languages=_most_first(_with_prefix(tallies["select"].counts, "language.")),
        buckets=_with_prefix(tallies["select"].counts, "bucket."),
        language_tokens=_most_first(_with_prefix(tokens, "language_tokens.")),
        num_tokens=tokens["tokens"],
        num_shards=_summary(run, "write_shards").get("task_ids", 0),
        seconds=_seconds(run),
        lines=_lines(run, tallies["annotate"].counts),
        placeholders=_placeholders(run, tokens),
        overlaps=_overlaps(run, tallies),
    )


def reason_sentences() -> dict[str, str]:
    """What each reason of the chain means, in one sentence."""
    return {
        reason: sentence
        for stage in registry.list_stages()
        for reason, sentence in stage.reasons.items()
    }


def _summary(run: RunFolder, phase: str) -> dict[str, Any]:
    folder = run.folder(phase)
    return folder.summary() if folder.complete() else {}


def _tally(run: RunFolder, phase: str) -> Counters:
    summary = _summary(run, phase)
    return Counters.from_json(summary["counters"]) if summary else Counters()


def _with_prefix(counts: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): n for name, n in counts.items() if name.startswith(prefix)}


def _lines(run: RunFolder, counts: Mapping[str, int]) -> dict[str, int]:
    if run.config.annotate.lines is None:
        return {}
    return {"removed": counts.get("lines_removed", 0), "left": counts.get("paragraphs", 0)}


def _placeholders(run: RunFolder, counts: Mapping[str, int]) -> dict[str, int]:
    """Of every kind that was looked for, found or not."""
    settings = run.config.tokenize.pii
    searched = [kind for kind in KINDS if getattr(settings, kind, None) is not None]
    return {kind: counts.get(f"pii_{kind}", 0) for kind in searched}


def _overlaps(run: RunFolder, tallies: Mapping[str, Counters]) -> dict[str, dict[str, int]]:
    """Of every evaluation set that was looked for, found or not."""
    settings = run.config.annotate.decontamination
    annotated, selected = tallies["annotate"].counts, tallies["select"].counts
    return {
        name: {
            "documents": annotated[f"contaminated.{name}"],
            "words": annotated[f"contaminated_words.{name}"],
            "dropped": selected[f"decontaminated.{name}"],
        }
        for name in sorted(settings.sets if settings else ())
    }


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _steps(
    run: RunFolder, tallies: Mapping[str, Counters], complete: Collection[str]
) -> Iterator[Step]:
    """The funnel: what is left after each stage that drops documents, and after deduplication."""
    extract = tallies["extract"].counts
    num_docs = extract["documents"]
    num_chars = extract["chars"] + sum(_with_prefix(extract, "dropped_chars.").values())
    yield Step("read", num_docs, num_chars)
    for phase_class in registry.PHASES:
        phase, stages = phase_class.name, phase_class.stages
        if not stages or getattr(run.config, phase) is None:
            continue
        counts = tallies[phase].counts
        if phase not in complete:
            return
        if counts["documents"] != num_docs:
            raise DocumentCountError(
                f"{phase} took in {counts['documents']} documents, but {num_docs} were left before it; "
                f"a bug, not a fault of the input"
            )
        for stage in stages:
            dropped = {
                r: n
                for r, n in _with_prefix(counts, "dropped.").items()
                if r.split(".")[0] == stage.name
            }
            if stage.name == "paragraphs" and phase == "annotate":
                chars = (
                    counts["chars"] + counts["chars_removed"]
                )  # the latter by line rules, after this stage
                chars += sum(
                    n
                    for r, n in _with_prefix(counts, "dropped_chars.").items()
                    if not r.startswith("paragraphs.")
                )
            else:
                chars = num_chars - sum(counts[f"dropped_chars.{reason}"] for reason in dropped)
                chars -= counts["chars_removed"] if stage.name == "lines" else 0
            num_docs -= sum(dropped.values())
            if dropped or chars != num_chars:
                num_chars = chars
                yield Step(
                    f"{phase}: {stage.name}", num_docs, num_chars, ", ".join(sorted(dropped))
                )


def _seconds(run: RunFolder) -> dict[str, float]:
    """Seconds of workers by phase and step, over all the times that this run was started."""
    total: Counter[str] = Counter()
    for event in run.read_events():
        for step, seconds in event.get("seconds", {}).items():
            name = step if step == event["phase"] else f"{event['phase']}: {step}"
            total[name] += seconds
    return dict(total)


# ------------------------------------------------------------------------------------------------------------- showing


def print_report(report: Report, console: Console) -> None:
    """The summary that closes a run."""
    console.print(_funnel(report))
    if report.reasons:
        console.print(
            as_table(
                "Why documents were dropped",
                ("reason", "documents", "meaning"),
                _reason_rows(report),
            )
        )
    if report.languages:
        tokens = dict(_top(report.language_tokens, among=report.languages))
        rows = [(lang, f"{n:,}", f"{tokens.get(lang, 0):,}") for lang, n in _top(report.languages)]
        console.print(as_table("Kept, by language", ("language", "documents", "tokens"), rows))
    if report.buckets:
        rows = [(bucket, f"{n:,}") for bucket, n in report.buckets.items()]
        console.print(as_table("Kept, by bucket", ("bucket", "documents"), rows))
    if report.lines:
        rows = [(name, f"{n:,}") for name, n in report.lines.items()]
        console.print(as_table("Line rules", ("lines of documents with some left", "number"), rows))
    if report.placeholders:
        rows = [(kind, f"{n:,}") for kind, n in report.placeholders.items()]
        console.print(as_table("Personal data", ("replaced in kept documents", "number"), rows))
    if report.overlaps:
        rows = [
            (name, *(f"{n:,}" for n in found.values())) for name, found in report.overlaps.items()
        ]
        columns = ("evaluation set", "documents", "words", "dropped")
        console.print(as_table("Words shared with evaluation sets", columns, rows))
    if report.quarantine:
        rows = [(cause, f"{n:,}") for cause, n in _most_first(report.quarantine).items()]
        title = f"Quarantined: {report.quarantined_share:.2%} of {report.num_records:,} records"
        console.print(as_table(title, ("cause", "records"), rows))
    if report.seconds:
        rows = [(step, f"{seconds:,.1f}") for step, seconds in _slowest(report.seconds)]
        console.print(as_table("Where workers spent their time", ("step", "seconds"), rows))


def to_json(report: Report) -> str:
    """The report for programs."""
    return json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n"


def to_html(report: Report) -> str:
    """One page that needs nothing else: no script, no font, no network."""
    start = report.steps[0] if report.steps else Step("read", 0, 0)
    funnel = [
        (
            s.name,
            s.num_docs,
            start.num_docs,
            f"{s.num_docs:,} documents · {s.num_chars:,} characters",
        )
        for s in report.steps
    ]
    sections = [
        _bars("What is left after each step", funnel),
        _bars("Why documents were dropped", _shares(report.reasons), reason_sentences()),
        _bars("Kept, by language", _shares(report.languages)),
        _bars("Kept, by perplexity bucket", _shares(report.buckets)),
        _bars("Line rules: lines of documents with some left", _shares(report.lines)),
        _bars("Personal data replaced in kept documents", _shares(report.placeholders)),
        _bars("Documents that share words with an evaluation set", _overlap_bars(report)),
        _bars("Quarantined records, by cause", _shares(report.quarantine), CAUSES),
        _bars(
            "Worker seconds, by step",
            [
                (k, v, max(report.seconds.values()), f"{v:,.1f} s")
                for k, v in _slowest(report.seconds)
            ],
        ),
    ]
    headline = f"{report.num_tokens:,} tokens in {report.num_shards:,} shards, from {start.num_docs:,} documents"
    return _PAGE.format(
        title=html.escape(report.run_dir), headline=headline, sections="\n".join(sections)
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24 }}
h1 {{ font-size: 1.3rem; margin-bottom: 0 }} h2 {{ font-size: 1.05rem; margin: 2rem 0 .5rem }}
.row {{ display: grid; grid-template-columns: 15rem 1fr; gap: .75rem; align-items: center; margin: 2px 0 }}
.name {{ text-align: right; overflow-wrap: anywhere }}
.bar {{ flex: none; background: #3b6ea8; height: 1.15rem; border-radius: 2px; min-width: 2px }}
.line {{ display: flex; gap: .5rem; align-items: center; font-variant-numeric: tabular-nums; white-space: nowrap }}
.note {{ color: #59636e; font-size: .85rem }}
</style></head><body>
<h1>{title}</h1><p>{headline}</p>
{sections}
</body></html>
"""

Bar = tuple[str, float, float, str]  # name, value, the value of a full bar, label


def _bars(title: str, bars: Iterable[Bar], notes: Mapping[str, str] | None = None) -> str:
    rows = [
        _bar(name, value / full if full else 0, label, (notes or {}).get(name, ""))
        for name, value, full, label in bars
    ]
    return f"<h2>{html.escape(title)}</h2>\n" + "\n".join(rows) if rows else ""


def _bar(name: str, share: float, label: str, note: str) -> str:
    note = f'<div class="note">{html.escape(note)}</div>' if note else ""
    return (
        f'<div class="row"><div class="name">{html.escape(name)}{note}</div>'
        f'<div class="line"><div class="bar" style="width:{60 * share:.2f}%"></div>{html.escape(label)}</div></div>'
    )


def _overlap_bars(report: Report) -> list[Bar]:
    largest = max((found["documents"] for found in report.overlaps.values()), default=0)
    return [
        (
            name,
            found["documents"],
            largest,
            f"{found['documents']:,}, of which dropped for it: {found['dropped']:,}",
        )
        for name, found in report.overlaps.items()
    ]


def _shares(counts: Mapping[str, int]) -> list[Bar]:
    largest, total = max(counts.values(), default=0), sum(counts.values())
    return [(name, n, largest, f"{n:,} ({n / max(1, total):.1%})") for name, n in _top(counts)]


def _top(
    counts: Mapping[str, int], limit: int = 12, among: Mapping[str, int] | None = None
) -> list[tuple[str, int]]:
    """The largest, with the rest summed up; `among`: those that are the largest there."""
    names = list(_most_first(counts if among is None else among))
    rest = sum(counts.get(name, 0) for name in names[limit:])
    more = [(f"{len(names) - limit} more", rest)] if names[limit:] else []
    return [*((name, counts.get(name, 0)) for name in names[:limit]), *more]


def _slowest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])[:12]


def _reason_rows(report: Report) -> list[tuple[str, str, str]]:
    sentences = reason_sentences()
    return [
        (reason, f"{n:,}", sentences.get(reason, "A stage raised an error; `explain` shows it."))
        for reason, n in _top(report.reasons)
    ]


def _funnel(report: Report) -> Table:
    start = report.steps[0] if report.steps else Step("read", 0, 0)
    rows = [
        (
            s.name,
            f"{s.num_docs:,}",
            f"{s.num_docs / max(1, start.num_docs):.1%}",
            f"{s.num_chars:,}",
            f"{s.num_chars / max(1, start.num_chars):.1%}",
        )
        for s in report.steps
    ]
    if report.num_shards or report.num_tokens:
        rows.append(
            ("written", f"{report.num_tokens:,} tokens", "", f"{report.num_shards:,} shards", "")
        )
    return as_table(
        "What is left after each step", ("step", "documents", "share", "characters", "share"), rows
    )


_FIGURES = frozenset(
    {
        "documents",
        "share",
        "characters",
        "tokens",
        "records",
        "seconds",
        "words",
        "number",
        "dropped",
        "before",
        "after",
        "change",
    }
)


def as_table(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    """How every verb shows rows: figures to the right."""
    table = Table(
        title=title, title_justify="left", header_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    for name in columns:
        is_number = name in _FIGURES
        table.add_column(
            name,
            justify="right" if is_number else "left",
            no_wrap=name not in ("meaning", "stages"),
        )
    for row in rows:
        table.add_row(*row)
    return table


# --------------------------------------------------------------------------------------------------------------- plan


def print_plan(plan: RunPlan, console: Console) -> None:
    """The plan as a table: phases, what they work on, fingerprints, what is done (what it takes: cost.py)."""
    input_bytes = sum(split.num_bytes for split in plan.splits)
    num_files = sum(len(split.files) for split in plan.splits)
    console.print(
        f"{num_files:,} files, {input_bytes / 2**20:,.1f} MiB, in {len(plan.splits):,} units; run folder {plan.run_dir}"
    )
    rows: list[tuple[str, ...]] = []
    for phase in registry.PHASES:
        stages = " ".join(stage.name for stage in phase.enabled_stages(plan.config))
        rows.append((phase.name, stages, *_state(plan, phase)))
    console.print(as_table("", ("phase", "stages", "fingerprint", "task_id", "done"), rows))


def _state(plan: RunPlan, phase: type[Phase]) -> tuple[str, str, str]:
    """Fingerprint, pieces of work, and how many are done."""
    fingerprint = plan.phase(phase.name).fingerprint
    has_task_per_split = phase.task_kind == "splits"
    task_ids = f"{len(plan.splits):,} units" if has_task_per_split else phase.task_kind
    if not phase.is_enabled(plan.config):
        return fingerprint or "—", task_ids, "off"
    if fingerprint is None:
        return "—", task_ids, "would run"
    folder = plan.folder(phase.name)
    done = folder.done()
    if has_task_per_split:
        done &= {split.key for split in plan.splits}
    is_complete = folder.complete() and (not has_task_per_split or len(done) == len(plan.splits))
    return (
        fingerprint,
        task_ids,
        "all" if is_complete else f"{len(done):,}, would go on" if done else "would run",
    )
