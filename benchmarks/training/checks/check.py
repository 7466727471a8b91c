"""The class of a check, the exception for a machine that cannot run it, and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

# A check's model on a GPU: heads of 64, as those of the suite's model.
GPU_SHAPE = {
    "dim": 512,
    "num_layers": 4,
    "num_heads": 8,
    "num_kv_heads": 2,
    "ffn_dim": 1536,
}


class NotAvailable(Exception):
    """The machine lacks something that the check needs; the message says what."""


@dataclass(frozen=True)
class Check:
    """An assumption about CUDA, and the function that refutes or confirms it.

    Attributes:
        name: also that of its row in docs/training.md.
        run: gets the spec of an entrant; returns figures for the line of the check, and raises an
            error if the assumption is wrong.
        needs_cuda: it is not run on the CPU.
    """

    name: str
    run: Callable[[Mapping[str, Any]], str]
    needs_cuda: bool = True


def expect(is_true: object, message: str) -> None:
    """Raise an AssertionError with a message, unless the condition is true."""
    if not is_true:
        raise AssertionError(message)


def measure_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference, relative to that of the expected tensor."""
    difference = found.double() - expected.double()
    return float(difference.norm() / expected.double().norm())


def generate_code() -> AbstractContextManager[object]:
    """Let torch.compile generate code on a GPU. On a CPU it only traces: code takes a minute."""
    if torch.cuda.is_available():
        return nullcontext()
    return torch.compiler.set_stance("default", force_backend="aot_eager")
