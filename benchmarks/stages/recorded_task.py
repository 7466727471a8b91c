"""Run one task and keep its batches between the steps, so that each step can run again separately."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from pipeline.execution.task import apply_stage, conform
from pipeline.phases.phase import Phase, SplitPhase
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import SplitWriter

Action = Callable[[], object]


@dataclass
class RecordedTask:
    """The batches that reached each step of one task. With them, each step can run again separately."""

    phase: SplitPhase
    task_id: str
    inputs: dict[str, list[pa.Table]]  # step -> batches
    dropped: list[tuple[pa.Table, pa.Table]]  # a batch, and the rows that a stage dropped

    def documents(self, step: str) -> pa.Table:
        """Return the documents that reach a step."""
        return pa.concat_tables(self.inputs[step])

    def repeat(self, step: str) -> Action:
        """Return a function that runs the step on all its batches."""
        if step == "read":
            return self._read
        if step == "write":
            return self._write
        (spec,) = (spec for spec in self.phase.stage_specs() if spec.stage.name == step)
        stage = spec.opened()
        return lambda: [apply_stage(stage, batch) for batch in self.inputs[step]]

    def _read(self) -> None:
        with self.phase.folder.commit(f"{self.task_id}-again") as output:
            writer = self._create_writer(output)
            deque(self.phase.read(self.task_id, writer), maxlen=0)
            writer.close()

    def _write(self) -> None:
        with self.phase.folder.commit(f"{self.task_id}-again") as output:
            writer = self._create_writer(output)
            for batch, dropped in self.dropped:
                writer.add_dropped(batch, dropped)
            for batch in self.inputs["write"]:
                writer.add_kept(batch)
            writer.close()

    def _create_writer(self, output: PendingOutput) -> SplitWriter:
        return self.phase.create_writer(f"{self.task_id}-again", output)


def record_task(phase: Phase, task_id: str) -> RecordedTask:
    """Run one task of a phase and keep the batches between its steps."""
    assert isinstance(phase, SplitPhase)
    task = RecordedTask(phase, task_id, {}, [])
    with phase.folder.commit(f"{task_id}-again") as output:
        writer = phase.create_writer(f"{task_id}-again", output)
        batches = [conform(batch, phase.schema) for batch in phase.read(task_id, writer)]
        writer.close()
    for spec, schema in phase.stage_schemas():
        task.inputs[spec.stage.name] = batches
        outcomes = [apply_stage(spec.opened(), batch) for batch in batches]
        for batch, outcome in zip(batches, outcomes, strict=True):
            task.dropped.append((batch, outcome.dropped))
        batches = [conform(outcome.kept, schema) for outcome in outcomes]
    task.inputs["write"] = batches
    return task
