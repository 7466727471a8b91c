"""Weights in and out of Hugging Face's form."""

from __future__ import annotations

from pathlib import Path

from training.model import Decoder


def load_into(folder: Path, model: Decoder) -> None:
    """Fill the model."""
    raise NotImplementedError
