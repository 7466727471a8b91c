"""Run `select` again with other settings, on stored scores and into a temporary folder."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, fields

import pyarrow as pa
import pyarrow.compute as pc

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.config.changes import Changes, list_changes
from pipeline.errors import RunAborted, TaskFailed
from pipeline.execution.task import run_task
from pipeline.phases import registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from pipeline.phases.extract import Extract
from pipeline.phases.filter_phase import FilterPhase
from pipeline.phases.histograms import HistogramPhase
from pipeline.phases.phase import SplitPhase
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.select import Select
from pipeline.planning.plan import plan_splits
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.changes import compare_cuts
from pipeline.reporting.explain.trace import KEPT
from pipeline.reporting.preview.comparison import Comparison, Preview
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder, RunNotFound, RunSplit
from pipeline.runs.split_output import DECISIONS, read_table
from stages.mixing.mix import NUM_COPIES, QUALITY_BIN
from storage import Store, open_store

# Sections of the config that can be changed: `select`, and those that change no output.
FREE_SECTIONS = ("select", "engine", "report", "storage")

# The phases that a preview runs before select. All of them write into a temporary folder.
COUNTING = tuple(each for each in registry.PHASES if issubclass(each, HistogramPhase))


def preview(run: RunFolder, overrides: Sequence[str]) -> Preview:
    """Compare the decisions of a run with those under a changed config.

    Args:
        run: a run that has finished select.
        overrides: `key.of.key=value`, as for `--set`.

    Raises:
        ConfigError: an override is wrong, or changes more than select.
        RunNotFound: select is not done yet.
        RunAborted: a task of select failed.
    """
    for phase in (Annotate, FuzzyDedup, Select):
        if not run.has_finished(phase.name):
            raise RunNotFound(
                f"{run.run_dir}: {phase.name} is not done yet; run the config to its end first"
            )
    stored, changed = run.change_config(), run.change_config(overrides)
    changes = dict(
        list_changes(stored.model_dump(mode="json"), changed.model_dump(mode="json"))
    )
    _check_only_select(changes)
    comparison = Comparison(run)
    with _open_select(run, changed) as phase:
        for split, decisions in zip(run.splits, _select_again(run, phase), strict=True):
            before = read_decisions(run.folder(Select.name), stored, split)
            comparison.add(split, before, decisions)
        old_cuts = Select.read_cuts(run.folder(Select.name))
        cuts = compare_cuts(old_cuts, phase.compute_cuts())
    return comparison.summarize(changes, _list_outdated_phases(run, stored), cuts)


def select_again(run: RunFolder, config: RunConfig) -> Iterator[pa.Table]:
    """Yield the decisions of select under this config: a table per split, sorted by document.

    Raises:
        ConfigError: a rule needs scores that the run has not stored.
        RunAborted: a task failed.
    """
    with _open_select(run, config) as phase:
        for decisions in _select_again(run, phase):
            yield decisions.select(DECISIONS.names)


@contextlib.contextmanager
def _open_select(run: RunFolder, config: RunConfig) -> Generator[Select]:
    """Yield the phase select under this config, in a temporary folder, ready to run its tasks."""
    plan = load_plan(run, config)
    with tempfile.TemporaryDirectory(prefix="preview-") as scratch:
        values = {each.name: getattr(plan, each.name) for each in fields(plan)}
        plan = _ScratchPlan(**values, scratch=open_store(scratch))
        phase = Select(plan)
        try:
            for counting in COUNTING:
                if counting.is_enabled(config):
                    _count_scores(run, counting(plan))
            phase.folder.begin()
            phase.prepare_tasks()
        except (ValueError, TaskFailed) as error:
            fault = f"select: {error}; the required column was not stored by this run"
            raise ConfigError([fault]) from error
        yield phase


@dataclass(frozen=True)
class _ScratchPlan(RunPlan):
    """The plan of a run, with select and the phases that count scores in other folders."""

    scratch: Store = field(kw_only=True)

    def folder(self, name: str) -> PhaseFolder:
        """Return the folder of a phase's outputs."""
        if issubclass(registry.find_phase(name), FilterPhase):
            return PhaseFolder(self.scratch.child(name))
        return super().folder(name)


def _count_scores(run: RunFolder, phase: SplitPhase) -> None:
    """Run a phase that has nothing but counters on all splits."""
    phase.folder.begin()
    phase.prepare_tasks()
    for split in run.splits:
        _run_task(run, phase, split)
    counters = phase.sum_records().to_json()
    phase.folder.finish({"task_ids": len(run.splits), "of": "", "counters": counters})


def _select_again(run: RunFolder, phase: Select) -> Iterator[pa.Table]:
    for split in run.splits:
        _run_task(run, phase, split)
        yield read_decisions(phase.folder, phase.config, split)
        # Only one split's files are on the disk at a time.
        for artifact in (Select.decisions, Select.scores):
            path = phase.folder.path(artifact.file_name(split.key))
            path.unlink(missing_ok=True)


def _run_task(run: RunFolder, phase: SplitPhase, split: RunSplit) -> None:
    result = run_task(phase, split.key, phase.config.engine)
    if result.failed is not None:
        raise RunAborted(f"{run.run_dir}, input split {split.key}: {result.failed}")


def read_decisions(folder: PhaseFolder, config: RunConfig, split: RunSplit) -> pa.Table:
    """Read the decisions of select on a split, sorted by document, with their bins and copies.

    Dropped documents have no bin and no copies. Without `select.mix`, kept ones have no bin and one
    copy.

    Args:
        folder: of select.
        config: with which select has run.
        split: the split.
    """
    decisions = read_table(folder.open(Select.decisions.file_name(split.key)))
    bins = pa.nulls(decisions.num_rows, QUALITY_BIN.type)
    copies = pc.cast(pc.equal(decisions.column("decision"), KEPT), NUM_COPIES.type)
    if config.select.mix is not None:
        scores = read_table(folder.open(Select.scores.file_name(split.key)))
        ids = scores.column("doc_id").combine_chunks()
        rows = pc.index_in(decisions.column("doc_id"), value_set=ids)
        bins = scores.column(QUALITY_BIN.name).take(rows)
        copies = pc.fill_null(scores.column(NUM_COPIES.name).take(rows), 0)
    return decisions.append_column(QUALITY_BIN, bins).append_column(NUM_COPIES, copies)


def _check_only_select(changes: Changes) -> None:
    """Raise ConfigError with a line for each changed key outside of select."""
    phases = {name: name for name in registry.list_phase_names()}
    phases |= {"input": Extract.name, "run_dir": Extract.name}
    phases["previous_runs"] = ParagraphDedup.name
    faults: list[str] = []
    for key in changes:
        section = key.split(".", maxsplit=1)[0]
        if section not in FREE_SECTIONS:
            phase = phases[section]
            faults.append(
                f"--set {key}: {phase} would have to run again, and the phases after it; preview "
                f"changes only select. `python -m pipeline run` with the same --set does it, and "
                f"keeps what is done before {phase}"
            )
    if faults:
        raise ConfigError(faults)


def _list_outdated_phases(run: RunFolder, stored: RunConfig) -> tuple[str, ...]:
    """Return the phases before select that this version of the software would run again."""
    plan = plan_splits(stored, load_plan(run, stored).splits, run.previous)
    outdated: list[str] = []
    for name in plan.phase(Select.name).parents:
        fingerprint = plan.phase(name).fingerprint
        if fingerprint is not None and run.folders.get(name) != f"{name}-{fingerprint}":
            outdated.append(name)
    return tuple(outdated)
