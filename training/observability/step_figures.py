"""Figures of a step that the host reads later, and step time and MFU between two reports."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor


class StepFigures:
    """Numbers of an enqueued step, on their way to the host.

    Attributes:
        step: finished steps, this one included.
        position: rows of the global order that were read up to this step.
        learning_rate: of this step.
        waited_s: seconds spent waiting for its rows.
        finished: perf_counter at its end: on a CPU when it was enqueued, on a GPU when it was read.
    """

    waited_s: float = 0.0

    def __init__(
        self, values: Sequence[Tensor], *, step: int, position: int, learning_rate: float
    ) -> None:
        """Start the copy of scalars to the host, without waiting for it."""
        self.step, self.position, self.learning_rate = step, position, learning_rate
        self.finished = time.perf_counter()
        self._values = torch.stack([value.double() for value in values])
        self._copied: torch.cuda.Event | None = None
        if self._values.is_cuda:
            # Without pinned memory, the copy would wait for the device.
            host = torch.empty(len(values), dtype=torch.float64, pin_memory=True)
            self._values = host.copy_(self._values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[float]:
        """Return the numbers. This waits until the device has computed the step."""
        if self._copied is not None:
            self._copied.synchronize()
            self.finished = time.perf_counter()
        return self._values.tolist()


@dataclass
class StepTimer:
    """Times the steps since the last report, and the waiting for rows within them.

    Attributes:
        started: perf_counter at the end of the last step that was reported.
        finished: perf_counter at the end of the newest step.
        waited_s: seconds spent waiting for the rows of the steps since the last report.
        tokens: tokens of all ranks.
        steps: steps.
    """

    started: float = field(default_factory=time.perf_counter)
    finished: float = 0.0
    waited_s: float = 0.0
    tokens: int = 0
    steps: int = 0

    def add_step(self, tokens: int, *, waited_s: float, finished: float) -> None:
        """Count a finished step.

        Args:
            tokens: of all ranks.
            waited_s: seconds spent waiting for its rows.
            finished: perf_counter at its end. The figures of a step are read later.
        """
        self.tokens += tokens
        self.steps += 1
        self.waited_s += waited_s
        self.finished = finished

    @contextmanager
    def exclude(self) -> Generator[None]:
        """Leave the time inside the context, such as that of an evaluation, out of the figures."""
        began = time.perf_counter()
        yield
        self.started += time.perf_counter() - began

    def report(
        self, flops_per_token: int, num_ranks: int, peak_flops: float | None
    ) -> dict[str, float]:
        """Return the figures since the last report, and start anew.

        MFU = tokens/s * FLOPs per token / (ranks * peak FLOP/s); Chowdhery et al. 2022 (PaLM),
        appendix B.

        Args:
            flops_per_token: forward and backward of the model, without recomputation.
            num_ranks: devices of the run.
            peak_flops: FLOP/s of one device; None leaves out the MFU.

        Returns:
            tokens_per_s (over all ranks), step_s (mean), stall_share (0..1), and mfu (0..1).
        """
        elapsed_s = self.finished - self.started
        tokens_per_s = self.tokens / elapsed_s
        figures = {
            "tokens_per_s": tokens_per_s,
            "step_s": elapsed_s / max(1, self.steps),
            "stall_share": self.waited_s / elapsed_s,
        }
        if peak_flops is not None:
            figures["mfu"] = tokens_per_s * flops_per_token / (num_ranks * peak_flops)
        self.started, self.waited_s = self.finished, 0.0
        self.tokens = self.steps = 0
        return figures
