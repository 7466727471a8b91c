"""The stages of quality signals: `Quality` computes them, `QualityFilter` applies rules to them."""

from __future__ import annotations

from stages.filters.quality.definitions import DEFINITIONS
from stages.filters.quality.quality import Quality, QualityFilter
from stages.settings.quality import QualityFilterSettings, QualitySettings

__all__ = [
    "DEFINITIONS",
    "Quality",
    "QualityFilter",
    "QualityFilterSettings",
    "QualitySettings",
]
