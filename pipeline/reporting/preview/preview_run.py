"""Run `select` again with other settings, on stored scores and into a temporary folder."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.errors import RunAborted, TaskFailed
from pipeline.execution.task import run_task
from pipeline.phases import registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from pipeline.phases.extract import Extract
from pipeline.phases.percentiles import Percentiles
from pipeline.phases.phase import SplitPhase
from pipeline.phases.select import Select
from pipeline.phases.signal_percentiles import SignalPercentiles
from pipeline.planning.plan import plan_splits
from pipeline.planning.recorded_plan import load_plan
from pipeline.planning.run_plan import RunPlan
from pipeline.reporting.preview.comparison import Comparison, Preview, compare_cuts
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder, RunNotFound, RunSplit
from pipeline.runs.split_output import read_table
from storage import open_store

# Config key -> value before and after.
Changes = Mapping[str, tuple[Any, Any]]

# Sections of the config that can be changed: `select`, and those that change no output.
FREE_SECTIONS = ("select", "engine", "report", "storage")


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
        _list_changes(stored.model_dump(mode="json"), changed.model_dump(mode="json"))
    )
    _check_only_select(changes)
    comparison = Comparison(run)
    with _open_select(run, changed) as phase:
        for split, decisions in zip(run.splits, _select_again(run, phase), strict=True):
            before = read_decisions(run.folder(Select.name), split)
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
        yield from _select_again(run, phase)


@contextlib.contextmanager
def _open_select(run: RunFolder, config: RunConfig) -> Generator[Select]:
    """Yield the phase select under this config, in a temporary folder, ready to run its tasks."""
    plan = load_plan(run, config)
    with tempfile.TemporaryDirectory(prefix="preview-") as scratch:
        root = open_store(scratch)
        signals = _SignalsIntoFolder(plan, PhaseFolder(root.child("signal_percentiles")))
        folder = PhaseFolder(root.child("percentiles"))
        percentiles = _PercentilesIntoFolder(plan, folder, signals)
        folder = PhaseFolder(root.child("select"))
        phase = _SelectIntoFolder(plan, folder, signals, percentiles)
        try:
            for counting in (signals, percentiles):
                if counting.is_enabled(config):
                    _count_scores(run, counting)
            phase.folder.begin()
            phase.prepare_tasks()
        except (ValueError, TaskFailed) as error:
            fault = f"select: {error}; the required column was not stored by this run"
            raise ConfigError([fault]) from error
        yield phase


def _count_scores(run: RunFolder, phase: SignalPercentiles | Percentiles) -> None:
    """Run a phase that has nothing but counters on all splits."""
    phase.folder.begin()
    phase.prepare_tasks()
    for split in run.splits:
        _run_task(run, phase, split)
    counters = phase.sum_of_records().to_json()
    phase.folder.finish({"task_ids": len(run.splits), "of": "", "counters": counters})


def _select_again(run: RunFolder, phase: Select) -> Iterator[pa.Table]:
    for split in run.splits:
        _run_task(run, phase, split)
        yield read_decisions(phase.folder, split)
        # Only one split's files are on the disk at a time.
        for artifact in (Select.decisions, Select.scores):
            path = phase.folder.path(artifact.file_name(split.key))
            path.unlink(missing_ok=True)


def _run_task(run: RunFolder, phase: SplitPhase, split: RunSplit) -> None:
    result = run_task(phase, split.key, phase.config.engine)
    if result.failed is not None:
        raise RunAborted(f"{run.run_dir}, input split {split.key}: {result.failed}")


def read_decisions(folder: PhaseFolder, split: RunSplit) -> pa.Table:
    """Read the decisions of select on a split, sorted by document."""
    return read_table(folder.open(Select.decisions.file_name(split.key)))


class _SignalsIntoFolder(SignalPercentiles):
    """The phase signal_percentiles with another output folder."""

    def __init__(self, plan: RunPlan, folder: PhaseFolder) -> None:
        super().__init__(plan)
        self._folder = folder

    @property
    def folder(self) -> PhaseFolder:
        """The output folder."""
        return self._folder


class _PercentilesIntoFolder(Percentiles):
    """The phase percentiles with another output folder, and other counts of signals."""

    def __init__(
        self, plan: RunPlan, folder: PhaseFolder, signals: SignalPercentiles
    ) -> None:
        super().__init__(plan)
        self._folder, self._signals = folder, signals

    @property
    def folder(self) -> PhaseFolder:
        """The output folder."""
        return self._folder

    def signal_percentiles(self) -> SignalPercentiles:
        """Return the phase that has counted the signals."""
        return self._signals


class _SelectIntoFolder(Select):
    """The phase select with another output folder, and other counts of scores."""

    def __init__(
        self,
        plan: RunPlan,
        folder: PhaseFolder,
        signals: SignalPercentiles,
        percentiles: Percentiles,
    ) -> None:
        super().__init__(plan)
        self._folder, self._signals, self._percentiles = folder, signals, percentiles

    @property
    def folder(self) -> PhaseFolder:
        """The output folder."""
        return self._folder

    def signal_percentiles(self) -> SignalPercentiles:
        """Return the phase that has counted the signals."""
        return self._signals

    def percentiles(self) -> Percentiles:
        """Return the phase that has counted the scores."""
        return self._percentiles


def _list_changes(
    before: Any, after: Any, key: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the keys whose values differ, the innermost ones that both configs have."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        if before != after:
            yield key, (before, after)
        return
    names = dict.fromkeys([*before, *after])  # in order, each once
    for name in names:
        inner_key = f"{key}.{name}" if key else name
        yield from _list_changes(before.get(name), after.get(name), inner_key)


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
