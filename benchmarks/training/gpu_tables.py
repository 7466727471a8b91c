"""Figures and goals of the GPU suite, as tables and as a result file."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import result_file
from benchmarks.training.gpu_parts import name_ours
from benchmarks.training.gpu_runner import Suite
from benchmarks.training.gpu_sizes import FULL, Size

# Dense bf16 FLOP/s of an H100 SXM or H200 (NVIDIA's data sheets, without sparsity).
PEAK_FLOPS = 989e12

# MFU by length of rows. nanochat reports 49 % at 2,048 on 8 H100, OLMo-core 48 % for 1 B.
MFU_GOALS = {2048: 0.55, 8192: 0.50}

# float8 against our own bf16, and the share of time spent waiting for rows.
FLOAT8_GOAL = 1.17
MAX_STALL_SHARE = 0.005

PEAKS = ("active_peak_gib", "reserved_peak_gib")
LAST_ROUND_FIGURES = ("stall_share", "loss", "offloaded_gib_per_step")

# Variants that send activations to the host, and those that they are compared with.
OFFLOADS = {
    "offload": "",
    "save_on_cpu": "",
    "checkpointing full, offload": "checkpointing full",
}

LIBRARIES = ("torch", "triton", "torchao", "torchtitan", "numpy", "transformers")


def summarize(suite: Suite) -> dict[str, Any]:
    """Return speed, MFU and memory of each entrant, and the goals."""
    rows = {
        name: _summarize_entrant(suite, name)
        for name, entrant in suite.entrants.items()
        if entrant["rounds"]
    }
    findings = dict(suite.findings)
    short = suite.size.seq_lens[0]
    for variant, without in OFFLOADS.items():
        overlap = measure_overlap(
            suite, name_ours(short, variant), name_ours(short, without)
        )
        if overlap is not None:
            findings[f"offload: {variant}"] = overlap
    return {
        "entrants": rows,
        "findings": findings,
        "skipped": suite.skipped,
        "goals": judge_goals(rows, suite.size),
        "checks": suite.checks,
    }


def _summarize_entrant(suite: Suite, name: str) -> dict[str, Any]:
    from training.config import ModelConfig
    from training.model.size import count_flops_per_token

    entrant = suite.entrants[name]
    rounds, seq_len = entrant["rounds"], entrant["seq_len"]
    tokens_per_s = suite.median_tokens_per_s(name)
    assert tokens_per_s is not None
    model = ModelConfig(**suite.size.shape, vocab_size=suite.size.vocab_size)
    flops = count_flops_per_token(model, suite.size.vocab_size, seq_len)
    row: dict[str, Any] = {
        "seq_len": seq_len,
        "tokens_per_s": round(tokens_per_s, 1),
        "rounds_tokens_per_s": [round(r["tokens_per_s"], 1) for r in rounds],
        "mfu": round(tokens_per_s * flops / PEAK_FLOPS, 6),
        "step_s": suite.median_step_s(name),
        "longest_step_s": max(max(r["step_s"]) for r in rounds),
        "start_s": round(entrant["start_s"], 1),
        "in_turns": any(r["beside"] for r in rounds),
    }
    for key in PEAKS:
        if key in rounds[0]:
            row[key] = max(r[key] for r in rounds)
    for key in LAST_ROUND_FIGURES:
        if key in rounds[-1]:
            row[key] = rounds[-1][key]
    for key, value in entrant["planned"].items():
        row[f"planned_{key}"] = round(value, 6)
    return row


def measure_overlap(
    suite: Suite, with_offload: str, without: str
) -> dict[str, float] | None:
    """Return how much of the copying is hidden behind computation.

    copy_s: bytes out and back, at the speed that copies have alone. exposed_s: the additional
    time of a step. overlap_share: the part of copy_s that is not exposed. It is at most
    hideable_share, because a step has no more computation to hide behind.
    """
    step_s = suite.median_step_s(with_offload)
    step_without_s = suite.median_step_s(without)
    if step_s is None or step_without_s is None:
        return None
    exposed_s = max(0.0, step_s - step_without_s)
    found = {"step_s": step_s, "step_without_s": step_without_s, "exposed_s": exposed_s}
    # torch's save_on_cpu does not report what it sends: what ours does, and weights besides.
    sender = with_offload.replace("save_on_cpu", "offload")
    sent_gib = 0.0
    for figures in suite.entrants.get(sender, {"rounds": []})["rounds"]:
        sent_gib = max(sent_gib, figures["offloaded_gib_per_step"])
    speeds = suite.findings.get("copy", {})
    if speeds and sent_gib:
        sent_gb = sent_gib * 2**30 / 1e9
        copy_s = sent_gb / speeds["out_gb_per_s"] + sent_gb / speeds["back_gb_per_s"]
        found |= {
            "sent_gib": sent_gib,
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
    table = [(*head, "stall", "loss")]
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
        table.append((name, *cells))
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        cells = [
            cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)
        ]
        print("  ".join([line[0].ljust(widths[0]), *cells]))
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


def save_result(figures: Mapping[str, Any], name: str, folder: Path) -> Path:
    """Write the result file, also on machines without git or some of the libraries."""
    figures = {"device": describe_device(), **figures}
    return result_file.save(name, figures, folder, filter(_is_installed, LIBRARIES))


def _is_installed(library: str) -> bool:
    try:
        return bool(version(library))
    except PackageNotFoundError:
        return False


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
