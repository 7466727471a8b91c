"""The files that phases write: which columns they have, and what their size grows with.

class Extract(SplitPhase):
documents = Artifact("documents.parquet", DOCUMENTS)     # one per task: {task_id}.documents.parquet
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


class Artifact:
    """A file that every task of a phase writes, named `{task_id}.{suffix}`.

    Attributes:
        suffix: the end of the file name, such as `documents.parquet`.
        schema: the Arrow columns; None: no Arrow data, or columns that depend on the config.
        grows_with: the amount that its bytes grow with; None: the one of the phase's cost.
        has_segments: all tasks of another phase read it in parts (pipeline/runs/exchange.py).
        phase: the name of the phase that writes it.
    """

    phase: str

    def __init__(
        self,
        suffix: str,
        schema: pa.Schema | None = None,
        *,
        grows_with: str | None = None,
        has_segments: bool = False,
    ) -> None:
        self.suffix = suffix
        self.schema = schema
        self.grows_with = grows_with
        self.has_segments = has_segments

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.phase = owner.name

    @property
    def kind(self) -> str:
        """The key of this file in cost calibrations: `documents` of `documents.parquet`."""
        return self.suffix.split(".")[0]

    def file_name(self, task_id: str) -> str:
        """Return the name of one task's file."""
        return f"{task_id}.{self.suffix}"


class MergedArtifact:
    """A file that a phase writes once, in `finish`, from the outputs of all its tasks.

    Attributes:
        name: the commit that writes it, and its stem.
        file_name: the file.
        schema: the Arrow columns; None: no Arrow data.
    """

    def __init__(self, file_name: str, schema: pa.Schema | None = None) -> None:
        self.name = file_name.split(".", maxsplit=1)[0]
        self.file_name = file_name
        self.schema = schema
