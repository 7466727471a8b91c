"""Finding the rank of this process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from loader.rank_discovery import resolve_rank
from tests.conftest import REPOSITORY
from tests.loader.conftest import Dataset
from tests.processes import run_python

PLAN = """
import sys, loader
print(sum(part.num_rows for part in loader.shards_for_rank(sys.argv[1], seq_len=32)), "torch" in sys.modules)
"""


def test_the_rank_is_read_from_the_environment_of_torchrun(dataset: Dataset) -> None:
    """Without RANK and WORLD_SIZE the process is rank 0 of 1. torch is not imported."""
    rows = []
    for environment in ({}, {"RANK": "1", "WORLD_SIZE": "4"}):
        clean = {
            key: value
            for key, value in os.environ.items()
            if key not in ("RANK", "WORLD_SIZE")
        }
        out = run_python(
            "-c", PLAN, str(dataset.folder), check=True, env=clean | environment
        ).stdout.split()
        assert out[1] == "False"
        rows.append(int(out[0]))
    assert rows[1] == rows[0] // 4


def test_the_rank_is_read_from_ray_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a training worker, Ray Train is ignored."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)

    @dataclass
    class Context:
        world_size: int | None

        def get_world_size(self) -> int | None:
            return self.world_size

        def get_world_rank(self) -> int:
            return 2

    train = ModuleType("ray.train")
    monkeypatch.setitem(sys.modules, "ray.train", train)
    for world_size, wanted in ((4, (2, 4)), (None, (0, 1))):
        train.get_context = lambda size=world_size: Context(size)  # type: ignore[attr-defined]
        assert resolve_rank() == wanted


def test_a_process_that_is_no_ray_train_worker_is_rank_0_of_1() -> None:
    """Importing ray.train does not make a process a worker."""
    alone = "import ray.train; from loader.rank_discovery import resolve_rank; print(resolve_rank())"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE")
    }
    command = [sys.executable, "-c", alone]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "(0, 1)"


class Mesh:
    """A mesh of 2 x 3 ranks, seen from one coordinate."""

    shape = (2, 3)

    def __init__(self, coordinate: list[int] | None) -> None:
        self.coordinate = coordinate

    def get_coordinate(self) -> list[int] | None:
        return self.coordinate


def test_ranks_of_a_mesh_are_numbered_row_by_row() -> None:
    """Torch numbers a flattened mesh in the same way."""
    assert resolve_rank(mesh=Mesh([1, 2])) == (5, 6)
    with pytest.raises(ValueError, match="this rank is outside the mesh"):
        resolve_rank(mesh=Mesh(None))


@pytest.mark.parametrize(
    "arguments",
    [{"rank": 1}, {"world_size": 2}, {"rank": 0, "world_size": 1, "mesh": Mesh([0, 0])}],
)
def test_an_incomplete_rank_is_refused(arguments: dict[str, Any]) -> None:
    """Rank and world_size are given together, and not with a mesh."""
    with pytest.raises(
        ValueError, match="give rank and world_size together, or a mesh, or none"
    ):
        resolve_rank(**arguments)
