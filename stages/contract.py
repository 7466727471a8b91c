"""What a stage is: a named, versioned, pure piece of work on a batch of documents.

Promises: every stage declares the columns it needs and adds, drops documents only with a reason from its own fixed
table, and gives for every row of its input an annotated row or a drop (`Outcome.check` proves it after each call).
Leaves to others: reading and writing files, choosing batches, time, memory, parallelism (the engine's business), and
deciding where a model file lies (the pipeline hands every stage the files it asked for).

A batch is a `pyarrow.Table` with a `doc_id` column. An example:

    stage = Length(LengthSettings(min_chars=300))
    stage.open()
    outcome = stage.apply(batch)
    outcome.kept          # the batch without the short documents, in order
    outcome.dropped       # doc_id, reason "length.too_few_chars", value 212, limit 300
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, get_args, get_origin

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

DOC_ID = pa.field("doc_id", pa.uint64(), nullable=False)
"""`unit index << 32 | record number in the unit`, so that its order is the order of the input."""

DOCUMENT = pa.schema(
    [
        DOC_ID,
        pa.field("url", pa.string()),
        pa.field("source_domain", pa.string()),
        pa.field("date", pa.string()),  # WARC-Date as it stands in the record
        pa.field(
            "digest", pa.string()
        ),  # the record's own block (or payload) digest, e.g. "sha1:..."
        pa.field("warc_file", pa.string()),
        pa.field(
            "warc_offset", pa.int64()
        ),  # of the record in the file as it lies on disk (compressed)
        pa.field("title", pa.string()),
        pa.field("text", pa.large_string()),  # paragraphs joined by \n
    ]
)
"""What every reader yields, one row per document."""

DROPPED = pa.schema(
    [
        DOC_ID,
        pa.field("reason", pa.string(), nullable=False),
        pa.field("value", pa.float64()),  # the quantity that decided, in the unit its reason names
        pa.field("limit", pa.float64()),  # what it was held against
        pa.field(
            "detail", pa.string()
        ),  # for what is not a number: a language, an exception's text
    ]
)
"""What a stage says of each document it drops."""


class Settings(BaseModel):
    """Base of every stage's settings: frozen, validated when built, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Outcome:
    """What one call of a stage did to its batch."""

    kept: pa.Table
    dropped: pa.Table

    def check(self, batch: pa.Table, stage: str) -> None:
        """Raise unless every row of `batch` is either kept, in order, or dropped, once."""
        kept, dropped = self.kept.column("doc_id"), self.dropped.column("doc_id")
        if dropped.length() == 0:
            balanced = kept.equals(batch.column("doc_id"))
        else:
            expected = pc.filter(
                batch.column("doc_id"),
                pc.invert(pc.is_in(batch.column("doc_id"), value_set=dropped)),
            )
            balanced = batch.num_rows == kept.length() + dropped.length() and kept.equals(expected)
        if not balanced:
            raise AccountsDoNotBalance(
                f"stage {stage}: {batch.num_rows} documents went in, {kept.length()} were kept and {dropped.length()} "
                f"dropped, or their order changed; every document must come out exactly once, in order"
            )


class AccountsDoNotBalance(AssertionError):
    """A stage lost, doubled or reordered documents: a bug in that stage, never a fault of the input."""


class Stage(ABC, Generic[S]):
    """One kind of per-document work.

    `name` is at once the file, the config section, the prefix of the reasons and the row in the report. `version` rises
    whenever equal input would give other output: it is part of every fingerprint that the stage has a share in.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    needs: ClassVar[pa.Schema]
    adds: ClassVar[pa.Schema] = pa.schema([])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Reason -> one sentence that names the fault and the quantity."""

    def __init__(self, settings: S, files: Mapping[str, Path] = MappingProxyType({})) -> None:
        """Cheap and picklable: models are loaded by `open`, once per process.

        Args:
            settings: all that the stage may know of the run.
            files: local path of every reference that `files_of(settings)` names.
        """
        self.settings = settings
        self.files = dict(files)  # a mapping that travels to workers

    @classmethod
    def settings_class(cls) -> type[S]:
        """The class of this stage's settings: the S of `Stage[S]`."""
        (base,) = (b for b in getattr(cls, "__orig_bases__", ()) if get_origin(b) is Stage)
        return get_args(base)[0]

    @classmethod
    def needs_of(cls, settings: S) -> pa.Schema:
        """The columns needed under these settings: `needs`, but for a stage whose settings name columns."""
        del settings
        return cls.needs

    @classmethod
    def adds_of(cls, settings: S) -> pa.Schema:
        """The columns added under these settings: `adds`, but for a stage whose settings name columns."""
        del settings
        return cls.adds

    @classmethod
    def files_of(cls, settings: S) -> tuple[str, ...]:
        """The references (names of the asset registry, or paths) of the files these settings need, in a fixed order."""
        del settings
        return ()

    def open(self) -> None:
        """Load models. Called once per process, before the first `apply`."""

    @abstractmethod
    def apply(self, batch: pa.Table) -> Outcome:
        """Annotate and drop. Pure: the same rows give the same outcome in any batch, process and order."""


def keep_all(
    batch: pa.Table, added: Mapping[str, pa.Array | pa.ChunkedArray] = MappingProxyType({})
) -> Outcome:
    """The outcome that drops nothing and adds the given columns (replacing those of the same name)."""
    return Outcome(with_columns(batch, added), DROPPED.empty_table())


def with_columns(batch: pa.Table, added: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """`batch` with columns added, or replaced where the name exists already."""
    for name, column in added.items():
        index = batch.schema.get_field_index(name)
        batch = (
            batch.append_column(name, column)
            if index < 0
            else batch.set_column(index, name, column)
        )
    return batch


class Judgement(NamedTuple):
    """What one rule made of the rows it was shown, one element per row."""

    reason: str
    is_broken: pa.Array | pa.ChunkedArray
    value: pa.Array | pa.ChunkedArray | None
    limit: float | pa.Array | pa.ChunkedArray | None
    detail: pa.Array | pa.ChunkedArray | None


@contextlib.contextmanager
def every_rule() -> Generator[list[Judgement]]:
    """While this is open `drop_where` drops nothing and notes what it was asked: so each rule sees every row."""
    judgements: list[Judgement] = []
    token = _judgements.set(judgements)
    try:
        yield judgements
    finally:
        _judgements.reset(token)


_judgements: ContextVar[list[Judgement] | None] = ContextVar("judgements", default=None)


def drop_where(
    batch: pa.Table,
    is_dropped: pa.Array | pa.ChunkedArray,
    reason: str,
    *,
    value: pa.Array | pa.ChunkedArray | None = None,
    limit: float | pa.Array | pa.ChunkedArray | None = None,
    detail: pa.Array | pa.ChunkedArray | None = None,
) -> Outcome:
    """Drop the rows where `is_dropped` (bool, no nulls) holds, all for one reason.

    Args:
        batch: the rows to judge.
        is_dropped: (n,) bool.
        reason: one of the stage's reasons.
        value: (n,) the quantity that decided.
        limit: what it was held against, one for all or one per row.
        detail: (n,) string, where the quantity is not a number.
    """
    if (judgements := _judgements.get()) is not None:
        judgements.append(Judgement(reason, is_dropped, value, limit, detail))
        return keep_all(batch)
    gone = batch.filter(is_dropped)
    n = gone.num_rows

    def column(
        values: float | pa.Array | pa.ChunkedArray | None, kind: pa.DataType
    ) -> pa.Array | pa.ChunkedArray:
        if values is None:
            return pa.nulls(n, kind)
        if isinstance(values, int | float):
            return pa.repeat(pa.scalar(float(values), kind), n)
        return pc.cast(pc.filter(values, is_dropped), kind)

    dropped = pa.table(
        {
            "doc_id": gone.column("doc_id"),
            "reason": pa.repeat(pa.scalar(reason), n),
            "value": column(value, pa.float64()),
            "limit": column(limit, pa.float64()),
            "detail": column(detail, pa.string()),
        },
        schema=DROPPED,
    )
    return Outcome(batch.filter(pc.invert(is_dropped)), dropped)


def chain(first: Outcome, second: Outcome) -> Outcome:
    """One outcome out of two, where `second` judged what `first` kept."""
    return Outcome(second.kept, pa.concat_tables([first.dropped, second.dropped]))


@dataclass
class Counters:
    """Counters and histograms with fixed bins: merging is addition, so order and grouping do not matter.

    `counts` maps a name to a number; `histograms` maps a name to {bin: count}. What a bin means is its owner's to say.
    """

    counts: Counter[str] = field(default_factory=Counter[str])
    histograms: dict[str, Counter[int]] = field(default_factory=dict[str, Counter[int]])

    def add(self, name: str, number: int = 1) -> None:
        """Add to a counter; zero leaves no trace, so that equal tallies have equal keys."""
        if number:
            self.counts[name] += int(number)

    def observe(self, name: str, bins: Sequence[int]) -> None:
        """Add one observation per element of `bins` to a histogram."""
        if len(bins):
            self.histograms.setdefault(name, Counter()).update(int(b) for b in bins)

    def __add__(self, other: Counters) -> Counters:
        names = self.histograms.keys() | other.histograms.keys()
        none: Counter[int] = Counter()
        return Counters(
            self.counts + other.counts,
            {
                name: self.histograms.get(name, none) + other.histograms.get(name, none)
                for name in names
            },
        )

    def __iadd__(self, other: Counters) -> Self:
        self.counts.update(other.counts)
        for name, bins in other.histograms.items():
            self.histograms.setdefault(name, Counter()).update(bins)
        return self

    @classmethod
    def sum(cls, tallies: Iterable[Counters]) -> Self:
        """Of any number of them; holds one at a time."""
        total = cls()
        for counters in tallies:
            total += counters
        return total

    def to_json(self) -> dict[str, Any]:
        """A JSON object with sorted keys: equal tallies give equal text."""
        return {
            "counts": dict(sorted(self.counts.items())),
            "histograms": {
                name: {str(b): n for b, n in sorted(bins.items())}
                for name, bins in sorted(self.histograms.items())
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(
            Counter(value["counts"]),
            {
                name: Counter({int(b): n for b, n in bins.items()})
                for name, bins in value["histograms"].items()
            },
        )
