"""Errors of a training run.

The tree:

    ValueError
    └── IncompatibleConfig   the config does not suit ranks, dataset, model or machine; exit code 2
    RuntimeError
    ├── TrainingStopped      too many bad steps
    ├── CheckpointFailed     a checkpoint could not be written or loaded
    └── CheckpointDamaged    a file of a checkpoint is missing, or differs from its digest
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_SHOWN_FAULTS = 5


class IncompatibleConfig(ValueError):
    """The config asks for something that the ranks, dataset, model or machine do not provide."""


class TrainingStopped(RuntimeError):
    """The anomaly guard ended the run after too many bad steps."""


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written, uploaded or loaded.

    Training ends, because it would otherwise continue without any checkpoint.
    """


class CheckpointDamaged(RuntimeError):
    """A file of a checkpoint is missing, or differs from the digest that was saved with it."""


def join_faults(faults: Sequence[str]) -> str:
    """Return the first faults of a list, and the number of the others."""
    num_more = len(faults) - MAX_SHOWN_FAULTS
    more = f" and {num_more} more" if num_more > 0 else ""
    return "; ".join(faults[:MAX_SHOWN_FAULTS]) + more
