"""Samples of what a process holds, and how fast it grows."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil

# Shared memory of all programs of the machine: Ray's object store is there.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - nothing is written there

# This share of the samples is the start, in which caches fill.
WARM_UP_SHARE = 0.2

SECONDS_PER_HOUR = 3600

Sample = Mapping[str, float]


def take_sample(pids: Mapping[str, int], temp_folder: Path) -> dict[str, float]:
    """Return the memory, open files and processes of programs, and the files that they left.

    Args:
        pids: name -> process id of a program that runs the whole time.
        temp_folder: the temporary folder of all of them.

    Returns:
        For each program `<name>_pss_mb` (a page that n processes share counts as 1/n),
        `<name>_rss_mb` and `<name>_open_files`. `children` are
        all processes that the programs have started: Ray, its workers, runs that will be killed.
    """
    sample: dict[str, float] = {"children": 0, "children_pss_mb": 0.0}
    for name, pid in pids.items():
        program = psutil.Process(pid)
        memory = program.memory_full_info()
        sample[f"{name}_pss_mb"] = memory.pss / 2**20
        sample[f"{name}_rss_mb"] = memory.rss / 2**20
        sample[f"{name}_open_files"] = program.num_fds()
        for child in program.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has ended
                sample["children_pss_mb"] += child.memory_full_info().pss / 2**20
                sample["children"] += 1
    sample["temp_files"] = sum(len(files) for _, _, files in os.walk(temp_folder))
    sample["shm_mb"] = shutil.disk_usage(SHARED_MEMORY).used / 2**20
    return sample


def summarize(
    samples: Sequence[Sample], names: Iterable[str]
) -> dict[str, dict[str, float]]:
    """Return for each value its mean, peak and growth per hour, after the warm-up.

    The growth is the slope of the least-squares line. `growth_share` is that of an hour,
    relative to the mean.
    """
    kept = samples[int(len(samples) * WARM_UP_SHARE) :]
    hours = np.array([sample["seconds"] for sample in kept]) / SECONDS_PER_HOUR
    found: dict[str, dict[str, float]] = {}
    for name in names:
        values = np.array([sample[name] for sample in kept])
        slope = float(np.polyfit(hours, values, 1)[0]) if len(kept) > 1 else 0.0
        mean = float(values.mean())
        found[name] = {
            "mean": mean,
            "peak": float(values.max()),
            "growth_per_hour": slope,
            "growth_share": slope / mean if mean else 0.0,
        }
    return found
