"""A damaged output is named, set aside and made again; the dataset has the bytes it would have had."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pipeline.errors import RunAborted
from pipeline.execution.engine import Event, OutputDamaged, TaskFinished, run
from pipeline.execution.inline import InlineEngine
from pipeline.execution.task import TaskResult
from pipeline.phases.phase import Phase
from pipeline.phases.run_plan import RunPlan
from pipeline.runs.done_records import dump_record
from pipeline.runs.phase_folder import DAMAGED, read_digests
from pipeline.runs.run_folder import RunFolder
from tests.connected_engine import ConnectedEngine
from tests.faults.runs.small_run import hash_outputs
from tests.pipeline.conftest import Small


class Saboteur(InlineEngine):
    """The engine, with something that happens before the tasks of a phase."""

    def __init__(self, plan: RunPlan, phase: str, act: Callable[[], None]) -> None:
        super().__init__(plan.config.engine)
        self._phase, self._act = phase, act

    def run_tasks(self, phase: Phase, task_ids: Sequence[str]) -> Iterator[TaskResult]:
        """Act, then run the tasks."""
        if phase.name == self._phase:
            self._act()
        yield from super().run_tasks(phase, task_ids)


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def find_file(plan: RunPlan, phase: str, suffix: str) -> Path:
    """Return the first output of a phase with that suffix."""
    return next(iter(sorted(plan.folder(phase).path("").glob(f"*{suffix}"))))


def list_damaged(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Return the phases and names of the files that were damaged."""
    damaged = [event for event in events if isinstance(event, OutputDamaged)]
    return [(event.phase, Path(event.file).name) for event in damaged]


def list_tasks(events: Sequence[Event], phase: str) -> list[str]:
    """Return the tasks of a phase that were run to their end."""
    finished = [event for event in events if isinstance(event, TaskFinished)]
    return [e.task_id for e in finished if e.phase == phase and e.failed is None]


def test_a_damaged_output_is_made_again_in_the_same_run(small: Small) -> None:
    """The task that reads it is repeated too; the damaged file is kept aside."""
    expected = hash_outputs_of_whole_run(small)
    plan = small.plan()
    damaged: list[bytes] = []

    def act() -> None:
        if not damaged:
            path = find_file(plan, "extract", ".documents.parquet")
            flip(path)
            damaged.append(path.read_bytes())

    events = list(run(plan, Saboteur(plan, "annotate", act)))
    key = plan.splits[0].key
    assert list_damaged(events) == [("extract", f"{key}.documents.parquet")]
    assert list_tasks(events, "extract") == [key, key]
    assert list_tasks(events, "annotate") == [key]
    aside = plan.folder("extract").path(DAMAGED) / f"{key}.documents.parquet"
    assert aside.read_bytes() == damaged[0]
    assert hash_outputs(RunFolder.open(plan.run_dir)) == expected


def hash_outputs_of_whole_run(small: Small) -> dict[str, str]:
    """Return the digests of a run to which nothing happened."""
    return hash_outputs(small.run("whole")[0])


def test_parents_that_are_damaged_too_are_made_again_first(small: Small) -> None:
    """Every file on the way from the input to the tokens is damaged."""
    expected = hash_outputs_of_whole_run(small)
    plan = small.plan()
    files = [
        ("extract", ".documents.parquet"),
        ("extract", ".hashes.arrow"),
        ("paragraph_dedup", ".repeated.arrow"),
        ("annotate", ".documents.parquet"),
        ("select", ".decisions.parquet"),
        ("tokenize", ".documents.arrow"),
    ]
    is_damaged: list[bool] = []

    def act() -> None:
        if not is_damaged:
            is_damaged.append(True)
            for phase, suffix in files:
                find_file(plan, phase, suffix).write_bytes(b"")

    events = list(run(plan, Saboteur(plan, "write_shards", act)))
    assert {phase for phase, _ in list_damaged(events)} == {phase for phase, _ in files}
    assert hash_outputs(RunFolder.open(plan.run_dir)) == expected


def test_a_missing_done_record_is_made_again(small: Small) -> None:
    """A later phase reads it, although the phase of the record was complete."""
    plan = small.plan()
    record = plan.folder("extract").path(f"done/{plan.splits[0].key}.json")
    is_damaged: list[bool] = []

    def act() -> None:
        if not is_damaged:
            is_damaged.append(True)
            record.unlink()
            read_digests.cache_clear()  # as in another process

    events = list(run(plan, Saboteur(plan, "annotate", act)))
    assert list_damaged(events)[0] == ("extract", record.name)
    assert record.exists()


def test_a_file_that_is_damaged_again_and_again_ends_the_run(small: Small) -> None:
    """The disk is broken, not the file."""
    plan = small.plan()

    def act() -> None:
        flip(find_file(plan, "extract", ".documents.parquet"))

    with pytest.raises(
        RunAborted, match=r"made again 3 times, and is damaged again: check the disk"
    ):
        list(run(plan, Saboteur(plan, "annotate", act)))


def test_an_input_file_that_is_gone_is_named(small: Small, wet_file: Path) -> None:
    """The output cannot be made again; the message names the input file."""
    plan = small.plan()

    def act() -> None:
        flip(find_file(plan, "extract", ".documents.parquet"))
        wet_file.unlink(missing_ok=True)

    with pytest.raises(RunAborted, match=rf"extract: 1 of 1 tasks failed.*\n.*{wet_file}"):
        list(run(plan, Saboteur(plan, "annotate", act)))


def test_other_bytes_than_before_end_the_run(small: Small) -> None:
    """Complete phases may have read the earlier bytes, so nothing is made of the new ones."""
    plan = small.plan()
    folder, key = plan.folder("extract"), plan.splits[0].key

    def act() -> None:
        """Let the record say that the file had another content before."""
        record_file = folder.path(f"done/{key}.json")
        record = folder.record(key)
        record["outputs"][f"{key}.documents.parquet"]["sha256"] = "0" * 64
        record_file.write_bytes(dump_record(record, folder.root.name))
        folder.path(f"{key}.documents.parquet").unlink()

    with pytest.raises(RunAborted, match=rf"task {key} made sha256 .* and 0{{64}} before"):
        list(run(plan, Saboteur(plan, "annotate", act)))


def test_a_wrong_digest_in_a_record_is_corrected(small: Small) -> None:
    """The record is made again; the file has the bytes that it had."""
    expected = hash_outputs_of_whole_run(small)
    plan = small.plan()
    folder, key = plan.folder("extract"), plan.splits[0].key
    is_damaged: list[bool] = []

    def act() -> None:
        if is_damaged:
            return
        is_damaged.append(True)
        record_file = folder.path(f"done/{key}.json")
        record = folder.record(key)
        digests = record["outputs"][f"{key}.documents.parquet"]
        digests["block_crc32"] = "A" + digests["block_crc32"][1:]
        digests["sha256"] = "0" * 64
        record_file.write_bytes(dump_record(record, folder.root.name))
        read_digests.cache_clear()  # as in another process

    list(run(plan, Saboteur(plan, "annotate", act)))
    assert hash_outputs(RunFolder.open(plan.run_dir)) == expected


def test_a_damaged_file_of_a_previous_run_is_noted_there(small: Small) -> None:
    """The run names it and ends; the config of the previous run makes it again."""
    before = small.plan("before")
    list(run(before))
    expected = hash_outputs(RunFolder.open(before.run_dir))
    flip(find_file(before, "extract", ".distinct_hashes.arrow"))
    later = {"previous_runs": [before.config.run_dir]}
    message = r"hashes\.arrow: .* belongs to the previous run .*/before: run the config of that run"
    with pytest.raises(RunAborted, match=message):
        small.run("later", **later)
    events = list(run(small.plan("before")))
    assert [phase for phase, _ in list_damaged(events)] == ["extract"]
    assert hash_outputs(RunFolder.open(before.run_dir)) == expected
    assert list_damaged(list(run(small.plan("before")))) == []
    _, events = small.run("later", **later)
    assert list_damaged(events) == []


@pytest.mark.ray
def test_a_damaged_output_is_made_again_on_ray(
    small: Small, ray_engine: ConnectedEngine
) -> None:
    """A worker finds the damage; the driver repeats the task that wrote the file, then the reader."""
    expected = hash_outputs_of_whole_run(small)
    plan = small.plan()
    list(run(plan))
    path = find_file(plan, "tokenize", ".tokens.bin")
    flip(path)
    damaged = path.read_bytes()
    shutil.rmtree(plan.folder("write_shards").path(""))
    on_ray = small.plan(engine={"kind": "ray"})
    events = list(run(on_ray, ray_engine.use(on_ray)))
    key = plan.splits[0].key
    assert list_damaged(events) == [("tokenize", path.name)]
    assert list_tasks(events, "tokenize") == [key]
    assert (plan.folder("tokenize").path(DAMAGED) / path.name).read_bytes() == damaged
    assert hash_outputs(RunFolder.open(plan.run_dir)) == expected
