"""The process group of a run and its device mesh of replicate x shard x tensor ranks.

For example, 8 ranks with shard_degree 2 and tensor 2 form a mesh of 2 x 2 x 2. Ranks with
consecutive numbers share a matrix (tensor).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from terminal_output import format_count
from training.config import ParallelConfig
from training.errors import IncompatibleConfig

MESH_DIMS = ("replicate", "shard", "tensor")
# The same ranks. replicate x shard is divided into `rows`, whose ranks read different rows, and
# `context`, whose ranks share the tokens of each row.
ROW_MESH_DIMS = ("rows", "context", "tensor")
# Collectives that each rank remembers for the dump after a hang.
FLIGHT_RECORDER_EVENTS = 2000


@dataclass(frozen=True)
class RankContext:
    """The rank of this process, its device, and the mesh of all ranks.

    The mesh always has the dimensions MESH_DIMS, also where their size is 1.

    Attributes:
        row_mesh: with context parallelism, the same ranks in the dimensions ROW_MESH_DIMS.
    """

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh
    row_mesh: DeviceMesh | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the files that exist once per run."""
        return self.rank == 0

    @property
    def data_mesh(self) -> DeviceMesh:
        """The mesh of ranks that read different rows."""
        if self.row_mesh is not None:
            return self.row_mesh["rows"]
        return self.mesh["replicate", "shard"]

    @property
    def context_degree(self) -> int:
        """The number of ranks that share the tokens of a row."""
        return 1 if self.row_mesh is None else self.row_mesh.size(1)

    @property
    def num_data_ranks(self) -> int:
        """The number of ranks that read different rows."""
        num_ranks = self.get_degree("replicate") * self.get_degree("shard")
        return num_ranks // self.context_degree

    @property
    def data_rank(self) -> int:
        """The number of this rank among those that read different rows."""
        replicate, shard, _ = self.mesh.get_coordinate() or (0, 0, 0)
        return (replicate * self.get_degree("shard") + shard) // self.context_degree

    def get_degree(self, name: str) -> int:
        """Return the size of a dimension of the mesh."""
        # Not mesh[name].size(): that builds a new mesh, which takes the host 0.5 ms.
        return self.mesh.size(MESH_DIMS.index(name))

    def sum_over_data_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks that read different rows, in place."""
        if self.row_mesh is not None:
            dist.all_reduce(values, group=self.row_mesh.get_group("rows"))
            return values
        # One reduction per dimension: ranks that differ only in `tensor` hold the same values,
        # which must not be added twice.
        for name in ("replicate", "shard"):
            if self.get_degree(name) > 1:
                dist.all_reduce(values, group=self.mesh.get_group(name))
        return values

    def sum_over_row(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks that share the tokens of a row, in place."""
        if self.row_mesh is not None:
            dist.all_reduce(values, group=self.row_mesh.get_group("context"))
        return values

    def max_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Take the maximum over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def set_timeout(self, timeout_s: float) -> None:
        """Set how long a collective waits for a missing rank before it fails."""
        # torch has no public function for it.
        from torch.distributed import distributed_c10d

        c10d: Any = distributed_c10d
        # Checkpoints have a separate group, which keeps its timeout: writing can take longer than a
        # step.
        all_groups = [self.mesh.get_group(name) for name in MESH_DIMS]
        if self.row_mesh is not None:
            all_groups += [self.row_mesh.get_group(name) for name in ROW_MESH_DIMS]
        groups = {id(group): group for group in all_groups}
        for group in [dist.group.WORLD, *groups.values()]:
            c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)  # noqa: SLF001


def init_distributed(
    parallel: ParallelConfig,
    *,
    timeout_s: float,
    dump_dir: Path,
    eager_connections: bool = False,
) -> RankContext:
    """Join the process group, unless the launcher has joined it already, and build the mesh.

    torchrun sets RANK and the other variables. Ray Train joins before it calls the worker.
    Without either, the run has one rank.

    Args:
        parallel: degrees of the mesh.
        timeout_s: how long the first collectives wait for other ranks.
        dump_dir: folder for NCCL's flight recorder, written when a collective times out.
        eager_connections: GPUs: whether NCCL connects all ranks here.

    Raises:
        IncompatibleConfig: the number of ranks is not a product of the configured degrees.
    """
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # Segments that grow fragment memory less. The setting is read when the first tensor is
        # allocated. What the user has set is kept.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        device = _select_gpu(dump_dir)
    if not dist.is_initialized():
        bound_device = device if eager_connections and device.type == "cuda" else None
        _join_process_group(timedelta(seconds=timeout_s), bound_device)
    mesh = _build_mesh(parallel, device)
    row_mesh: DeviceMesh | None = None
    if parallel.context > 1:
        num_rows = dist.get_world_size() // (parallel.context * parallel.tensor)
        shape = num_rows, parallel.context, parallel.tensor
        row_mesh = init_device_mesh(device.type, shape, mesh_dim_names=ROW_MESH_DIMS)
    return RankContext(dist.get_rank(), dist.get_world_size(), device, mesh, row_mesh)


def _select_gpu(dump_dir: Path) -> torch.device:
    """Select the GPU of this rank, and configure the flight recorder of NCCL."""
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    # NCCL reads these when the process group is created.
    for name, value in flight_recorder_env(dump_dir).items():
        # setdefault: values that the user has set are kept.
        os.environ.setdefault(name, value)
    return device


def _join_process_group(timeout: timedelta, bound_device: torch.device | None) -> None:
    """Join the process group of torchrun, or create one with a single rank.

    Args:
        timeout: of the first collectives.
        bound_device: GPU whose NCCL connections are made here; None: in its first collective.
    """
    backend = select_backend(has_cuda=torch.cuda.is_available())
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout, device_id=bound_device)
        return
    # In memory, so a single process needs no port.
    store = HashStore()
    dist.init_process_group(backend, timeout=timeout, store=store, rank=0, world_size=1)


def _build_mesh(parallel: ParallelConfig, device: torch.device) -> DeviceMesh:
    # Row-major: `tensor` is the last dimension, so its ranks have consecutive numbers and share a
    # node.
    shape = compute_mesh_shape(parallel, dist.get_world_size())
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=MESH_DIMS)
    if parallel.tensor > 1:
        # With a flattened dimension, gradient norms are reduced over shard and tensor in one
        # collective. torch warns when it is missing, and offers no public call to add it.
        mesh["shard", "tensor"]._flatten()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return mesh


def shutdown_distributed() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def compute_mesh_shape(parallel: ParallelConfig, world_size: int) -> tuple[int, int, int]:
    """Return the sizes (replicate, shard, tensor) of the mesh.

    Raises:
        IncompatibleConfig: world_size is not a product of the configured degrees.
    """
    data_ranks, remainder = divmod(world_size, parallel.tensor)
    if remainder or not data_ranks:
        raise IncompatibleConfig(
            f"parallel.tensor is {parallel.tensor}, which does not divide "
            f"{format_count(world_size, 'rank')}; start a multiple of it"
        )
    if data_ranks % parallel.context:
        raise IncompatibleConfig(
            f"parallel.context is {parallel.context}, which does not divide "
            f"{format_count(data_ranks, 'rank')} ({world_size} ranks / tensor {parallel.tensor}); start a multiple of it"
        )
    if parallel.strategy in ("ddp", "zero1"):
        return data_ranks, 1, 1
    # Ranks left over by `shard` form replicas (HSDP).
    shard = parallel.shard_degree or data_ranks
    if data_ranks % shard:
        divisors = ", ".join(
            str(n) for n in range(1, data_ranks + 1) if data_ranks % n == 0
        )
        raise IncompatibleConfig(
            f"parallel.shard_degree is {shard}, which does not divide "
            f"{format_count(data_ranks, 'data-parallel rank')} ({world_size} ranks / tensor {parallel.tensor}); use one of {divisors}, or "
            f"null for all"
        )
    return data_ranks // shard, shard, parallel.tensor


def select_backend(*, has_cuda: bool) -> str:
    """Return the backend string for torch.distributed.

    GPU runs also need gloo, because checkpoints use collectives on CPU tensors.
    """
    return "cpu:gloo,cuda:nccl" if has_cuda else "gloo"


def flight_recorder_env(dump_dir: Path) -> dict[str, str]:
    """Return the environment that makes NCCL dump its last collectives when one times out.

    It must be set before the process group is created. See
    docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html.
    """
    dump_dir.mkdir(parents=True, exist_ok=True)
    return {
        "TORCH_FR_BUFFER_SIZE": str(FLIGHT_RECORDER_EVENTS),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(dump_dir / "rank-"),
    }
