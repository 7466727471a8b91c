"""What other limits would keep: decisions on the scored documents of an index, for `preview` and the sliders of `browse`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from config_files.reader import ConfigError
from pipeline.errors import TaskFailed
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.browse.index import Index, Names, decode_languages, take_rows
from pipeline.reporting.browse.search import UNKNOWN, Order, describe_rows, list_page
from pipeline.reporting.browse.texts import read_excerpts
from pipeline.reporting.changes import (
    Amount,
    AmountPairs,
    CutChange,
    compare_cuts,
    pair_amounts,
    sum_amounts,
)
from pipeline.reporting.explain.trace import KEPT
from pipeline.reporting.kept_documents import read_num_tokens
from pipeline.reporting.preview.in_memory import SelectInMemory, change_plan
from pipeline.reporting.queries import Row, add_ones, add_up
from pipeline.runs.run_folder import RunNotFound
from stages.contract import Stage
from stages.mixing.mix import NUM_COPIES, QUALITY_BIN

# Decisions under other limits that are kept: 2 bytes a document each.
NUM_CACHED = 4


@dataclass(frozen=True)
class Example:
    """A document whose decision changes, with the rule that drops it before or after the change."""

    doc_id: int
    url: str
    title: str | None
    language: str
    reason: str
    value: float | None
    limit: float | None
    detail: str | None
    text: str  # its beginning


@dataclass(frozen=True)
class Preview:
    """The effect of other thresholds on a run.

    Attributes:
        is_tokenized: whether the run has token counts; otherwise all of them are 0.
        newly_kept: their tokens are estimated, because they were never tokenized.
        languages: language -> kept before and after, largest first.
        bins: quality bin -> kept before and after, best last; empty without `select.mix`.
        reasons: drop reason -> documents dropped by select before and after.
        cuts: limits that select takes from the scores of the run, before and after.
        examples_kept: newly kept documents, with the rule that dropped them. Drawn at random, but
            equal for equal previews.
        examples_dropped: newly dropped documents, with the rule that drops them.
        changes: config key -> value before and after.
        outdated: phases before select that a run would run again, because their stages or models
            have changed since. The preview uses their stored scores.
    """

    run_dir: str
    is_tokenized: bool
    before: Amount
    after: Amount
    newly_kept: Amount
    newly_dropped: Amount
    languages: AmountPairs
    bins: AmountPairs
    reasons: Mapping[str, tuple[int, int]]
    cuts: tuple[CutChange, ...]
    examples_kept: tuple[Example, ...]
    examples_dropped: tuple[Example, ...]
    changes: Mapping[str, tuple[Any, Any]] = field(
        default_factory=dict[str, tuple[Any, Any]]
    )
    outdated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Effect:
    """The decisions of select with changed limits.

    Attributes:
        phase: the phase with these limits.
        filters: its filters, opened.
        documents: the scored documents as its filters read them.
        decisions: (num_scored,) int16, places in `names`.
        names: "kept", then the reasons.
        copies: (num_scored,) int64 copies of each document; 0: it is dropped.
        bins: (num_scored,) string quality bins; null without `select.mix`.
    """

    phase: SelectInMemory
    filters: Sequence[Stage[Any]]
    documents: pa.Table
    decisions: NDArray[np.int16]
    names: Sequence[str]
    copies: pa.Array
    bins: pa.Array

    @property
    def is_kept(self) -> NDArray[np.bool_]:
        """Whether each document is kept, (num_scored,)."""
        return self.decisions == 0

    def count_reasons(self) -> dict[str, int]:
        """Return reason -> documents."""
        counts = np.bincount(self.decisions, minlength=len(self.names)).tolist()
        return dict(zip(self.names[1:], counts[1:], strict=True))


class Effects:
    """Computes effects for one index, and keeps the latest ones."""

    def __init__(self, index: Index, *, counts_all: bool = False) -> None:
        """Check that the run has decided.

        Args:
            index: the index.
            counts_all: allow changes of everything in `select`, of weights and budgets too.

        Raises:
            RunNotFound: select is not done yet.
        """
        if not index.run.has_finished(Select.name):
            raise RunNotFound(
                f"{index.run.run_dir}: select is not done yet; run the config to its end first"
            )
        self._index = index
        self._counts_all = counts_all
        self.compute = lru_cache(NUM_CACHED)(self._compute)

    @cached_property
    def documents(self) -> pa.Table:
        """The scored documents as the filters of select read them."""
        index = self._index
        documents = index.documents.slice(0, index.num_scored)
        return decode_languages(documents, index.names)

    @cached_property
    def _plan(self) -> RunPlan:
        return load_plan(self._index.run)

    @property
    def is_outdated(self) -> bool:
        """Whether this version of the software decides otherwise than the run did."""
        kept = self._index.is_named("decision", KEPT)[: self._index.num_scored]
        return bool((kept != self.compute(()).is_kept).any())

    def _compute(self, overrides: tuple[str, ...]) -> Effect:
        """Return the decisions under a changed config.

        Args:
            overrides: `key.of.key=value`, of select only.

        Raises:
            ConfigError: an override is wrong, or a rule needs scores that the run has not stored.
        """
        run = self._index.run
        config = run.change_config(overrides)
        counts_all = self._counts_all and bool(overrides)
        plan = load_plan(run, config) if counts_all else change_plan(self._plan, config)
        phase = SelectInMemory(plan, self.documents, counts_all=counts_all)
        try:
            phase.stage_schemas()
        except (KeyError, ValueError) as error:
            fault = f"select: {error}; the required column was not stored by this run"
            raise ConfigError([fault]) from error
        try:
            kept, dropped = phase.decide_all()
        except (ValueError, TaskFailed) as error:
            raise ConfigError([f"select: {error}"]) from error
        names = Names()
        names.encode(pa.chunked_array([[KEPT]]))
        decisions = np.zeros(self._index.num_scored, np.int16)
        doc_ids = self._index.doc_ids[: self._index.num_scored]
        rows = np.searchsorted(doc_ids, dropped.column("doc_id").to_numpy())
        decisions[rows] = names.encode(dropped.column("reason"))
        copies = pa.array((decisions == 0).astype(np.int64))
        bins = pa.nulls(len(decisions), QUALITY_BIN.type)
        if QUALITY_BIN.name in kept.column_names:
            kept = kept.combine_chunks()
            places = pc.index_in(pa.array(doc_ids), value_set=kept.column("doc_id"))
            bins = kept.column(QUALITY_BIN.name).take(places)
            copies = kept.column(NUM_COPIES.name).cast(pa.int64()).take(places)
            copies = pc.fill_null(copies, 0)
        return Effect(
            phase,
            phase.open_filters(),
            self.documents,
            decisions,
            [name or "" for name in names.values],
            copies,
            bins,
        )


def compare_effects(
    index: Index,
    before: Effect,
    after: Effect,
    *,
    num_examples: int,
    tokens: pa.ChunkedArray | None = None,
) -> Preview:
    """Return what changes.

    Args:
        index: the index.
        before: the limits of the run.
        after: other ones.
        num_examples: examples of each side.
        tokens: (num_scored,) of `read_tokens`; None: the run was not tokenized.
    """
    groups = _count_groups(index, before, after, tokens)
    old = [row for row in groups if row["was_kept"]]
    new = [row for row in groups if row["is_kept"]]
    languages = pair_amounts(_sum_old(old, "language"), _sum_new(new, "language"))
    newly_kept = _sum_new((row for row in new if not row["was_kept"]), "is_kept")
    newly_dropped = _sum_old((row for row in old if not row["is_kept"]), "is_kept")
    reasons_before, reasons_after = before.count_reasons(), after.count_reasons()
    return Preview(
        run_dir=str(index.run.run_dir),
        is_tokenized=tokens is not None,
        before=sum((pair[0] for pair in languages.values()), Amount()),
        after=sum((pair[1] for pair in languages.values()), Amount()),
        newly_kept=newly_kept.get(True, Amount()),
        newly_dropped=newly_dropped.get(False, Amount()),
        languages=languages,
        bins=_compare_bins(old, new),
        reasons={
            name: (reasons_before.get(name, 0), reasons_after.get(name, 0))
            for name in sorted(reasons_before.keys() | reasons_after.keys())
        },
        cuts=compare_cuts(_list_cuts(before), _list_cuts(after)),
        examples_kept=tuple(
            _list_examples(index, ~before.is_kept & after.is_kept, before, num_examples)
        ),
        examples_dropped=tuple(
            _list_examples(index, before.is_kept & ~after.is_kept, after, num_examples)
        ),
    )


def read_tokens(index: Index) -> pa.ChunkedArray | None:
    """Return the tokens of each scored document, (num_scored,) int64; null if it has none.

    Returns:
        None if the run was not tokenized.
    """
    if not index.run.has_finished(TokenizeDocuments.name):
        return None
    ids = index.doc_ids[: index.num_scored]
    parts: list[pa.Array] = []
    for split in index.run.splits:
        bounds = [np.uint64(number << 32) for number in (split.index, split.index + 1)]
        first, stop = np.searchsorted(ids, bounds)
        of_split = pa.chunked_array([pa.array(ids[first:stop])])
        parts += read_num_tokens(index.run, split, of_split).chunks
    return pa.chunked_array(parts, pa.int64())


def _count_groups(
    index: Index, before: Effect, after: Effect, tokens: pa.ChunkedArray | None
) -> list[dict[str, Any]]:
    """Return sums over the documents of one language with the same decisions and quality bins."""
    scored = index.documents.slice(0, index.num_scored)
    num_chars = scored.column("num_chars")
    if tokens is None:
        tokens = pa.chunked_array([pa.nulls(index.num_scored, pa.int64())])
    columns = {
        "language": scored.column("language"),
        "was_kept": pa.array(before.is_kept),
        "is_kept": pa.array(after.is_kept),
        "bin_before": before.bins,
        "bin_after": after.bins,
        "num_chars": num_chars,
        "num_tokens": tokens,
        "tokens_before": pc.multiply(tokens, before.copies),
        "tokens_after": pc.multiply(tokens, after.copies),
        "chars_after": pc.multiply(num_chars, after.copies),
    }
    names = list(columns)
    totals = add_up(add_ones(pa.table(columns)), names[:5], ["num_docs", *names[5:]])
    groups = totals.to_pylist()
    for row in groups:
        row["language"] = index.names["language"].values[row["language"]] or UNKNOWN
    _estimate_tokens(groups)
    return groups


def _estimate_tokens(groups: Sequence[dict[str, Any]]) -> None:
    """Set the tokens of documents that were never tokenized, because the run had dropped them.

    The estimate is the number of characters times the tokens per character of the kept
    documents of the language, or of all kept documents if the language has none.
    """
    counted = [row for row in groups if row["was_kept"]]
    of_language = sum_amounts(counted, "language", "num_chars", "num_tokens")
    of_all = sum(of_language.values(), Amount())
    for row in groups:
        if not row["was_kept"]:
            known = of_language.get(row["language"], Amount())
            known = known if known.num_chars else of_all
            rate = known.num_tokens / max(1, known.num_chars)
            row["tokens_after"] = round(row["chars_after"] * rate)


def _sum_old(groups: Iterable[Row], key: str) -> dict[Any, Amount]:
    return sum_amounts(groups, key, "num_chars", "tokens_before")


def _sum_new(groups: Iterable[Row], key: str) -> dict[Any, Amount]:
    return sum_amounts(groups, key, "num_chars", "tokens_after")


def _compare_bins(old: Iterable[Row], new: Iterable[Row]) -> AmountPairs:
    """Return quality bin -> kept before and after, best last."""
    pairs = pair_amounts(
        _sum_old((row for row in old if row["bin_before"]), "bin_before"),
        _sum_new((row for row in new if row["bin_after"]), "bin_after"),
    )
    return dict(sorted(pairs.items(), key=lambda item: float(item[0].partition("-")[0])))


def _list_cuts(effect: Effect) -> Iterator[Any]:
    for stage in effect.filters:
        yield from stage.list_run_limits()


def _list_examples(
    index: Index, is_changed: NDArray[np.bool_], dropping: Effect, num_examples: int
) -> Iterator[Example]:
    """Yield some of the changed documents, with the rule that drops them.

    Args:
        index: the index.
        is_changed: (num_scored,) the documents.
        dropping: the limits under which they are dropped.
        num_examples: number of documents, if there are enough.
    """
    found = np.zeros(index.num_docs, np.bool_)
    found[: index.num_scored] = is_changed
    # This sample stays similar while a slider moves.
    chosen = list_page(index, found, Order("random", 0), 0, num_examples)
    documents = take_rows(dropping.documents, chosen)
    dropped = {row["doc_id"]: row for row in dropping.phase.decide(documents).to_pylist()}
    texts = read_excerpts(index, chosen)
    for described in describe_rows(index, chosen):
        doc_id = int(described["doc_id"])
        yield Example(
            doc_id=doc_id,
            **{name: described[name] for name in ("url", "title", "language")},
            **{
                name: dropped[doc_id][name]
                for name in ("reason", "value", "limit", "detail")
            },
            text=texts.get(doc_id) or "",
        )
