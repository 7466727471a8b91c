"""Checkpoints on a real object store."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.seaweed import BUCKET, Seaweed
from tests.training.checkpoint.saved import (
    make_checkpointer,
    make_state,
    make_tensors,
    restore,
)
from tests.training.conftest import (
    losses,
    make_config,
    make_settings,
    read_log,
    train_all,
    train_here,
)
from training.checkpoint.marker import MARKER
from training.cli import app
from training.errors import CheckpointDamaged


def keys(server: Seaweed, prefix: str) -> list[str]:
    """Return all keys below a prefix."""
    return sorted(entry["path"] for part in server.store(prefix).list() for entry in part)


def test_an_empty_disk_resumes_from_the_object_store(
    language: Path, tmp_path: Path, seaweed_in_environment: Seaweed
) -> None:
    """Two ranks upload and keep the newest two; another machine downloads the newest and resumes."""
    checkpoint = {"every_steps": 1, "keep_last": 2, "upload": f"s3://{BUCKET}/run"}
    data = {"schedule": "constant"}
    first = make_settings(
        tmp_path / "run", language, steps=3, checkpoint=checkpoint, optimizer=data
    )
    train_all(2, [first], tmp_path)
    found = keys(seaweed_in_environment, "run")
    assert {key.partition("/")[0] for key in found} == {"step-00000002", "step-00000003"}
    assert [key for key in found if key.endswith(MARKER)] == [
        f"step-0000000{step}/{MARKER}" for step in (2, 3)
    ]
    expected = losses(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    config = make_config(
        tmp_path / "run", language, steps=5, checkpoint=checkpoint, optimizer=data
    )
    ended = train_here(config)
    assert ended.step == 5
    assert [line["step"] for line in read_log(tmp_path / "run")] == [4, 5]
    assert losses(tmp_path / "run")[0] < expected[0]


def test_an_incomplete_upload_is_ignored(
    language: Path, tmp_path: Path, seaweed_in_environment: Seaweed
) -> None:
    """Without its marker the previous checkpoint is used."""
    checkpoint = {"every_steps": 1, "keep_last": 2, "upload": f"s3://{BUCKET}/cut-short"}
    config = make_config(tmp_path / "run", language, steps=2, checkpoint=checkpoint)
    train_here(config)
    seaweed_in_environment.store("cut-short").delete([f"step-00000002/{MARKER}"])
    shutil.rmtree(tmp_path / "run")
    train_here(config)
    assert [line["step"] for line in read_log(tmp_path / "run")] == [2]


def test_a_damaged_object_is_noticed(
    tmp_path: Path, seaweed_in_environment: Seaweed
) -> None:
    """An empty disk downloads the newest checkpoint, then the one before it, and verifies both."""
    upload = f"s3://{BUCKET}/damaged"
    checkpointer = make_checkpointer(tmp_path / "run", upload=upload)
    for step in (1, 2):
        checkpointer.save(make_state(make_tensors(step), step))
    checkpointer.close()
    shutil.rmtree(tmp_path / "run")
    store = seaweed_in_environment.store("damaged/step-00000002")
    content = bytearray(store.get("__0_0.distcp").bytes())
    content[1000] ^= 1
    store.put("__0_0.distcp", io.BytesIO(content))
    found = CliRunner().invoke(app, ["verify", upload])
    assert f"{upload}/step-00000001: whole" in found.output
    assert f"{upload}/step-00000002: damaged" in found.output
    with pytest.raises(
        CheckpointDamaged,
        match=r"__0_0.distcp: bytes 0 to .*newest whole checkpoint is .*step-00000001",
    ):
        restore(tmp_path / "run", upload=upload)
    step, tensors = restore(tmp_path / "run", upload=upload, on_damaged="previous")
    assert step == 1
    assert torch.equal(tensors["w7"], make_tensors(1)["w7"])
