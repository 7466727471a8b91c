"""Shards do not depend on how many of them a process reads together, and files are opened as often as planned."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.capacity.task_groups import divide_tasks
from pipeline.execution.inline import run_group
from pipeline.phases import write_shards
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.tokenize import TokenizeDocuments
from pipeline.phases.write_shards import WriteShards
from pipeline.runs.phase_folder import PhaseFolder
from storage.local import STAGING
from tests.conftest import wet_record
from tests.connected_engine import ConnectedEngine
from tests.pipeline.conftest import Small

NUM_SPLITS = 3
END_OF_DOCUMENT = 256  # of the tiny tokenizer
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
            assert len(list(phase.run_each(group))) == len(group)
        assert read_shards(phase) == expected
        num_reads = sum(map(count_reads, groups))
        assert opened["tokens.bin"] == opened["documents.arrow"] == NUM_SPLITS * num_reads


@pytest.mark.ray
def test_groups_on_ray_write_the_same_bytes(
    three_files: Small, ray_engine: ConnectedEngine
) -> None:
    """A process writes several shards and returns a result for each."""
    settings: dict[str, Any] = {**SETTINGS, "write_shards": {"shard_tokens": 60}}
    three_files.run(**settings)
    plan = three_files.plan(**settings, engine={"kind": "ray"})
    phase = WriteShards(plan)
    task_ids, expected = phase.task_ids(), read_shards(phase)
    assert len(divide_tasks(phase, task_ids, num_slots=2)) < len(task_ids)
    delete_shards(phase, expected)
    phase.folder.begin()
    results = list(ray_engine.use(plan).run_tasks(phase, task_ids))
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
    assert [result.task_id for result in results] == [*done, lost]
    assert [bool(result.seconds) for result in results] == [False, False, True]


def test_a_repeated_task_that_was_done_is_left_out(three_files: Small) -> None:
    """Its process died after the commit, before Ray had the result. It is alone in its group."""
    three_files.run(**SETTINGS)
    plan = three_files.plan(**SETTINGS)
    phase = WriteShards(plan)
    phase.folder.begin()
    (done, *_) = phase.task_ids()
    (result,) = run_group(phase, [done], plan.config.engine)
    assert (result.task_id, dict(result.seconds)) == (done, {})


def write_tiny_splits(plan: RunPlan, docs_per_split: int) -> None:
    """Write outputs of tokenize: documents of three to eight tokens."""
    phase = TokenizeDocuments(plan)
    phase.folder.begin()
    for split in plan.splits:
        rng = np.random.default_rng(split.index)
        lengths = rng.integers(3, 9, docs_per_split)
        tokens = [
            [*rng.integers(0, 256, length - 1), END_OF_DOCUMENT] for length in lengths
        ]
        ids = (split.index << 32) + np.arange(docs_per_split)
        columns = {"doc_id": ids.astype(np.uint64), "num_tokens": lengths, "tokens": tokens}
        with phase.folder.commit(split.key) as output:
            writer = phase.create_writer(split.key, output)
            writer.write_kept(pa.table({**columns, "url": [split.key] * docs_per_split}))
            writer.counters.add("tokens", int(lengths.sum()))
            writer.close()
            output.record = {"counters": writer.counters.to_json()}
    counters = phase.sum_records().to_json()
    phase.folder.finish({"task_ids": len(plan.splits), "of": "", "counters": counters})


def hash_shards(phase: WriteShards, task_ids: Iterable[str]) -> dict[str, str]:
    """Return name -> SHA-256 of shards and their indexes."""
    digests: dict[str, str] = {}
    for task_id in task_ids:
        for name in (f"{task_id}.tar", f"{task_id}.idx"):
            content = phase.folder.path(name).read_bytes()
            digests[name] = hashlib.sha256(content).hexdigest()
    return digests


def test_a_group_opens_each_split_once_in_memory_and_on_disk(
    small: Small, wet_file: Path, opened: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 splits and 40 shards: groups of 10 open 4 x 100 files and write the same bytes as shards alone."""
    files = [small.folder / f"{number:03d}.wet.gz" for number in range(100)]
    for file in files:
        os.link(wet_file, file)
    settings: dict[str, Any] = {"write_shards": {"shard_tokens": 60}}
    plan = small.plan(input={"files": [str(file) for file in files]}, **settings)
    write_tiny_splits(plan, docs_per_split=5)
    phase = WriteShards(plan)
    phase.folder.begin()
    task_ids = phase.task_ids()[:40]
    found: list[dict[str, str]] = []
    for num_held in (10, 4):
        held = classmethod(lambda *_, num_held=num_held: num_held)
        monkeypatch.setattr(WriteShards, "count_held", held)
        opened.clear()
        for start in range(0, 40, 10):
            results = run_group(phase, task_ids[start : start + 10], plan.config.engine)
            assert {result.failed for result in results} == {None}
        assert opened == {"documents.arrow": 4 * 100, "tokens.bin": 4 * 100}
        assert not list(phase.folder.path(STAGING).iterdir())
        found.append(hash_shards(phase, task_ids))
        phase.folder.delete_records()
        phase.folder.begin()
    alone = task_ids[::10]
    for task_id in alone:
        phase.run(task_id)
    assert found[0] == found[1]
    assert hash_shards(phase, alone).items() <= found[0].items()


def test_a_damaged_input_of_a_group_is_named_once_for_each_shard(
    three_files: Small, opened: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read once, in memory and on disk; then the shards of the group fail with its damage."""
    three_files.run(**SETTINGS)
    plan = three_files.plan(**SETTINGS)
    phase = WriteShards(plan)
    paths = plan.folder(TokenizeDocuments.name).path("").glob("*.tokens.bin")
    path = max(paths, key=lambda path: path.stat().st_size)
    path.write_bytes(b"\xff" * path.stat().st_size)
    for num_held in (1000, 2):
        held = classmethod(lambda *_, num_held=num_held: num_held)
        monkeypatch.setattr(WriteShards, "count_held", held)
        phase.folder.delete_records()
        phase.folder.begin()
        opened.clear()
        results = list(run_group(phase, phase.task_ids(), plan.config.engine))
        assert [result.task_id for result in results] == phase.task_ids()
        assert {result.damage and result.damage.file for result in results} == {path.name}
        assert opened["tokens.bin"] <= NUM_SPLITS


def test_a_shard_that_fails_does_not_keep_the_others_from_being_written(
    three_files: Small,
) -> None:
    """The shards after it in its group are read again."""
    three_files.run(**SETTINGS)
    plan = three_files.plan(**SETTINGS)
    phase = WriteShards(plan)
    expected = read_shards(phase)
    delete_shards(phase, expected)
    phase.folder.begin()
    phase.folder.path("shard-000001.tar").mkdir()  # a file cannot replace it
    results = list(run_group(phase, phase.task_ids(), plan.config.engine))
    assert [result.task_id for result in results if result.failed] == ["shard-000001"]
    phase.folder.path("shard-000001.tar").rmdir()
    assert not any(
        result.failed for result in run_group(phase, phase.task_ids(), plan.config.engine)
    )
    assert read_shards(phase) == expected


@pytest.mark.parametrize(("memory_mb", "expected"), [(1100, 1), (2000, 10), (8000, 76)])
def test_more_memory_reads_more_shards_at_once(
    three_files: Small, memory_mb: int, expected: int
) -> None:
    """The groups grow with what the memory leaves, and there are four for each slot."""
    settings: dict[str, Any] = {"write_shards": {"shard_tokens": 16_000_000}}
    plan = three_files.plan(**settings, engine={"memory_mb": memory_mb})
    phase = WriteShards(plan)
    assert WriteShards.count_held(plan.config) == expected
    task_ids = [f"shard-{number:06d}" for number in range(1000)]
    sizes = [len(group) for group in divide_tasks(phase, task_ids, num_slots=2)]
    assert max(sizes) == expected
    assert sum(sizes) == 1000
    sizes = [len(group) for group in divide_tasks(phase, task_ids, num_slots=125)]
    assert max(sizes) == min(expected, 2)


def test_small_parts_of_a_shard_are_read_together(small: Small) -> None:
    """Also where memory holds one shard: 800 splits have 6,250 tokens of it each. Four groups remain for a slot."""
    config = small.config(
        write_shards={"shard_tokens": 5_000_000}, engine={"memory_mb": 1000}
    )
    assert WriteShards.count_held(config) == 1
    assert WriteShards.count_group_tasks(config, 800, 500, 1) == 10
    assert WriteShards.count_group_tasks(config, 800, 500, 25) == 5
    assert WriteShards.count_group_tasks(config, 8, 500, 1) == 1


@pytest.mark.parametrize(
    ("num_splits", "num_shards", "num_slots", "expected"),
    [
        (10_000, 52_608, 4_800, 137),  # as many as the disk holds
        (10_000, 5_000, 4_800, 24),  # 2**21 openings
        (1_000, 5_000, 4_800, 3),
        (1_000, 1_000, 4_800, 1),
        (10_000, 100, 4_800, 1),  # fewer shards than groups
    ],
)
def test_many_splits_are_read_by_few_groups(
    small: Small, num_splits: int, num_shards: int, num_slots: int, expected: int
) -> None:
    """Splits times groups are at most MAX_READS, or a group has MAX_SCRATCH_BYTES."""
    config = small.config(write_shards={"shard_tokens": 100_000_000})
    size = WriteShards.count_group_tasks(config, num_splits, num_shards, num_slots)
    assert size == expected
    shard_bytes = write_shards.BYTES_READ_AHEAD * 100_000_000
    num_groups = math.ceil(num_shards / size)
    assert size * shard_bytes <= write_shards.MAX_SCRATCH_BYTES
    if (size + 1) * shard_bytes <= write_shards.MAX_SCRATCH_BYTES:
        assert num_groups * num_splits <= write_shards.MAX_READS
