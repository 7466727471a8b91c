"""The folder or bucket that an export is written to.

On a disk an export is written into a hidden folder beside its own, which is renamed when all is
written. A bucket has no renames: there, an export is complete when it has an export.json. An
export that was interrupted continues after the last file that it has finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.runs.done_records import to_json
from pipeline.runs.phase_folder import PendingOutput, PhaseFolder
from storage import Store, open_store

# Written last: the format, the run, and the files with their sizes and digests.
EXPORT_FILE = "export.json"

# Of an export that is not complete: everything that its content depends on.
UNFINISHED_FILE = "unfinished.json"


class OutputExists(FileExistsError):
    """The folder of an export is in use."""


class Destination:
    """The place of one export, while it is being written."""

    def __init__(self, target: Store, identity: Mapping[str, Any], folder: str) -> None:
        """Open the place, and delete what an unfinished export of something else left.

        Args:
            target: the folder to make, or a folder of a bucket without files.
            identity: everything that the content of the export depends on.
            folder: the folder of the data files in the export; "": the export itself.

        Raises:
            OutputExists: the folder exists, or has files of something else.
        """
        self._target = target
        self._identity = to_json(dict(identity))
        path = target.get_local_path()
        if path is None:
            self._store = target
            self._check_bucket()
        else:
            self._store = open_store(path.with_name(f".{path.name}.unfinished"))
            self._check_folder(path)
        self._prefix = f"{folder}/" if folder else ""
        self._outputs = PhaseFolder(self._store.child(folder) if folder else self._store)
        self._outputs.make_folders()
        self._store.put(UNFINISHED_FILE, self._identity)

    def _check_folder(self, path: Path) -> None:
        if path.exists():
            raise OutputExists(self._describe_existing())
        if self._read_unfinished() != self._identity:
            self._store.delete_all()

    def _check_bucket(self) -> None:
        is_used = bool(self._target.list_names() or self._target.list_folders())
        if is_used and self._read_unfinished() != self._identity:
            raise OutputExists(self._describe_existing())

    def _read_unfinished(self) -> bytes | None:
        try:
            return self._store.read_bytes(UNFINISHED_FILE)
        except FileNotFoundError:
            return None

    def _describe_existing(self) -> str:
        remedy = "give the name of a new folder, or delete it"
        if self._target.exists(EXPORT_FILE):
            return f"{self._target} exists already and is a complete export; {remedy}"
        return f"{self._target} exists already; {remedy}"

    def write(
        self, task_id: str, write: Callable[[PendingOutput], Mapping[str, int]]
    ) -> dict[str, Any]:
        """Write the data files of a task, unless they are finished.

        Args:
            task_id: a name for the task.
            write: writes the files, and returns file -> number of documents.

        Returns:
            File in the export -> documents, bytes and digest.
        """
        if task_id not in self._outputs.list_done():
            with self._outputs.commit(task_id) as output:
                counts = dict(write(output))
                output.record = {"counters": {"counts": counts, "histograms": {}}}
        record = self._outputs.record(task_id)
        files: dict[str, Any] = {}
        for name, stored in sorted(record["outputs"].items()):
            num_docs = record["counters"]["counts"][name]
            size = {"num_bytes": stored["bytes"], "sha256": stored["sha256"]}
            files[f"{self._prefix}{name}"] = {"num_docs": num_docs, **size}
        return files

    def finish(self, content: Mapping[str, bytes], record: Mapping[str, Any]) -> None:
        """Write the small files, and make the export appear.

        Args:
            content: file name -> content.
            record: what export.json holds.
        """
        for name, text in content.items():
            self._store.put(name, text)
        self._outputs.delete_records()
        self._outputs.root.delete_unfinished()
        self._store.put(EXPORT_FILE, to_json(dict(record)))
        self._store.delete(UNFINISHED_FILE)
        path, unfinished = self._target.get_local_path(), self._store.get_local_path()
        if path is not None and unfinished is not None:
            unfinished.rename(path)
