"""Find the data-parallel rank of this process and the number of ranks.

    # Under torchrun --nproc-per-node 4: (0..3, 4)
    rank, world_size = resolve_rank()
    # Equal for all ranks of a tensor-parallel group:
    rank, world_size = resolve_rank(mesh=mesh["dp"])

Neither torch nor ray is imported here. A process that is one of their ranks has imported them
already.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol


class Mesh(Protocol):
    """The part of torch's `DeviceMesh` interface that is used here."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of ranks along each dimension."""
        ...

    def get_coordinate(self) -> Any:
        """Return the index of this rank in each dimension, or None outside the mesh."""
        ...


def resolve_rank(
    rank: int | None = None, world_size: int | None = None, mesh: Mesh | None = None
) -> tuple[int, int]:
    """Return (rank, world_size).

    The first source that has an answer is used: the arguments, torch.distributed, the environment
    variables RANK and WORLD_SIZE (torchrun), Ray Train's context. Otherwise the process is rank 0
    of 1.

    Args:
        rank: give it together with `world_size`, or give neither.
        world_size: number of ranks.
        mesh: in place of both, the data-parallel dimensions of a device mesh, such as `mesh["dp"]`
            or `mesh["replicate", "shard"]`.

    Raises:
        ValueError: only one of rank and world_size is given, both a mesh and a rank are given, or
            the rank is outside the world or the mesh.
    """
    is_half_given = (rank is None) != (world_size is None)
    if is_half_given or (mesh is not None and rank is not None):
        mesh_shown = "given" if mesh is not None else None
        raise ValueError(
            f"rank={rank}, world_size={world_size}, mesh={mesh_shown}; "
            f"give rank and world_size together, or a mesh, or none of them"
        )
    if rank is None or world_size is None:
        rank, world_size = _read_mesh(mesh) if mesh is not None else _ask_launcher()
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank is {rank}, must be in 0..{world_size - 1}, because world_size is {world_size}"
        )
    return rank, world_size


def _read_mesh(mesh: Mesh) -> tuple[int, int]:
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(
            "this rank is outside the mesh; create the loader only on ranks of the mesh"
        )
    # Row-major numbering, as torch numbers a flattened mesh.
    rank, world_size = 0, 1
    for index, num_ranks in zip(coordinate, mesh.shape, strict=True):
        rank = rank * num_ranks + index
        world_size *= num_ranks
    return rank, world_size


def _ask_launcher() -> tuple[int, int]:
    # sys.modules instead of an import, which would cost seconds in a process without torch.
    distributed: Any = sys.modules.get("torch.distributed")
    if (
        distributed is not None
        and distributed.is_available()
        and distributed.is_initialized()
    ):
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return _ask_ray_train() or (0, 1)


def _ask_ray_train() -> tuple[int, int] | None:
    train: Any = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        world_size = context.get_world_size()
        # The driver imports ray.train too, but has no world size.
        return (context.get_world_rank(), world_size) if world_size else None
    except (RuntimeError, AttributeError):
        # Outside a training worker Ray raises one of these, depending on its version.
        return None
