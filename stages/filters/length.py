"""Drop documents whose text is too short or too long.

Promises: lengths are counted in Unicode code points, newlines included; both limits are inclusive.
Leaves to others: at which point of the chain the limit is applied. CCNet applies it before deduplication.

    Length(LengthSettings(min_chars=300)).apply(batch).dropped    # "length.too_few_chars", value 212, limit 300
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from stages.contract import DOCUMENT, Outcome, Settings, Stage, chain, drop_where


class LengthSettings(Settings):
    """Which lengths of text are kept."""

    min_chars: int = Field(
        default=300,
        ge=0,
        description="Shortest text kept, in code points. CCNet drops documents of fewer than 300 before deduplication.",
    )
    max_chars: int | None = Field(
        default=None, ge=1, description="Longest text kept, in code points; null sets no limit."
    )

    @model_validator(mode="after")
    def _limits_in_order(self) -> Self:
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise ValueError(
                f"max_chars is {self.max_chars}, below min_chars {self.min_chars}: no text could be kept"
            )
        return self


class Length(Stage[LengthSettings]):
    """Drops documents by the number of code points in `text`; a null text counts as empty.

    Source of the default: `min_len` of cc_net's `mine.py`.
    """

    name = "length"
    version = 1
    needs = pa.schema([DOCUMENT.field("text")])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "length.too_few_chars": "The text has fewer code points than min_chars.",
            "length.too_many_chars": "The text has more code points than max_chars.",
        }
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows whose text has min_chars to max_chars code points."""
        min_chars, max_chars = self.settings.min_chars, self.settings.max_chars
        num_chars = _num_chars(batch)
        outcome = drop_where(
            batch,
            pc.less(num_chars, min_chars),
            "length.too_few_chars",
            value=num_chars,
            limit=min_chars,
        )
        if max_chars is None:
            return outcome
        num_chars = _num_chars(outcome.kept)
        is_long = pc.greater(num_chars, max_chars)
        return chain(
            outcome,
            drop_where(
                outcome.kept, is_long, "length.too_many_chars", value=num_chars, limit=max_chars
            ),
        )


def _num_chars(batch: pa.Table) -> Any:
    """(n,) int: code points of each text."""
    return pc.fill_null(pc.utf8_length(batch.column("text")), 0)
