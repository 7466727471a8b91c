"""Compare checkpoints with digests to those of torch.distributed.checkpoint (DCP) alone.

    python -m benchmarks.training.checkpoint_digests --gigabytes 1 --save

One rank saves and loads fp32 matrices. Both forms take turns; the fastest round of each counts.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from benchmarks.frame import finish, make_parser
from training.checkpoint.tensor_files import TensorFiles, save_tensors

MATRIX_BYTES = 32 * 2**20


def main() -> None:
    """Measure, print the figures, and write the result file."""
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument(
        "--folder", help="on the disk to measure; default: the temporary one"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        figures = measure(Path(folder), args.gigabytes, args.rounds)
    dist.destroy_process_group()
    for name, value in figures.items():
        print(f"{name:24} {value:8.3f}")
    finish(args, "checkpoint_digests", figures, ("torch", "xxhash"))


def measure(folder: Path, gigabytes: float, rounds: int) -> dict[str, float]:
    """Return wall and CPU seconds of each form, and the ratios of both."""
    tensors: dict[str, Any] = {}
    for index in range(math.ceil(gigabytes * 1e9 / MATRIX_BYTES)):
        tensors[f"matrix.{index}"] = torch.randn(MATRIX_BYTES // 4)
    loaded = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    group = dist.group.WORLD
    assert group is not None
    files: dict[str, Any] = {}
    plain, digested = folder / "plain", folder / "digested"
    actions: dict[str, Callable[[], Any]] = {
        "save, plain": lambda: save(tensors, checkpoint_id=plain),
        "save, digests": lambda: files.update(save_tensors(tensors, digested, group)),
        "load, plain": lambda: load(loaded, checkpoint_id=plain),
        "load, digests": lambda: TensorFiles(digested, files).load(loaded, group),
    }
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, action in actions.items():
            wall_s, cpu_s = _time(action)
            best[f"{name}, wall s"] = min(wall_s, best.get(f"{name}, wall s", math.inf))
            best[f"{name}, CPU s"] = min(cpu_s, best.get(f"{name}, CPU s", math.inf))
        shutil.rmtree(plain)
        shutil.rmtree(digested)
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)
    for action in ("save", "load"):
        for clock in ("wall s", "CPU s"):
            ratio = best[f"{action}, digests, {clock}"] / best[f"{action}, plain, {clock}"]
            best[f"{action}, ratio, {clock}"] = ratio
    return best


def _time(action: Callable[[], Any]) -> tuple[float, float]:
    """Run an action; return its wall and CPU seconds."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


if __name__ == "__main__":
    main()
