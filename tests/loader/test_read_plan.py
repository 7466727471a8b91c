"""The read plan of a rank."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader import TokenLoader, shards_for_rank
from loader.rank_discovery import resolve_rank
from shardwriter.format import Manifest
from tests.conftest import REPOSITORY
from tests.loader.conftest import Dataset, Make


def list_rows(shard_ranges: list[Any]) -> list[tuple[int, int]]:
    """Return every (shard, row) of some ranges."""
    return [
        (span.shard, row)
        for span in shard_ranges
        for row in range(span.first_row, span.first_row + span.num_rows)
    ]


@given(world_size=st.integers(1, 9), interleave_depth=st.integers(1, 9), epoch=st.integers(0, 3))
def test_plans_of_all_ranks_have_each_row_once(
    dataset: Dataset, world_size: int, interleave_depth: int, epoch: int
) -> None:
    """All ranks have equally many rows; no row is on two ranks; few rows are on none."""
    plans = [
        shards_for_rank(
            dataset.folder,
            seq_len=32,
            rank=rank,
            world_size=world_size,
            interleave_depth=interleave_depth,
            epoch=epoch,
            seed=1,
        )
        for rank in range(world_size)
    ]
    found = [list_rows(plan) for plan in plans]
    assert len({len(rows) for rows in found}) == 1
    together = [place for rows in found for place in rows]
    assert len(together) == len(set(together))
    assert len(dataset.rows(32)) - len(together) < interleave_depth + world_size


def test_the_plan_is_what_the_loader_reads(larger: Dataset) -> None:
    """Where the ranks divide the interleave_depth, a rank's shard_ranges hold the rows that TokenLoader gives it."""
    for rank in range(2):
        place = {"rank": rank, "world_size": 2}
        shard_ranges = shards_for_rank(
            larger.folder, seq_len=32, interleave_depth=4, seed=3, **place
        )
        planned = {
            tuple(larger.tokens[shard][row * 32 : row * 32 + 32].tolist())
            for shard, row in list_rows(shard_ranges)
        }
        loader = TokenLoader(
            larger.folder,
            seq_len=32,
            global_batch_rows=4,
            interleave_depth=4,
            seed=3,
            epochs=1,
            window_rows=8,
            **place,
        )
        assert {tuple(row) for batch in loader for row in batch["input_ids"].tolist()} == planned


def test_ranges_name_their_tokens(make: Make) -> None:
    """A range of rows is a range of tokens of one file, with one token more than the rows."""
    made = make([[100]])
    (span,) = shards_for_rank(made.folder, seq_len=32, rank=0, world_size=1)
    assert (span.file, span.first_row, span.num_rows) == ("shard-000000.tar", 0, 3)
    assert (span.first_token, span.last_token) == (0, 96)


def test_a_manifest_in_memory_gives_the_same_plan(dataset: Dataset) -> None:
    """The plan needs no files besides the manifest."""
    manifest = Manifest.loads((dataset.folder / "manifest.json").read_bytes())
    arguments = {"seq_len": 32, "rank": 1, "world_size": 2}
    assert shards_for_rank(manifest, **arguments) == shards_for_rank(dataset.folder, **arguments)


def test_more_ranks_than_rows_are_refused(make: Make) -> None:
    """The error names the number of ranks that fits."""
    made = make([[100]])
    with pytest.raises(ValueError, match="3 rows for 4 ranks; use at most 3 ranks"):
        shards_for_rank(made.folder, seq_len=32, rank=0, world_size=4)


PLAN = """
import sys, loader
print(sum(span.num_rows for span in loader.shards_for_rank(sys.argv[1], seq_len=32)), "torch" in sys.modules)
"""


def test_torchrun_says_which_rank_this_is(dataset: Dataset) -> None:
    """Without torch: RANK and WORLD_SIZE; and without those, one rank alone."""
    rows = []
    for environment in ({}, {"RANK": "1", "WORLD_SIZE": "4"}):
        clean = {
            key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")
        }
        out = subprocess.run(
            [sys.executable, "-c", PLAN, str(dataset.folder)],
            capture_output=True, text=True, check=True, cwd=REPOSITORY, env=clean | environment,
        ).stdout.split()  # fmt: skip
        assert out[1] == "False"
        rows.append(int(out[0]))
    assert rows[1] == rows[0] // 4


def test_ray_train_says_which_rank_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ray.train is loaded and this is one of its workers; outside a worker it is passed over."""
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


def test_a_program_that_has_imported_ray_train_without_being_its_worker_is_alone() -> None:
    """Ray's own library refuses to tell a rank there."""
    alone = (
        "import ray.train; from loader.rank_discovery import resolve_rank; print(resolve_rank())"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")
    }
    command = [sys.executable, "-c", alone]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "(0, 1)"


class Mesh:
    """A mesh of 2 x 3 at a place."""

    shape = (2, 3)

    def __init__(self, coordinate: list[int] | None) -> None:
        self.coordinate = coordinate

    def get_coordinate(self) -> list[int] | None:
        return self.coordinate


def test_a_mesh_is_counted_row_by_row() -> None:
    """Ranks of replicate x shard are numbered as torch numbers them."""
    assert resolve_rank(mesh=Mesh([1, 2])) == (5, 6)
    with pytest.raises(ValueError, match="this rank is outside the mesh"):
        resolve_rank(mesh=Mesh(None))


@pytest.mark.parametrize(
    "arguments",
    [{"rank": 1}, {"world_size": 2}, {"rank": 0, "world_size": 1, "mesh": Mesh([0, 0])}],
)
def test_half_a_place_is_refused(arguments: dict[str, Any]) -> None:
    """Rank and world_size belong together, and not beside a mesh."""
    with pytest.raises(ValueError, match="give rank and world_size together, or a mesh, or none"):
        resolve_rank(**arguments)
