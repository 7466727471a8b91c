"""Checks before the first task, of what would otherwise fail hours later, at its phase.

check_models(plan)       # raises ConfigError with all faults
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from config_files.reader import ConfigError
from pipeline.capacity.estimate import estimate_here
from pipeline.config.load import find_unknown_languages
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.stage_spec import StageSpec


def check_models(plan: RunPlan, *, keeps_open: bool = False) -> None:
    """Open every model, tokenizer and list of the phases that are left, one stage at a time.

    Args:
        plan: the run.
        keeps_open: leave them open for the tasks of this process, which would open them again.

    Raises:
        ConfigError: with one line for each stage that cannot be opened, and for each key with a
            language that the language model does not have.
    """
    checked: list[StageSpec] = []
    faults: list[str] = []
    for phase in _list_phases_left(plan):
        for spec in phase.plan_stages(plan.config):
            if spec not in checked:
                checked.append(spec)
                digests = plan.phase(phase.name).model_digests
                load = partial(spec.opened, digests) if keeps_open else spec.load
                faults += _check_stage(f"{phase.name}.{spec.stage.name}", load)
    # The labels of a model that was not on this machine are known only now.
    for key, message in find_unknown_languages(plan.config):
        faults.append(f"{'.'.join(key)}: {message}")
    if faults:
        raise ConfigError(faults)


def find_shortage_of_disk(plan: RunPlan) -> str | None:
    """Return a line if the estimated files of the phases that are left exceed the free space.

    None: they fit, or the free space is unknown because the run folder is in a bucket.
    """
    if not plan.splits:
        return None
    found = estimate_here(plan)
    disk_gb = found.cluster.disk_gb
    if disk_gb is None:
        return None
    left = {phase.name for phase in _list_phases_left(plan)}
    needed_gb = sum(each.bytes_written for each in found.phases if each.name in left) / 1e9
    if needed_gb <= disk_gb:
        return None
    return (
        f"{plan.run_dir}: the run takes about {needed_gb:,.1f} GB there, "
        f"{disk_gb:,.1f} GB are free; set run_dir to a larger disk"
    )


def _list_phases_left(plan: RunPlan) -> Iterator[type[Phase]]:
    for phase in registry.PHASES:
        if phase.is_enabled(plan.config) and not _is_complete(plan, phase):
            yield phase


def _is_complete(plan: RunPlan, phase: type[Phase]) -> bool:
    try:
        return plan.folder(phase.name).is_complete()
    except OSError:
        # The run folder cannot be read. The run says so when it takes its lock.
        return False


def _check_stage(key: str, load: Callable[[], object]) -> Iterator[str]:
    try:
        load()
    # Stages open files with many libraries, and each raises other errors.
    except Exception as error:  # noqa: BLE001 - it is reported with the others
        cause = str(error) or type(error).__name__
        yield f"{key} cannot be opened: {cause}"
