"""Stages: operations on batches of documents, one module per stage. See docs/stages.md."""

from stages.contract import Outcome, Settings, Stage
from stages.counters import Counters
from stages.map_batches import as_map_batches

__all__ = ["Counters", "Outcome", "Settings", "Stage", "as_map_batches"]
