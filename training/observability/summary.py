"""Lines about a run for the terminal: at the start, of a step, of an evaluation, at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from terminal_output import format_command, format_count, format_short
from training.config import TrainConfig

_MAX_GROUPS = 8

_BITS_PER_BYTE = "validation/bits_per_byte"

# Buckets of CCNet; `all` has the documents of languages without a language model.
_BUCKETS = ("head", "middle", "tail", "all")

_MODEL_FILES = "config.json and *.safetensors"


def format_setup(config: TrainConfig, num_ranks: int, num_parameters: int) -> str:
    """Return the size of the model, the distribution and the rows of a step, in words."""
    data = config.data
    return (
        f"{format_short(num_parameters)} parameters, {format_count(num_ranks, 'rank')}, "
        f"{config.parallel.strategy}, {config.precision.compute}; "
        f"{format_count(data.global_batch_rows, 'row')} of {data.seq_len:,} tokens per step, "
        f"{data.micro_batch_rows} at a time"
    )


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
    lines = [f"{run_dir}: {step:,} of {format_count(config.steps, 'step')}"]
    if first_step:
        lines[0] += f", {step - first_step:,} of them since the resume"
    if "loss" in figures:
        lines.append(f"loss        {figures['loss']:.4f}")
    lines += (f"evaluation  {text}" for text in _list_totals(figures))
    lines += (f"            {text}" for text in _list_groups(figures))
    if checkpoint is not None:
        lines.append(f"checkpoint  {checkpoint}")
    lines.append(f"curves      {report}")
    if checkpoint is not None:
        lines += [
            f"export      {format_command('training')} export {run_dir} FOLDER",
            f"            writes {_MODEL_FILES} for Hugging Face's transformers",
        ]
        if step < config.steps:
            lines.append("continue    start the same command again")
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


def _list_groups(figures: Mapping[str, float]) -> Iterator[str]:
    """Yield the bits per byte, or else the loss, of languages and of buckets."""
    name = "bits_per_byte" if _BITS_PER_BYTE in figures else "loss"
    languages, buckets = split_groups(figures)
    for title, groups in (("language", languages[:_MAX_GROUPS]), ("bucket", buckets)):
        if groups:
            values = (
                f"{group} {figures[f'validation/{name}/{group}']:.3f}" for group in groups
            )
            yield f"{name.replace('_', ' ')} by {title}: {', '.join(values)}"


def split_groups(figures: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Return the languages of held-out documents, with the most tokens first, and the buckets."""
    num_tokens: dict[str, float] = {}
    for key, value in figures.items():
        match key.split("/"):
            case ["validation", "tokens", group]:
                num_tokens[group] = value
            case _:
                pass
    languages = [group for group in num_tokens if group not in _BUCKETS]
    languages.sort(key=lambda group: -num_tokens[group])
    return languages, [bucket for bucket in _BUCKETS if bucket in num_tokens]


def format_duration(seconds: float) -> str:
    """Return hours, minutes and seconds, such as 1:02:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
