"""Figures of a step that the host reads later, and the guard's decision on the device.

Reading a number of the device waits for all work that was given to it before. A step therefore
reads nothing: the device decides itself whether the step is taken. The host reads the figures
when the next step has been enqueued, and draws the same conclusion from them (AnomalyGuard).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from training.anomaly_guard import NORM_DECAY
from training.config import AnomalyGuardConfig


class DeviceGuard:
    """The decision of `AnomalyGuard.accept`, computed on the device from the same figures."""

    def __init__(
        self, config: AnomalyGuardConfig, mean_norm: float | None, device: torch.device
    ) -> None:
        """Start from the running mean of earlier steps; None if there are none."""
        self._spike_factor = config.spike_factor
        value = math.nan if mean_norm is None else mean_norm
        # fp64, as Python's floats: both guards then compute the same bits.
        self._mean_norm = torch.full((), value, dtype=torch.float64, device=device)

    def find_bad(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Return 1.0 if the optimizer must skip the step, else 0.0, as an fp32 scalar.

        Args:
            loss: mean loss of the step, fp64 scalar.
            norm: gradient norm before clipping, fp64 scalar.
        """
        is_bad = ~(loss.isfinite() & norm.isfinite())
        if self._spike_factor is not None:
            # False if there is no mean yet: comparisons with NaN are.
            is_bad = is_bad | (norm > self._spike_factor * self._mean_norm)
        mean = torch.where(self._mean_norm.isnan(), norm, self._mean_norm)
        mean = NORM_DECAY * mean + (1 - NORM_DECAY) * norm
        self._mean_norm = torch.where(is_bad, self._mean_norm, mean)
        return is_bad.float()


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
