"""Compare two sets of decisions on the documents of a run, and sum up the differences."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.phases.annotate import Annotate
from pipeline.phases.tokenize import TokenizeDocuments, compute_order_keys
from pipeline.reporting.changes import Amount, CutChange
from pipeline.reporting.explain.find import read_row
from pipeline.reporting.explain.trace import KEPT
from pipeline.reporting.kept_documents import read_num_tokens
from pipeline.runs.run_folder import RunFolder, RunSplit
from stages.mixing.mix import NUM_COPIES, QUALITY_BIN

NUM_EXAMPLES = 10
EXCERPT_CHARS = 100

GROUP_KEYS = ["language", "before", "after", "bin_before", "bin_after"]
SUMS = ["num_chars", "num_tokens", "tokens_before", "tokens_after", "chars_after"]


@dataclass(frozen=True)
class Example:
    """A document whose decision changes, with the rule that drops it before or after the change."""

    doc_id: int
    url: str
    language: str
    reason: str
    value: float | None
    limit: float | None
    detail: str | None
    text: str  # its first EXCERPT_CHARS characters


@dataclass(frozen=True)
class Preview:
    """The effect of other thresholds on a run.

    Attributes:
        changes: config key -> value before and after.
        outdated: phases before select that a run would run again, because their stages or models
            have changed since. The preview uses their stored scores.
        is_tokenized: whether the run has token counts; otherwise all of them are 0.
        newly_kept: their tokens are estimated, because they were never tokenized.
        languages: language -> kept before and after, largest first.
        bins: quality bin -> kept before and after, best last; empty without `select.mix`.
        reasons: drop reason -> documents dropped by select before and after.
        cuts: limits that select takes from the scores of the run, before and after.
        examples_kept: newly kept documents, with the rule that dropped them. Drawn at random, but
            equal for equal previews.
        examples_dropped: newly dropped documents, with the rule that drops them.
    """

    run_dir: str
    changes: Mapping[str, tuple[Any, Any]]
    outdated: tuple[str, ...]
    is_tokenized: bool
    before: Amount
    after: Amount
    newly_kept: Amount
    newly_dropped: Amount
    languages: Mapping[str, tuple[Amount, Amount]]
    bins: Mapping[str, tuple[Amount, Amount]]
    reasons: Mapping[str, tuple[int, int]]
    cuts: tuple[CutChange, ...]
    examples_kept: tuple[Example, ...]
    examples_dropped: tuple[Example, ...]


def to_json(found: Preview) -> str:
    """Return the preview as JSON text."""
    return json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class _Group:
    """Documents of one language with the same decisions and quality bins."""

    language: str
    was_kept: bool
    is_kept: bool
    bin_before: str | None
    bin_after: str | None


class _Sample:
    """A uniform sample of NUM_EXAMPLES documents: those with the smallest hashes of their ids."""

    def __init__(self) -> None:
        self._drawn: list[tuple[int, dict[str, Any]]] = []

    def add(self, decisions: pa.Table) -> None:
        """Let the documents of a split take part."""
        keys = compute_order_keys(decisions.column("doc_id").to_numpy(), 0)
        smallest = np.argsort(keys)[:NUM_EXAMPLES]
        rows = decisions.take(pa.array(smallest)).to_pylist()
        drawn = zip(keys[smallest].tolist(), rows, strict=True)
        self._drawn = heapq.nsmallest(
            NUM_EXAMPLES, [*self._drawn, *drawn], key=lambda entry: entry[0]
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The decisions on the documents of the sample."""
        return [row for _, row in self._drawn]


@dataclass
class Comparison:
    """Sums over the splits of a run. Memory does not grow with their number."""

    run: RunFolder
    _sums: dict[_Group, Counter[str]] = field(default_factory=dict[_Group, Counter[str]])
    _decisions: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    _newly_kept: _Sample = field(default_factory=_Sample)
    _newly_dropped: _Sample = field(default_factory=_Sample)

    def add(self, split: RunSplit, before: pa.Table, after: pa.Table) -> None:
        """Add the decisions on a split before and after the change, sorted by document."""
        assert before.column("doc_id").equals(after.column("doc_id")), (
            f"{split.key}: the preview has other documents than select had"
        )
        was_kept = pc.equal(before.column("decision"), KEPT)
        is_kept = pc.equal(after.column("decision"), KEPT)
        documents = pa.table(
            {
                "language": pc.fill_null(after.column("language"), "unknown"),
                "before": was_kept,
                "after": is_kept,
                "bin_before": before.column(QUALITY_BIN.name),
                "bin_after": after.column(QUALITY_BIN.name),
                "copies_before": before.column(NUM_COPIES.name),
                "copies_after": after.column(NUM_COPIES.name),
                "num_chars": after.column("num_chars"),
                "num_tokens": read_num_tokens(self.run, split, before.column("doc_id")),
            }
        )
        self._add_sums(documents)
        self._add_decisions(before.column("decision"), after.column("decision"))
        self._newly_kept.add(before.filter(pc.and_not(is_kept, was_kept)))
        self._newly_dropped.add(after.filter(pc.and_not(was_kept, is_kept)))

    @property
    def is_tokenized(self) -> bool:
        """Whether the run has counted the tokens of the documents that it has kept."""
        return self.run.has_finished(TokenizeDocuments.name)

    def summarize(
        self,
        changes: Mapping[str, tuple[Any, Any]],
        outdated: tuple[str, ...],
        cuts: tuple[CutChange, ...],
    ) -> Preview:
        """Return the preview."""
        before: dict[_Group, Amount] = {}
        after: dict[_Group, Amount] = {}
        for group, sums in self._sums.items():
            if group.was_kept:
                before[group] = _make_amount(sums, sums["tokens_before"])
            if group.is_kept:
                after[group] = _make_amount(sums, self._estimate_tokens(group))
        return Preview(
            run_dir=str(self.run.run_dir),
            changes=changes,
            outdated=outdated,
            is_tokenized=self.is_tokenized,
            before=_sum_amounts(before.values()),
            after=_sum_amounts(after.values()),
            newly_kept=_sum_amounts(after[group] for group in after if not group.was_kept),
            newly_dropped=_sum_amounts(
                before[group] for group in before if not group.is_kept
            ),
            languages=_compare_languages(before, after),
            bins=_compare_bins(before, after),
            reasons=self._count_reasons(),
            cuts=cuts,
            examples_kept=tuple(self._read_example(row) for row in self._newly_kept.rows),
            examples_dropped=tuple(
                self._read_example(row) for row in self._newly_dropped.rows
            ),
        )

    def _add_sums(self, documents: pa.Table) -> None:
        copies = {
            "tokens_before": ("num_tokens", "copies_before"),
            "tokens_after": ("num_tokens", "copies_after"),
            "chars_after": ("num_chars", "copies_after"),
        }
        for name, (amount, number) in copies.items():
            factors = pc.cast(documents.column(number), pa.int64())
            total = pc.multiply(documents.column(amount), factors)
            documents = documents.append_column(name, total)
        sums = [("num_chars", "count"), *((name, "sum") for name in SUMS)]
        grouped = documents.group_by(GROUP_KEYS, use_threads=False).aggregate(sums)
        for row in grouped.to_pylist():
            group = _Group(*(row[name] for name in GROUP_KEYS))
            found = self._sums.setdefault(group, Counter())
            found["num_docs"] += row["num_chars_count"]
            for name in SUMS:
                found[name] += row[f"{name}_sum"] or 0

    def _add_decisions(self, before: pa.ChunkedArray, after: pa.ChunkedArray) -> None:
        pairs = pa.table({"before": before, "after": after})
        grouped = pairs.group_by(pairs.column_names, use_threads=False)
        for row in grouped.aggregate([([], "count_all")]).to_pylist():
            self._decisions[row["before"], row["after"]] += row["count_all"]

    def _count_reasons(self) -> dict[str, tuple[int, int]]:
        before: Counter[str] = Counter()
        after: Counter[str] = Counter()
        for (was, now), number in self._decisions.items():
            before[was] += number
            after[now] += number
        reasons = sorted((before.keys() | after.keys()) - {KEPT})
        return {reason: (before[reason], after[reason]) for reason in reasons}

    def _estimate_tokens(self, group: _Group) -> int:
        """Return the tokens of a group after the change, estimated if they were never counted.

        The estimate is the number of characters times the tokens per character of the kept
        documents of the language, or of all kept documents if the language has none.
        """
        sums = self._sums[group]
        if group.was_kept or not self.is_tokenized:
            return sums["tokens_after"]
        counted = [other for other in self._sums if other.was_kept]
        known = self._sum_up(each for each in counted if each.language == group.language)
        if not known["num_chars"]:
            known = self._sum_up(counted)
        return round(sums["chars_after"] * known["num_tokens"] / max(1, known["num_chars"]))

    def _sum_up(self, groups: Iterable[_Group]) -> Counter[str]:
        return sum((self._sums[group] for group in groups), Counter[str]())

    def _read_example(self, decision: Mapping[str, Any]) -> Example:
        doc_id = int(decision["doc_id"])
        file_name = Annotate.documents.file_name(self.run.splits[doc_id >> 32].key)
        row = read_row(
            self.run.folder(Annotate.name), file_name, doc_id, ["doc_id", "text"]
        )
        return Example(
            doc_id=doc_id,
            url=decision["url"],
            language=decision["language"] or "unknown",
            reason=decision["decision"],
            value=decision["value"],
            limit=decision["limit"],
            detail=decision["detail"],
            text=row["text"][:EXCERPT_CHARS] if row else "",
        )


def _make_amount(sums: Counter[str], num_tokens: int) -> Amount:
    return Amount(sums["num_docs"], sums["num_chars"], num_tokens)


def _compare_bins(
    before: Mapping[_Group, Amount], after: Mapping[_Group, Amount]
) -> dict[str, tuple[Amount, Amount]]:
    named = [each.bin_before for each in before] + [each.bin_after for each in after]
    labels = {label for label in named if label is not None}
    pairs: dict[str, tuple[Amount, Amount]] = {}
    for label in sorted(labels, key=_find_start):
        pairs[label] = (
            _sum_amounts(before[each] for each in before if each.bin_before == label),
            _sum_amounts(after[each] for each in after if each.bin_after == label),
        )
    return pairs


def _find_start(label: str) -> float:
    return float(label.partition("-")[0])


def _compare_languages(
    before: Mapping[_Group, Amount], after: Mapping[_Group, Amount]
) -> dict[str, tuple[Amount, Amount]]:
    languages = {group.language for group in (*before, *after)}
    pairs: dict[str, tuple[Amount, Amount]] = {}
    for language in languages:
        pairs[language] = (_sum_language(language, before), _sum_language(language, after))
    return dict(sorted(pairs.items(), key=lambda item: (-item[1][0].num_docs, item[0])))


def _sum_language(language: str, amounts: Mapping[_Group, Amount]) -> Amount:
    return _sum_amounts(amounts[group] for group in amounts if group.language == language)


def _sum_amounts(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())
