"""Decides whether the optimizer takes a step, from its loss and gradient norm.

Reading a number of the device waits for all work that was given to it before. The device therefore
decides itself, in `find_bad`. The host reads the decision when the next step has been enqueued, and
counts it in `count`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from training.config import AnomalyGuardConfig
from training.errors import TrainingStopped

# Decay per step of the running mean of gradient norms. Half of its weight is on the last 35
# steps, because 0.98 ** 35 = 0.5.
NORM_DECAY = 0.98

# The run ends after this many bad steps in a row.
MAX_CONSECUTIVE_SKIPS = 10

# With on_bad_step rewind, the run ends at a bad step after this many rewinds to one checkpoint.
MAX_REWINDS = 3


class AnomalyGuard:
    """Refuses steps with a non-finite loss or gradient, or with a spike of the gradient norm.

    All ranks see the same figures, so all decide the same.

    Attributes:
        mean_norm: running mean of gradient norms after the last step that `find_bad` saw, fp64
            scalar on the device; NaN if there is none yet. The host reads it for a checkpoint,
            before which all steps are finished, and for the message of a run that ends.
        num_bad: refused steps of the whole run.
        wants_rewind: whether the run must return to its newest checkpoint before the next step.
    """

    def __init__(self, config: AnomalyGuardConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        self.num_bad = 0
        self.wants_rewind = False
        self._num_consecutive = 0
        self.mean_norm = self._make_mean(None)
        # Rewinds to the same checkpoint, and its step.
        self._num_rewinds = 0
        self._rewound_to: int | None = None

    def find_bad(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Return 1.0 if the optimizer must skip the step, else 0.0, as an fp32 scalar.

        Args:
            loss: mean loss of the step, fp64 scalar.
            norm: gradient norm before clipping, fp64 scalar. That of a refused step does not
                change the running mean: a spike must not make the next spike look normal.
        """
        is_bad = ~(loss.isfinite() & norm.isfinite())
        if self._config.spike_factor is not None:
            # False if there is no mean yet: comparisons with NaN are.
            is_bad = is_bad | (norm > self._config.spike_factor * self.mean_norm)
        mean = torch.where(self.mean_norm.isnan(), norm, self.mean_norm)
        mean = NORM_DECAY * mean + (1 - NORM_DECAY) * norm
        self.mean_norm = torch.where(is_bad, self.mean_norm, mean)
        return is_bad.float()

    def count(self, loss: float, norm: float, *, is_bad: bool, step: int) -> None:
        """Count a step with the numbers that the device had for it.

        Args:
            loss: mean loss of the step.
            norm: gradient norm before clipping.
            is_bad: what `find_bad` returned.
            step: number of the step, for the message.

        Raises:
            TrainingStopped: the step is bad, and on_bad_step is stop or too many bad steps have
                followed one another.
        """
        if not is_bad:
            self._num_consecutive = 0
            return
        self.num_bad += 1
        self._num_consecutive += 1
        self.wants_rewind = self._config.on_bad_step == "rewind"
        is_over = self._num_consecutive >= MAX_CONSECUTIVE_SKIPS
        if self._config.on_bad_step == "stop" or is_over:
            raise TrainingStopped(
                f"step {step}: {self._describe(loss, norm)}; bad steps in a row: "
                f"{self._num_consecutive} (anomaly_guard.on_bad_step is "
                f"{self._config.on_bad_step}; at most {MAX_CONSECUTIVE_SKIPS} are allowed). The "
                f"newest checkpoint is older: lower optimizer.learning_rate or inspect these "
                f"rows, and start again"
            )

    def rewind(self, state: Mapping[str, Any], step: int) -> None:
        """Take the running mean of a checkpoint; counts of bad steps and rewinds go on.

        Args:
            state: as saved in the checkpoint.
            step: of the checkpoint.

        Raises:
            TrainingStopped: the run has returned too often to this checkpoint.
        """
        self.wants_rewind, self._num_consecutive = False, 0
        self.mean_norm = self._make_mean(state["mean_norm"])
        self._num_rewinds = self._num_rewinds + 1 if step == self._rewound_to else 1
        self._rewound_to = step
        if self._num_rewinds > MAX_REWINDS:
            raise TrainingStopped(
                f"the run has returned {MAX_REWINDS} times to step {step} and met another bad "
                f"step. Lower optimizer.learning_rate or raise anomaly_guard.spike_factor, and "
                f"start again"
            )

    def skip(self) -> None:
        """Leave a bad step out, because there is no checkpoint to return to."""
        self.wants_rewind = False

    def state_dict(self) -> dict[str, Any]:
        """Return counts and running mean, for the checkpoint. All steps must have been counted."""
        mean_norm = float(self.mean_norm)
        return {
            "num_bad": self.num_bad,
            # A key of the checkpoint format; it keeps its name.
            "in_a_row": self._num_consecutive,
            "mean_norm": None if math.isnan(mean_norm) else mean_norm,
            "num_rewinds": self._num_rewinds,
            "rewound_to": self._rewound_to,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore counts and running mean."""
        self.num_bad = state["num_bad"]
        self._num_consecutive = state["in_a_row"]
        self.mean_norm = self._make_mean(state["mean_norm"])
        self._num_rewinds = state["num_rewinds"]
        self._rewound_to = state["rewound_to"]

    def _make_mean(self, mean_norm: float | None) -> Tensor:
        value = math.nan if mean_norm is None else mean_norm
        return torch.full((), value, dtype=torch.float64, device=self._device)

    def _describe(self, loss: float, norm: float) -> str:
        """Return why the last counted step is bad."""
        if math.isfinite(loss) and math.isfinite(norm):
            return (
                f"gradient norm is {norm:.3g}, more than {self._config.spike_factor:g} times the "
                f"running mean {float(self.mean_norm):.3g}"
            )
        return f"loss is {loss}, gradient norm {norm}"
