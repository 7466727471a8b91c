"""Damaged outputs: checking a stored file, setting it aside, and remembering it for the next run.

An output that is set aside does not exist any more, and its task is not done. So the next run of the
phase makes it again from its parents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import PurePosixPath

import numpy as np
from pydantic import TypeAdapter

from pipeline.runs.done_records import to_json
from pipeline.runs.output_digests import OutputDigests
from pipeline.runs.phase_folder import DAMAGED, PhaseFolder, get_task_id
from pipeline.runs.removed_outputs import is_removed
from pipeline.runs.verified_file import Damage, DamagedOutput
from storage import Store
from storage.json_schema import JsonObject, parse_json

# In the folder DAMAGED: files that a command found damaged, and that the next run sets aside.
_REPORT_SUFFIX = ".report.json"


class _Report(JsonObject):
    folder: str
    file: str
    found: str
    wanted: str
    place: str


_REPORT = TypeAdapter(_Report)


def check_output(folder: PhaseFolder, file: str) -> Damage | None:
    """Compare a whole output, or a done-record, with what was written.

    Returns:
        The damage; None if the file is whole, or was removed by `clean`.
    """
    task_id = get_task_id(file)
    record_file = folder.record_file(task_id)
    address = str(folder.root)
    try:
        outputs = folder.record(task_id)["outputs"]
    except DamagedOutput as error:
        return error.damage
    except FileNotFoundError:
        return Damage(address, record_file, "no file", "the record of a done task")
    if file == record_file:
        return None
    if file not in outputs:
        return Damage(address, record_file, f"no digests of {file}", "its digests")
    wanted = OutputDigests.from_json(outputs[file])
    wanted_file = f"a file of {wanted.num_bytes} bytes"
    try:
        with folder.root.open(file) as opened:
            found = OutputDigests.compute(opened)
    except FileNotFoundError:
        if is_removed(folder.root, file):
            return None
        return Damage(address, file, "no file", wanted_file)
    if found.num_bytes != wanted.num_bytes:
        return Damage(address, file, f"{found.num_bytes} bytes", wanted_file)
    if found.sha256 != wanted.sha256:
        return Damage(address, file, f"sha256 {found.sha256}", wanted.sha256)
    if not np.array_equal(found.block_crcs, wanted.block_crcs):
        return Damage(address, record_file, f"wrong CRCs of {file}", "those of its blocks")
    return None


def check_task(folder: PhaseFolder, task_id: str) -> list[Damage]:
    """Compare the done-record and all outputs of a task with what was written."""
    damage = check_output(folder, folder.record_file(task_id))
    if damage is not None:
        return [damage]
    found = [check_output(folder, file) for file in folder.record(task_id)["outputs"]]
    return [damage for damage in found if damage is not None]


def withdraw(folder: PhaseFolder, damage: Damage) -> str | None:
    """Set a damaged file aside, and the done-record of its task. Then the task is not done.

    Crash window: until the record is moved, the task counts as done. Then a phase that reads the
    file finds the damage again.

    Returns:
        Where the file is now; None: there was none.
    """
    # First: without its summary, the phase is not complete, and the next run lists its tasks.
    folder.unfinish()
    moved_to = folder.set_aside(damage.file)
    folder.set_aside(folder.record_file(get_task_id(damage.file)))
    folder.root.child(DAMAGED).delete(_name_report(damage.file))
    return moved_to


def hash_set_aside(folder: PhaseFolder, file: str) -> list[str]:
    """Return the SHA-256 of each file that was set aside under this name."""
    aside = folder.root.child(DAMAGED)
    names = re.compile(rf"{re.escape(file)}(\.\d+)?")
    digests: list[str] = []
    for name in aside.list_names():
        if names.fullmatch(name):
            with aside.open(name) as opened:
                digests.append(OutputDigests.compute(opened).sha256)
    return digests


def report(folder: PhaseFolder, damage: Damage) -> None:
    """Remember a damaged file. The next run sets it aside and makes it again."""
    reports = folder.root.child(DAMAGED)
    reports.make_folder()
    reports.put(_name_report(damage.file), to_json(asdict(damage)))


def list_reported(folder: PhaseFolder) -> Iterator[Damage]:
    """Yield the files that were reported and are still damaged; forget the other reports."""
    reports = folder.root.child(DAMAGED)
    for name in reports.list_names():
        if name.endswith(_REPORT_SUFFIX):
            damage = check_output(folder, _read_reported_file(reports, name))
            if damage is None:
                reports.delete(name)
            else:
                yield damage


def _read_reported_file(reports: Store, name: str) -> str:
    where, remedy = reports.locate(name), "delete this file"
    return parse_json(reports.read_bytes(name), _REPORT, where, remedy)["file"]


def _name_report(file: str) -> str:
    return f"{PurePosixPath(file).name}{_REPORT_SUFFIX}"
