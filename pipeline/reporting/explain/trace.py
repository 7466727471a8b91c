"""The trace of a document through a run, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.reporting.queries import Row
from stages.filters.score import ScorePart

KEPT = "kept"
NOT_DECIDED = "not decided yet"


@dataclass(frozen=True)
class RuleCheck:
    """The result of one rule for a document."""

    reason: str  # the drop reason of the rule
    is_broken: bool
    value: float | None
    limit: float | None
    detail: str | None


@dataclass(frozen=True)
class RuleReport:
    """The results of all rules of a phase.

    Attributes:
        checks: the rules in the order of the phase, including those after the one that decided.
        bucket_ends: perplexities at which the buckets head and middle end; None: no buckets.
        score_parts: the parts of the quality score, largest first; empty without `select.score`.
        quality_score: the score; None: no score.
        error: why the rules could not be evaluated, else "".
    """

    checks: tuple[RuleCheck, ...] = ()
    bucket_ends: tuple[float, float] | None = None
    score_parts: tuple[ScorePart, ...] = ()
    quality_score: float | None = None
    error: str = ""


@dataclass(frozen=True)
class OtherDocument:
    """Another document that this one is compared with.

    Attributes:
        doc_id: its id in its own run.
        run_dir: the previous run that holds it; None: this run.
        url, decision: None if its split has no decision yet, or if the previous run was deleted.
            A rewrite has removed the URL of a retracted document: "".
        is_retracted: whether a request has retracted it.
    """

    doc_id: int
    run_dir: str | None = None
    url: str | None = None
    decision: str | None = None
    is_retracted: bool = False


@dataclass(frozen=True)
class RemovedParagraphs:
    """What paragraph_dedup removed from a document.

    Attributes:
        paragraphs: the removed ones, longest first.
        line_numbers: their places among the extracted lines, ascending.
        copies: paragraph -> the first other document that holds it, for the longest ones.
        num_left: number of paragraphs that were not removed.
        num_chars_left: their characters; None: nothing is left.
        may_be_in_previous: whether the run was also compared with previous runs.
    """

    paragraphs: tuple[str, ...]
    line_numbers: tuple[int, ...]
    copies: Mapping[str, OtherDocument]
    num_left: int
    num_chars_left: int | None
    may_be_in_previous: bool


@dataclass(frozen=True)
class RepeatedSpan:
    """A span of words of a document that an earlier document has.

    Attributes:
        text: its words as the document has them.
        num_words: their number.
        first: the first document that has its first words; None: not looked up, or deleted.
    """

    text: str
    num_words: int
    first: OtherDocument | None


@dataclass(frozen=True)
class ShardLocation:
    """Where a document is stored in a dataset."""

    shard: str  # file name
    row: int  # position among the documents of the shard
    sample: str  # key of the sample, and of its members in the tar file
    token_start: int  # in tokens from the start of the shard
    num_tokens: int


@dataclass(frozen=True)
class RetractionNote:
    """The request that retracted a document (docs/retraction.md)."""

    recorded_at: str
    reason: str
    requested_by: str


@dataclass(frozen=True)
class DocumentTrace:
    """Everything that a run has stored about one document.

    Attributes:
        decision: "kept", the drop reason, or NOT_DECIDED.
        columns: all stored columns, for programs.
        rows: (phase, kind of file) -> the row stored there.
        repeated: what substring_dedup found, longest first.
        removed: what paragraph_dedup removed; None: not known (yet).
        rules: phase -> its rules.
        representatives: phase -> the document that is kept in place of this one.
        location: None if the document was dropped or not written yet.
        retraction: the request that retracted it, or None.
        copies: where its other copies are stored, with `select.mix`.
    """

    doc_id: int
    url: str
    decision: str
    columns: Row
    rows: Mapping[tuple[str, str], Row]
    repeated: tuple[RepeatedSpan, ...]
    removed: RemovedParagraphs | None
    rules: Mapping[str, RuleReport]
    representatives: Mapping[str, OtherDocument]
    location: ShardLocation | None
    retraction: RetractionNote | None = None
    copies: tuple[ShardLocation, ...] = ()
