"""The trainer of this project as an entrant: `training.trainer.Trainer` and its own loop, on shards.

Only what would end a measurement is taken out: the checkpoints (14 GB) and the files of the log.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from training.config import TrainConfig
from training.observability.profiling import ScheduledGC
from training.parallel import distributed
from training.parallel.activation_offload import ActivationOffload
from training.parallel.parallelize import unwrap_decoder
from training.planning.gpus import GIB
from training.planning.memory import estimate_footprint
from training.trainer import Trainer


class Ours:
    """The trainer of this project, with a config made from the spec."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
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
        if spec.get("save_on_cpu"):
            _save_on_cpu(self.trainer.model)

    def run(self, steps: int, *, gc_every_steps: int | None = 50) -> dict[str, Any]:
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
            "bad_steps": figures[-1]["bad_steps"],
            "offloaded_gib_per_step": self.sent_bytes / (steps + 1) / GIB,
        }

    def close(self) -> None:
        """Close the trainer."""
        self._closing.close()

    def _count_what_is_sent(self) -> None:
        send: Callable[..., Any] = ActivationOffload._send  # noqa: SLF001 - nobody else asks for this number

        def counted(offload: Any, visit: Any, tensor: torch.Tensor) -> Any:
            packed = send(offload, visit, tensor)
            if packed is not tensor:
                self.sent_bytes += tensor.nbytes
            return packed

        ActivationOffload._send = counted  # type: ignore[method-assign]  # noqa: SLF001


def make_config(spec: Mapping[str, Any], run_dir: str) -> Any:
    """Return the TrainConfig of an entrant; `settings` of the spec changes sections."""
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
        "checkpoint": {"every_steps": None},
        "observability": {"every_steps": 1, "tensorboard": False},
        "optimizer": {"warmup_steps": 10, "schedule": "constant"},
    }
    for section, values in spec.get("settings", {}).items():
        sections.setdefault(section, {}).update(values)
    return TrainConfig.model_validate({"run_dir": run_dir, "steps": 1, **sections})


def plan(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the planner's estimate of the allocator's peak, without the CUDA context."""
    planned = estimate_footprint(make_config(spec, "planned"), spec["vocab_size"], 1)
    peak = planned.peak
    return {
        "gib": (peak.total - peak.context) / GIB,
        "activations_gib": peak.activations / GIB,
    }


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

    def around(forward: Callable[..., Any]) -> Callable[..., Any]:
        def saved(*args: Any) -> Any:
            with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
                return forward(*args)

        return saved

    for block in list(unwrap_decoder(model).layers)[:-1]:
        block.forward_fn = around(block.forward_fn)  # type: ignore[assignment]
