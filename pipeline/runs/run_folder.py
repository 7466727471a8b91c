"""The folder of one run, on a disk or in a bucket, and the file run.json that describes it.

run = RunFolder.open("runs/ccnet")          # or "s3://bucket/runs/ccnet"
run.config.select.language
run.folder("extract").list_done()
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter

from config_files.reader import reread
from pipeline.config import RunConfig, StorageConfig, change
from pipeline.runs import event_log
from pipeline.runs.done_records import to_json
from pipeline.runs.phase_folder import RUN_FILE, PhaseFolder
from storage import Store, open_store
from storage.errors import DamagedFile
from storage.json_schema import Count, JsonObject, parse_json, show_value

# Names of phases and splits are parts of paths, so they hold no slash.
_Phase = Annotated[str, Field(pattern=r"^[a-z_]+$")]
_Folder = Annotated[str, Field(pattern=r"^[a-z_]+-[0-9a-f]{16}$")]
_SplitKey = Annotated[str, Field(pattern=r"^[0-9]{6,9}-[0-9a-f]{8}$")]


class _Run(JsonObject):
    config: dict[str, Any]
    folders: dict[_Phase, _Folder]
    splits: list[_SplitKey]
    stages: dict[_Phase, dict[str, Count]]


class _PreviousRun(_Run):
    run_dir: str


class _RunFile(_Run):
    previous_runs: list[_PreviousRun]


_RUN_FILE = TypeAdapter(_RunFile)

_REMEDY = "run the config again: it writes this file again"


class RunNotFound(Exception):
    """The folder holds no run, or the run has not reached the required phase."""


@dataclass(frozen=True)
class RunSplit:
    """An input split as run.json records it. Its input files are not needed any more."""

    index: int
    key: str  # the task_id of the split, and the start of its file names


@dataclass(frozen=True)
class RunFolder:
    """One run as its run.json describes it.

    Attributes:
        run_dir: where the folder was opened; it may have been moved since the run.
        recorded_config: the config as JSON; use `config` instead.
        folders: phase -> name of its folder inside `run_dir`.
        splits: the input splits in input order.
        stage_versions: phase -> stage -> version, of the phases that are on.
        previous: the previous runs that this run was deduplicated against.
    """

    run_dir: Store
    recorded_config: Mapping[str, Any]
    folders: Mapping[str, str]
    splits: tuple[RunSplit, ...]
    stage_versions: Mapping[str, Mapping[str, int]]
    previous: tuple[Self, ...] = ()

    @classmethod
    def open(cls, address: str | Path | Store) -> Self:
        """Open the run in a folder, or at s3://bucket/folder.

        A bucket is reached with the usual AWS_* environment variables.

        Raises:
            RunNotFound: the folder holds no run.
            DamagedFile: run.json has been changed since it was written.
            StorageError: the bucket cannot be read.
        """
        run_dir = open_store(address)
        try:
            content = run_dir.read_bytes(RUN_FILE)
        except FileNotFoundError as error:
            raise RunNotFound(
                f"{address}: no run here ({RUN_FILE} is missing); {_suggest(run_dir)}"
            ) from error
        where = run_dir.locate(RUN_FILE)
        described = parse_json(content, _RUN_FILE, where, _REMEDY)
        return cls._from_json(described, run_dir, where)

    @classmethod
    def _from_json(cls, described: Mapping[str, Any], run_dir: Store, where: str) -> Self:
        previous = [
            cls._from_json(run, open_store(run["run_dir"]), where)
            for run in described.get("previous_runs", ())
        ]
        _check_numbers(described["splits"], where)
        return cls(
            run_dir=run_dir,
            recorded_config=described["config"],
            folders=described["folders"],
            splits=number_splits(described["splits"]),
            stage_versions=described["stages"],
            previous=tuple(previous),
        )

    def record(self) -> None:
        """Write run.json, atomically."""
        described = self._to_json()
        del described["run_dir"]  # a run folder may be moved
        described["previous_runs"] = [run._to_json() for run in self.previous]  # noqa: SLF001
        self.run_dir.put(RUN_FILE, to_json(described))

    def _to_json(self) -> dict[str, Any]:
        return {
            "run_dir": str(self.run_dir),
            "config": self.recorded_config,
            "folders": dict(self.folders),
            "splits": [split.key for split in self.splits],
            "stages": self.stage_versions,
        }

    @cached_property
    def config(self) -> RunConfig:
        """The config of the run, with `run_dir` and `storage` as they were used to open it.

        It is checked on first use, so that a run of another version can still be opened.

        Raises:
            ConfigError: the run was made by a version with other config keys.
        """
        config = reread(RunConfig, self.recorded_config, self.run_dir.locate(RUN_FILE))
        storage = StorageConfig.from_settings(self.run_dir.settings)
        return config.model_copy(update={"run_dir": str(self.run_dir), "storage": storage})

    def folder(self, phase: str) -> PhaseFolder:
        """Return the folder with the outputs of a phase.

        Raises:
            RunNotFound: run.json names no folder of the phase.
        """
        name = self.folders.get(phase)
        if name is None:
            raise RunNotFound(
                f"{self.run_dir.locate(RUN_FILE)}: folders: found {sorted(self.folders)}, wanted "
                f"{phase} too; {_REMEDY}"
            )
        return PhaseFolder(self.run_dir.child(name))

    def has_finished(self, phase: str) -> bool:
        """Return whether all tasks of a phase are done."""
        return phase in self.folders and self.folder(phase).is_complete()

    @property
    def dataset(self) -> Store:
        """The folder of shards, indexes and manifest.json."""
        return self.folder("write_shards").root

    def read_events(self) -> Iterator[dict[str, Any]]:
        """Read the event log, oldest event first.

        Each event has "time" (seconds since the epoch) and "event" (its kind).
        """
        return event_log.read_events(self.run_dir)

    def change_config(self, overrides: Sequence[str] = ()) -> RunConfig:
        """Return the config with overrides (`key.of.key=value`) applied and checked.

        Raises:
            ConfigError: with every fault found.
        """
        return change(self.recorded_config, str(self.run_dir), overrides)


def number_splits(keys: Sequence[str]) -> tuple[RunSplit, ...]:
    """Return the splits with these keys, which are in input order."""
    return tuple(RunSplit(index, key) for index, key in enumerate(keys))


def _check_numbers(keys: Sequence[str], where: str) -> None:
    """Raise DamagedFile if a split's key does not begin with its place in the list."""
    for index, key in enumerate(keys):
        if int(key.split("-")[0]) != index:
            wanted = f"a key that begins with {index:06d}"
            raise DamagedFile(f"{where}: splits[{index}]", show_value(key), wanted, _REMEDY)


def _suggest(run_dir: Store) -> str:
    """Name the run folder with the most similar name, or the command that makes a run."""
    neighbours: list[str] = []
    path = run_dir.get_local_path()
    if path is not None:
        neighbours = [str(found.parent) for found in path.parent.glob(f"*/{RUN_FILE}")]
    similar = difflib.get_close_matches(str(run_dir), neighbours, 1) or neighbours[:1]
    if similar:
        return f"did you mean {similar[0]}?"
    return "start one with `python -m pipeline run`"
