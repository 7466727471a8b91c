"""Counters and histograms that stages return and that are summed over batches, tasks and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


@dataclass
class Counters:
    """Named counters, and named histograms with fixed integer bins.

    Two `Counters` are merged by addition (`+`, `+=`, `Counters.sum`). Addition is associative and
    commutative, so the total does not depend on the size or the order of batches.

    Attributes:
        counts: name -> number. A counter that is zero is not stored.
        histograms: name -> {bin: number of observations}. The stage that counts defines its bins.
    """

    counts: Counter[str] = field(default_factory=Counter[str])
    histograms: dict[str, Counter[int]] = field(default_factory=dict[str, Counter[int]])

    def add(self, name: str, number: int | None = 1) -> None:
        """Add to a counter. None counts as zero, because the sum of an empty Arrow column is null.

        Zero is not stored, so equal totals have equal keys.
        """
        if number:
            self.counts[name] += int(number)

    def add_values(self, family: str, values: pa.Array | pa.ChunkedArray) -> None:
        """Count each distinct value: `language.` and `["en", "en", null]` add 2 to `language.en`.

        Args:
            family: prefix of the counters, with its dot.
            values: (n,) string; nulls are not counted.
        """
        for row in pc.value_counts(values.drop_null()).to_pylist():
            self.add(f"{family}{row['values']}", row["counts"])

    def observe(
        self,
        name: str,
        bins: Sequence[int] | NDArray[np.int64],
        amounts: NDArray[np.int64] | None = None,
    ) -> None:
        """Add observations to a histogram.

        Args:
            name: of the histogram.
            bins: (n,) the bin of each observation.
            amounts: (n,) what each one adds to its bin; None: one.
        """
        if not len(bins):
            return
        if amounts is None:
            numbers, counts = np.unique(np.asarray(bins), return_counts=True)
        else:
            numbers, places = np.unique(np.asarray(bins), return_inverse=True)
            counts = np.zeros(len(numbers), np.int64)
            np.add.at(counts, places, amounts)
        observed = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        self.histograms.setdefault(name, Counter()).update(observed)

    def take_histograms(self, family: str) -> dict[str, Mapping[int, int]]:
        """Return the histograms of a family without their prefix, sorted: `en` for `score.en`."""
        found: dict[str, Mapping[int, int]] = {}
        for name, bins in sorted(self.histograms.items()):
            if name.startswith(family):
                found[name.removeprefix(family)] = bins
        return found

    def __add__(self, other: Counters) -> Counters:
        total = Counters()
        total += self
        total += other
        return total

    def __iadd__(self, other: Counters) -> Self:
        self.counts.update(other.counts)
        for name, bins in other.histograms.items():
            self.histograms.setdefault(name, Counter()).update(bins)
        return self

    @classmethod
    def sum(cls, counters: Iterable[Counters]) -> Self:
        """Return the total. An iterator is consumed one element at a time."""
        total = cls()
        for each in counters:
            total += each
        return total

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with sorted keys, so equal counters are written as equal text."""
        histograms = {
            name: {str(b): n for b, n in sorted(bins.items())}
            for name, bins in sorted(self.histograms.items())
        }
        return {"counts": dict(sorted(self.counts.items())), "histograms": histograms}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the counters that `to_json` wrote."""
        histograms = {
            name: Counter({int(b): n for b, n in bins.items()})
            for name, bins in value["histograms"].items()
        }
        return cls(Counter(value["counts"]), histograms)
