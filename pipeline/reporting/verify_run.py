"""Find damaged files of a run, and say which phase makes them again.

for found in find_damage(RunFolder.open("runs/ccnet")):
    print(found.describe())
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.phases import registry
from pipeline.phases.artifact import MergedArtifact
from pipeline.phases.phase import Phase
from pipeline.phases.write_shards import WriteShards
from pipeline.planning.recorded_plan import load_plan
from pipeline.runs.damaged_outputs import check_output, check_task, report
from pipeline.runs.phase_folder import SUMMARY_FILE, PhaseFolder
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.verified_file import Damage, DamagedOutput
from shardwriter.format import MANIFEST_FILE
from shardwriter.verification.findings import Finding
from storage.errors import DamagedFile


@dataclass(frozen=True)
class RunDamage:
    """A damaged file of a run.

    Attributes:
        phase: the phase that makes the file again.
        sources: what it is made from.
        damage: the file, what was found and what should be there.
    """

    phase: str
    sources: tuple[str, ...]
    damage: Damage

    def describe(self) -> str:
        """Return one line."""
        return f"{self.damage}; {self.phase} makes it again from {', '.join(self.sources)}"


def find_damage(run: RunFolder) -> Iterator[RunDamage]:
    """Compare every file of the phases before write_shards with its digests.

    Phases that are not finished are checked as far as they are done.
    """
    plan = load_plan(run)
    for phase in registry.PHASES:
        if phase is not WriteShards:
            for damage in _check_phase(phase(plan)):
                yield _add_sources(phase, run, damage)


def find_shard_damage(run: RunFolder, findings: Sequence[Finding]) -> Iterator[RunDamage]:
    """Yield the damaged files of write_shards.

    Args:
        run: the run.
        findings: the faults of its dataset. Only the shards that they name are read again.
    """
    # "shard-000000.tar, sample 000000-00012, byte 1574528" begins with the file.
    named = {re.split("[,:]", finding.where)[0] for finding in findings}
    phase = WriteShards(load_plan(run))
    # With the manifest of another dataset, the findings name shards that are whole.
    if findings and check_output(phase.folder, MANIFEST_FILE) is not None:
        named.add(MANIFEST_FILE)
    for task_id in _list_tasks(phase):
        for damage in _check_named(phase.folder, task_id, named):
            yield _add_sources(WriteShards, run, damage)


def note_damage(run: RunFolder, found: Iterable[RunDamage]) -> None:
    """Let the next run of the config set the files aside and make them again.

    Raises:
        OSError: the run folder cannot be written.
    """
    for each in found:
        if each.damage.file != SUMMARY_FILE:  # the next run reads it anyway
            report(run.folder(each.phase), each.damage)


def _check_phase(phase: Phase) -> Iterator[Damage]:
    folder = phase.folder
    try:
        folder.summary()
    except DamagedFile as error:
        yield Damage(str(folder.root), SUMMARY_FILE, error.found, error.wanted)
    except FileNotFoundError:
        pass  # the phase is not finished
    check = functools.partial(check_task, folder)
    for damages in folder.root.read_each(_list_tasks(phase), check):
        yield from damages


def _list_tasks(phase: Phase) -> list[str]:
    """Return the tasks of a finished phase, or those of an unfinished phase that are done."""
    folder = phase.folder
    if not folder.is_complete():
        return sorted(folder.list_done())
    if not phase.is_enabled(phase.config):
        return []
    try:
        task_ids = phase.task_ids()
    except (FileNotFoundError, DamagedFile):  # a parent is damaged, which is named itself
        return sorted(folder.list_done())
    artifacts = vars(type(phase)).values()
    merged = [each.name for each in artifacts if isinstance(each, MergedArtifact)]
    return task_ids + merged


def _check_named(
    folder: PhaseFolder, task_id: str, named: Container[str]
) -> Iterator[Damage]:
    """Check the done-record of a task, and those of its files that are named."""
    try:
        outputs = folder.record(task_id)["outputs"]
    except DamagedOutput as error:
        yield error.damage
        return
    for file in outputs:
        # Without its manifest, no shard was checked.
        if file in named or MANIFEST_FILE in named:
            damage = check_output(folder, file)
            if damage is not None:
                yield damage


def _add_sources(phase: type[Phase], run: RunFolder, damage: Damage) -> RunDamage:
    parents = tuple(parent.name for parent in phase.enabled_parents(run.config))
    return RunDamage(phase.name, parents or ("the input files",), damage)
