"""Drop documents whose text is too short or too long.

CCNet applies the limit before deduplication.

Length(LengthSettings(min_chars=300)).apply(batch).dropped
# reason "length.too_few_chars", value 212, limit 300
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from stages.contract import DOCUMENT, Column, Outcome, Stage, chain, drop_where
from stages.settings.filters import LengthSettings


class Length(Stage[LengthSettings]):
    """Drops documents by the number of code points in `text`, newlines included.

    A null text has length 0. Source of the default: `min_len` in cc_net's `mine.py`.
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
        outcome = self._drop_short(batch)
        if self.settings.max_chars is None:
            return outcome
        return chain(outcome, self._drop_long(outcome.kept, self.settings.max_chars))

    def _drop_short(self, batch: pa.Table) -> Outcome:
        num_chars = _count_chars(batch)
        limit = self.settings.min_chars
        is_short = pc.less(num_chars, limit)
        return drop_where(
            batch, is_short, "length.too_few_chars", value=num_chars, limit=limit
        )

    def _drop_long(self, batch: pa.Table, limit: int) -> Outcome:
        num_chars = _count_chars(batch)
        is_long = pc.greater(num_chars, limit)
        return drop_where(
            batch, is_long, "length.too_many_chars", value=num_chars, limit=limit
        )


def _count_chars(batch: pa.Table) -> Column:
    """(n,) int: code points of each text."""
    return pc.fill_null(pc.utf8_length(batch.column("text")), 0)
