"""Making a run's plan: its input splits, the stages of its phases, and their fingerprints. Needs no Ray.

The folder of a phase is named by a fingerprint of everything that its output depends on: its version, its section of
the config, the versions of its stages, the content of the models it loads, the fingerprints of its parents, and the
whole input if it depends on all splits. So a changed threshold reruns only dependent phases.

    plan = make_plan(load("ccnet.yaml"))
    plan.phase("select").fingerprint        # "5be0c1d29f3a7e46"; None while a model it needs is not made yet
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit, list_input_splits
from pipeline.models import registry as model_registry
from pipeline.phases import registry
from pipeline.phases.phase import Phase, list_model_references
from pipeline.phases.previous_runs import resolve_run_dir
from pipeline.phases.run_plan import PhasePlan, RunPlan
from pipeline.phases.stage_spec import StageSpec
from pipeline.planning.fingerprints import fingerprint
from pipeline.runs.removed_outputs import list_removed
from pipeline.runs.run_folder import RunFolder, RunNotFound
from terminal_output import format_command


def make_plan(config: RunConfig) -> RunPlan:
    """Plan a run: list its input, and look for its models and previous runs. Fetches and makes nothing.

    Raises:
        ConfigError: the input cannot be listed, or a previous run cannot be compared.
        ValueError: a stage needs a column that is missing.
    """
    splits = list_input_splits(config.input, config.storage.to_settings())
    return plan_splits(config, splits, find_previous_runs(config))


def plan_splits(
    config: RunConfig, splits: Sequence[InputSplit], previous: tuple[RunFolder, ...] = ()
) -> RunPlan:
    """Plan a run over input splits and previous runs that are already known."""
    phases: dict[str, PhasePlan] = {}
    for phase in registry.PHASES:
        specs = phase.plan_stages(config)
        models = {
            name: model_registry.digest(name) for name in list_model_references(specs)
        }
        phases[phase.name] = PhasePlan(
            phase.name,
            phase.version,
            tuple(parent.name for parent in phase.enabled_parents(config)),
            specs,
            _make_fingerprint(phase, specs, models, config, splits, phases, previous),
            {name: digest for name, digest in models.items() if digest is not None},
        )
    return RunPlan(config, tuple(splits), tuple(phases.values()), previous)


def find_previous_runs(config: RunConfig) -> tuple[RunFolder, ...]:
    """Read the runs that `previous_runs` names, and check that each phase can compare with them.

    Raises:
        ConfigError: with all faults.
    """
    runs: list[RunFolder] = []
    faults: list[str] = []
    seen = {resolve_run_dir(config.run_dir): "the run itself"}
    for name in config.previous_runs:
        folder = resolve_run_dir(name)
        if folder in seen:
            faults.append(
                f"previous_runs: {name} is {seen[folder]}; name other runs, each once"
            )
            continue
        seen[folder] = f"named twice, the first time as {name}"
        try:
            run = RunFolder.open(name)
            found = [f"{name}: {fault}" for fault in _compare(config, run)]
        except RunNotFound as error:
            found = [str(error)]
        except ConfigError as error:
            found = list(error.faults)
        else:
            runs.append(run)
        faults += [f"previous_runs: {fault}" for fault in found]
    if faults:
        raise ConfigError(faults)
    return tuple(runs)


def _compare(config: RunConfig, run: RunFolder) -> list[str]:
    faults: dict[str, None] = {}  # two phases may need the same: a fault is reported once
    for phase in registry.PHASES:
        faults |= dict.fromkeys(phase.check_previous_run(config, run))
        for read in phase.phases_read_in_previous_runs(config):
            faults |= dict.fromkeys(_find_removed(registry.find_phase(read), run))
    return list(faults)


def _find_removed(phase: type[Phase], run: RunFolder) -> Iterator[str]:
    """Yield a fault if `clean` removed what later runs read of a phase of a previous run."""
    if phase.name not in run.folders:
        return
    removed = list_removed(run.folder(phase.name).root)
    for artifact in phase.artifacts():
        if artifact.last_use == "previous_runs" and artifact.suffix in removed:
            yield (
                f"`clean` removed outputs of its {phase.name}; run `{format_command('pipeline')} "
                f"clean {run.run_dir} --restore`, then its config"
            )


def _make_fingerprint(
    phase: type[Phase],
    specs: Sequence[StageSpec],
    models: Mapping[str, str | None],
    config: RunConfig,
    splits: Sequence[InputSplit],
    planned: Mapping[str, PhasePlan],
    previous: Sequence[RunFolder],
) -> str | None:
    """Return the fingerprint of a phase, or None while one of its models or parents has none."""
    parents: dict[str, str | None] = {}
    for parent in phase.enabled_parents(config):
        parents[parent.name] = planned[parent.name].fingerprint
    if None in (*models.values(), *parents.values()):
        return None
    section = getattr(config, phase.section)
    if section is not None:
        # In Python's types, not in JSON's: a set is refused then, not listed in an arbitrary order.
        section = section.model_dump(mode="python")
    value: dict[str, Any] = {
        "phase": phase.name,
        "version": phase.version,
        "settings": section,
        "stages": [[spec.stage.name, spec.stage.version] for spec in specs],
        "files": models,
        "parents": parents,
        "splits": [split.key for split in splits] if phase.depends_on_all_splits else None,
        # Null for most phases. The keys are part of every fingerprint, so they cannot be left out.
        "files_per_split": None,
        "order_seed": None,
        **phase.fingerprint_inputs(config, sum(len(split.files) for split in splits)),
    }
    if read := phase.phases_read_in_previous_runs(config):
        # The keys of the splits stand for the outputs of extract: its folder outlives a changed input.
        shared = [
            [[run.folders[name] for name in read], [split.key for split in run.splits]]
            for run in previous
        ]
        value |= {"previous_runs": shared} if shared else {}
    return fingerprint(value)
