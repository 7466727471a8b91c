"""Settings of the stage `mix`, with the percentiles and cuts that it decides by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from stages.settings.base import Settings, Share
from stages.settings.quality import QualityBin, check_bins


class BudgetCut(Settings):
    """Where the budget ends in one language.

    Documents above the percentile are kept, and of those at the percentile this share.
    """

    percentile: float
    share: Share


class MixSettings(Settings):
    """The score that ranks documents, the bins, and where the budget ends."""

    column: str = Field(description="The stored score.")
    is_low_best: bool = Field(default=False, description="Whether low scores are better.")
    topics: tuple[str, ...] = Field(
        default=(), description="Columns of classifiers; the highest one is the topic."
    )
    bins: Annotated[tuple[QualityBin, ...], Field(min_length=1)] = Field(
        default=(QualityBin(from_percentile=0, num_copies=1),),
        description="From the worst documents to the best.",
    )
    histograms: Mapping[str, Mapping[int, int]] = Field(
        default={}, description="Group of documents -> bin of the score -> documents."
    )
    cuts: Mapping[str, BudgetCut] = Field(
        default={}, description="Language -> where its budget ends."
    )

    @model_validator(mode="after")
    def _bins_rise(self) -> Self:
        check_bins(self.bins)
        return self
