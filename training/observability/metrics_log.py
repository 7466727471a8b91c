"""What a run tells of itself: log.jsonl, TensorBoard, Weights & Biases, Prometheus, terminal; traces, memory, garbage.

Promises: figures are of the whole run (tokens/s, MFU, stall share) or of the rank that is worst off (memory); their
formulas stand beside them. Nothing here changes what is trained.
Leaves to others: the figures of a step (trainer.py).
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import loader.metrics
from loader.metrics import Metric, StatsCollector
from training.config import WatchConfig
from training.parallel.distributed import IncompatibleConfig, Ranks

PEAK_FLOPS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "B200": 2250e12,
    "L40S": 362e12,
}
"""Dense bf16 FLOP/s by part of the device's name, by NVIDIA's data sheets (that print twice as much, with sparsity)."""


def peak_flops(device_name: str) -> float | None:
    """Of a GPU, dense bf16; None where it is not known, and no MFU is told then."""
    return next(
        (
            peak
            for part, peak in PEAK_FLOPS.items()
            if all(word in device_name for word in part.split())
        ),
        None,
    )


METRICS = (
    Metric(
        "corpusmill_train_steps_total",
        "counter",
        "Steps done, those before a resume included.",
        "step",
    ),
    Metric("corpusmill_train_steps_planned", "gauge", "Steps of the run.", "steps_planned"),
    Metric(
        "corpusmill_train_last_report_timestamp_seconds",
        "gauge",
        "When figures were last reported.",
        "time",
    ),
    Metric(
        "corpusmill_train_loss", "gauge", "Mean over the labels of the last step reported.", "loss"
    ),
    Metric(
        "corpusmill_train_validation_loss",
        "gauge",
        "The last, over all documents held out.",
        "validation/loss",
    ),
    Metric("corpusmill_train_gradient_norm", "gauge", "Before it was clipped.", "grad_norm"),
    Metric(
        "corpusmill_train_learning_rate", "gauge", "Of the last step reported.", "learning_rate"
    ),
    Metric(
        "corpusmill_train_bad_steps_total", "counter", "Steps that the guard refused.", "bad_steps"
    ),
    Metric(
        "corpusmill_train_tokens_per_second",
        "gauge",
        "Over all ranks, since the report before.",
        "tokens_per_s",
    ),
    Metric(
        "corpusmill_train_step_seconds",
        "gauge",
        "Mean over the steps since the report before.",
        "step_s",
    ),
    Metric(
        "corpusmill_train_stall_ratio",
        "gauge",
        "Share of that time that waited for rows.",
        "stall_share",
    ),
    Metric(
        "corpusmill_train_mfu_ratio", "gauge", "Model FLOP utilisation; of known devices.", "mfu"
    ),
    Metric(
        "corpusmill_train_memory_active_peak_bytes",
        "gauge",
        "CUDA, first rank.",
        "memory_active_peak_gib",
        2.0**30,
    ),
    Metric(
        "corpusmill_train_memory_reserved_peak_bytes",
        "gauge",
        "CUDA, first rank.",
        "memory_reserved_peak_gib",
        2.0**30,
    ),
    Metric(
        "corpusmill_train_memory_retries_total",
        "counter",
        "CUDA's allocator began again.",
        "memory_retries",
    ),
)
"""What the first rank tells Prometheus of the run, as of its last report (each rank's loader: loader/metrics.py)."""


class Log:
    """Where figures go; only the first rank has one that writes."""

    def __init__(
        self, run_dir: Path, config: WatchConfig, settings: Mapping[str, Any], *, writes: bool
    ) -> None:
        self.latest: dict[str, Any] = {"steps_planned": settings["steps"]} if writes else {}
        self._sinks = ExitStack()
        self._file: Any = None
        self._board: Any = None
        self._wandb: Any = None
        if not writes:
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        path = run_dir / "log.jsonl"
        _cut_half_a_line(path)
        self._file = self._sinks.enter_context(path.open("a", encoding="utf-8"))
        if config.tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._board = SummaryWriter(str(run_dir / "tensorboard"))
            self._sinks.callback(self._board.close)
        if config.wandb is not None:
            self._wandb = _open_wandb(config, run_dir, settings)
            self._sinks.callback(self._wandb.finish)

    def write(self, step: int, figures: Mapping[str, Any]) -> None:
        """One line of figures by name; numbers also go to the boards."""
        if self._file is None:
            return
        line = {"step": step, "time": round(time.time(), 3), **figures}
        self.latest = {**self.latest, **line}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        numbers = {name: value for name, value in figures.items() if isinstance(value, int | float)}
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def say(self, line: str) -> None:
        """A line on the terminal."""
        if self._file is not None:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Write what is left."""
        self._sinks.close()


def _cut_half_a_line(path: Path) -> None:
    """A rank that is killed, or finds the disk full, may leave a last line without an end: the next would join it."""
    if path.exists():
        with path.open("rb+") as file:
            start = file.seek(max(0, path.stat().st_size - (1 << 20)))  # longer than any line
            file.truncate(start + file.read().rfind(b"\n") + 1)


def answer_prometheus(
    config: WatchConfig,
    run_dir: Path,
    rank: int,
    loader_stats: Callable[[], Mapping[str, Any]],
    log: Log,
) -> Callable[[], None]:
    """Where it is asked for; the function that is returned ends it.

    Raises:
        IncompatibleConfig: the port is taken.
    """
    if config.metrics is None:
        return lambda: None
    labels = {"run": run_dir.name}
    of_loader = StatsCollector(loader.metrics.METRICS, loader_stats, {**labels, "rank": str(rank)})
    of_run = StatsCollector(METRICS, lambda: log.latest, labels)
    port = config.metrics.port + int(os.environ.get("LOCAL_RANK", "0"))
    try:
        return loader.metrics.serve_metrics(port, of_loader, of_run, host=config.metrics.host)
    except OSError as error:
        raise IncompatibleConfig(
            f"rank {rank} cannot answer Prometheus on {config.metrics.host}:{port} (watch.metrics): {error}; "
            f"name another port, or set watch.metrics to null"
        ) from error


def _open_wandb(config: WatchConfig, run_dir: Path, settings: Mapping[str, Any]) -> Any:
    assert config.wandb is not None
    try:
        import wandb
    except ImportError as error:
        raise IncompatibleConfig(
            "watch.wandb is set, but there is no wandb: pip install wandb, or set it to null"
        ) from error
    return wandb.init(
        project=config.wandb.project,
        name=config.wandb.name or run_dir.name,
        dir=str(run_dir),
        config=dict(settings),
    )


@dataclass
class Clock:
    """Time since the last report: of all, and of waiting for rows."""

    began: float = field(default_factory=time.perf_counter)
    waited_s: float = 0.0
    tokens: int = 0
    steps: int = 0

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Around asking for rows."""
        began = time.perf_counter()
        yield
        self.waited_s += time.perf_counter() - began

    def report(self, flops_per_token: int, num_ranks: int, peak: float | None) -> dict[str, float]:
        """tokens_per_s over all ranks, step_s, stall_share; mfu = tokens/s x FLOP per token / (ranks x peak FLOP/s).

        Chowdhery et al. 2022 (PaLM), appendix B. Begins anew.
        """
        elapsed_s = time.perf_counter() - self.began
        tokens_per_s = self.tokens / elapsed_s
        figures = {
            "tokens_per_s": tokens_per_s,
            "step_s": elapsed_s / max(1, self.steps),
            "stall_share": self.waited_s / elapsed_s,
        }
        if peak is not None:
            figures["mfu"] = tokens_per_s * flops_per_token / (num_ranks * peak)
        self.began, self.waited_s, self.tokens, self.steps = time.perf_counter(), 0.0, 0, 0
        return figures


def memory_figures(device: torch.device) -> dict[str, float]:
    """Peaks of the caching allocator since the last call, and how often it had to begin again; of this rank."""
    if device.type != "cuda":
        return {}
    stats, gib = torch.cuda.memory_stats(device), 2**30
    figures = {
        "memory_active_peak_gib": stats["active_bytes.all.peak"] / gib,
        "memory_reserved_peak_gib": stats["reserved_bytes.all.peak"] / gib,
        "memory_retries": stats["num_alloc_retries"],
        "memory_ooms": stats["num_ooms"],
    }
    torch.cuda.reset_peak_memory_stats(device)
    return figures


class Garbage:
    """Python's collector at set steps: each rank at its own time makes all others wait for it, again and again."""

    def __init__(self, every_steps: int | None) -> None:
        self._every_steps = every_steps
        if every_steps is not None:
            gc.disable()
            gc.collect()

    def collect(self, step: int) -> None:
        """Where it is due; the young generations only, as what lives for the whole run is old."""
        if self._every_steps is not None and step % self._every_steps == 0:
            gc.collect(1)

    def close(self) -> None:
        """Leave it to Python again."""
        if self._every_steps is not None:
            gc.enable()


@contextmanager
def tracing(config: WatchConfig, run_dir: Path, ranks: Ranks) -> Generator[Any]:
    """Gives a function to call after each step; a trace of the steps asked for lies in run_dir/profile afterwards."""
    if config.profile_steps is None:
        yield lambda: None
        return
    first, last = config.profile_steps
    folder = run_dir / "profile"
    folder.mkdir(parents=True, exist_ok=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if ranks.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)

    def write(profiler: Any) -> None:
        profiler.export_chrome_trace(str(folder / f"rank-{ranks.rank:05d}.json.gz"))

    schedule = torch.profiler.schedule(
        wait=max(0, first - 1), warmup=min(1, first), active=last - first + 1, repeat=1
    )
    with torch.profiler.profile(
        activities=activities, schedule=schedule, on_trace_ready=write
    ) as profiler:
        yield profiler.step


@contextmanager
def memory_history(config: WatchConfig, run_dir: Path, ranks: Ranks) -> Generator[None]:
    """Record every allocation; written when memory runs out, and at the end (docs.pytorch.org/memory_viz)."""
    if not config.memory_snapshot or ranks.device.type != "cuda":
        yield
        return
    memory: Any = torch.cuda.memory
    memory._record_memory_history(max_entries=100_000)  # noqa: SLF001 - documented, though named as if private
    try:
        yield
    finally:
        run_dir.mkdir(parents=True, exist_ok=True)
        memory._dump_snapshot(str(run_dir / f"memory-rank{ranks.rank:05d}.pickle"))  # noqa: SLF001
        memory._record_memory_history(enabled=None)  # noqa: SLF001
