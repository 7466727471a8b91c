"""Damaged and hostile checkpoints are refused by name, and never run code."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_loader import load
from typer.testing import CliRunner

from tests.training.checkpoint.planted_code import (
    SHARD,
    replace_file,
)
from tests.training.checkpoint.saved import (
    make_checkpointer,
    make_tensors,
    restore,
    save_steps,
)
from training.checkpoint.block_digests import compute_digest
from training.checkpoint.checkpointer import load_weights
from training.checkpoint.marker import (
    MARKER,
    list_complete_checkpoints,
)
from training.cli import app
from training.errors import CheckpointDamaged, CheckpointFailed

INDEX = ".metadata"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the steps 1 to 3."""
    folder = tmp_path_factory.mktemp("saved")
    save_steps(folder, range(1, 4))
    return folder


@pytest.fixture
def run_dir(saved: Path, tmp_path: Path) -> Path:
    """Return a copy, which a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def newest(run_dir: Path) -> Path:
    """Return the newest complete checkpoint."""
    return list_complete_checkpoints(run_dir / "checkpoints")[-1]


def flip(file: Path, position: int) -> None:
    """Flip a bit of a byte; a negative position counts from the end."""
    content = bytearray(file.read_bytes())
    content[position] ^= 4
    file.write_bytes(content)


def zero_block(file: Path, position: int) -> None:
    """Overwrite 64 bytes with zeros, as a disk does with a lost sector."""
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(bytes(64))


def swap(file: Path) -> None:
    """Take the file of the previous checkpoint, which has the same size."""
    previous = file.parent.with_name("step-00000002") / file.name
    assert previous.stat().st_size == file.stat().st_size
    shutil.copyfile(previous, file)


def move_position(file: Path) -> None:
    """Change the loader's state, and leave valid JSON."""
    text = file.read_text()
    assert '"position": 36' in text
    file.write_text(text.replace('"position": 36', '"position": 37'))


DAMAGES: list[tuple[str, str, Callable[[Path], object], str]] = [
    ("flipped bit", SHARD, lambda file: flip(file, 500_000), "bytes 0 to 1048575 differ"),
    ("flip in the digests", SHARD, lambda file: flip(file, -1), "digests at its end"),
    ("zeroed sector", SHARD, lambda file: zero_block(file, 700_000), "differ"),
    ("cut", SHARD, lambda file: os.truncate(file, 700_000), "has 700000 bytes"),
    ("empty", SHARD, lambda file: os.truncate(file, 0), "has 0 bytes"),
    ("deleted", SHARD, Path.unlink, "is missing"),
    ("swapped", SHARD, swap, "differ"),
    ("flipped bit", INDEX, lambda file: flip(file, 600), "differ"),
    ("cut", INDEX, lambda file: os.truncate(file, 60), "has 60 bytes"),
    ("deleted", INDEX, Path.unlink, "is missing"),
    ("other number", MARKER, move_position, "differs from the digest in it"),
    ("cut", MARKER, lambda file: os.truncate(file, 60), "wanted JSON"),
    ("empty", MARKER, lambda file: os.truncate(file, 0), "wanted JSON"),
    (
        "other value",
        MARKER,
        lambda file: file.write_text("[]"),
        "wanted a valid dictionary",
    ),
]


@pytest.mark.parametrize(
    ("file_name", "damage", "message"),
    [pytest.param(*row[1:], id=f"{row[1]}: {row[0]}") for row in DAMAGES],
)
def test_damage_is_named_and_the_previous_checkpoint_is_offered(
    run_dir: Path, file_name: str, damage: Callable[[Path], object], message: str
) -> None:
    """The error names the file, the damage, the newest whole checkpoint and the setting."""
    file = newest(run_dir) / file_name
    damage(file)
    with pytest.raises(
        CheckpointDamaged,
        match=rf"{file}\b.*{message}.*newest whole checkpoint is .*step-00000002\. .*"
        "checkpoint.on_damaged=previous",
    ):
        restore(run_dir)
    assert newest(run_dir).name == "step-00000003"


def test_the_previous_checkpoint_is_loaded_if_configured(run_dir: Path) -> None:
    """Step 3 and 2 are damaged and set aside; step 1 is loaded with its values."""
    flip(newest(run_dir) / SHARD, 500_000)
    (run_dir / "checkpoints/step-00000002" / SHARD).unlink()
    step, tensors = restore(run_dir, on_damaged="previous")
    assert step == 1
    expected = make_tensors(1)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    names = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert names == ["damaged-step-00000002", "damaged-step-00000003", "step-00000001"]


def test_without_a_whole_checkpoint_nothing_is_loaded(run_dir: Path) -> None:
    """A run never starts anew by itself, with either setting."""
    for path in list_complete_checkpoints(run_dir / "checkpoints"):
        (path / SHARD).unlink()
    with pytest.raises(CheckpointDamaged, match=r"No older checkpoint is whole.*run_dir"):
        restore(run_dir, on_damaged="previous")
    assert len(list_complete_checkpoints(run_dir / "checkpoints")) == 3


def test_other_programs_can_read_the_files(run_dir: Path) -> None:
    """torch.distributed.checkpoint itself ignores the digests at the end of files."""
    tensors: dict[str, Any] = {"model.w3": torch.zeros(200, 200)}
    with pytest.warns(UserWarning, match="single process"):
        load(tensors, checkpoint_id=newest(run_dir), no_dist=True)
    assert torch.equal(tensors["model.w3"], make_tensors(3)["w3"])


def test_an_index_cannot_lead_out_of_its_folder(run_dir: Path) -> None:
    """A file that complete.json does not list is not opened."""
    index = (newest(run_dir) / INDEX).read_bytes()
    # The same length, because a pickle stores it before the text.
    replace_file(newest(run_dir), INDEX, index.replace(SHARD.encode(), b"../../__0.dp"))
    with pytest.raises(CheckpointDamaged, match=r"names '.*__0.dp', which is not among"):
        load_weights(newest(run_dir), make_tensors(0))


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps({"a": 1})])
def test_an_index_of_something_else_is_refused(run_dir: Path, content: bytes) -> None:
    """The message has the path and no traceback of pickle."""
    replace_file(newest(run_dir), INDEX, content)
    with pytest.raises(
        CheckpointDamaged, match=r"\.metadata (is not an index|holds 'dict')"
    ):
        load_weights(newest(run_dir), make_tensors(0))


def lose_place(index: Metadata) -> None:
    """Forget in which file one tensor is."""
    del index.storage_data[MetadataIndex("model.w3", torch.Size([0, 0]))]


def lose_chunks(index: Metadata) -> None:
    """Forget the only chunk of one tensor."""
    index.state_dict_metadata["model.w3"].chunks.clear()  # pyright: ignore[reportAttributeAccessIssue]


def move_chunk(index: Metadata) -> None:
    """Move a chunk beyond the end of its tensor."""
    (chunk,) = index.state_dict_metadata["model.w3"].chunks  # pyright: ignore[reportAttributeAccessIssue]
    chunk.offsets = torch.Size([0, 7])
    index.storage_data[MetadataIndex("model.w3", chunk.offsets)] = index.storage_data[
        MetadataIndex("model.w3", torch.Size([0, 0]))
    ]


@pytest.mark.parametrize("damage", [lose_place, lose_chunks, move_chunk])
def test_an_index_that_loses_a_tensor_is_refused(
    run_dir: Path, damage: Callable[[Metadata], None]
) -> None:
    """Its own digest fits, but the checkpoint could not be loaded, or only in part."""
    index = pickle.loads((newest(run_dir) / INDEX).read_bytes())
    damage(index)
    replace_file(newest(run_dir), INDEX, pickle.dumps(index))
    with pytest.raises(CheckpointDamaged, match=r"is a damaged index: .*'model\.w3'"):
        restore(run_dir)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", -1),
        ("step", True),
        ("step", None),
        ("world_size", 0),
        ("rows", []),
        ("guard", {"num_bad": 0, "in_a_row": 0, "mean_norm": "1.0"}),
        ("files", {SHARD: {"num_bytes": 2.5, "xxh3_128": "0" * 32}}),
    ],
)
def test_invalid_values_are_named(run_dir: Path, key: str, value: Any) -> None:
    """A resumed run does not fail later, in other words, or continue from them."""
    path = newest(run_dir)
    content = json.loads((path / MARKER).read_text()) | {key: value}
    del content["digest"]
    content["digest"] = compute_digest(json.dumps(content, sort_keys=True).encode()).hex()
    (path / MARKER).write_text(json.dumps(content))
    message = rf"{path / MARKER} has invalid values: {key}.*, found "
    with pytest.raises(CheckpointDamaged, match=message):
        restore(run_dir)


def test_a_closed_checkpointer_leaves_no_thread(tmp_path: Path) -> None:
    """Its process group has three threads. A program may train many runs one after another."""
    counts: list[int] = []
    for _ in range(3):
        make_checkpointer(tmp_path).close()
        counts.append(len(os.listdir("/proc/self/task")))
    assert counts[-1] <= counts[0], counts  # threads of earlier tests may end now


def test_a_failed_write_is_named(tmp_path: Path) -> None:
    """A limit of the file size fails as a full disk does: in the middle of a tensor."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(CheckpointFailed, match=r"rank 0: .*File too large.*Make room"):
            save_steps(tmp_path, range(1, 2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list_complete_checkpoints(tmp_path / "checkpoints")


def test_verify_lists_damaged_files(run_dir: Path) -> None:
    """One line per checkpoint, one per damaged file, and exit code 1."""
    whole = CliRunner().invoke(app, ["verify", str(run_dir)])
    assert whole.exit_code == 0
    assert whole.output.count(": whole, 0.001 GB") == 3
    flip(newest(run_dir) / SHARD, 500_000)
    flip(newest(run_dir) / INDEX, 60)
    found = CliRunner().invoke(app, ["verify", str(run_dir)])
    assert found.exit_code == 1
    assert found.output.count(": whole") == 2
    assert found.output.count(" differ from their digest\n") == 2
    one = CliRunner().invoke(app, ["verify", str(newest(run_dir))])
    assert one.output.splitlines()[0].endswith("step-00000003: damaged, 0.001 GB")
