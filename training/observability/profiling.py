"""Profiler traces, CUDA memory statistics, and scheduled garbage collection."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from training.config import ObservabilityConfig
from training.parallel.distributed import RankContext

MAX_MEMORY_EVENTS = 100_000

# All ranks collect garbage at these steps. Otherwise every rank pauses at another time, and the
# others wait for it.
GC_EVERY_STEPS = 50


def read_memory_peaks(device: torch.device) -> dict[str, float]:
    """Return the peak of this process, and those of its CUDA allocator since the last call.

    Peaks are in GiB. `memory_retries` and `memory_ooms` count over the whole run.
    """
    gib = 2**30
    # Linux counts in KiB.
    process_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / gib
    figures = {"memory_process_peak_gib": process_peak}
    if device.type != "cuda":
        return figures
    stats = torch.cuda.memory_stats(device)
    figures |= {
        "memory_active_peak_gib": stats["active_bytes.all.peak"] / gib,
        "memory_reserved_peak_gib": stats["reserved_bytes.all.peak"] / gib,
        "memory_retries": stats["num_alloc_retries"],
        "memory_ooms": stats["num_ooms"],
    }
    # The next report then shows the peak since this one.
    torch.cuda.reset_peak_memory_stats(device)
    return figures


class ScheduledGC:
    """Runs Python's garbage collector at fixed steps instead of automatically.

    With automatic collection every rank pauses at a different time, and all other ranks wait for
    it in the next collective. At fixed steps all ranks pause together.
    """

    def __init__(self, every_steps: int | None) -> None:
        """Turn off automatic collection; None leaves it on."""
        self._every_steps = every_steps
        if every_steps is not None:
            gc.disable()
            gc.collect()

    def collect(self, step: int) -> None:
        """Collect if this step is due.

        Only the two young generations are collected. Objects that live for the whole run are old,
        and scanning them takes long.
        """
        if self._every_steps is not None and step % self._every_steps == 0:
            gc.collect(1)

    def close(self) -> None:
        """Turn automatic collection on again."""
        if self._every_steps is not None:
            gc.enable()


@contextmanager
def trace_steps(
    config: ObservabilityConfig, run_dir: Path, context: RankContext
) -> Generator[Callable[[], None]]:
    """Trace the steps `profile_steps` of this rank into run_dir/profile.

    Steps are counted from the start of the process. torch's names, ProfilerStep#N, count from 0.

    Yields:
        A function to call after every step.
    """
    if config.profile_steps is None:
        yield lambda: None
        return
    first, last = config.profile_steps
    folder = run_dir / "profile"
    folder.mkdir(parents=True, exist_ok=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if context.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)

    def write_trace(profiler: Any) -> None:
        profiler.export_chrome_trace(str(folder / f"rank-{context.rank:05d}.json.gz"))

    # One step of warm-up, because the first profiled step is slowed down by starting the profiler.
    # Numbered as in the log, where the first step is 1.
    schedule = torch.profiler.schedule(
        wait=max(0, first - 2),
        warmup=min(1, first - 1),
        active=last - first + 1,
        repeat=1,
    )
    # There is one cycle. Without `acc_events`, torch 2.11 warns that others would be cleared.
    with torch.profiler.profile(
        activities=activities,
        schedule=schedule,
        on_trace_ready=write_trace,
        acc_events=True,
    ) as profiler:
        yield profiler.step


@contextmanager
def record_memory_history(
    config: ObservabilityConfig, run_dir: Path, context: RankContext
) -> Generator[None]:
    """Record CUDA allocations, and write a snapshot at the end or when memory runs out.

    docs.pytorch.org/memory_viz shows the file.
    """
    if not config.memory_snapshot or context.device.type != "cuda":
        yield
        return
    # These functions are documented, although their names begin with an underscore.
    memory: Any = torch.cuda.memory
    memory._record_memory_history(max_entries=MAX_MEMORY_EVENTS)  # noqa: SLF001
    try:
        yield
    finally:
        run_dir.mkdir(parents=True, exist_ok=True)
        snapshot = run_dir / f"memory-rank{context.rank:05d}.pickle"
        memory._dump_snapshot(str(snapshot))  # noqa: SLF001
        memory._record_memory_history(enabled=None)  # noqa: SLF001
