"""What other limits would keep: decisions on the scored documents of an index, for `preview` and the sliders of `browse`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from config_files.reader import ConfigError
from pipeline.errors import TaskFailed
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments, compute_order_keys
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.browse.index import Index, Names, decode_languages, take_rows
from pipeline.reporting.browse.search import UNKNOWN, describe_rows
from pipeline.reporting.browse.texts import read_excerpts
from pipeline.reporting.changes import Amount, AmountPairs, CutChange, compare_cuts
from pipeline.reporting.explain.trace import KEPT
from pipeline.reporting.kept_documents import read_num_tokens
from pipeline.reporting.preview.in_memory import SelectInMemory, change_plan
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
        copies: (num_scored,) copies of each document; 0: it is dropped.
        bins: (num_scored,) places in `bin_names`.
        bin_names: the quality bins; None: no bin.
    """

    phase: SelectInMemory
    filters: Sequence[Stage[Any]]
    documents: pa.Table
    decisions: NDArray[np.int16]
    names: Sequence[str]
    copies: NDArray[np.int64]
    bins: NDArray[np.int64]
    bin_names: Sequence[str | None]

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
        except ValueError as error:
            fault = f"select: {error}; the required column was not stored by this run"
            raise ConfigError([fault]) from error
        try:
            kept, dropped = phase.decide_all()
        except (ValueError, TaskFailed) as error:
            raise ConfigError([f"select: {error}"]) from error
        names = Names()
        names.encode(pa.chunked_array([[KEPT]]))
        decisions = np.zeros(self._index.num_scored, np.int16)
        decisions[self._find_rows(dropped)] = names.encode(dropped.column("reason"))
        copies = (decisions == 0).astype(np.int64)
        bins = np.zeros(len(decisions), np.int64)
        bin_names = Names()
        bin_names.encode(pa.chunked_array([pa.nulls(1, pa.string())]))
        if QUALITY_BIN.name in kept.column_names:
            rows = self._find_rows(kept)
            copies[rows] = kept.column(NUM_COPIES.name)
            bins[rows] = bin_names.encode(kept.column(QUALITY_BIN.name))
        return Effect(
            phase,
            phase.open_filters(),
            self.documents,
            decisions,
            [name or "" for name in names.values],
            copies,
            bins,
            bin_names.values,
        )

    def _find_rows(self, documents: pa.Table) -> NDArray[np.int64]:
        scored_ids = self._index.doc_ids[: self._index.num_scored]
        return np.searchsorted(scored_ids, documents.column("doc_id").to_numpy())


def compare_effects(
    index: Index,
    before: Effect,
    after: Effect,
    *,
    num_examples: int,
    tokens: NDArray[np.float64] | None = None,
) -> Preview:
    """Return what changes.

    Args:
        index: the index.
        before: the limits of the run.
        after: other ones.
        num_examples: examples of each side.
        tokens: (num_scored,) of `read_tokens`; None: the run was not tokenized.
    """
    num_chars = index.read_numbers("num_chars")[: index.num_scored].astype(np.float64)
    languages = index.read_numbers("language")[: index.num_scored]
    names = [name or UNKNOWN for name in index.names["language"].values]
    num_tokens = np.zeros(index.num_scored)
    if tokens is not None:
        num_tokens = _estimate_tokens(before, languages, num_chars, tokens)
    sums = _Sums(num_chars, num_tokens)
    new, lost = ~before.is_kept & after.is_kept, before.is_kept & ~after.is_kept
    one_group = np.zeros_like(languages)
    pairs = sums.compare(languages, before, languages, after, names)
    by_size = sorted(pairs.items(), key=lambda item: (-item[1][0].num_docs, item[0]))
    reasons_before, reasons_after = before.count_reasons(), after.count_reasons()
    return Preview(
        run_dir=str(index.run.run_dir),
        is_tokenized=tokens is not None,
        before=sum((pair[0] for pair in pairs.values()), Amount()),
        after=sum((pair[1] for pair in pairs.values()), Amount()),
        newly_kept=sums.add_up(one_group, new, after.copies, 1)[0],
        newly_dropped=sums.add_up(one_group, lost, before.copies, 1)[0],
        languages=dict(by_size),
        bins=_compare_bins(sums, before, after),
        reasons={
            name: (reasons_before.get(name, 0), reasons_after.get(name, 0))
            for name in sorted(reasons_before.keys() | reasons_after.keys())
        },
        cuts=compare_cuts(*([*_list_cuts(effect)] for effect in (before, after))),
        examples_kept=tuple(_list_examples(index, new, before, num_examples)),
        examples_dropped=tuple(_list_examples(index, lost, after, num_examples)),
    )


def read_tokens(index: Index) -> NDArray[np.float64] | None:
    """Return the tokens of each scored document, (num_scored,); NaN if it has none.

    Returns:
        None if the run was not tokenized.
    """
    if not index.run.has_finished(TokenizeDocuments.name):
        return None
    ids = index.doc_ids[: index.num_scored]
    parts = [np.zeros(0)]
    for split in index.run.splits:
        bounds = [np.uint64(number << 32) for number in (split.index, split.index + 1)]
        first, stop = np.searchsorted(ids, bounds)
        if first < stop:
            of_split = pa.chunked_array([pa.array(ids[first:stop])])
            num_tokens = read_num_tokens(index.run, split, of_split)
            parts.append(num_tokens.to_numpy().astype(np.float64))
    return np.concatenate(parts)


def _estimate_tokens(
    before: Effect,
    languages: NDArray[np.int32],
    num_chars: NDArray[np.float64],
    tokens: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the tokens of each document, estimated for those that were dropped.

    The estimate is the number of characters times the tokens per character of the kept
    documents of the language, or of all kept documents if the language has none.
    """
    kept = before.is_kept
    counted = np.nan_to_num(tokens)
    chars_of = np.bincount(
        languages[kept], num_chars[kept], minlength=languages.max(initial=0) + 1
    )
    tokens_of = np.bincount(languages[kept], counted[kept], minlength=len(chars_of))
    rate = tokens_of.sum() / max(1, chars_of.sum())
    rates = np.divide(
        tokens_of, chars_of, out=np.full(len(chars_of), rate), where=chars_of > 0
    )
    return np.where(kept, counted, num_chars * rates[languages])


@dataclass(frozen=True)
class _Sums:
    """Adds up documents by group."""

    num_chars: NDArray[np.float64]
    num_tokens: NDArray[np.float64]  # of one copy

    def add_up(
        self,
        groups: NDArray[np.integer[Any]],
        is_chosen: NDArray[np.bool_],
        copies: NDArray[np.int64],
        num_groups: int,
    ) -> list[Amount]:
        """Return the amount of the chosen documents of each group."""
        chosen = groups[is_chosen]
        chars, tokens = self.num_chars, self.num_tokens * copies
        sums = [
            np.bincount(chosen, weights, minlength=num_groups)
            for weights in (None, chars[is_chosen], tokens[is_chosen])
        ]
        return [
            Amount(*map(round, each))
            for each in zip(*map(np.ndarray.tolist, sums), strict=True)
        ]

    def compare(
        self,
        groups_before: NDArray[np.integer[Any]],
        before: Effect,
        groups_after: NDArray[np.integer[Any]],
        after: Effect,
        names: Sequence[str],
    ) -> dict[str, tuple[Amount, Amount]]:
        """Return name of a group -> what is kept before and after; without empty groups."""
        old = self.add_up(groups_before, before.is_kept, before.copies, len(names))
        new = self.add_up(groups_after, after.is_kept, after.copies, len(names))
        pairs = zip(names, zip(old, new, strict=True), strict=True)
        return {name: pair for name, pair in pairs if any(one.num_docs for one in pair)}


def _compare_bins(sums: _Sums, before: Effect, after: Effect) -> AmountPairs:
    """Return quality bin -> kept before and after, best last."""
    names = list(dict.fromkeys([*before.bin_names, *after.bin_names]))
    numbers = [
        np.array([names.index(name) for name in effect.bin_names])[effect.bins]
        for effect in (before, after)
    ]
    labels = [name or "" for name in names]
    pairs = sums.compare(numbers[0], before, numbers[1], after, labels)
    pairs.pop("", None)
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
    rows = np.flatnonzero(is_changed)
    # The smallest keys are a uniform sample, which stays similar while a slider moves.
    keys = compute_order_keys(index.doc_ids[rows], 0)
    if len(rows) > num_examples:
        smallest = np.argpartition(keys, num_examples)[:num_examples]
        rows, keys = rows[smallest], keys[smallest]
    chosen = rows[np.argsort(keys)]
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
