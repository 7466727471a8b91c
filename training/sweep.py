"""Trains one config with several learning rates, and compares the runs.

Every run has the same seed and rows, in a separate folder below run_dir. A sweep that was
stopped goes on where it was: finished runs are only read, an unfinished one resumes from its
newest checkpoint.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config import TrainConfig
from training.errors import IncompatibleConfig, TrainingStopped
from training.observability.curves import LOG_FILE, read_log
from training.parallel.distributed import RankContext
from training.trainer import train

# Reports at the end of a run whose losses are averaged.
_LAST_REPORTS = 5


@dataclass(frozen=True)
class SweptRun:
    """The outcome of one learning rate.

    Attributes:
        loss: mean of the last reported training losses; NaN if the run ended early.
        figures: the last value of each figure in its log.
        fault: why the run ended early, or "".
    """

    learning_rate: float
    run_dir: Path
    loss: float
    figures: Mapping[str, Any]
    fault: str


def sweep(
    config: TrainConfig,
    learning_rates: Sequence[float],
    context: RankContext,
    stop_requested: threading.Event | None = None,
) -> Iterator[SweptRun]:
    """Train with each learning rate; yield the runs as they end, on rank 0 with their figures.

    The iterator ends early if SIGTERM or the event stops a run. All ranks must iterate together.

    Raises:
        IncompatibleConfig: a learning rate occurs twice, or as `training.trainer.train`.
    """
    if len(set(learning_rates)) < len(learning_rates):
        raise IncompatibleConfig(f"--lr: {learning_rates} has a rate twice; remove one")
    for learning_rate in learning_rates:
        run_dir = Path(config.run_dir) / f"lr-{learning_rate:g}"
        optimizer = config.optimizer.model_copy(update={"learning_rate": learning_rate})
        changes = {"run_dir": str(run_dir), "optimizer": optimizer}
        fault = ""
        try:
            result = train(config.model_copy(update=changes), context, stop_requested)
        except TrainingStopped as error:
            # A rate that is too high diverges; the others are of interest all the same.
            fault = str(error)
        else:
            if result.was_stopped:
                return
        points = read_log(run_dir / LOG_FILE) if context.is_first else []
        yield _summarize(learning_rate, run_dir, points, fault)


def format_table(runs: Sequence[SweptRun]) -> Iterator[str]:
    """Yield the lines of a table, the best run marked.

    The best is that with the lowest validation loss, or training loss if there is none.
    """
    best = min(runs, key=_rank)
    yield f"{'learning rate':>14}{'loss':>10}{'validation':>12}{'bits/byte':>11}{'bad steps':>11}"
    for run in runs:
        cells = [
            f"{run.learning_rate:>14g}",
            f"{run.loss:>10.4f}",
            _format(run.figures.get("validation/loss"), 12),
            _format(run.figures.get("validation/bits_per_byte"), 11),
            f"{run.figures.get('bad_steps', 0):>11}",
        ]
        mark = "  best" if run is best and not run.fault else ""
        yield "".join(cells) + (f"  {run.fault[:60]}" if run.fault else mark)


def _summarize(
    learning_rate: float, run_dir: Path, points: Sequence[Mapping[str, Any]], fault: str
) -> SweptRun:
    figures: dict[str, Any] = {}
    losses: list[float] = []
    for point in points:
        figures |= point
        if "loss" in point:
            losses.append(point["loss"])
    last = losses[-_LAST_REPORTS:]
    loss = math.nan if fault or not last else sum(last) / len(last)
    return SweptRun(learning_rate, run_dir, loss, figures, fault)


def _rank(run: SweptRun) -> float:
    loss = run.figures.get("validation/loss", run.loss)
    return math.inf if run.fault or math.isnan(loss) else loss


def _format(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.4f}"
