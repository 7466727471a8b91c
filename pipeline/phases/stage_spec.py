"""A stage with its settings, before its models are loaded; and the stages that this process has opened.

spec = StageSpec(Language, config.annotate.language)
spec.output_schema(schema)      # the columns after the stage; raises if a needed column is missing
spec.opened().apply(batch)      # the models are loaded once per process
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from pipeline.errors import TaskFailed
from pipeline.models import registry as model_registry
from stages.contract import Settings, Stage
from stages.counters import Counters

# Path, size in bytes and modification time (ns) of every file of a model.
FileState = list[tuple[str, int, int]]


@dataclass(frozen=True)
class StageSpec:
    """A stage class and its settings: small enough to send to a worker.

    Attributes:
        run_counters: that its limits come from; None: they are not counted yet.
    """

    stage: type[Stage[Any]]
    settings: Settings
    run_counters: Counters | None = None

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns after this stage.

        Raises:
            ValueError: a column that the stage needs is missing or has another type.
        """
        for needed in self.stage.required_columns(self.settings):
            index = schema.get_field_index(needed.name)
            found = schema.field(index).type if index >= 0 else "no such column"
            if found != needed.type:
                raise ValueError(
                    f"stage {self.stage.name} needs {needed.name} {needed.type}; "
                    f"the stages before it give {found}"
                )
        for added in self.stage.added_columns(self.settings):
            index = schema.get_field_index(added.name)
            schema = schema.append(added) if index < 0 else schema.set(index, added)
        return schema

    def digests(self) -> dict[str, str]:
        """Return the content digest of each model that is present on this machine."""
        found: dict[str, str] = {}
        for reference in self.stage.required_files(self.settings):
            digest = model_registry.digest(reference)
            if digest is not None:
                found[reference] = digest
        return found

    def opened(self, digests: Mapping[str, str] = MappingProxyType({})) -> Stage[Any]:
        """Return the stage with its models loaded, from this process's cache.

        Args:
            digests: content digests of the models when the run was planned; empty: do not check.

        Raises:
            TaskFailed: a model on this machine has another digest.
        """
        return OPENED_STAGES.get(self, digests)

    def load(self) -> Stage[Any]:
        """Return a new stage with its models loaded. Raises what `Stage.open` raises."""
        stage = self.stage(self.settings, self.find_files(), self.run_counters)
        stage.open()
        return stage

    def find_files(self) -> dict[str, Path]:
        """Return the path of each model on this machine."""
        references = self.stage.required_files(self.settings)
        return {each: model_registry.resolve(each) for each in references}


class StageCache:
    """Stages with loaded models, one per stage and settings.

    A stage is opened again when a file of its models or the counters of the run have changed: someone may edit a
    block list between two runs of one process.
    """

    def __init__(self) -> None:
        self._opened: dict[
            tuple[type[Stage[Any]], str],
            tuple[Stage[Any], list[FileState], Counters | None],
        ] = {}

    def get(self, spec: StageSpec, digests: Mapping[str, str]) -> Stage[Any]:
        """Return the opened stage, and open it first if necessary."""
        files = spec.find_files()
        key = (spec.stage, spec.settings.model_dump_json())
        states = [_read_file_state(path) for path in files.values()]
        opened, *when_opened = self._opened.get(key, (None, None, None))
        if opened is None or when_opened != [states, spec.run_counters]:
            _check_digests(spec, digests)
            opened = spec.load()
            self._opened[key] = opened, states, spec.run_counters
        return opened


# Of this process. Tasks that Ray runs one after another in one worker share it.
OPENED_STAGES = StageCache()


def _check_digests(spec: StageSpec, planned: Mapping[str, str]) -> None:
    found = spec.digests()
    for reference in found.keys() & planned.keys():
        wanted = planned[reference]
        if found[reference] != wanted:
            raise TaskFailed(
                f"{reference} on {socket.gethostname()} is not what the run was planned with: "
                f"sha256 {found[reference]}, wanted {wanted}; let all machines use the same "
                f"cache ($CORPUSMILL_CACHE) or path"
            )


def _read_file_state(path: Path) -> FileState:
    files = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
    states: FileState = []
    for file in files:
        status = file.stat()
        states.append((str(file), status.st_size, status.st_mtime_ns))
    return states
