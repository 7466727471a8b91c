"""Rounds of training steps: of this project's trainer on shards, and of any other loop.

Of ours, only what would end a measurement is taken out: the checkpoints (14 GB) and the files of the log.
"""

from __future__ import annotations

import gc
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.cases import Case
from training.config import TrainConfig
from training.observability.profiling import ScheduledGC
from training.parallel import distributed
from training.parallel.activation_offload import ActivationOffload
from training.planning.gpus import GIB
from training.planning.memory import estimate_footprint
from training.trainer import Trainer

COPY_BYTES = 1 << 29

Figures = dict[str, Any]


def measure_rounds(case: Case, run: Callable[[int], Figures], began: float) -> Figures:
    """Return the figures of an entrant after its warm-up.

    Args:
        case: what it trains on.
        run: trains for some steps, and returns tokens_per_s and step_s.
        began: when the entrant began to start, by `time.perf_counter`.
    """
    run(case.size.warmup_steps)
    figures: Figures = {"seq_len": case.seq_len, "start_s": time.perf_counter() - began}
    figures["rounds"] = rounds = []
    for _ in range(case.size.rounds):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        found = run(case.size.steps)
        rounds.append({**read_memory(), **found})
    return figures


def time_steps(case: Case, step: Callable[[], object], num_steps: int) -> Figures:
    """Return speed and step times of a loop, without its first step."""
    step()
    synchronize()
    began = time.perf_counter()
    for _ in range(num_steps):
        step()
    synchronize()
    step_s = (time.perf_counter() - began) / num_steps
    tokens_per_step = case.global_batch_rows * case.seq_len
    return {"tokens_per_s": tokens_per_step / step_s, "step_s": [step_s] * num_steps}


def synchronize() -> None:
    """Wait for the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def read_memory() -> dict[str, float]:
    """Return the peaks since they were reset, in GiB."""
    # False on a CPU, and before the first tensor on a GPU: there are no statistics yet.
    if not torch.cuda.is_initialized():
        return {}
    stats = torch.cuda.memory_stats()
    return {
        "active_peak_gib": stats["active_bytes.all.peak"] / GIB,
        "reserved_peak_gib": stats["reserved_bytes.all.peak"] / GIB,
    }


def imitate_torchrun() -> None:
    """Set the environment variables of the only rank of a group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))


# ---- the trainer of this project ----


class Ours:
    """The trainer of this project, with its own loop."""

    def __init__(self, case: Case, settings: Mapping[str, Any]) -> None:
        self._closing = ExitStack()
        folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="entrant-"))
        self.config = make_config(case, settings, folder)
        self.sent_bytes = 0
        if self.config.parallel.activation_offload:
            self._count_what_is_sent()
        joined = distributed.init_distributed(
            self.config.parallel, timeout_s=600, dump_dir=Path(folder)
        )
        self._closing.callback(distributed.shutdown_distributed)
        self.trainer = Trainer(self.config, joined, self._closing)

    def run(self, steps: int, *, gc_every_steps: int | None = 50) -> Figures:
        """Return the trainer's figures of some steps, after one step that is not counted."""
        self.trainer.scheduled_gc.close()
        self.trainer.scheduled_gc = ScheduledGC(gc_every_steps)
        self.trainer.metrics_log = log = _KeptLog()  # type: ignore[assignment]
        self.trainer.config = self.config.model_copy(
            update={"steps": self.trainer.step + steps + 1}
        )
        self.sent_bytes = 0
        self.trainer.run()
        figures = log.steps[1:]
        seconds = [f["step_s"] for f in figures]
        peaks = {
            # set back at each step
            f"{kind}_peak_gib": max(f[f"memory_{kind}_peak_gib"] for f in log.steps)
            for kind in ("active", "reserved")
            if f"memory_{kind}_peak_gib" in log.steps[0]
        }
        return {
            **peaks,
            "tokens_per_s": sum(f["tokens_per_s"] * f["step_s"] for f in figures)
            / sum(seconds),
            "step_s": seconds,
            "stall_share": sum(f["stall_share"] * f["step_s"] for f in figures)
            / sum(seconds),
            "loss": figures[-1]["loss"],
            "offloaded_gib_per_step": self.sent_bytes / (steps + 1) / GIB,
        }

    def close(self) -> None:
        """Close the trainer, and free its memory."""
        self._closing.close()
        del self.trainer
        gc.collect()

    def _count_what_is_sent(self) -> None:
        send: Callable[..., Any] = ActivationOffload._send  # noqa: SLF001 - nobody else asks for this number

        def counted(offload: Any, visit: Any, tensor: torch.Tensor) -> Any:
            packed = send(offload, visit, tensor)
            if packed is not tensor:
                self.sent_bytes += tensor.nbytes
            return packed

        ActivationOffload._send = counted  # type: ignore[method-assign]  # noqa: SLF001


class _KeptLog:
    """A MetricsLog in memory."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def write(self, step: int, figures: Mapping[str, Any]) -> None:
        self.steps.append({"step": step, **figures})

    def close(self) -> None:
        pass


def make_config(case: Case, settings: Mapping[str, Any], run_dir: str) -> TrainConfig:
    """Return the config of an entrant; `settings` changes sections."""
    size = case.size
    sections: dict[str, dict[str, Any]] = {
        "model": {**size.shape, "vocab_size": size.vocab_size},
        "data": {
            "manifest": case.dataset,
            "seq_len": case.seq_len,
            "global_batch_rows": case.global_batch_rows,
            "micro_batch_rows": case.micro_batch_rows,
            "document_masks": False,
        },
        "precision": {"compute": "bf16", "compile": size.compile},
        "checkpoint": {"every_steps": None},
        "observability": {"every_steps": 1, "tensorboard": False},
        "optimizer": {"warmup_steps": 10, "schedule": "constant"},
    }
    for section, values in settings.items():
        sections.setdefault(section, {}).update(values)
    return TrainConfig.model_validate({"run_dir": run_dir, "steps": 1, **sections})


def plan(case: Case, settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the planner's estimate of the allocator's peak, without the CUDA context."""
    config = make_config(case, settings, "planned")
    peak = estimate_footprint(config, case.size.vocab_size, 1).peak
    return {
        "planned_gib": (peak.total - peak.context) / GIB,
        "planned_activations_gib": peak.activations / GIB,
    }


def measure_ours(
    case: Case, settings: Mapping[str, Any], *, compares_gc: bool = False
) -> Figures:
    """Measure our trainer with other settings.

    With activation offload, also the speed of copies; with `compares_gc`, also automatic beside
    scheduled garbage collection, in turns.
    """
    began = time.perf_counter()
    with closing(Ours(case, settings)) as ours:
        figures = measure_rounds(case, ours.run, began) | plan(case, settings)
        if ours.config.parallel.activation_offload:
            figures |= _measure_copies()
        if compares_gc:
            figures["garbage"] = _compare_gc(case, ours)
    return figures


def _compare_gc(case: Case, ours: Ours) -> dict[str, dict[str, float]]:
    seconds: dict[str, list[float]] = {"scheduled": [], "automatic": []}
    for _ in range(case.size.rounds):
        for kind, every in (("scheduled", 50), ("automatic", None)):
            found = ours.run(case.size.steps, gc_every_steps=every)
            seconds[kind] += found["step_s"]
    return {
        kind: {"median_step_s": statistics.median(each), "longest_step_s": max(each)}
        for kind, each in seconds.items()
    }


def _measure_copies() -> dict[str, float]:
    """Return GB/s between pinned and device memory, in both directions, without other load."""
    if not torch.cuda.is_available():
        return {}
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    speeds: dict[str, float] = {}
    for name, target, source in (("out", host, device), ("back", device, host)):
        target.copy_(source, non_blocking=True)
        synchronize()
        began = time.perf_counter()
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        synchronize()
        speeds[f"{name}_gb_per_s"] = 4 * COPY_BYTES / (time.perf_counter() - began) / 1e9
    return speeds
