"""Checks of the device: its allocator, its process group, and copies of the loader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.training.checks.check import Check, NotAvailable, expect
from benchmarks.training.checks.runs import open_ours
from loader import TokenLoader
from training.config import ParallelConfig
from training.parallel import distributed
from training.parallel.agreement import RankGroup

NUM_BATCHES = 8


def _check_contexts(spec: Mapping[str, Any]) -> str:
    """Only the GPU of this rank has a CUDA context after steps with the loader's thread."""
    num_gpus = torch.cuda.device_count()
    if num_gpus < 2:
        raise NotAvailable("needs two GPUs")
    # A wrong device would be the first one.
    os.environ["LOCAL_RANK"] = str(num_gpus - 1)
    with open_ours(spec, data={"document_masks": True}) as ours:
        ours.run(1)
    has_context: Any = torch._C._cuda_hasPrimaryContext  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]
    found = [index for index in range(num_gpus) if has_context(index)]
    expect(found == [num_gpus - 1], f"contexts on GPUs {found}")
    return f"only on GPU {num_gpus - 1}"


def _check_segments(_: Mapping[str, Any]) -> str:
    """The allocator takes the setting that init_distributed makes."""
    with TemporaryDirectory(prefix="checks-") as folder:
        context = distributed.init_distributed(
            ParallelConfig(), timeout_s=60, dump_dir=Path(folder)
        )
        held = torch.zeros(1 << 28, dtype=torch.uint8, device=context.device)
        segments = torch.cuda.memory_snapshot()
        num_expandable = sum(bool(segment.get("is_expandable")) for segment in segments)
        del held
        distributed.shutdown_distributed()
    setting = os.environ.get("PYTORCH_ALLOC_CONF")
    expect(num_expandable, f"none of {len(segments)} segments; setting {setting}")
    return f"{num_expandable} of {len(segments)} segments, {setting}"


def _check_device_id(spec: Mapping[str, Any]) -> str:
    """NCCL connects at the start; both backends and the mesh work, and timeouts can be set."""
    torchrun = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(spec["port"]),
    }
    os.environ.update(torchrun)
    try:
        with TemporaryDirectory(prefix="checks-") as folder:
            context = distributed.init_distributed(
                ParallelConfig(),
                timeout_s=60,
                dump_dir=Path(folder),
                eager_connections=True,
            )
            for device in (context.device, torch.device("cpu")):
                found = context.max_over_ranks(torch.ones(4, device=device))
                dist.all_reduce(found)
                expect(found.sum() == 4, f"a sum of {found.sum()} on {device}")
            context.set_timeout(30)
            RankGroup(context).close()
            distributed.shutdown_distributed()
    finally:
        for name in torchrun:
            del os.environ[name]
    return "NCCL and gloo reduce"


def open_loader(spec: Mapping[str, Any], device: torch.device | None = None) -> TokenLoader:
    """Open the dataset of a spec; batches have both forms of documents."""
    return TokenLoader(
        spec["dataset"],
        seq_len=spec["seq_len"],
        global_batch_rows=spec["micro_batch_rows"],
        documents=("cu_seqlens", "document_ids"),
        device=device,
    )


def _check_copies(spec: Mapping[str, Any]) -> str:
    """Batches on the device equal those on the host, while the device is busy."""
    device = torch.device("cuda", torch.cuda.current_device())
    on_host, on_device = open_loader(spec), open_loader(spec, device)
    matrix = torch.randn(4096, 4096, device=device)
    for number in range(NUM_BATCHES):
        for _ in range(20):
            matrix = (matrix @ matrix).clamp(-1, 1)
        found, expected = next(on_device), next(on_host)
        expect(found.keys() == expected.keys(), "another set of entries")
        for name, value in expected.items():
            if isinstance(value, torch.Tensor):
                expect(found[name].is_cuda, f"{name} is not on the device")
                same = torch.equal(found[name].cpu(), value)
                expect(same, f"{name} differs in batch {number}")
    return f"{NUM_BATCHES} batches"


CHECKS = (
    # First: later ones would use the GPU that it must not touch.
    Check("one context", _check_contexts),
    Check("expandable segments", _check_segments),
    Check("device_id", _check_device_id),
    Check("loader copies", _check_copies),
)
