"""What other thresholds would keep and drop, from the scores that a run has stored. Nothing is written to the run.

Promises: the fates are those that a run with these settings would write, document for document, because the very same
stages judge the very same scores, and cutoffs are taken from the run's histograms as `select` takes them. A change that
would renew more than `select` is refused, with the phase that would have to run again.
Leaves to others: the rules (stages/), doing it for good (`python -m pipeline run`), single documents (ledger.py).

    found = recut(RunFolder.open("runs/ccnet"), ["select.language.min_score=0.65"])
    found.before.num_docs, found.after.num_docs     # 10252, 9871
    print_recut(found, Console())
"""

from __future__ import annotations

import heapq
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.errors import RunAborted, TaskFailed
from pipeline.execution.task import run_task
from pipeline.phases import registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments, order_keys
from pipeline.planning.plan import plan_splits
from pipeline.planning.recorded_plan import load_plan
from pipeline.planning.run_plan import RunPlan
from pipeline.reporting.explain.find import read_row
from pipeline.reporting.explain.text import format_values
from pipeline.reporting.tables import make_table
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder, RunNotFound, RunSplit
from storage import open_store

NUM_EXAMPLES = 10
EXCERPT_CHARS = 100
KEPT = "kept"


@dataclass(frozen=True)
class Amount:
    """Documents, and what is in them."""

    num_docs: int = 0
    num_chars: int = 0
    num_tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.num_docs + other.num_docs,
            self.num_chars + other.num_chars,
            self.num_tokens + other.num_tokens,
        )


@dataclass(frozen=True)
class Example:
    """A document whose fate would be another, and what decides it: the rule that drops it, before or after."""

    doc_id: int
    url: str
    language: str
    reason: str
    value: float | None
    limit: float | None
    detail: str | None
    text: str  # its beginning


@dataclass(frozen=True)
class Preview:
    """What a change of thresholds does to a run. Drawn at random, but the same each time: which examples are shown."""

    run_dir: str
    changes: Mapping[str, tuple[Any, Any]]  # key -> value before and after
    renewed: tuple[
        str, ...
    ]  # phases that a run would do anew although nothing of theirs was changed
    is_tokenized: bool  # else all numbers of tokens are 0
    before: Amount
    after: Amount
    newly_kept: Amount  # their tokens are estimated: they were never tokenized
    newly_dropped: Amount
    languages: Mapping[str, tuple[Amount, Amount]]  # most before first
    reasons: Mapping[str, tuple[int, int]]  # documents dropped by select, before and after
    examples_kept: tuple[Example, ...]  # newly; the reason is the one before
    examples_dropped: tuple[Example, ...]


def preview(run: RunFolder, overrides: Sequence[str]) -> Preview:
    """What the run would keep if its config were changed like this.

    Args:
        run: a run that has got as far as select.
        overrides: `key.of.key=value`, as for `--set`.

    Raises:
        ConfigError: a fault in the overrides, or a change of more than select.
        RunNotFound: select is not done yet.
        RunAborted: a stage could not do it.
    """
    for phase in ("annotate", "fuzzy_dedup", "select"):
        if not run.has_finished(phase):
            raise RunNotFound(
                f"{run.run_dir}: {phase} is not done yet; run the config to its end first"
            )
    stored, changed = run.change_config(), run.change_config(overrides)
    changes = dict(_changes(stored.model_dump(mode="json"), changed.model_dump(mode="json")))
    _refuse_more_than_select(changes)
    totals = _Totals(run)
    for split, decisions in zip(run.splits, decisions_with(run, changed), strict=True):
        totals.add(split, read_decisions(run.folder("select"), split), decisions)
    return totals.sum(changes, _renewed(run, stored))


def decisions_with(run: RunFolder, config: RunConfig) -> Iterator[pa.Table]:
    """The fates that select would write under this config: a table per unit, sorted by document.

    Raises:
        ConfigError: the stored scores are not enough for it.
        RunAborted: a stage could not do it.
    """
    with tempfile.TemporaryDirectory(prefix="recut-") as folder:
        phase = _SelectElsewhere(load_plan(run, config), PhaseFolder(open_store(folder)))
        phase.folder.begin()
        try:
            phase.prepare_tasks()
        except (ValueError, TaskFailed) as error:
            raise ConfigError(
                [f"select: {error}; what it needs was not stored by this run"]
            ) from error
        for split in run.splits:
            result = run_task(phase, split.key, config.engine)
            if result.failed is not None:
                raise RunAborted(f"{run.run_dir}, split {split.key}: {result.failed}")
            yield read_decisions(phase.folder, split)
            phase.folder.path(Select.decisions.file_name(split.key)).unlink()


def read_decisions(folder: PhaseFolder, split: RunSplit) -> pa.Table:
    """A unit's fates, sorted by document."""
    with folder.open(Select.decisions.file_name(split.key)) as file:
        return pq.read_table(file)


class _SelectElsewhere(Select):
    """select, with its outputs in a folder of their own."""

    def __init__(self, plan: RunPlan, elsewhere: PhaseFolder) -> None:
        super().__init__(plan)
        self._elsewhere = elsewhere

    @property
    def folder(self) -> PhaseFolder:
        """Not the run's."""
        return self._elsewhere


# ------------------------------------------------------------------------------------------------------- what is asked


def _changes(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The keys whose values differ: the innermost that both have."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        if before != after:
            yield key, (before, after)
        return
    for name in [*before, *(name for name in after if name not in before)]:
        yield from _changes(before.get(name), after.get(name), f"{key}.{name}" if key else name)


def _refuse_more_than_select(changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise ConfigError with a line for each key that is not of select; what changes no byte may change."""
    phase_of = {name: name for name in registry.list_phase_names()}
    phase_of |= {"input": "extract", "run_dir": "extract", "previous_runs": "paragraph_dedup"}
    free = ("select", "engine", "storage")
    others = {key: phase_of[top] for key in changes if (top := key.split(".")[0]) not in free}
    if others:
        raise ConfigError(
            [
                f"--set {key}: {phase} would have to run again, and what follows; recut changes nothing but select. "
                f"`python -m pipeline run` with the same --set does it, and keeps what is done before {phase}"
                for key, phase in others.items()
            ]
        )


def _renewed(run: RunFolder, stored: RunConfig) -> tuple[str, ...]:
    """Phases before select that this software would do anew: a stage has changed since, or a model has."""
    plan = plan_splits(stored, load_plan(run, stored).splits, run.previous)
    return tuple(
        phase.name
        for phase in plan.phases
        if phase.name in plan.phase("select").parents
        and phase.fingerprint is not None
        and run.folders.get(phase.name) != f"{phase.name}-{phase.fingerprint}"
    )


# ------------------------------------------------------------------------------------------------------------ counting


@dataclass
class _Totals:
    """Sums over units; memory does not grow with their number."""

    run: RunFolder
    _amounts: dict[tuple[str, bool, bool], Amount] = field(
        default_factory=dict[tuple[str, bool, bool], Amount]
    )
    _decisions: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    _examples: dict[bool, list[tuple[int, dict[str, Any]]]] = field(
        default_factory=lambda: {True: [], False: []}
    )

    def add(self, split: RunSplit, before: pa.Table, after: pa.Table) -> None:
        """Take a unit's fates before and after, sorted by document."""
        assert before.column("doc_id").equals(after.column("doc_id")), (
            f"{split.key}: other documents than select had"
        )
        was_kept, is_kept = (
            pc.equal(decisions.column("decision"), KEPT) for decisions in (before, after)
        )
        rows = pa.table(
            {
                "language": pc.fill_null(after.column("language"), "unknown"),
                "before": was_kept,
                "after": is_kept,
                "num_chars": after.column("num_chars"),
                "num_tokens": self._tokens(split, before.column("doc_id")),
            }
        )
        sums = [("num_chars", "count"), ("num_chars", "sum"), ("num_tokens", "sum")]
        for row in (
            rows.group_by(["language", "before", "after"], use_threads=False)
            .aggregate(sums)
            .to_pylist()
        ):
            key = row["language"], row["before"], row["after"]
            amount = Amount(
                row["num_chars_count"], row["num_chars_sum"], row["num_tokens_sum"] or 0
            )
            self._amounts[key] = self._amounts.get(key, Amount()) + amount
        decisions = pa.table(
            {"before": before.column("decision"), "after": after.column("decision")}
        )
        for row in (
            decisions.group_by(decisions.column_names, use_threads=False)
            .aggregate([([], "count_all")])
            .to_pylist()
        ):
            self._decisions[row["before"], row["after"]] += row["count_all"]
        self._draw(after.filter(pc.and_not(was_kept, is_kept)), kept=False)
        self._draw(before.filter(pc.and_not(is_kept, was_kept)), kept=True)

    def _tokens(self, split: RunSplit, doc_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """(n,) int64: the tokens of those that the run has tokenized, else null."""
        if not self.is_tokenized:
            return pa.chunked_array([pa.nulls(len(doc_ids), pa.int64())])
        with self.run.folder("tokenize").map(
            TokenizeDocuments.documents.file_name(split.key)
        ) as source:
            index = pa.ipc.open_file(source).read_all().select(["doc_id", "num_tokens"])
            place = pc.index_in(doc_ids, value_set=index.column("doc_id").combine_chunks())
            return index.column("num_tokens").take(place)

    @property
    def is_tokenized(self) -> bool:
        """Whether the run knows the tokens of what it has kept."""
        return self.run.folder("tokenize").complete()

    def _draw(self, decisions: pa.Table, kept: bool) -> None:
        """Let a unit's documents draw lots for a place among the examples; the rows tell why they are dropped."""
        keys = order_keys(decisions.column("doc_id").to_numpy(), 0)
        drawn = np.argsort(keys)[:NUM_EXAMPLES]
        lots = zip(keys[drawn].tolist(), decisions.take(pa.array(drawn)).to_pylist(), strict=True)
        self._examples[kept] = heapq.nsmallest(
            NUM_EXAMPLES, [*self._examples[kept], *lots], key=lambda lot: lot[0]
        )

    def sum(self, changes: Mapping[str, tuple[Any, Any]], renewed: tuple[str, ...]) -> Preview:
        """The account."""
        amounts = {key: self._with_estimate(*key) for key in self._amounts}
        before, after = ({k: a for k, a in amounts.items() if k[side]} for side in (1, 2))
        languages = {
            language: (_of_language(language, before), _of_language(language, after))
            for language in {key[0] for key in (*before, *after)}
        }
        dropped = sorted({decision for pair in self._decisions for decision in pair} - {KEPT})
        return Preview(
            run_dir=str(self.run.run_dir),
            changes=changes,
            renewed=renewed,
            is_tokenized=self.is_tokenized,
            before=_total(before.values()),
            after=_total(after.values()),
            newly_kept=_total(a for (_, was, _), a in after.items() if not was),
            newly_dropped=_total(a for (_, _, stays), a in before.items() if not stays),
            languages=dict(
                sorted(languages.items(), key=lambda item: (-item[1][0].num_docs, item[0]))
            ),
            reasons={
                decision: (
                    sum(n for (was, _), n in self._decisions.items() if was == decision),
                    sum(n for (_, then), n in self._decisions.items() if then == decision),
                )
                for decision in dropped
            },
            examples_kept=tuple(self._example(row) for _, row in self._examples[True]),
            examples_dropped=tuple(self._example(row) for _, row in self._examples[False]),
        )

    def _with_estimate(self, language: str, was_kept: bool, is_kept: bool) -> Amount:
        """An amount whose tokens, where they were never counted, are by the characters of the kept of its language."""
        amount = self._amounts[language, was_kept, is_kept]
        if was_kept or not self.is_tokenized:
            return amount
        counted = {key: a for key, a in self._amounts.items() if key[1]}
        known = _of_language(language, counted)
        known = known if known.num_chars else _total(counted.values())
        num_tokens = round(amount.num_chars * known.num_tokens / max(1, known.num_chars))
        return Amount(amount.num_docs, amount.num_chars, num_tokens)

    def _example(self, decision: Mapping[str, Any]) -> Example:
        doc_id = int(decision["doc_id"])
        name = Annotate.documents.file_name(self.run.splits[doc_id >> 32].key)
        row = read_row(self.run.folder("annotate"), name, doc_id, ["doc_id", "text"])
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


def _of_language(language: str, amounts: Mapping[tuple[str, bool, bool], Amount]) -> Amount:
    return _total(amount for key, amount in amounts.items() if key[0] == language)


def _total(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())


# ------------------------------------------------------------------------------------------------------------- showing


def to_json(found: Preview) -> str:
    """The account for programs."""
    return json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n"


def print_preview(found: Preview, console: Console) -> None:
    """What changes, summed up, and examples both ways."""
    for key, (before, after) in found.changes.items():
        console.print(f"{key}: {_in_yaml(before)} -> {_in_yaml(after)}", markup=False)
    for phase in found.renewed:
        console.print(
            f"Note: a run would do {phase} anew, since a stage or a model has changed; its old scores are used."
        )
    console.print()
    rows = [
        _row(name, getattr(found, name))
        for name in ("before", "after", "newly_kept", "newly_dropped")
    ]
    console.print(make_table("What is kept", ("", "documents", "characters", "tokens"), rows))
    if found.is_tokenized and found.newly_kept.num_docs:
        console.print(
            "Tokens of what is newly kept are estimated by its characters: it was never tokenized."
        )
    console.print(
        make_table(
            "Kept, by language",
            ("language", "before", "after", "change", "tokens"),
            _language_rows(found),
        )
    )
    rows = [(reason, *_moved(before, after)) for reason, (before, after) in found.reasons.items()]
    console.print(
        make_table("Dropped by select, by reason", ("reason", "before", "after", "change"), rows)
    )
    _print_examples(
        "Newly kept", found.newly_kept.num_docs, found.examples_kept, "was dropped:", console
    )
    _print_examples(
        "Newly dropped",
        found.newly_dropped.num_docs,
        found.examples_dropped,
        "would be dropped:",
        console,
    )
    console.print(
        "\nNothing was written. `python -m pipeline run CONFIG` with the same --set does it for good."
    )


def _row(name: str, amount: Amount) -> tuple[str, str, str, str]:
    return (
        name.replace("_", " "),
        f"{amount.num_docs:,}",
        f"{amount.num_chars:,}",
        f"{amount.num_tokens:,}",
    )


def _moved(before: int, after: int) -> tuple[str, str, str]:
    return f"{before:,}", f"{after:,}", f"{after - before:+,}" if after != before else ""


def _language_rows(found: Preview) -> Iterator[tuple[str, ...]]:
    """The twelve largest, and the rest summed up."""
    pairs = list(found.languages.items())
    rest = [pair for _, pair in pairs[12:]]
    if rest:
        summed = _total(before for before, _ in rest), _total(after for _, after in rest)
        pairs = [*pairs[:12], (f"{len(rest)} more", summed)]
    for name, (before, after) in pairs:
        yield name, *_moved(before.num_docs, after.num_docs), f"{after.num_tokens:,}"


def _print_examples(
    title: str, num_docs: int, examples: Sequence[Example], word: str, console: Console
) -> None:
    if not examples:
        return
    shown = "" if len(examples) == num_docs else f", {len(examples)} of them drawn at random"
    console.print(f"\n{title}: {num_docs:,} documents{shown}", markup=False)
    for example in examples:
        console.print(f"  {example.url} ({example.language})", markup=False)
        console.print(f"    {word} {example.reason}{format_values(vars(example))}", markup=False)
        console.print(f"    {example.text!r}", markup=False)


def _in_yaml(value: Any) -> str:
    """A value as `--set` takes it."""
    return json.dumps(value, ensure_ascii=False)
