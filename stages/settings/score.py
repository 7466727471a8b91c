"""Settings of the stage `score`, with the percentiles that it computes scores from."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from stages.settings.base import Settings, Share


class WeightedSignal(Settings):
    """A signal that scores are made of: its weight, and its values in the run."""

    weight: float = Field(
        allow_inf_nan=False,
        description="Weight of the signal's percentile rank; negative: lower values are better.",
    )
    histograms: Mapping[str, Mapping[int, int]] = Field(
        default={},
        description="Language -> bin of the values (`SIGNAL_BINS`) -> documents of the run. "
        "The signal does not count for documents in other languages.",
    )


class ScoreSettings(Settings):
    """The signals that a score is made of, and the scores that are kept."""

    signals: Mapping[str, WeightedSignal] = Field(
        min_length=1, description="Name of a stored column -> its weight and percentiles."
    )
    intercept: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Null: the score is the weighted mean of percentile ranks; a number: it is the "
        "logistic function of the weighted sum and this number.",
    )
    min: Share | None = Field(
        default=None, description="Lowest score kept; null sets no limit."
    )
    cuts: Mapping[str, float] = Field(
        default={},
        description="Language -> lowest score kept of the documents in it, as `keep_top` has found "
        "it. Documents in other languages are kept.",
    )
