"""Repairing a run: damaged outputs are set aside, so that their tasks are run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipeline.errors import RunAborted
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.phases.run_plan import RunPlan
from pipeline.runs import damaged_outputs
from pipeline.runs.phase_folder import PhaseFolder, get_task_id
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.verified_file import Damage, DamagedOutput

# Of one file in one run. More often, it is not the file that is damaged, but the machine.
MAX_REPAIRS = 3


class Repairs:
    """The damaged outputs that were found in one run."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._num_repairs: Counter[str] = Counter()
        # (phase folder, task) -> its outputs as they were recorded before.
        self._outputs_before: dict[tuple[PhaseFolder, str], Mapping[str, Any]] = {}

    def find_owner(self, damage: Damage) -> type[Phase]:
        """Return the phase that makes a file again.

        Raises:
            RunAborted: the file belongs to a previous run.
        """
        for phase in registry.PHASES:
            if str(self._plan.folder(phase.name).root) == damage.folder:
                return phase
        for run in self._plan.previous:
            for name in run.folders:
                if str(run.folder(name).root) == damage.folder:
                    _report_to_previous(run, run.folder(name), damage)
        raise AssertionError(f"{damage.folder} is no phase folder of this plan")

    def restore(self, phase: type[Phase]) -> None:
        """Let a phase make all outputs again that `clean` removed. Later calls do nothing."""
        self._plan.folder(phase.name).restore()

    def set_aside(self, phase: type[Phase], damage: Damage) -> str | None:
        """Set a damaged file aside, and return where it is now.

        Returns:
            None: there was no file, or it is whole when this process reads it.

        Raises:
            RunAborted: the file was repaired in this run MAX_REPAIRS times already.
        """
        place = damage.address
        self._num_repairs[place] += 1
        if self._num_repairs[place] > MAX_REPAIRS:
            raise RunAborted(
                f"{damage}; it was made again {MAX_REPAIRS} times, and is damaged again: check the "
                f"disk and the memory of this machine and of the workers"
            )
        folder = self._plan.folder(phase.name)
        if damaged_outputs.check_output(folder, damage.file) is None:
            return None
        task_id = get_task_id(damage.file)
        try:
            self._outputs_before[folder, task_id] = folder.record(task_id)["outputs"]
        except (FileNotFoundError, DamagedOutput):
            self._outputs_before.pop((folder, task_id), None)
        return damaged_outputs.withdraw(folder, damage)

    def check_remade(self) -> None:
        """Compare the outputs of repeated tasks with those before.

        Raises:
            RunAborted: they differ, and other phases may have read those before.
        """
        for folder, task_id in list(self._outputs_before):
            if task_id not in folder.list_done():
                continue  # with another engine.memory_mb, there are other partitions
            before = self._outputs_before.pop((folder, task_id))
            made = folder.record(task_id)["outputs"]
            for file in before.keys() & made.keys():
                _compare(
                    folder, task_id, file, before[file]["sha256"], made[file]["sha256"]
                )


def _compare(folder: PhaseFolder, task_id: str, file: str, before: str, made: str) -> None:
    # Or else the digest in the record was damaged, not the file.
    if made == before or made in damaged_outputs.hash_set_aside(folder, file):
        return
    raise RunAborted(
        f"{folder.root.locate(file)}: task {task_id} made sha256 {made} after this file was "
        f"damaged, and {before} before. Other phases may have read the earlier content. An input "
        f"file, a model or the software has changed: delete {folder.root} and the folders of the "
        f"phases after it, and run the same command again"
    )


def _report_to_previous(run: RunFolder, folder: PhaseFolder, damage: Damage) -> None:
    """Let the next run in the folder of a previous run repair it; end this run."""
    remedy = "run the config of that run again: it makes the file again. Then run this command again"
    try:
        damaged_outputs.report(folder, damage)
    except OSError as error:
        remedy = f"{remedy} (it cannot be noted there: {error})"
    raise RunAborted(f"{damage}. It belongs to the previous run {run.run_dir}: {remedy}")
