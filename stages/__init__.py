"""Stages: operations on batches of documents, one module per stage. See docs/stages.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stages.contract import Outcome, Settings, Stage
    from stages.counters import Counters
    from stages.map_batches import as_map_batches

__all__ = ["Counters", "Outcome", "Settings", "Stage", "as_map_batches"]

_HOMES = {
    "Counters": "stages.counters",
    "Outcome": "stages.contract",
    "Settings": "stages.settings.base",
    "Stage": "stages.contract",
    "as_map_batches": "stages.map_batches",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, because `stages.settings` must not load Arrow."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
