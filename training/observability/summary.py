"""Lines about a run for the terminal: of a step, of an evaluation, and at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from training.config import TrainConfig

_MAX_GROUPS = 8

_BITS_PER_BYTE = "validation/bits_per_byte"

# Buckets of CCNet; `all` has the documents of languages without a language model.
_BUCKETS = ("head", "middle", "tail", "all")

_MODEL_FILES = "config.json and *.safetensors"


def format_step(step: int, num_steps: int, figures: Mapping[str, float]) -> str:
    """Return the line of a step.

    Args:
        step: finished steps.
        num_steps: steps of the run.
        figures: of the step, as in log.jsonl.
    """
    left_s = (num_steps - step) * figures["step_s"]
    mfu = f"  MFU {figures['mfu']:.1%}" if "mfu" in figures else ""
    # A GPU's memory where there is one, otherwise that of the process.
    memory_gib = figures.get("memory_reserved_peak_gib", figures["memory_process_peak_gib"])
    return (
        f"step {step:>7,}/{num_steps:,}  loss {figures['loss']:.4f}  "
        f"norm {figures['grad_norm']:.2f}  {figures['tokens_per_s']:,.0f} tokens/s{mfu}  "
        f"waiting for rows {figures['stall_share']:.1%}  "
        f"memory {memory_gib:.1f} GiB  left {format_duration(left_s)}"
    )


def format_evaluation(step: int, figures: Mapping[str, float]) -> str:
    """Return the line of an evaluation: totals and accuracies."""
    return f"step {step:>7,}  {', '.join(_list_totals(figures))}"


def format_summary(
    config: TrainConfig,
    step: int,
    first_step: int,
    figures: Mapping[str, Any],
    checkpoint: Path | None,
    report: Path,
) -> str:
    """Return the lines at the end of a run: its last figures, and where its results are.

    Args:
        config: the run.
        step: finished steps.
        first_step: of these, the steps before the run was started this time.
        figures: the last value of each figure of log.jsonl.
        checkpoint: the newest one; None: the run saves none.
        report: the page with the curves.
    """
    run_dir = config.run_dir
    lines = [f"{run_dir}: {step} of {config.steps} steps, {step - first_step} of them now"]
    if "loss" in figures:
        lines.append(f"loss        {figures['loss']:.4f}")
    lines += (f"evaluation  {text}" for text in _list_totals(figures))
    groups = _list_groups(figures)
    if groups:
        measure = "bits per byte" if _BITS_PER_BYTE in figures else "loss"
        lines.append(f"            {measure} by language and bucket: {', '.join(groups)}")
    if checkpoint is not None:
        lines.append(f"checkpoint  {checkpoint}")
    lines.append(f"curves      {report}")
    if checkpoint is not None:
        lines += [
            f"export      python -m training export {run_dir} FOLDER",
            f"            writes {_MODEL_FILES} for Hugging Face's transformers",
        ]
    return "\n  ".join(lines)


def _list_totals(figures: Mapping[str, float]) -> Iterator[str]:
    """Yield the total of the held-out documents, and the accuracy of each task."""
    if "validation/loss" in figures:
        text = f"validation loss {figures['validation/loss']:.4f}"
        if _BITS_PER_BYTE in figures:
            text += f", {figures[_BITS_PER_BYTE]:.4f} bits per byte"
        yield text
    for key, value in figures.items():
        match key.split("/"):
            case ["tasks", name, "acc"]:
                norm = figures[f"tasks/{name}/acc_norm"]
                yield f"{name} {value:.1%} (normalized {norm:.1%})"
            case _:
                pass


def _list_groups(figures: Mapping[str, float]) -> list[str]:
    """Return the bits per byte, or else the loss, of the groups with the most tokens."""
    name = "bits_per_byte" if _BITS_PER_BYTE in figures else "loss"
    found: list[tuple[float, str]] = []
    for key, value in figures.items():
        match key.split("/"):
            case ["validation", kind, group] if kind == name:
                num_tokens = figures[f"validation/tokens/{group}"]
                found.append((num_tokens, f"{format_group(group)} {value:.3f}"))
            case _:
                pass
    return [text for _, text in sorted(found, reverse=True)[:_MAX_GROUPS]]


def format_group(group: str) -> str:
    """Return the name of a language or bucket of held-out documents, as it is shown."""
    return f"bucket {group}" if group in _BUCKETS else group


def format_duration(seconds: float) -> str:
    """Return hours, minutes and seconds, such as 1:02:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
