"""Settings of the stages in `stages.dedup`, and the bands that follow from them."""

from __future__ import annotations

from functools import cache
from typing import Literal, Self

from pydantic import Field, model_validator

from stages.settings.base import Settings


class MinHashSettings(Settings):
    """The signatures, and the similarity of near-duplicates."""

    num_permutations: int = Field(
        default=128,
        ge=2,
        le=4096,
        description="Length of a signature; longer ones measure similarity better.",
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
        "(RefinedWeb: 0.8, FineWeb: 0.75). It determines bands and rows: pairs are found with a "
        "probability that rises around the threshold, not with a sharp limit.",
    )
    verify: Literal["signatures", "exact"] | None = Field(
        default=None,
        description="How candidate pairs are checked against the threshold. null: not at all. "
        "signatures: by the similarity of their signatures; removes most pairs below the threshold "
        "and some above it; needs num_permutations * 4 bytes of disk per document. exact: by their "
        "Jaccard similarity; needs 8 bytes of disk per word.",
    )

    @model_validator(mode="after")
    def _has_bands(self) -> Self:
        try:
            compute_bands(self)
        except ValueError as error:
            raise ValueError(
                f"threshold is {self.threshold}, too high for {self.num_permutations} permutations "
                f"({error}); lower it or raise num_permutations"
            ) from error
        return self


def compute_bands(settings: MinHashSettings) -> tuple[int, int]:
    """Return the number of bands and the rows per band.

    They are datasketch's, which gives missed and false pairs the same weight.

    Raises:
        ValueError: the threshold leaves fewer than two bands.
    """
    return _compute_bands(settings.threshold, settings.num_permutations)


@cache
def _compute_bands(threshold: float, num_permutations: int) -> tuple[int, int]:
    from datasketch import MinHashLSH

    index = MinHashLSH(threshold=threshold, num_perm=num_permutations)
    return index.b, index.r
