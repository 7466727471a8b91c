"""Import torch when tensors are made, and not before."""

from __future__ import annotations

import importlib
from typing import Any


def import_torch(reason: str) -> Any:
    """Return the torch module.

    Args:
        reason: the feature that needs torch, for the error message.

    Raises:
        ImportError: torch is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(
            f"{reason} needs torch, which is not installed; run pip install 'corpusmill[train]', "
            f"or use TokenLoader with tokens='stored', which gives numpy arrays without torch"
        ) from error


def find_torch() -> Any:
    """Return the torch module, or None if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None
