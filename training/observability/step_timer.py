"""Throughput, step time and MFU between two reports."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field


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
