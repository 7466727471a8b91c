"""The list of all checks, in the order in which they run, and the class that runs one of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.training.checks import device, kernels, runs
from benchmarks.training.checks.check import GPU_SHAPE, Check, NotAvailable

CHECKS: tuple[Check, ...] = (*device.CHECKS, *kernels.CHECKS, *runs.CHECKS)


class Checks:
    """Runs one check per call, selected by its name."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec

    def run(self, steps: int, check: str | None = None) -> dict[str, Any]:
        """Return the verdict of a check, and its seconds; without a check, nothing."""
        del steps
        if check is None:
            return {}
        found = next(each for each in CHECKS if each.name == check)
        began = time.perf_counter()
        verdict = _judge(found, self._spec)
        return {"verdict": verdict, "seconds": round(time.perf_counter() - began, 1)}

    def close(self) -> None:
        """Do nothing; the process frees the memory."""


def choose_shape(shape: Mapping[str, int]) -> dict[str, int]:
    """Return a small shape for a GPU; on a CPU, the suite's own."""
    return dict(GPU_SHAPE if torch.cuda.is_available() else shape)


def _judge(check: Check, spec: Mapping[str, Any]) -> str:
    """Return "pass: ...", "fail: ...", "not available: ..." or "needs CUDA"."""
    if check.needs_cuda and not torch.cuda.is_available():
        return "needs CUDA"
    try:
        return f"pass: {check.run(spec)}"
    except NotAvailable as missing:
        return f"not available: {missing}".splitlines()[0][:300]
    except Exception as error:  # noqa: BLE001 - every error refutes the assumption
        return f"fail: {type(error).__name__}: {error}".splitlines()[0][:300]
