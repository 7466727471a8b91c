"""Decides whether the optimizer takes a step, from its loss and gradient norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from training.config import AnomalyGuardConfig
from training.errors import TrainingStopped

# Decay per step of the running mean of gradient norms. Half of its weight is on the last 35
# steps, because 0.98 ** 35 = 0.5.
NORM_DECAY = 0.98


class AnomalyGuard:
    """Refuses steps with a non-finite loss or gradient, or with a spike of the gradient norm.

    All ranks see the same figures, so all decide the same.

    Attributes:
        num_bad: refused steps of the whole run.
        wants_rewind: whether the run must return to its newest checkpoint before the next step.
    """

    def __init__(self, config: AnomalyGuardConfig) -> None:
        self._config = config
        self.num_bad = 0
        self.wants_rewind = False
        self._num_consecutive = 0
        self._mean_norm: float | None = None
        # Rewinds to the same checkpoint, and its step.
        self._num_rewinds = 0
        self._rewound_to: int | None = None

    def accept(self, loss: float, norm: float, step: int) -> bool:
        """Return whether the optimizer should take the step.

        Args:
            loss: mean loss of the step.
            norm: gradient norm before clipping. The norm of a refused step does not change the
                running mean.
            step: number of the step, for the message.

        Raises:
            TrainingStopped: the step is bad, and on_bad_step is stop or too many bad steps have
                followed one another.
        """
        fault = self._find_fault(loss, norm)
        # A refused step never enters the mean: a spike must not make the next spike look normal.
        if fault is None:
            self._num_consecutive = 0
            mean = norm if self._mean_norm is None else self._mean_norm
            self._mean_norm = NORM_DECAY * mean + (1 - NORM_DECAY) * norm
            return True
        self.num_bad += 1
        self._num_consecutive += 1
        self.wants_rewind = self._config.on_bad_step == "rewind"
        max_skips = self._config.max_consecutive_skips
        if self._config.on_bad_step == "stop" or self._num_consecutive >= max_skips:
            raise TrainingStopped(
                f"step {step}: {fault}; bad steps in a row: {self._num_consecutive} "
                f"(anomaly_guard.on_bad_step is {self._config.on_bad_step}, max_consecutive_skips "
                f"{max_skips}). The newest checkpoint is older: lower optimizer.learning_rate or "
                f"inspect these rows, and start again"
            )
        return False

    def rewind(self, state: Mapping[str, Any], step: int) -> None:
        """Take the running mean of a checkpoint; counts of bad steps and rewinds go on.

        Args:
            state: as saved in the checkpoint.
            step: of the checkpoint.

        Raises:
            TrainingStopped: the run has returned too often to this checkpoint.
        """
        self.wants_rewind, self._num_consecutive = False, 0
        self._mean_norm = state["mean_norm"]
        self._num_rewinds = self._num_rewinds + 1 if step == self._rewound_to else 1
        self._rewound_to = step
        if self._num_rewinds > self._config.max_rewinds:
            raise TrainingStopped(
                f"the run has returned {self._config.max_rewinds} times to step {step} and met "
                f"another bad step (anomaly_guard.max_rewinds). Lower optimizer.learning_rate or "
                f"raise anomaly_guard.spike_factor, and start again"
            )

    def skip(self) -> None:
        """Leave a bad step out, because there is no checkpoint to return to."""
        self.wants_rewind = False

    def _find_fault(self, loss: float, norm: float) -> str | None:
        # Any comparison with NaN is false, so NaN needs this test before the comparison below.
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return f"loss is {loss}, gradient norm {norm}"
        factor, mean = self._config.spike_factor, self._mean_norm
        if factor is not None and mean is not None and norm > factor * mean:
            return (
                f"gradient norm is {norm:.3g}, more than {factor:g} times the running mean "
                f"{mean:.3g}"
            )
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return counts and running mean, for the checkpoint."""
        return {
            "num_bad": self.num_bad,
            # A key of the checkpoint format; it keeps its name.
            "in_a_row": self._num_consecutive,
            "mean_norm": self._mean_norm,
            "num_rewinds": self._num_rewinds,
            "rewound_to": self._rewound_to,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore counts and running mean."""
        self.num_bad = state["num_bad"]
        self._num_consecutive = state["in_a_row"]
        self._mean_norm = state["mean_norm"]
        # Checkpoints of earlier versions do not have these.
        self._num_rewinds = state.get("num_rewinds", 0)
        self._rewound_to = state.get("rewound_to")
