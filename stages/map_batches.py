"""Run one stage as an operator of Ray Data, or of any library that maps functions over tables.

    language = as_map_batches(Language, LanguageSettings(model="lid.176.bin"))
    dataset.map_batches(language, batch_format="pyarrow")        # dataset: ray.data.Dataset

This module does not import Ray: Ray calls the returned object with one `pyarrow.Table` at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from stages.contract import DOC_ID, DROPPED, Outcome, Settings, Stage

S = TypeVar("S", bound=Settings)

# The columns that `keep_dropped` adds: reason, value, limit, detail. All null for kept
# rows.
REASON_COLUMNS = tuple(field for field in DROPPED if field.name != DOC_ID.name)

# The open stages of this process. Ray unpickles the operator for each task, but a process
# runs many tasks, and a model must be loaded only once.
_opened: dict[tuple[Any, ...], Stage[Any]] = {}


def as_map_batches(
    stage: type[Stage[S]],
    settings: S,
    files: Mapping[str, Path] | None = None,
    *,
    keep_dropped: bool = False,
) -> StageOperator:
    """Return a picklable callable that applies a stage to a `pyarrow.Table`.

    Args:
        stage: the class of the stage.
        settings: its settings.
        files: reference -> local path, for each reference of `stage.required_files(settings)`. By
            default a reference is itself a path. The path must exist on every machine.
        keep_dropped: return all rows in their order, with the columns reason, value, limit and
            detail, which are null for rows that the stage keeps. By default, return the kept rows.

    Raises:
        FileNotFoundError: a file does not exist on this machine.
    """
    paths = {reference: Path(reference) for reference in stage.required_files(settings)}
    paths.update(files or {})
    for reference, path in paths.items():
        if not path.exists():
            raise FileNotFoundError(
                f"stage {stage.name}: {path} does not exist; download the file and pass "
                f"files={{{reference!r}: path}}"
            )
    return StageOperator(stage, settings, tuple(sorted(paths.items())), keep_dropped)


@dataclass(frozen=True)
class StageOperator:
    """A callable from `pyarrow.Table` to `pyarrow.Table`; made by `as_map_batches`.

    The table needs the stage's columns (`Stage.required_columns`), but no `doc_id`. Columns of
    another type are cast. An exception of the stage is raised to the caller.
    """

    stage: type[Stage[Any]]
    settings: Settings
    files: tuple[tuple[str, Path], ...]
    keep_dropped: bool

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the kept rows, or all rows with their reasons."""
        batch = self._prepare(table)
        outcome = self._open_stage().apply(batch)
        outcome.check(batch, self.stage.name)
        if self.keep_dropped:
            return _restore_ids(_merge(batch, outcome), table)
        return _restore_ids(outcome.kept, table)

    def _open_stage(self) -> Stage[Any]:
        key = (self.stage, self.settings.model_dump_json(), self.files)
        if key not in _opened:
            stage = self.stage(self.settings, dict(self.files))
            stage.open()
            _opened[key] = stage
        return _opened[key]

    def _prepare(self, table: pa.Table) -> pa.Table:
        """Cast the columns that the stage needs, and set `doc_id` to the row number."""
        for needed in self.stage.required_columns(self.settings):
            if needed.name == DOC_ID.name:
                continue
            index = table.schema.get_field_index(needed.name)
            if index < 0:
                raise ValueError(
                    f"stage {self.stage.name} needs the column {needed.name} ({needed.type}); "
                    f"found {', '.join(table.column_names)}"
                )
            column = table.column(index).cast(needed.type)
            table = table.set_column(index, needed, column)
        # The caller's ids can be missing, not unique or of another type, so rows are numbered.
        row_numbers = pa.array(range(table.num_rows), pa.uint64())
        if DOC_ID.name in table.column_names:
            table = table.drop_columns([DOC_ID.name])
        return table.append_column(DOC_ID, row_numbers)


def _merge(batch: pa.Table, outcome: Outcome) -> pa.Table:
    """Return all rows of the batch in order; added columns are null where a row was dropped."""
    dropped = batch.take(outcome.dropped.column(DOC_ID.name))
    kept = outcome.kept
    for field in REASON_COLUMNS:
        dropped = dropped.append_column(field.name, outcome.dropped.column(field.name))
        kept = kept.append_column(field.name, pa.nulls(kept.num_rows, field.type))
    columns = [name for name in dropped.column_names if name in kept.column_names]
    both = pa.concat_tables([kept, dropped.select(columns)], promote_options="default")
    return both.take(pc.sort_indices(both.column(DOC_ID.name)))


def _restore_ids(result: pa.Table, table: pa.Table) -> pa.Table:
    """Replace row numbers by the caller's `doc_id`, in its place; remove them if there was none."""
    row_numbers = result.column(DOC_ID.name)
    result = result.drop_columns([DOC_ID.name])
    index = table.schema.get_field_index(DOC_ID.name)
    if index < 0:
        return result
    ids = table.column(index).take(row_numbers)
    return result.add_column(min(index, result.num_columns), table.schema.field(index), ids)
