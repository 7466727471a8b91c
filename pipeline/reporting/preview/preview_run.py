"""Compare the decisions of a run with those under other settings of `select`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.config.changes import Changes, list_changes
from pipeline.phases import registry
from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from pipeline.phases.extract import Extract
from pipeline.phases.select import Select
from pipeline.planning.plan import plan_splits
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.browse.index import build_index
from pipeline.reporting.preview.effects import (
    Effects,
    Preview,
    compare_effects,
    read_tokens,
)
from pipeline.runs.run_folder import RunFolder, RunNotFound

NUM_EXAMPLES = 10

# Sections of the config that can be changed: `select`, and those that change no output.
FREE_SECTIONS = ("select", "engine", "report", "storage")


def preview(run: RunFolder, overrides: Sequence[str]) -> Preview:
    """Compare the decisions of a run with those under a changed config.

    Args:
        run: a run that has finished select.
        overrides: `key.of.key=value`, as for `--set`.

    Raises:
        ConfigError: an override is wrong, or changes more than select, or needs scores that the run
            has not stored.
        RunNotFound: select is not done yet.
    """
    if not run.has_finished(Select.name):
        raise RunNotFound(
            f"{run.run_dir}: select is not done yet; run the config to its end first"
        )
    stored, changed = run.change_config(), run.change_config(overrides)
    changes = dict(
        list_changes(stored.model_dump(mode="json"), changed.model_dump(mode="json"))
    )
    _check_only_select(changes)
    with build_index(run) as index:
        effects = Effects(index, counts_all=True)
        found = compare_effects(
            index,
            effects.compute(()),
            effects.compute(tuple(overrides)),
            num_examples=NUM_EXAMPLES,
            tokens=read_tokens(index),
        )
    return replace(found, changes=changes, outdated=_list_outdated_phases(run, stored))


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
