"""Damaged and hostile checkpoints, and disks that are full while one is saved.

These attacks run in one process, on checkpoints of a few small tensors.
"""

from __future__ import annotations

import functools
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.faults._damage import cut, delete, empty, flip_bit, zero_block
from tests.faults._small_disk import (
    PAGE_BYTES,
    enlarge_disk,
    find_missing_tmpfs,
    mount_disk,
)
from tests.faults.attack import Attack, get_shared_folder
from tests.faults.fuzz.mutations import mutated_bytes, mutated_json, try_inputs
from tests.training.checkpoint.planted_code import (
    PLANTS,
    SHARD,
    CreateFile,
    read_index,
    replace_file,
)
from tests.training.checkpoint.saved import (
    make_checkpointer,
    make_state,
    make_tensors,
    restore,
    save_steps,
)
from training.checkpoint.checkpointer import Checkpointer
from training.checkpoint.marker import (
    MARKER,
    Marker,
    list_complete_checkpoints,
    read_marker,
    write_marker,
)
from training.checkpoint.tensor_files import METADATA
from training.errors import CheckpointDamaged, CheckpointFailed, IncompatibleConfig

NUM_STEPS = 3
INDEXES_PER_TRY, MARKERS_PER_TRY = 25, 25


@functools.cache
def get_saved_run() -> Path:
    """Return a run with the checkpoints of three steps."""
    run_dir = get_shared_folder() / "checkpoints-of-a-run"
    save_steps(run_dir, range(1, NUM_STEPS + 1))
    return run_dir


def copy_run(folder: Path) -> tuple[Path, Path]:
    """Return a copy of the run, and its newest checkpoint."""
    run_dir = Path(shutil.copytree(get_saved_run(), folder / "run"))
    return run_dir, list_complete_checkpoints(run_dir / "checkpoints")[-1]


def check_tensors(step: int, tensors: Mapping[str, Tensor]) -> None:
    """Compare loaded tensors with those that were saved."""
    expected = make_tensors(step)
    differing = [
        name for name in expected if not torch.equal(tensors[name], expected[name])
    ]
    assert not differing, f"step {step}: other values in {differing}"


# ---- damage ----


def swap(path: Path, seed: int) -> None:
    """Replace the file by that of an earlier checkpoint."""
    del seed
    shutil.copyfile(path.parent.with_name("step-00000001") / path.name, path)


DAMAGES = (flip_bit, zero_block, cut, empty, delete, swap)
FILES = (SHARD, METADATA, MARKER)


def damage_checkpoint(seed: int, folder: Path) -> None:
    """Damage a file of the newest checkpoint, and restore; then accept the previous one."""
    damage = DAMAGES[seed % len(DAMAGES)]
    name = FILES[seed // len(DAMAGES) % len(FILES)]
    run_dir, newest = copy_run(folder)
    damage(newest / name, seed)
    # Without complete.json the checkpoint does not exist. The previous one is the newest.
    if not (damage is delete and name == MARKER):
        with pytest.raises(CheckpointDamaged, match=rf"{newest}.*step-00000002"):
            restore(run_dir)
    step, tensors = restore(run_dir, on_damaged="previous")
    assert step == NUM_STEPS - 1
    check_tensors(step, tensors)


# ---- hostile content ----


def plant_code(seed: int, folder: Path) -> None:
    """Store a pickle that runs a command, in a checkpoint whose digests fit."""
    run_dir, newest = copy_run(folder)
    PLANTS[seed](newest, CreateFile(folder / "ran"))
    try:
        message = rf"{newest}.*(does not belong into an index|else than tensors)"
        with pytest.raises(CheckpointDamaged, match=message):
            restore(run_dir)
    finally:
        assert not (folder / "ran").exists(), "the pickle ran a command"


def fuzz_indexes(seed: int, folder: Path) -> int:
    """Restore with mutated indexes whose digests fit; some contain a command."""
    run_dir, newest = copy_run(folder)
    index = read_index(newest)
    bases = [pickle.dumps(index)]
    index.planner_data = CreateFile(folder / "ran")
    bases.append(pickle.dumps(index))

    def check(content: bytes) -> None:
        replace_file(newest, METADATA, content)
        try:
            restore_or_refuse(run_dir)
        finally:
            assert not (folder / "ran").exists(), "the index ran a command"

    return try_inputs(mutated_bytes(bases), check, seed, INDEXES_PER_TRY)


def fuzz_markers(seed: int, folder: Path) -> int:
    """Restore with hostile values in complete.json, whose own digest fits."""
    run_dir, newest = copy_run(folder)
    marker = read_marker(newest)

    def check(hostile: Any) -> None:
        if isinstance(hostile, dict):
            write_marker(newest, Marker(hostile, marker.files))
            restore_or_refuse(run_dir)

    return try_inputs(mutated_json([dict(marker.progress)]), check, seed, MARKERS_PER_TRY)


def restore_or_refuse(run_dir: Path) -> None:
    """Restore as the trainer does; errors with a message for the user are accepted."""
    tensors = {name: torch.zeros(200, 200) for name in make_tensors(0)}
    checkpointer = make_checkpointer(run_dir)
    newest = checkpointer.find_newest()
    assert newest is not None
    try:
        progress = checkpointer.load(newest, make_state(tensors, 0))
    except (CheckpointDamaged, IncompatibleConfig):
        return
    finally:
        checkpointer.close()
    assert isinstance(progress["step"], int)
    assert progress["step"] >= 0


# ---- full disk ----


def fill_disk(seed: int, folder: Path) -> None:
    """Save checkpoints until the disk is full, then make it larger and go on."""
    disk = folder / "disk"
    disk.mkdir()
    num_bytes = measure_checkpoint()
    # There is room for the first checkpoint, and for a share of the second.
    room = num_bytes + num_bytes * seed // NUM_DISKS // PAGE_BYTES * PAGE_BYTES
    with mount_disk(disk, room):
        save(disk / "run", 1)
        message = f"{disk}/run.*No space left on device.*newest .*step-00000001"
        with pytest.raises(CheckpointFailed, match=message):
            save(disk / "run", 2)
        step, tensors = restore(disk / "run")
        assert step == 1
        check_tensors(1, tensors)
        enlarge_disk(disk, 4 * num_bytes)
        save(disk / "run", 2)
        step, tensors = restore(disk / "run")
        assert step == 2
        check_tensors(2, tensors)


def save(run_dir: Path, step: int) -> None:
    """Save the checkpoint of one step."""
    checkpointer: Checkpointer = make_checkpointer(run_dir)
    try:
        checkpointer.save(make_state(make_tensors(step), step))
    finally:
        checkpointer.close()


@functools.cache
def measure_checkpoint() -> int:
    """Return the bytes of a checkpoint on a disk, in whole pages."""
    folder = get_saved_run() / "checkpoints" / "step-00000001"
    files = [folder / name for name in FILES]
    return sum(-(-path.stat().st_size // PAGE_BYTES) * PAGE_BYTES for path in files)


# Number of sizes of the small disk.
NUM_DISKS = 40


ATTACKS = (
    Attack(
        name="training: damaged checkpoint",
        promise="A damaged file is named with the newest whole checkpoint, which can be continued.",
        num_tries=len(DAMAGES) * len(FILES) * 20,
        num_small_tries=1,
        attempt=damage_checkpoint,
    ),
    Attack(
        name="training: pickle in a checkpoint",
        promise="Loading a checkpoint never runs code in it, also if all digests fit.",
        num_tries=len(PLANTS),
        num_small_tries=len(PLANTS),
        attempt=plant_code,
    ),
    Attack(
        name="training: mutated index of a checkpoint",
        promise="An index is loaded or refused with a message, and runs no code.",
        num_tries=40,
        num_small_tries=1,
        attempt=fuzz_indexes,
    ),
    Attack(
        name="training: hostile complete.json",
        promise="complete.json is loaded or refused with a message.",
        num_tries=40,
        num_small_tries=1,
        attempt=fuzz_markers,
    ),
    Attack(
        name="training: disk full, checkpoint",
        promise="A full disk ends the run with a message. The complete checkpoints stay.",
        num_tries=NUM_DISKS,
        num_small_tries=1,
        attempt=fill_disk,
        find_obstacle=find_missing_tmpfs,
    ),
)
