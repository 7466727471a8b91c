"""One entrant in a separate process: built, warmed up, then asked for rounds of steps over a pipe.

    {"ready": ...}    after the warm-up: seconds it took, parameters, memory
    {"round": ...}    tokens_per_s, step_s, memory; ours also stall_share and loss
    {"error": ...}    why there is no entrant, or no more

Ours is `training.trainer.Trainer` and its own loop, on shards. Only what would end a measurement is taken out: the
checkpoint at the end (14 GB) and the log's files.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

GIB = 2**30
SAVE_ON_CPU = "save_on_cpu"
COPY_BYTES = 1 << 29


class Ours:
    """The trainer of this project, with a config made from the spec."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        from training.parallel import distributed
        from training.trainer import Trainer

        self._closing = ExitStack()
        folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="entrant-"))
        self.config = make_config(spec, folder)
        self.sent_bytes = 0
        if self.config.parallel.activation_offload:
            self._count_what_is_sent()
        joined = distributed.init_distributed(
            self.config.parallel, timeout_s=600, dump_dir=Path(folder)
        )
        self._closing.callback(distributed.shutdown_distributed)
        self.trainer = Trainer(self.config, joined, self._closing)
        self.trainer.checkpointer = _NoCheckpoints()  # type: ignore[assignment]
        if spec.get(SAVE_ON_CPU):
            _save_on_cpu(self.trainer.model)

    def run(self, steps: int, *, gc_every_steps: int | None = 50) -> dict[str, Any]:
        """Return the trainer's figures of some steps, after one step that is not counted."""
        from training.observability.profiling import ScheduledGC

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
            "bad_steps": figures[-1]["bad_steps"],
            "offloaded_gib_per_step": self.sent_bytes / (steps + 1) / GIB,
        }

    def close(self) -> None:
        """Close the trainer."""
        self._closing.close()

    def _count_what_is_sent(self) -> None:
        from training.parallel.activation_offload import ActivationOffload

        send: Callable[..., Any] = ActivationOffload._send  # noqa: SLF001 - nobody else asks for this number

        def counted(offload: Any, visit: Any, tensor: torch.Tensor) -> Any:
            packed = send(offload, visit, tensor)
            if packed is not tensor:
                self.sent_bytes += tensor.nbytes
            return packed

        ActivationOffload._send = counted  # type: ignore[method-assign]  # noqa: SLF001


def make_config(spec: Mapping[str, Any], run_dir: str) -> Any:
    """Return the TrainConfig of an entrant; `settings` of the spec changes sections."""
    from training.config import TrainConfig

    sections: dict[str, dict[str, Any]] = {
        "model": {**spec["shape"], "vocab_size": spec["vocab_size"]},
        "data": {
            "manifest": spec["dataset"],
            "seq_len": spec["seq_len"],
            "global_batch_rows": spec["global_batch_rows"],
            "micro_batch_rows": spec["micro_batch_rows"],
            "document_masks": False,
        },
        "precision": {"compute": "bf16", "compile": spec["compile"]},
        "observability": {"every_steps": 1, "tensorboard": False},
        "optimizer": {"warmup_steps": 10, "schedule": "constant"},
    }
    for section, values in spec.get("settings", {}).items():
        sections.setdefault(section, {}).update(values)
    return TrainConfig.model_validate({"run_dir": run_dir, "steps": 1, **sections})


class _NoCheckpoints:
    def save(self, _: Any) -> None:
        pass

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


class _KeptLog:
    """A MetricsLog in memory."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def write(self, step: int, figures: Mapping[str, Any]) -> None:
        self.steps.append({"step": step, **figures})

    def close(self) -> None:
        pass


def _save_on_cpu(model: Any) -> None:
    """Wrap every block but the last with torch's save_on_cpu."""
    from training.parallel.parallelize import unwrap_decoder

    def around(forward: Callable[..., Any]) -> Callable[..., Any]:
        def saved(*args: Any) -> Any:
            with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
                return forward(*args)

        return saved

    for block in list(unwrap_decoder(model).layers)[:-1]:
        block.forward_fn = around(block.forward_fn)  # type: ignore[assignment]


# ---------------------------------------------------------------------------------------------------------- the process


def serve(pipe: Connection, spec: dict[str, Any], log: str) -> None:
    """Build the entrant and answer commands until "close" or the end of the pipe."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(spec.get("environment", {}))
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    try:
        began = time.perf_counter()
        entrant = _open(spec)
        figures = entrant.run(spec["warmup_steps"])
        pipe.send(
            {
                "ready": {
                    "start_s": time.perf_counter() - began,
                    **read_memory(),
                    **_peaks(figures),
                }
            }
        )
        with contextlib.suppress(EOFError):
            while (command := pipe.recv()) != "close":
                if command == "copy":
                    pipe.send({"round": _copy_speed()})
                    continue
                _forget_peaks()
                figures = entrant.run(**command)
                pipe.send({"round": {**read_memory(), **figures}})
        entrant.close()
    except BaseException as error:  # noqa: BLE001 - the parent reports every error
        traceback.print_exc()
        with contextlib.suppress(OSError):
            pipe.send({"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]})
    finally:
        os._exit(0)  # threads of compilers and process groups have nothing to say any more


def _open(spec: Mapping[str, Any]) -> Any:
    if spec["kind"] == "bare":
        from benchmarks.training.bare import Bare

        return Bare(spec)
    if spec["kind"] == "torchtitan":
        from benchmarks.training.titan import Titan

        return Titan(spec)
    if spec["kind"] == "checks":
        from benchmarks.training.checks.catalog import Checks

        return Checks(spec)
    if spec["kind"] == "kernels":
        from benchmarks.training.kernels import Kernels

        return Kernels(spec)
    return Ours(spec)


def read_memory() -> dict[str, float]:
    """Return the peaks of the round, and the memory that stays after freeing caches, in GiB."""
    # False on a CPU, and before the first tensor on a GPU: there are no statistics yet.
    if not torch.cuda.is_initialized():
        return {}
    stats = torch.cuda.memory_stats()
    gc.collect()
    torch.cuda.empty_cache()
    return {
        "active_peak_gib": stats["active_bytes.all.peak"] / GIB,
        "reserved_peak_gib": stats["reserved_bytes.all.peak"] / GIB,
        "resident_gib": torch.cuda.memory_reserved() / GIB,
    }


def _peaks(figures: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if name.endswith("_peak_gib")}


def _forget_peaks() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _copy_speed() -> dict[str, float]:
    """Return GB/s between pinned and device memory, in both directions, without other load."""
    if not torch.cuda.is_available():
        return {}
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    speeds: dict[str, float] = {}
    for name, target, source in (
        ("out_gb_per_s", host, device),
        ("back_gb_per_s", device, host),
    ):
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        speeds[name] = 4 * COPY_BYTES / (time.perf_counter() - began) / 1e9
    return speeds
