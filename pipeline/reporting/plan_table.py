"""The plan of a run as a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pipeline.config import RunConfig
from pipeline.phases import registry
from pipeline.phases.histograms import Percentiles
from pipeline.phases.phase import Phase
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.select import Select
from pipeline.reporting.tables import Table, print_tables
from stages.filters.language import HIGHEST_MIN_SCORE, LOWEST_MIN_SCORE
from stages.filters.quality.rules import RULES, describe_exemptions
from stages.histograms import RunLimit
from terminal_output import format_count
from terminal_output.console import SafeConsole

UNKNOWN_CUTS = "percentiles will find the score"


def print_plan(plan: RunPlan, console: SafeConsole) -> None:
    """Print the phases with their stages, fingerprints and tasks, and what is done already."""
    input_bytes = sum(split.num_bytes for split in plan.splits)
    num_files = sum(len(split.files) for split in plan.splits)
    console.print(
        f"input: {input_bytes / 2**20:,.1f} MiB, files: {num_files:,}, input splits: "
        f"{len(plan.splits):,}; run folder {plan.run_dir}"
    )
    rows: list[tuple[str, ...]] = []
    for phase in registry.PHASES:
        specs = phase.plan_stages(plan.config)
        stages = " ".join(spec.stage.name for spec in specs if spec.stage in phase.stages)
        fingerprint = plan.phase(phase.name).fingerprint or "—"
        tasks = phase.task_kind
        if _has_task_per_split(phase):
            tasks = format_count(len(plan.splits), "split")
        rows.append(
            (phase.name, stages, fingerprint, tasks, _describe_progress(plan, phase))
        )
    columns = ("phase", "stages", "fingerprint", "tasks", "done")
    print_tables([Table("", columns, rows)], console)
    notes = (_describe_score(plan), _describe_cuts(plan), _describe_rules_off(plan))
    for line in itertools.chain(*notes):
        console.print(line)


def _describe_score(plan: RunPlan) -> Iterator[str]:
    """Yield the signals of the quality score, if there is one."""
    weights = plan.config.score_weights.items()
    if weights:
        parts = ", ".join(f"{name} {weight:+g}" for name, weight in weights)
        yield f"select.score: weights of percentile ranks: {parts}"


def _describe_cuts(plan: RunPlan) -> Iterator[str]:
    """Yield what each `keep_top` keeps, with the scores where percentiles is done."""
    language = plan.config.select.language
    if language is not None and language.uses_run:
        yield (
            "select.language.min_score: run, the median of a language's scores minus their "
            f"deviation, within {LOWEST_MIN_SCORE} and {HIGHEST_MIN_SCORE}"
        )
    shares = _list_shares(plan.config)
    found = _compute_cuts(plan) if shares else []
    for setting, share in shares.items():
        cuts = [cut for cut in found if cut.setting.startswith(f"{setting}:")]
        scores = ", ".join(f"{cut.language} from {cut.limit:.4g}" for cut in cuts)
        yield f"{setting}: the best {share:.4g} of each language; {scores or UNKNOWN_CUTS}"


def _list_shares(config: RunConfig) -> dict[str, float]:
    """Return the settings `keep_top` that are on, with their shares."""
    shares: dict[str, float] = {}
    classifiers = config.select.classifiers
    for name, limits in classifiers.limits.items() if classifiers else ():
        if limits.keep_top is not None:
            shares[f"select.classifiers.{name}.keep_top"] = limits.keep_top
    score = config.select.score
    if score is not None and score.keep_top is not None:
        shares["select.score.keep_top"] = score.keep_top
    return shares


def _describe_rules_off(plan: RunPlan) -> Iterator[str]:
    """Yield the rules of `select.quality` that are off in some of its languages."""
    quality = plan.config.select.quality
    if quality is None:
        return
    limits = {rule.limit for rule in RULES if getattr(quality, rule.limit) is not None}
    for line in describe_exemptions(limits, quality.languages):
        yield f"select.quality: {line}"


def _compute_cuts(plan: RunPlan) -> list[RunLimit]:
    """Return the limits that the scores of the run give; none before percentiles is done."""
    is_known = plan.phase(Percentiles.name).fingerprint is not None
    if not is_known or not plan.folder(Percentiles.name).is_complete():
        return []
    return Select(plan).compute_cuts()


def _has_task_per_split(phase: type[Phase]) -> bool:
    return phase.task_kind == "splits"


def _describe_progress(plan: RunPlan, phase: type[Phase]) -> str:
    """Return whether a phase is off, done, or how much of it is done."""
    if not phase.is_enabled(plan.config):
        return "off"
    if plan.phase(phase.name).fingerprint is None:
        return "would run"
    folder = plan.folder(phase.name)
    done = folder.list_done()
    is_complete = folder.is_complete()
    if _has_task_per_split(phase):
        # The folder may also hold splits of an earlier input.
        done &= {split.key for split in plan.splits}
        is_complete = is_complete and len(done) == len(plan.splits)
    if is_complete:
        return "all"
    return f"{len(done):,}, would continue" if done else "would run"
