"""Which of how many ranks this process is, as far as data goes.

Promises: the answer of whoever started the processes, asked in a fixed order: a device mesh that was handed over,
torch.distributed, torchrun's environment, Ray Train's context, else one rank alone. Neither torch nor ray is imported:
a process that is a rank of theirs has imported them already.
Leaves to others: starting processes.

    rank, world_size = resolve()                       # in a process of torchrun --nproc-per-node 4: (0..3, 4)
    rank, world_size = resolve(mesh=mesh["dp"])        # the same for all ranks of a tensor-parallel group
"""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol


class Mesh(Protocol):
    """What is used of torch's DeviceMesh: the part of it along which data differ."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each dimension."""
        ...

    def get_coordinate(self) -> Any:
        """The place of this rank in each dimension, or None outside the mesh."""
        ...


def resolve(
    rank: int | None = None, world_size: int | None = None, mesh: Mesh | None = None
) -> tuple[int, int]:
    """(rank, world_size), explicit ones first.

    Args:
        rank: given together with world_size, or not at all.
        world_size: likewise.
        mesh: the data-parallel part of a device mesh, such as `mesh["dp"]` or `mesh["replicate", "shard"]`.

    Raises:
        ValueError: one without the other, both a mesh and a rank, or a rank outside the world or the mesh.
    """
    if (rank is None) != (world_size is None) or (mesh is not None and rank is not None):
        found = (
            f"rank={rank}, world_size={world_size}, mesh={'given' if mesh is not None else None}"
        )
        raise ValueError(f"{found}; give rank and world_size together, or a mesh, or none of them")
    if rank is None or world_size is None:
        rank, world_size = _of_mesh(mesh) if mesh is not None else _of_launcher()
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, must lie in 0..{world_size - 1} for {world_size} ranks")
    return rank, world_size


def _of_mesh(mesh: Mesh) -> tuple[int, int]:
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(
            "this rank is outside the mesh; build the loader on the ranks of the mesh only"
        )
    rank, world_size = 0, 1
    for place, ranks in zip(coordinate, mesh.shape, strict=True):
        rank, world_size = rank * ranks + place, world_size * ranks
    return rank, world_size


def _of_launcher() -> tuple[int, int]:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return _of_ray_train() or (0, 1)


def _of_ray_train() -> tuple[int, int] | None:
    train: Any = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        world_size = context.get_world_size()
        return (context.get_world_rank(), world_size) if world_size else None
    except (RuntimeError, AttributeError):  # what Ray raises, by version, outside a training worker
        return None
