"""The processes of a run: who this one is, on which device, and how the ranks lie in a mesh.

Promises: after `join`, ranks are joined whoever started them (torchrun, Ray Train, or nobody: then there is one), and
the mesh has the dimensions replicate, shard and tensor, in this order, also where they are 1. A hang leaves the flight
recorder's dump in the run's folder and ends by a time-out.
Leaves to others: starting processes (torchrun, ray_launcher.py).

    mesh of 8 ranks, shard_degree 2, tensor 2:    replicate 2 x shard 2 x tensor 2; neighbours share a tensor
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from training.config import ParallelConfig

DIMENSIONS = ("replicate", "shard", "tensor")
FLIGHT_RECORDER_EVENTS = 2000


class IncompatibleConfig(ValueError):
    """The config asks for what these ranks, this dataset or this machine do not have."""


@dataclass(frozen=True)
class Ranks:
    """Which process of how many, where."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.rank == 0

    @property
    def data_mesh(self) -> DeviceMesh:
        """Ranks that see different rows: replicate x shard."""
        return self.mesh["replicate", "shard"]

    @property
    def num_data_ranks(self) -> int:
        """Ranks that see different rows."""
        return self.mesh["replicate"].size() * self.mesh["shard"].size()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Of all ranks that see different rows, in place."""
        for name in ("replicate", "shard"):
            if self.mesh[name].size() > 1:
                dist.all_reduce(values, group=self.mesh.get_group(name))
        return values

    def agree(self, values: torch.Tensor) -> torch.Tensor:
        """The largest of all ranks, in place: where one rank's word is enough."""
        if self.world_size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def set_timeout(self, timeout_s: float) -> None:
        """How long a collective waits for ranks that do not come."""
        from torch.distributed.distributed_c10d import _set_pg_timeout  # pyright: ignore[reportPrivateUsage]

        groups = {id(group): group for group in map(self.mesh.get_group, DIMENSIONS)}
        for group in [dist.group.WORLD, *groups.values()]:
            _set_pg_timeout(timedelta(seconds=timeout_s), group)


def join(parallel: ParallelConfig, *, timeout_s: float, dump_dir: Path) -> Ranks:
    """Join the other ranks, unless the launcher has done so, and lay them out.

    Raises:
        IncompatibleConfig: the number of ranks is no product of the degrees asked for.
    """
    has_cuda = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if has_cuda
        else torch.device("cpu")
    )
    if has_cuda:
        torch.cuda.set_device(device)
        for name, value in flight_recorder(dump_dir).items():
            os.environ.setdefault(name, value)
    if not dist.is_initialized():
        timeout = timedelta(seconds=timeout_s)
        if "RANK" in os.environ:
            dist.init_process_group(backend(has_cuda=has_cuda), timeout=timeout)
        else:
            dist.init_process_group(
                backend(has_cuda=has_cuda), timeout=timeout, store=HashStore(), rank=0, world_size=1
            )
    shape = mesh_shape(parallel, dist.get_world_size())
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=DIMENSIONS)
    if parallel.tensor > 1:
        mesh["shard", "tensor"]._flatten()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - norms of gradients then
        # travel in one collective; torch says so itself when it is missing
    return Ranks(dist.get_rank(), dist.get_world_size(), device, mesh)


def leave() -> None:
    """Part from the others."""
    if dist.is_initialized():
        dist.destroy_process_group()


def mesh_shape(parallel: ParallelConfig, world_size: int) -> tuple[int, int, int]:
    """(replicate, shard, tensor) of so many ranks.

    Raises:
        IncompatibleConfig: they are no product of the degrees asked for.
    """
    data_ranks, rest = divmod(world_size, parallel.tensor)
    if rest or not data_ranks:
        raise IncompatibleConfig(
            f"parallel.tensor is {parallel.tensor}, which does not divide {world_size} ranks; start a multiple of it"
        )
    if parallel.strategy in ("ddp", "zero1"):
        return data_ranks, 1, 1
    shard = parallel.shard_degree or data_ranks
    if data_ranks % shard:
        divisors = ", ".join(str(n) for n in range(1, data_ranks + 1) if data_ranks % n == 0)
        raise IncompatibleConfig(
            f"parallel.shard_degree is {shard}, which does not divide {data_ranks} data-parallel ranks "
            f"({world_size} ranks / tensor {parallel.tensor}); those that do: {divisors}, or null for all"
        )
    return data_ranks // shard, shard, parallel.tensor


def backend(*, has_cuda: bool) -> str:
    """What ranks talk through; checkpoints travel between processors on GPU machines too."""
    return "cpu:gloo,cuda:nccl" if has_cuda else "gloo"


def flight_recorder(dump_dir: Path) -> dict[str, str]:
    """Environment in which NCCL writes the last collectives of every rank to that folder when one of them times out.

    docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html; it must be set before ranks are joined.
    """
    dump_dir.mkdir(parents=True, exist_ok=True)
    return {
        "TORCH_FR_BUFFER_SIZE": str(FLIGHT_RECORDER_EVENTS),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(dump_dir / "rank-"),
    }
