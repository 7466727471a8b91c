"""The lines at the end of a run."""

from __future__ import annotations

from pathlib import Path

from terminal_output import format_command
from training.config import load_config
from training.observability.summary import (
    format_evaluation,
    format_setup,
    format_summary,
)

FIGURES = {
    "loss": 7.65,
    "validation/loss": 7.6206,
    "validation/bits_per_byte": 4.3341,
    "validation/bits_per_byte/all": 2.6471,
    "validation/tokens/all": 100,
    "validation/bits_per_byte/en": 2.6123,
    "validation/tokens/en": 300,
    "validation/bits_per_byte/fr": 3.5562,
    "validation/tokens/fr": 900,
    "tasks/piqa/acc": 0.515,
    "tasks/piqa/acc_norm": 0.52,
}


def test_the_summary_has_the_figures_the_files_and_the_next_command() -> None:
    """Languages of held-out documents are ordered by their tokens."""
    config = load_config("train-tiny.yaml", ["run_dir=runs/a", "steps=60"])
    checkpoint, report = Path("runs/a/step-60"), Path("runs/a/report.html")
    lines = format_summary(config, 60, 20, FIGURES, checkpoint, report).splitlines()
    assert [line.strip() for line in lines] == [
        "runs/a: 60 of 60 steps, 40 of them since the resume",
        "loss        7.6500",
        "evaluation  validation loss 7.6206, 4.3341 bits per byte",
        "evaluation  piqa 51.5% (normalized 52.0%)",
        "bits per byte by language: fr 3.556, en 2.612",
        "bits per byte by bucket: all 2.647",
        "checkpoint  runs/a/step-60",
        "curves      runs/a/report.html",
        f"export      {format_command('training')} export runs/a FOLDER",
        "writes config.json and *.safetensors for Hugging Face's transformers",
    ]


def test_a_stopped_run_says_how_to_continue() -> None:
    """The last line of its summary; the first one has the steps that are done."""
    config = load_config("train-tiny.yaml", ["run_dir=runs/a", "steps=60"])
    step = Path("runs/a/step-5")
    lines = format_summary(config, 5, 0, {}, step, Path("report.html")).splitlines()
    assert lines[0] == "runs/a: 5 of 60 steps"
    assert lines[-1].split() == ["continue", "start", "the", "same", "command", "again"]


def test_the_first_line_has_the_model_and_the_rows_of_a_step() -> None:
    """One rank is not written as several."""
    config = load_config("train-tiny.yaml", ["parallel.strategy=ddp"])
    assert format_setup(config, 1, 6_476_000) == (
        "6.48 M parameters, 1 rank, ddp, fp32; 8 rows of 256 tokens per step, 4 at a time"
    )


def test_a_run_without_evaluation_or_checkpoint_names_neither() -> None:
    """Only its steps and the page with its curves."""
    config = load_config("train-tiny.yaml", ["run_dir=runs/a"])
    lines = format_summary(config, 5, 0, {}, None, Path("report.html")).splitlines()
    assert len(lines) == 2
    assert format_evaluation(5, {"validation/loss": 2.0}).endswith("validation loss 2.0000")
