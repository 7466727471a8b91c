"""The contract of a stage: a named, versioned operation on a batch of documents.

A batch is a `pyarrow.Table` with a `doc_id` column. A stage adds columns, drops documents with a
declared reason, and counts. docs/stages.md shows how to write one.

    stage = Length(LengthSettings(min_chars=300))
    stage.open()
    outcome = stage.apply(batch)
    outcome.kept          # the batch without the short documents, in the same order
    outcome.dropped       # doc_id, reason "length.too_few_chars", value 212, limit 300
    outcome.counters      # counts for the report; empty for this stage
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Generic, NamedTuple, TypeVar, get_args, get_origin

import pyarrow as pa
import pyarrow.compute as pc

from stages.counters import Counters
from stages.histograms import Column, Histogram, RunLimit
from stages.settings.base import Settings

# See `join_doc_id`: sorted like the input.
DOC_ID = pa.field("doc_id", pa.uint64(), nullable=False)

# The columns that a reader returns, one row per document.
DOCUMENT = pa.schema(
    [
        DOC_ID,
        pa.field("url", pa.string()),
        pa.field("source_domain", pa.string()),
        pa.field("date", pa.string()),  # WARC-Date, unchanged
        # block or payload digest of the record, "sha1:..."
        pa.field("digest", pa.string()),
        pa.field("warc_file", pa.string()),
        pa.field("warc_offset", pa.int64()),  # offset of the record in the compressed file
        pa.field("title", pa.string()),
        pa.field("text", pa.large_string()),  # paragraphs joined by \n
        # Set if the main content of a page was too short, and `text` is all of its text: the
        # characters that the main content had.
        pa.field("main_content_chars", pa.int64()),
        # The beginning of all text of a page, from which its language can be identified.
        pa.field("page_sample", pa.large_string()),
    ]
)

# The columns of the table of dropped documents.
DROPPED = pa.schema(
    [
        DOC_ID,
        pa.field("reason", pa.string(), nullable=False),
        pa.field("value", pa.float64()),  # the measured quantity that broke the rule
        pa.field("limit", pa.float64()),  # the limit that it broke
        # where it is not a number: a language, an error message
        pa.field("detail", pa.string()),
    ]
)


S = TypeVar("S", bound=Settings)


def join_doc_id(split: int, record: int) -> int:
    """Return the id of a document: the index of its input split, and its record number there."""
    return split << 32 | record


def split_doc_id(doc_id: int) -> tuple[int, int]:
    """Return the index of a document's input split, and its record number there."""
    return doc_id >> 32, doc_id & 0xFFFF_FFFF


@dataclass(frozen=True)
class Outcome:
    """The result of one call of `Stage.apply`.

    Attributes:
        kept: the rows that were not dropped, in the order of the batch, with the added columns.
        dropped: one row of DROPPED for each other document.
        counters: the counts of this batch. Their sum over all batches gives the counters of a
            task, the sum over all tasks those of a phase. A call that raises counts nothing, so a
            batch that is cut in two and tried again is counted once.
    """

    kept: pa.Table
    dropped: pa.Table
    counters: Counters = field(default_factory=Counters)

    def check(self, batch: pa.Table, stage: str) -> None:
        """Raise `DocumentCountError` unless each row of `batch` is kept in order or dropped once."""
        kept, dropped = self.kept.column("doc_id"), self.dropped.column("doc_id")
        if dropped.length() == 0:
            is_complete = kept.equals(batch.column("doc_id"))
        else:
            is_dropped = pc.is_in(batch.column("doc_id"), value_set=dropped)
            expected = pc.filter(batch.column("doc_id"), pc.invert(is_dropped))
            num_rows = kept.length() + dropped.length()
            is_complete = batch.num_rows == num_rows and kept.equals(expected)
        if not is_complete:
            raise DocumentCountError(
                f"stage {stage}: {batch.num_rows} documents went in, {kept.length()} were kept and "
                f"{dropped.length()} dropped, or their order changed; every document must come out "
                f"exactly once, in order"
            )


class DocumentCountError(AssertionError):
    """A stage lost, duplicated or reordered documents: a bug of the stage, not of the input."""


class Stage(ABC, Generic[S]):
    """Base class of all stages.

    Attributes:
        name: the name of the module, of the section in the config, the prefix of its reasons and
            the name of its row in the report.
        version: must be raised when equal input gives different output. It is part of the
            fingerprint of every phase that runs the stage.
        needs: the columns that `apply` reads.
        adds: the columns that `apply` adds or replaces.
        reasons: reason -> one sentence that names the fault and the measured quantity.
        counters: name of a counter or histogram -> display name. A name that ends in a dot
            declares a family: `language.` declares `language.en`, `language.fr` and so on.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    needs: ClassVar[pa.Schema]
    adds: ClassVar[pa.Schema] = pa.schema([])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType({})
    counters: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init__(
        self,
        settings: S,
        files: Mapping[str, Path] = MappingProxyType({}),
        run_counters: Counters | None = None,
    ) -> None:
        """Store the settings. The instance can be pickled until `open` has loaded its models.

        Args:
            settings: the only configuration that the stage has.
            files: reference -> local path, for each reference of `required_files(settings)`.
            run_counters: with the `histograms` of the run; None: they are not counted yet, and the
                limits that come from them are off.
        """
        self.settings = settings
        self.files = dict(files)  # a mappingproxy cannot be pickled
        self.run_counters = run_counters or Counters()

    @classmethod
    def settings_class(cls) -> type[S]:
        """Return the class of the settings: S of `Stage[S]`."""
        (base,) = (b for b in getattr(cls, "__orig_bases__", ()) if get_origin(b) is Stage)
        return get_args(base)[0]

    @classmethod
    def counter_display_name(cls, counter: str) -> str:
        """Return the display name of a counter, such as "Documents in the language: en".

        Raises:
            KeyError: the stage does not declare this counter.
        """
        if counter in cls.counters:
            return cls.counters[counter]
        family, dot, member = counter.partition(".")
        return f"{cls.counters[family + dot]}: {member}"

    @classmethod
    def required_columns(cls, settings: S) -> pa.Schema:
        """Return the columns that `apply` reads under these settings; `needs` by default."""
        del settings
        return cls.needs

    @classmethod
    def added_columns(cls, settings: S) -> pa.Schema:
        """Return the columns that `apply` adds under these settings; `adds` by default."""
        del settings
        return cls.adds

    @classmethod
    def required_files(cls, settings: S) -> tuple[str, ...]:
        """Return the files that `open` reads, as registry names or paths, sorted."""
        del settings
        return ()

    @classmethod
    def histograms(cls, settings: S) -> tuple[Histogram, ...]:
        """Return the histograms of the run that limits of the stage come from; none by default."""
        del settings
        return ()

    @classmethod
    def expected_counters(cls, settings: S) -> tuple[str, ...]:
        """Return the counters that a report shows even if they are zero.

        By default these are all declared counters that are not families.
        """
        del settings
        return tuple(name for name in cls.counters if not name.endswith("."))

    def open(self) -> None:
        """Load models. Called once per process, before the first `apply`."""

    def list_run_limits(self) -> Iterable[RunLimit]:
        """Return the limits that come from the scores of the run, for reports; none by default."""
        return ()

    @abstractmethod
    def apply(self, batch: pa.Table) -> Outcome:
        """Add columns, drop documents, count.

        The result for a row must depend on this row, the settings and the counters of the run only,
        never on the other rows of the batch.
        """


def keep_all(
    batch: pa.Table,
    added: Mapping[str, Column] = MappingProxyType({}),
    counters: Counters | None = None,
) -> Outcome:
    """Return an outcome that drops nothing and adds the given columns."""
    return Outcome(
        with_columns(batch, added), DROPPED.empty_table(), counters or Counters()
    )


def with_columns(batch: pa.Table, added: Mapping[str, Column]) -> pa.Table:
    """Return `batch` with the columns appended, or replaced where the name exists."""
    for name, column in added.items():
        index = batch.schema.get_field_index(name)
        if index < 0:
            batch = batch.append_column(name, column)
        else:
            batch = batch.set_column(index, name, column)
    return batch


class RuleResult(NamedTuple):
    """The result of one rule for each row that it was applied to; columns of shape (n,)."""

    reason: str
    is_broken: Column
    value: Column | None
    limit: float | Column | None
    detail: Column | None


_rule_results: ContextVar[list[RuleResult] | None] = ContextVar(
    "rule_results", default=None
)


@contextlib.contextmanager
def evaluate_all_rules() -> Generator[list[RuleResult]]:
    """Make `drop_where` record its arguments and drop nothing, so that every rule sees every row.

    Example:
        with evaluate_all_rules() as results:
            stage.apply(batch)
        results[0].is_broken    # the first rule, for every row of the batch
    """
    results: list[RuleResult] = []
    token = _rule_results.set(results)
    try:
        yield results
    finally:
        _rule_results.reset(token)


def drop_where(
    batch: pa.Table,
    is_dropped: Column,
    reason: str,
    *,
    value: Column | None = None,
    limit: float | Column | None = None,
    detail: Column | None = None,
    counters: Counters | None = None,
) -> Outcome:
    """Drop the rows where `is_dropped` is true, all for one reason.

    Args:
        batch: the rows to filter.
        is_dropped: (n,) bool without nulls.
        reason: one of the stage's reasons.
        value: (n,) the measured quantity.
        limit: the limit that it broke, one number or one per row.
        detail: (n,) string, where the quantity is not a number.
        counters: what the stage counted in this batch.
    """
    if (results := _rule_results.get()) is not None:
        results.append(RuleResult(reason, is_dropped, value, limit, detail))
        return keep_all(batch, counters=counters)
    kept = batch.filter(pc.invert(is_dropped))
    num_dropped = batch.num_rows - kept.num_rows
    columns = {
        "doc_id": batch.column("doc_id").filter(is_dropped),
        "reason": pa.repeat(pa.scalar(reason), num_dropped),
        "value": _select_dropped(value, is_dropped, num_dropped, pa.float64()),
        "limit": _select_dropped(limit, is_dropped, num_dropped, pa.float64()),
        "detail": _select_dropped(detail, is_dropped, num_dropped, pa.string()),
    }
    return Outcome(kept, pa.table(columns, schema=DROPPED), counters or Counters())


def _select_dropped(
    values: float | Column | None, is_dropped: Column, num_dropped: int, kind: pa.DataType
) -> Column:
    """Return the values of the dropped rows, (num_dropped,)."""
    if values is None:
        return pa.nulls(num_dropped, kind)
    if isinstance(values, int | float):
        return pa.repeat(pa.scalar(float(values), kind), num_dropped)
    return pc.cast(pc.filter(values, is_dropped), kind)


def chain(first: Outcome, second: Outcome) -> Outcome:
    """Return one outcome for two steps; `second` was applied to the rows that `first` kept."""
    dropped = pa.concat_tables([first.dropped, second.dropped])
    return Outcome(second.kept, dropped, first.counters + second.counters)
