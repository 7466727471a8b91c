"""One entrant in a separate process: built, warmed up, then asked for rounds of steps over a pipe.

    {"ready": ...}    after the warm-up: seconds it took, parameters, memory
    {"round": ...}    tokens_per_s, step_s, memory; ours also stall_share and loss
    {"error": ...}    why there is no entrant, or no more

An entrant is a class with the methods `run`, which returns the figures of some steps, and `close`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

GIB = 2**30
COPY_BYTES = 1 << 29

# The class of each kind of entrant. Only its own process imports it: some libraries are optional.
ENTRANTS = {
    "ours": "ours:Ours",
    "bare": "bare:Bare",
    "torchtitan": "titan:Titan",
    "checks": "checks.catalog:Checks",
    "kernels": "kernels:Kernels",
}


def serve(pipe: Connection, spec: dict[str, Any], log: str) -> None:
    """Build the entrant and answer commands until "close" or the end of the pipe."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(spec.get("environment", {}))
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    try:
        began = time.perf_counter()
        entrant = _open(spec)
        figures = entrant.run(spec["warmup_steps"])
        pipe.send(
            {
                "ready": {
                    "start_s": time.perf_counter() - began,
                    **read_memory(),
                    **_peaks(figures),
                }
            }
        )
        with contextlib.suppress(EOFError):
            while (command := pipe.recv()) != "close":
                if command == "copy":
                    pipe.send({"round": _copy_speed()})
                    continue
                _forget_peaks()
                figures = entrant.run(**command)
                pipe.send({"round": {**read_memory(), **figures}})
        entrant.close()
    except BaseException as error:  # noqa: BLE001 - the parent reports every error
        traceback.print_exc()
        with contextlib.suppress(OSError):
            pipe.send({"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]})
    finally:
        os._exit(0)  # threads of compilers and process groups have nothing to say any more


def _open(spec: Mapping[str, Any]) -> Any:
    module, _, name = ENTRANTS[spec["kind"]].partition(":")
    return getattr(importlib.import_module(f"benchmarks.training.{module}"), name)(spec)


def read_memory() -> dict[str, float]:
    """Return the peaks of the round, and the memory that stays after freeing caches, in GiB."""
    # False on a CPU, and before the first tensor on a GPU: there are no statistics yet.
    if not torch.cuda.is_initialized():
        return {}
    stats = torch.cuda.memory_stats()
    gc.collect()
    torch.cuda.empty_cache()
    return {
        "active_peak_gib": stats["active_bytes.all.peak"] / GIB,
        "reserved_peak_gib": stats["reserved_bytes.all.peak"] / GIB,
        "resident_gib": torch.cuda.memory_reserved() / GIB,
    }


def _peaks(figures: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if name.endswith("_peak_gib")}


def _forget_peaks() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _copy_speed() -> dict[str, float]:
    """Return GB/s between pinned and device memory, in both directions, without other load."""
    if not torch.cuda.is_available():
        return {}
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    speeds: dict[str, float] = {}
    for name, target, source in (
        ("out_gb_per_s", host, device),
        ("back_gb_per_s", device, host),
    ):
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        speeds[name] = 4 * COPY_BYTES / (time.perf_counter() - began) / 1e9
    return speeds
