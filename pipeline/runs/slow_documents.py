"""Notes on documents that took too long in a task: the process that worked on them was killed.

The tries that follow leave these documents out, in this run and when it is resumed. A note on
several documents makes the next try process them one by one. The name of a note's file contains
all of it, so that one listing reads the notes of a task:

    <phase>/too_slow/<task_id>.<step>.<first>-<last>.<limit_s>s
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from storage import Store

_FOLDER = "too_slow"
_NAME = re.compile(r"([^.]+)\.([a-z_]+)\.([0-9]+)-([0-9]+)\.([0-9]+)s")


@dataclass(frozen=True)
class SlowDocuments:
    """Consecutive documents whose CPU time together exceeded the limit for one document.

    Attributes:
        step: the stage; `read`: the extraction of text from the page.
        first: the smallest doc_id.
        last: the largest doc_id.
        limit_s: the CPU time that they exceeded.
    """

    step: str
    first: int
    last: int
    limit_s: int


def write_note(phase: Store, task_id: str, note: SlowDocuments, cpu_s: float) -> None:
    """Write a note into the folder of a phase.

    Args:
        phase: the folder.
        task_id: the task.
        note: the documents.
        cpu_s: the CPU time that they had taken when the process was killed, for people.
    """
    folder = phase.child(_FOLDER)
    folder.make_folder()
    name = f"{task_id}.{note.step}.{note.first}-{note.last}.{note.limit_s}s"
    folder.put(name, json.dumps({"cpu_s": round(cpu_s, 1)}).encode())


def read_notes(phase: Store, task_id: str, limit_s: int) -> list[SlowDocuments]:
    """Return the notes of a task that hold for this limit, sorted.

    A note with a smaller limit does not hold: the documents may take longer now.
    """
    notes: list[SlowDocuments] = []
    for name in phase.child(_FOLDER).list_names():
        found = _NAME.fullmatch(name)
        if found and found[1] == task_id and int(found[5]) >= limit_s:
            note = SlowDocuments(found[2], int(found[3]), int(found[4]), int(found[5]))
            notes.append(note)
    return sorted(notes, key=lambda note: (note.step, note.first, note.last))
