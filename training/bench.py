"""Measures the speed and memory of a config on random rows, beside the figures of its plan."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config import TrainConfig
from training.model.size import count_parameters
from training.observability.summary import format_setup
from training.parallel.distributed import RankContext
from training.planning.gpus import GIB
from training.planning.memory import estimate_footprint
from training.planning.speed import estimate_step_s, find_utilization
from training.trainer import Trainer, get_peak_flops

_PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class Figures:
    """Speed and memory; None where they are unknown.

    Attributes:
        tokens_per_s: over all ranks.
        step_s: mean.
        mfu: 0..1.
        peak_gib: of rank 0: reserved by the CUDA allocator, or growth of the process on a CPU. As
            planned, that of the fullest rank.
    """

    tokens_per_s: float | None
    step_s: float | None
    mfu: float | None
    peak_gib: float | None


def measure(
    config: TrainConfig, context: RankContext, vocab_size: int, num_steps: int
) -> Figures | None:
    """Train on random rows in a temporary folder; return the figures on rank 0, None on others.

    As many steps as are measured run before them, for compilation and the allocator. Nothing is
    saved. All ranks must call it together.

    Args:
        config: the run. Its data is not read.
        context: this rank.
        vocab_size: rows of the embedding.
        num_steps: steps to measure.

    Raises:
        IncompatibleConfig: the config does not fit the ranks.
    """
    log_lines, peak_gib = _train(config, context, vocab_size, num_steps)
    if not context.is_first:
        return None
    last = log_lines[-1]
    return Figures(last["tokens_per_s"], last["step_s"], last.get("mfu"), peak_gib)


def plan_figures(config: TrainConfig, context: RankContext, vocab_size: int) -> Figures:
    """Return what `plan` says for this device, without a speed if its peak is unknown."""
    footprint = estimate_footprint(
        config, vocab_size, context.world_size, device_type=context.device.type
    )
    peak_gib = footprint.peak.total / GIB
    peak_flops = get_peak_flops(config.observability, context.device)
    if peak_flops is None:
        return Figures(None, None, None, peak_gib)
    num_parameters = count_parameters(config.model, vocab_size)
    mfu = find_utilization(num_parameters, config.data.seq_len).share
    step_s = estimate_step_s(
        config,
        footprint,
        num_gpus=context.world_size,
        peak_flops=peak_flops,
        vocab_size=vocab_size,
        utilization=mfu,
    )
    tokens = config.data.global_batch_rows * config.data.seq_len
    return Figures(tokens / step_s, step_s, mfu, peak_gib)


def _train(
    config: TrainConfig, context: RankContext, vocab_size: int, num_steps: int
) -> tuple[list[dict[str, Any]], float | None]:
    """Train in a temporary folder; return the lines of the log, and the peak in GiB.

    Ranks other than the first return neither.
    """
    _reset_process_peak()
    before_gib = _read_process_gib("VmRSS")
    with (
        tempfile.TemporaryDirectory(prefix="training-bench-") as folder,
        ExitStack() as cleanup,
    ):
        Trainer(_make_config(config, folder, vocab_size, num_steps), context, cleanup).run()
        if not context.is_first:
            return [], None
        text = (Path(folder) / "log.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    if context.device.type == "cuda":
        return lines, max(line["memory_reserved_peak_gib"] for line in lines)
    peak_gib = _read_process_gib("VmHWM")
    if before_gib is None or peak_gib is None:
        return lines, None
    # The allocator of libc may reuse memory that was free before.
    return lines, max(0.0, peak_gib - before_gib)


def describe(
    config: TrainConfig,
    num_ranks: int,
    vocab_size: int,
    measured: Figures,
    planned: Figures,
) -> Iterator[str]:
    """Yield the lines of a table of measured and planned figures."""
    yield format_setup(config, num_ranks, count_parameters(config.model, vocab_size))
    yield f"{'':16}{'measured':>12}{'plan':>12}"
    rows = (
        ("tokens/s", "{:,.0f}", measured.tokens_per_s, planned.tokens_per_s),
        ("MFU", "{:.1%}", measured.mfu, planned.mfu),
        ("step, s", "{:.3f}", measured.step_s, planned.step_s),
        ("peak, GiB", "{:.2f}", measured.peak_gib, planned.peak_gib),
    )
    for name, form, *values in rows:
        cells = ["-" if value is None else form.format(value) for value in values]
        yield f"{name:16}{cells[0]:>12}{cells[1]:>12}"


def _make_config(
    config: TrainConfig, folder: str, vocab_size: int, num_steps: int
) -> TrainConfig:
    """Return the config without data, checkpoints, evaluations and other outputs."""
    settings = config.model_dump()
    settings["data"] |= {
        "manifest": None,
        "mixture": None,
        "instructions": None,
        "synthetic": True,
    }
    settings["model"] |= {"vocab_size": vocab_size, "initial_weights": None}
    settings["checkpoint"] |= {"every_steps": None, "upload": None}
    settings["observability"] = {
        # The last report then covers the second half of the steps.
        "every_steps": num_steps,
        "tensorboard": False,
        "peak_tflops": config.observability.peak_tflops,
    }
    settings |= {"run_dir": folder, "steps": 2 * num_steps}
    settings |= {"validation": None, "tasks": None}
    return TrainConfig.model_validate(settings)


def _reset_process_peak() -> None:
    """Set the peak of the resident memory to its current value (proc(5), clear_refs)."""
    # Some containers forbid it. The peak is then that since the start of the process.
    with contextlib.suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")


def _read_process_gib(field: str) -> float | None:
    """Return resident memory of this process: VmRSS, now, or VmHWM, its peak (proc(5)).

    None without Linux.
    """
    try:
        status = (_PROCESS / "status").read_text(encoding="ascii")
    except OSError:
        return None
    (num_kib,) = (
        line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:")
    )
    return int(num_kib) * 1024 / GIB
