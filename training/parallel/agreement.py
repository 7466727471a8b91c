"""Runs actions on ranks so that an error of one rank is raised on all of them.

Without it, the other ranks would wait for the failed one in their next collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from training.errors import CheckpointDamaged
from training.parallel.distributed import RankContext

T = TypeVar("T")


class RankGroup:
    """All ranks, connected by gloo, which sends objects between CPUs.

    Attributes:
        process_group: a separate group, for collectives of a background thread: they must not
            interleave with those of the training step.
    """

    def __init__(self, context: RankContext) -> None:
        self._context = context
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)  # all ranks are members
        self.process_group = group

    def close(self) -> None:
        """Leave the process group, which has threads and sockets."""
        if dist.is_initialized():
            dist.destroy_process_group(self.process_group)

    def run_on_first(self, action: Callable[[], T]) -> T:
        """Run an action on rank 0; return its result, or raise its error, on all ranks."""
        result, error = _catch(action) if self._context.is_first else (None, None)
        # broadcast_object_list fills the list of the other ranks in place.
        outcome: list[Any] = [result, _make_sendable(error)]
        dist.broadcast_object_list(outcome, src=0, group=self.process_group)
        if error or outcome[1]:
            # This rank's own error has a traceback, which a received error lacks.
            raise error or outcome[1]
        return outcome[0]

    def run_on_all(self, action: Callable[[], T]) -> list[T]:
        """Run an action on all ranks; return all results, or raise an error, on all ranks."""
        result, error = _catch(action)
        outcomes: list[Any] = [None] * self._context.world_size
        own_outcome = (result, _make_sendable(error))
        dist.all_gather_object(outcomes, own_outcome, group=self.process_group)
        errors = [other for _, other in outcomes if other is not None]
        if errors:
            raise error or errors[0]
        return [result for result, _ in outcomes]


def _catch(action: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result of an action, or its error."""
    try:
        return action(), None
    except Exception as error:  # noqa: BLE001 - raised on all ranks afterwards
        return None, error


def _make_sendable(error: Exception | None) -> Exception | None:
    """Return an error that can be pickled: that of another library may fail on arrival."""
    if error is None or isinstance(error, ValueError | OSError | CheckpointDamaged):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")
