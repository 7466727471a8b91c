"""Settings of the stages in `stages.dedup`, and the bands that follow from them."""

from __future__ import annotations

import math
from typing import Self

from pydantic import Field, model_validator

from stages.settings.base import Settings

# Share of pairs that a band must find. With fewer, any recall takes more bands than the longest
# signature has rows.
MIN_FOUND_BY_BAND = 1e-9


class MinHashSettings(Settings):
    """The signatures by which candidates for near-duplicates are found."""

    num_permutations: int = Field(
        default=128,
        ge=2,
        le=4096,
        description="Length of a signature. A longer one allows bands of more rows, and bands of "
        "more rows find fewer candidates below the threshold.",
    )
    ngram_words: int = Field(
        default=5,
        ge=1,
        description="Words per n-gram; a document is compared as a set of n-grams. RefinedWeb and "
        "FineWeb: 5.",
    )
    threshold: float = Field(
        default=0.8,
        gt=0,
        lt=1,
        description="Jaccard similarity of n-grams from which documents are near-duplicates "
        "(RefinedWeb: 0.8, FineWeb: 0.75).",
    )
    recall: float = Field(
        default=0.99,
        gt=0,
        lt=1,
        description="Share of the pairs with a similarity equal to the threshold that have a band in "
        "common, and are therefore compared. More similar pairs have a higher share. Bands and "
        "rows follow from it: the most rows per band, then the fewest bands.",
    )
    bands: tuple[int, int] | None = Field(
        default=None,
        description="Number of bands and rows per band, instead of those that follow from "
        "`recall` (FineWeb: [14, 8]).",
    )
    store_ngrams: bool = Field(
        default=True,
        description="Store the n-gram hashes of each document, with which fuzzy_dedup compares "
        "candidates exactly. They need 4 bytes of disk per word.",
    )

    @model_validator(mode="after")
    def _has_bands(self) -> Self:
        compute_bands(self)
        return self


def compute_bands(settings: MinHashSettings) -> tuple[int, int]:
    """Return the number of bands and the rows per band.

    Two documents with Jaccard similarity s have a band in common with probability
    1 - (1 - s^rows)^bands (Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, 3.4.2).

    Raises:
        ValueError: the permutations are too few.
    """
    available = settings.num_permutations
    if settings.bands is not None:
        bands, rows = settings.bands
        if bands < 1 or rows < 1 or bands * rows > available:
            raise ValueError(
                f"bands is [{bands}, {rows}]; wanted at least 1 band of 1 row, and at most "
                f"num_permutations ({available}) rows in all bands together"
            )
        return bands, rows
    for rows in range(available, 0, -1):
        found_by_band = settings.threshold**rows
        if found_by_band < MIN_FOUND_BY_BAND:
            continue
        bands = math.ceil(math.log1p(-settings.recall) / math.log1p(-found_by_band))
        if bands * rows <= available:
            return bands, rows
    raise ValueError(
        f"no bands of {available} permutations find {settings.recall:.1%} of the pairs at the "
        f"threshold of {settings.threshold}; raise num_permutations, or lower recall"
    )
