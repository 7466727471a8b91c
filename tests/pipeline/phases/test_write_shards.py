"""Shards do not depend on how many of them a process reads together, and files are opened as often as planned."""

from __future__ import annotations

import gzip
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.capacity.task_groups import divide_tasks
from pipeline.execution.inline import run_group
from pipeline.execution.on_ray.engine import RayEngine
from pipeline.phases.write_shards import WriteShards
from pipeline.runs.phase_folder import PhaseFolder
from tests.conftest import wet_record
from tests.pipeline.conftest import Small

NUM_SPLITS = 3
SETTINGS: dict[str, Any] = {"write_shards": {"shard_tokens": 250, "sample_tokens": 60}}


@pytest.fixture
def three_files(small: Small) -> Small:
    """A run of three input splits and several shards."""
    files: list[str] = []
    for split in range(NUM_SPLITS):
        records = [
            wet_record(f"https://e.org/{split}/{n}", f"Page {split} {n}\n" + "ab " * n)
            for n in range(4, 30)
        ]
        path = small.folder / f"{split}.warc.wet.gz"
        path.write_bytes(gzip.compress(b"".join(records), mtime=0))
        files.append(str(path))
    return Small(small.folder, {**small.tree, "input": {"files": files}})


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of times that files were opened in a phase, by the end of their names."""
    found: Counter[str] = Counter()
    original = PhaseFolder.open

    def count(folder: PhaseFolder, name: str) -> pa.NativeFile:
        found[name.split(".", maxsplit=1)[1]] += 1
        return original(folder, name)

    monkeypatch.setattr(PhaseFolder, "open", count)
    return found


def read_shards(phase: WriteShards) -> dict[str, bytes]:
    """Return name -> bytes of the shards, their indexes and their done-records."""
    folder = Path(phase.folder.path(""))
    files = sorted([*folder.glob("shard-*"), *folder.glob("done/shard-*")])
    return {path.name: path.read_bytes() for path in files}


def delete_shards(phase: WriteShards, names: Iterable[str]) -> None:
    """Delete the shards, their indexes and their done-records."""
    for name in names:
        next(Path(phase.folder.path("")).rglob(name)).unlink()


def list_groupings(task_ids: list[str]) -> Iterator[list[list[str]]]:
    """Yield all tasks in groups of several sizes, and groups in which tasks are missing."""
    for size in (1, 2, 4, len(task_ids)):
        yield [task_ids[i : i + size] for i in range(0, len(task_ids), size)]
    yield [task_ids[::2], task_ids[1::2]]
    yield [[task_ids[0], *task_ids[2:4]], [task_ids[1], *task_ids[4:]]]


def count_reads(group: list[str]) -> int:
    """Return the number of ranges of consecutive shards."""
    numbers = [int(task_id.removeprefix("shard-")) for task_id in group]
    return 1 + sum(b != a + 1 for a, b in itertools.pairwise(numbers))


def test_shards_do_not_depend_on_the_groups(
    three_files: Small, opened: Counter[str]
) -> None:
    """For every grouping, also of tasks that a stopped run has left, bytes and records are the same."""
    three_files.run(**SETTINGS)
    plan = three_files.plan(**SETTINGS)
    expected = read_shards(WriteShards(plan))
    task_ids = WriteShards(plan).task_ids()
    assert len(task_ids) >= 6
    for groups in list_groupings(task_ids):
        phase = WriteShards(plan)
        delete_shards(phase, expected)
        opened.clear()
        for group in groups:
            with phase.reading_together(group):
                for task_id in group:
                    phase.run(task_id)
        assert read_shards(phase) == expected
        num_reads = sum(map(count_reads, groups))
        assert opened["tokens.bin"] == opened["documents.arrow"] == NUM_SPLITS * num_reads


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_groups_on_ray_write_the_same_bytes(three_files: Small) -> None:
    """One Ray task writes several shards and returns a result for each."""
    settings: dict[str, Any] = {**SETTINGS, "write_shards": {"shard_tokens": 60}}
    three_files.run(**settings)
    plan = three_files.plan(**settings, engine={"kind": "ray"})
    phase = WriteShards(plan)
    task_ids, expected = phase.task_ids(), read_shards(phase)
    assert len(divide_tasks(phase, task_ids, num_slots=2)) < len(task_ids)
    delete_shards(phase, expected)
    phase.folder.begin()
    with RayEngine(plan.config.engine) as engine:
        results = list(engine.run_tasks(phase, task_ids))
    assert sorted(result.task_id for result in results) == task_ids
    assert not any(result.failed for result in results)
    assert read_shards(phase) == expected


def test_a_repeated_group_leaves_out_the_tasks_that_were_done(three_files: Small) -> None:
    """Their results have no times, and they are not tried again."""
    three_files.run(**SETTINGS)
    plan = three_files.plan(**SETTINGS)
    phase, settings = WriteShards(plan), plan.config.engine
    phase.folder.begin()
    lost, *done = phase.task_ids()[:3]
    Path(phase.folder.path(phase.folder.record_file(lost))).unlink()
    results = list(run_group(phase, [lost, *done], settings))
    assert [result.task_id for result in results] == [lost, *done]
    assert [bool(result.seconds) for result in results] == [True, False, False]
    assert [phase.folder.get_num_attempts(each) for each in (lost, *done)] == [1, 0, 0]


def test_a_repeated_task_that_was_done_is_left_out(three_files: Small) -> None:
    """Its process died after the commit, before Ray had the result. It is alone in its group."""
    three_files.run(**SETTINGS)
    plan = three_files.plan(**SETTINGS)
    phase = WriteShards(plan)
    phase.folder.begin()
    (done, *_) = phase.task_ids()
    (result,) = run_group(phase, [done], plan.config.engine)
    assert (result.task_id, dict(result.seconds)) == (done, {})
    assert phase.folder.get_num_attempts(done) == 0


def test_a_group_holds_no_more_shards_than_fit_into_memory(
    three_files: Small, opened: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ray task of many short tasks reads the input of two at once, and then of the next two."""
    three_files.run(**SETTINGS)
    plan = three_files.plan(**SETTINGS)
    phase = WriteShards(plan)
    delete_shards(phase, read_shards(phase))
    phase.folder.begin()
    monkeypatch.setattr(WriteShards, "count_tasks_per_read", classmethod(lambda *_: 2))
    opened.clear()
    results = list(run_group(phase, phase.task_ids(), plan.config.engine))
    assert not any(result.failed for result in results)
    assert opened["tokens.bin"] == NUM_SPLITS * math.ceil(len(results) / 2)


@pytest.mark.parametrize(("memory_mb", "expected"), [(1100, 1), (2000, 10), (8000, 64)])
def test_more_memory_reads_more_shards_at_once(
    three_files: Small, memory_mb: int, expected: int
) -> None:
    """The groups grow with what the memory leaves, and there are four for each slot."""
    settings: dict[str, Any] = {"write_shards": {"shard_tokens": 16_000_000}}
    plan = three_files.plan(**settings, engine={"memory_mb": memory_mb})
    phase = WriteShards(plan)
    assert WriteShards.count_tasks_per_read(plan.config) == expected
    task_ids = [f"shard-{number:06d}" for number in range(1000)]
    sizes = [len(group) for group in divide_tasks(phase, task_ids, num_slots=2)]
    assert max(sizes) == expected
    assert sum(sizes) == 1000
    sizes = [len(group) for group in divide_tasks(phase, task_ids, num_slots=125)]
    assert max(sizes) == min(expected, 2)
