"""Figures and goals of the GPU suite, as tables and as a result file."""

from __future__ import annotations

import json
import platform
import shutil
import statistics
import subprocess
from collections.abc import Mapping
from typing import Any

from benchmarks.frame import print_table
from benchmarks.training.cases import FULL, Size

# Dense bf16 FLOP/s of an H100 SXM or H200 (NVIDIA's data sheets, without sparsity).
PEAK_FLOPS = 989e12

# MFU by length of rows. nanochat reports 49 % at 2,048 on 8 H100, OLMo-core 48 % for 1 B.
MFU_GOALS = {2048: 0.55, 8192: 0.50}

# float8 against our own bf16, and the share of time spent waiting for rows.
FLOAT8_GOAL = 1.17
MAX_STALL_SHARE = 0.005

PEAKS = ("active_peak_gib", "reserved_peak_gib")
LAST_ROUND_FIGURES = ("stall_share", "loss", "offloaded_gib_per_step")

LIBRARIES = ("torch", "triton", "torchao", "torchtitan", "numpy", "transformers")

Entrants = Mapping[str, Mapping[str, Any]]


def name_ours(seq_len: int, variant: str = "") -> str:
    """Return the name of an entrant of this project."""
    return f"ours, {seq_len}{', ' + variant if variant else ''}"


def summarize(
    size: Size, entrants: Entrants, findings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return speed, MFU and memory of each entrant, other findings, and the goals."""
    rows = {name: _summarize_entrant(size, found) for name, found in entrants.items()}
    findings = {name: found for name, found in findings.items() if found is not None}
    for name, found in entrants.items():
        if "garbage" in found:
            findings["garbage"] = found["garbage"]
        if name.endswith("offload"):
            without = entrants.get(name.removesuffix(", offload"))
            if without is not None:
                findings[f"overlap: {name}"] = measure_overlap(found, without)
    return {"entrants": rows, "findings": findings, "goals": judge_goals(rows, size)}


def _summarize_entrant(size: Size, entrant: Mapping[str, Any]) -> dict[str, Any]:
    from training.config import ModelConfig
    from training.model.size import count_flops_per_token

    rounds, seq_len = entrant["rounds"], entrant["seq_len"]
    tokens_per_s = statistics.median(found["tokens_per_s"] for found in rounds)
    model = ModelConfig(**size.shape, vocab_size=size.vocab_size)
    flops = count_flops_per_token(model, size.vocab_size, seq_len)
    row: dict[str, Any] = {
        "seq_len": seq_len,
        "tokens_per_s": round(tokens_per_s, 1),
        "rounds_tokens_per_s": [round(found["tokens_per_s"], 1) for found in rounds],
        "mfu": round(tokens_per_s * flops / PEAK_FLOPS, 6),
        "step_s": _take_median_step(entrant),
        "longest_step_s": max(max(found["step_s"]) for found in rounds),
        "start_s": round(entrant["start_s"], 1),
    }
    for key in PEAKS:
        if key in rounds[0]:
            row[key] = max(found[key] for found in rounds)
    for key in LAST_ROUND_FIGURES:
        if key in rounds[-1]:
            row[key] = rounds[-1][key]
    for key in ("planned_gib", "planned_activations_gib"):
        if key in entrant:
            row[key] = round(entrant[key], 6)
    return row


def _take_median_step(entrant: Mapping[str, Any]) -> float:
    seconds: list[float] = []
    for found in entrant["rounds"]:
        seconds += found["step_s"]
    return statistics.median(seconds)


def measure_overlap(
    with_offload: Mapping[str, Any], without: Mapping[str, Any]
) -> dict[str, float]:
    """Return how much of the copying is hidden behind computation.

    copy_s: bytes out and back, at the speed that copies have alone. exposed_s: the additional
    time of a step. overlap_share: the part of copy_s that is not exposed. It is at most
    hideable_share, because a step has no more computation to hide behind.
    """
    step_s, step_without_s = _take_median_step(with_offload), _take_median_step(without)
    exposed_s = max(0.0, step_s - step_without_s)
    found = {"step_s": step_s, "step_without_s": step_without_s, "exposed_s": exposed_s}
    if "out_gb_per_s" in with_offload:
        rounds = with_offload["rounds"]
        sent_gb = max(each["offloaded_gib_per_step"] for each in rounds) * 2**30 / 1e9
        copy_s = sent_gb / with_offload["out_gb_per_s"]
        copy_s += sent_gb / with_offload["back_gb_per_s"]
        found |= {
            "copy_s": copy_s,
            "overlap_share": max(0.0, 1 - exposed_s / copy_s),
            "hideable_share": min(1.0, step_without_s / copy_s),
        }
    return found


# ---- goals ----


def judge_goals(rows: Mapping[str, Mapping[str, Any]], size: Size) -> dict[str, str]:
    """Return for each goal whether it is met, missed or not measured."""
    if size is not FULL:
        return {}
    verdicts: dict[str, str] = {}
    for seq_len, goal in MFU_GOALS.items():
        ours = name_ours(seq_len)
        candidates = [n for n in (ours, name_ours(seq_len, "ddp")) if n in rows]
        best = max(candidates, key=lambda name: rows[name]["mfu"], default="")
        mfu = rows[best]["mfu"] if best else None
        verdicts[f"MFU {goal:.0%} at {seq_len:,}"] = _judge(mfu, goal, best)
        other = _divide_speeds(rows, ours, f"torchtitan, {seq_len}")
        verdicts[f"not slower than torchtitan at {seq_len:,}"] = _judge(other, 1.0)
        float8 = _divide_speeds(rows, name_ours(seq_len, "float8"), ours)
        verdicts[f"float8 {FLOAT8_GOAL} x bf16 at {seq_len:,}"] = _judge(
            float8, FLOAT8_GOAL
        )
        stall = rows.get(ours, {}).get("stall_share")
        name = f"stall below {MAX_STALL_SHARE:.1%} at {seq_len:,}"
        verdicts[name] = _judge(stall, MAX_STALL_SHARE, is_upper_limit=True)
    return verdicts


def _divide_speeds(
    rows: Mapping[str, Mapping[str, Any]], name: str, other: str
) -> float | None:
    if name not in rows or other not in rows:
        return None
    return rows[name]["tokens_per_s"] / rows[other]["tokens_per_s"]


def _judge(
    value: float | None, goal: float, name: str = "", *, is_upper_limit: bool = False
) -> str:
    if value is None:
        return "not measured"
    is_met = value <= goal if is_upper_limit else value >= goal
    return f"{'met' if is_met else 'missed'}: {value:.4g}{f' ({name})' if name else ''}"


# ---- output ----


def print_tables(figures: Mapping[str, Any]) -> None:
    """Print a table of the entrants, and lists of the rest."""
    head = ("entrant", "tokens/s", "MFU", "step s", "of bare", "peak GiB", "planned")
    lines: list[tuple[str, ...]] = []
    rows = figures["entrants"]
    for name, row in rows.items():
        ratio = _divide_speeds(rows, name, f"bare, {row['seq_len']}")
        cells = (
            f"{row['tokens_per_s']:,.0f}",
            f"{row['mfu']:.1%}",
            f"{row['step_s']:.3f}",
            f"{ratio:.2f}" if ratio else "",
            f"{row['active_peak_gib']:.1f}" if "active_peak_gib" in row else "",
            f"{row['planned_gib']:.1f}" if "planned_gib" in row else "",
            f"{row['stall_share']:.2%}" if "stall_share" in row else "",
            f"{row['loss']:.3f}" if "loss" in row else "",
        )
        lines.append((name, *cells))
    print_table((*head, "stall", "loss"), lines)
    for title in ("findings", "skipped", "goals", "checks"):
        print(f"\n{title}")
        for number, (name, value) in enumerate(figures[title].items(), start=1):
            text = value if isinstance(value, str) else json.dumps(_round(value))
            prefix = f"{number}. " if title == "checks" else ""
            print(f"  {prefix}{name}: {text}")


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _round(inner) for key, inner in value.items()}
    return value


def describe_device() -> dict[str, Any]:
    """Return GPU, memory, CUDA and driver."""
    import torch

    if not torch.cuda.is_available():
        return {"name": f"cpu ({platform.machine()})"}
    driver = None
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        driver = done.stdout.strip() or None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "cuda": torch.version.cuda,
        "driver": driver,
    }
