"""What has changed from one run to another, as a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config.changes import list_changes
from pipeline.phases import registry
from pipeline.phases.select import Select
from pipeline.phases.tokenize import compute_order_keys
from pipeline.reporting.browse.search import UNKNOWN
from pipeline.reporting.changes import (
    Amount,
    CutChange,
    compare_cuts,
    pair_amounts,
    sum_amounts,
)
from pipeline.reporting.diff.distributions import Distributions, compare_distributions
from pipeline.reporting.diff.pairing import ABSENT, pair_documents, pair_splits
from pipeline.reporting.explain.trace import KEPT
from pipeline.reporting.queries import Row, Totals, add_ones, read_text
from pipeline.runs.run_folder import RunFolder, RunNotFound

NUM_EXAMPLES = 3
EXCERPT_CHARS = 200

# Of the choice of examples.
SEED = 0

SIDES = ("before", "after")

# Sums over pairs of documents.
GROUPS = [f"{name}_{side}" for name in ("decision", "language") for side in SIDES]
SUMS = [f"{name}_{side}" for name in ("num_chars", "num_tokens") for side in SIDES]
SUMS.append("num_docs")

# The decisions on a document in both runs.
Pair = tuple[str, str]

# Keys that change no output.
UNCOMPARED = ("run_dir", "engine.", "storage.", "report.")


@dataclass(frozen=True)
class Example:
    """A document whose decision has changed.

    Attributes:
        doc_id_before, doc_id_after: None in the run that does not have it.
        rule_before, rule_after: value, limit and detail of the rule that dropped it.
        text: its first EXCERPT_CHARS characters, where they are stored.
    """

    doc_id_before: int | None
    doc_id_after: int | None
    url: str
    language: str | None
    rule_before: Mapping[str, Any]
    rule_after: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class Transition:
    """Documents whose decision has changed from one to another."""

    before: str
    after: str
    num_docs: int
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class RunDiff:
    """What has changed from one run to another.

    Attributes:
        before, after: the folders of the runs.
        config: key -> value before and after, of the keys that have an effect on outputs.
        stages: `phase.stage` -> version before and after.
        phases: phases whose outputs depend on something that has changed, in their order.
        cuts: limits from the scores of the run, where they have changed.
        num_same_splits: input splits of the same files, whose documents are compared by their
            place; those of the others are compared by URL.
        read, kept: documents, characters and tokens before and after. Copies of `select.mix` do not
            count.
        num_unchanged: documents with the same decision in both runs.
        transitions: decisions that have changed; most documents first.
        languages: language -> kept documents and tokens before and after, largest first.
        distributions: scores and domains.
    """

    before: str
    after: str
    config: Mapping[str, tuple[Any, Any]]
    stages: Mapping[str, tuple[Any, Any]]
    phases: tuple[str, ...]
    cuts: tuple[CutChange, ...]
    num_same_splits: int
    read: tuple[int, int]
    kept: tuple[Amount, Amount]
    num_unchanged: int
    transitions: tuple[Transition, ...]
    languages: Mapping[str, tuple[Amount, Amount]]
    distributions: Distributions

    @property
    def num_changed(self) -> int:
        """Documents with another decision, those that only one run has included."""
        return sum(transition.num_docs for transition in self.transitions)


def to_value(found: RunDiff) -> dict[str, Any]:
    """Return the comparison as a JSON value."""
    return {"num_changed": found.num_changed, **asdict(found)}


def compare_runs(before: RunFolder, after: RunFolder) -> RunDiff:
    """Compare two runs that have finished select.

    Raises:
        RunNotFound: select is not done in one of the runs.
    """
    for run in (before, after):
        if not run.has_finished(Select.name):
            raise RunNotFound(
                f"{run.run_dir}: select is not done yet; run the config to its end first"
            )
    pairing = pair_splits(before, after)
    totals = Totals(GROUPS, SUMS)
    drawn: dict[Pair, pa.Table] = {}
    for documents in pair_documents(before, after, pairing):
        totals.add(add_ones(documents))
        _draw(drawn, documents)
    groups: list[Row] = totals.total().to_pylist()
    kept = [_sum_kept(groups, side) for side in SIDES]
    cuts = compare_cuts(
        *(Select.read_cuts(run.folder(Select.name)) for run in (before, after))
    )
    return RunDiff(
        before=str(before.run_dir),
        after=str(after.run_dir),
        config={
            key: pair
            for key, pair in list_changes(before.recorded_config, after.recorded_config)
            if not key.startswith(UNCOMPARED)
        },
        stages=dict(list_changes(_list_versions(before), _list_versions(after))),
        phases=tuple(_list_other_phases(before, after)),
        cuts=tuple(cut for cut in cuts if cut.before != cut.after),
        num_same_splits=len(pairing.same),
        read=(_count_read(groups, "before"), _count_read(groups, "after")),
        kept=(sum(kept[0].values(), Amount()), sum(kept[1].values(), Amount())),
        num_unchanged=sum(
            row["num_docs"]
            for row in groups
            if row["decision_before"] == row["decision_after"]
        ),
        transitions=tuple(_list_transitions(groups, drawn, before, after)),
        languages=pair_amounts(kept[0], kept[1]),
        distributions=compare_distributions(before, after, pairing),
    )


def _list_versions(run: RunFolder) -> dict[str, Mapping[str, int]]:
    """Return phase -> stage -> version. Phases without stages have none, as those of old runs."""
    return {phase: stages for phase, stages in run.stage_versions.items() if stages}


def _list_other_phases(before: RunFolder, after: RunFolder) -> Iterable[str]:
    """Yield the phases with other fingerprints, without those that are off in both runs."""
    for name in registry.list_phase_names():
        is_off = all(name not in run.stage_versions for run in (before, after))
        if not is_off and before.folders.get(name) != after.folders.get(name):
            yield name


def _draw(drawn: dict[Pair, pa.Table], documents: pa.Table) -> None:
    """Keep a uniform sample of each transition: the documents with the smallest hashes of their ids."""
    columns = [documents.column(f"decision_{side}") for side in SIDES]
    changed = documents.filter(pc.not_equal(*columns))
    ids = pc.coalesce(changed.column("doc_id_before"), changed.column("doc_id_after"))
    keys = compute_order_keys(ids.to_numpy(), SEED)
    changed = changed.append_column("key", pa.array(keys))
    names = GROUPS[:2]
    for row in changed.group_by(names, use_threads=False).aggregate([]).to_pylist():
        pair = (row[names[0]], row[names[1]])
        is_pair = pc.and_(*map(pc.equal, changed.select(names).columns, pair))
        rows = changed.filter(is_pair)
        both = pa.concat_tables([drawn[pair], rows]) if pair in drawn else rows
        drawn[pair] = both.sort_by("key").slice(0, NUM_EXAMPLES)


def _count_read(groups: Iterable[Row], side: str) -> int:
    return sum(row["num_docs"] for row in groups if row[f"decision_{side}"] != ABSENT)


def _sum_kept(groups: Iterable[Row], side: str) -> dict[str, Amount]:
    """Return language -> what a run has kept."""
    kept = (row for row in groups if row[f"decision_{side}"] == KEPT)
    columns = (f"{name}_{side}" for name in ("language", "num_chars", "num_tokens"))
    amounts = sum_amounts(kept, *columns)
    return {language or UNKNOWN: amount for language, amount in amounts.items()}


def _list_transitions(
    groups: Iterable[Row],
    drawn: Mapping[Pair, pa.Table],
    before: RunFolder,
    after: RunFolder,
) -> Iterable[Transition]:
    counts: Counter[Pair] = Counter()
    for row in groups:
        counts[row["decision_before"], row["decision_after"]] += row["num_docs"]
    for pair, num_docs in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if pair in drawn:
            rows = drawn[pair].to_pylist()
            examples = tuple(_make_example(row, before, after) for row in rows)
            yield Transition(*pair, num_docs, examples)


def _make_example(row: Mapping[str, Any], before: RunFolder, after: RunFolder) -> Example:
    text = None
    for run, doc_id in ((after, row["doc_id_after"]), (before, row["doc_id_before"])):
        if doc_id is not None and not text:
            text = read_text(run, doc_id)
    rules = [
        {name: row[f"{name}_{side}"] for name in ("value", "limit", "detail")}
        for side in ("before", "after")
    ]
    return Example(
        row["doc_id_before"],
        row["doc_id_after"],
        row["url_after"] or row["url_before"] or "",
        row["language_after"] or row["language_before"],
        rules[0],
        rules[1],
        (text or "")[:EXCERPT_CHARS],
    )
