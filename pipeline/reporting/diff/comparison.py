"""What has changed from one run to another, as a value."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config.changes import list_changes
from pipeline.phases import registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.extract import Extract
from pipeline.phases.select import Select
from pipeline.phases.tokenize import compute_order_keys
from pipeline.reporting.changes import Amount, CutChange, compare_cuts
from pipeline.reporting.diff.distributions import Distributions, compare_distributions
from pipeline.reporting.diff.pairing import ABSENT, pair_documents, pair_splits
from pipeline.reporting.explain.find import read_row
from pipeline.reporting.explain.trace import KEPT
from pipeline.runs.run_folder import RunFolder, RunNotFound

NUM_EXAMPLES = 3
EXCERPT_CHARS = 200

# Of the choice of examples.
SEED = 0

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


def to_json(found: RunDiff) -> str:
    """Return the comparison as JSON text."""
    value = {"num_changed": found.num_changed, **asdict(found)}
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


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
    sums = _Sums()
    for documents in pair_documents(before, after, pairing):
        sums.add(documents)
    cuts = compare_cuts(
        *(Select.read_cuts(run.folder(Select.name)) for run in (before, after))
    )
    return RunDiff(
        before=str(before.run_dir),
        after=str(after.run_dir),
        config=_compare_configs(before, after),
        stages=dict(list_changes(_list_versions(before), _list_versions(after))),
        phases=tuple(_list_other_phases(before, after)),
        cuts=tuple(cut for cut in cuts if cut.before != cut.after),
        num_same_splits=len(pairing.same),
        read=(sums.num_read["before"], sums.num_read["after"]),
        kept=(sums.sum_kept("before"), sums.sum_kept("after")),
        num_unchanged=sums.num_unchanged,
        transitions=tuple(_list_transitions(sums, before, after)),
        languages=sums.compare_languages(),
        distributions=compare_distributions(before, after, pairing),
    )


def _list_versions(run: RunFolder) -> dict[str, Mapping[str, int]]:
    """Return phase -> stage -> version. Phases without stages have none, as those of old runs."""
    return {phase: stages for phase, stages in run.stage_versions.items() if stages}


def _compare_configs(before: RunFolder, after: RunFolder) -> dict[str, tuple[Any, Any]]:
    changes = list_changes(before.recorded_config, after.recorded_config)
    return {key: pair for key, pair in changes if not key.startswith(UNCOMPARED)}


def _list_other_phases(before: RunFolder, after: RunFolder) -> Iterable[str]:
    """Yield the phases with other fingerprints, without those that are off in both runs."""
    for name in registry.list_phase_names():
        is_off = all(name not in run.stage_versions for run in (before, after))
        if not is_off and before.folders.get(name) != after.folders.get(name):
            yield name


@dataclass
class _Sums:
    """Sums over pairs of documents. Memory does not grow with their number."""

    num_read: Counter[str] = field(default_factory=Counter[str])
    num_unchanged: int = 0
    transitions: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    rows: dict[tuple[str, str], list[dict[str, Any]]] = field(
        default_factory=dict[tuple[str, str], list[dict[str, Any]]]
    )
    _kept: dict[tuple[str, str], Amount] = field(
        default_factory=dict[tuple[str, str], Amount]
    )

    def add(self, documents: pa.Table) -> None:
        """Add documents of `pair_documents`."""
        for side in ("before", "after"):
            self._add_side(side, documents)
        is_same = pc.equal(
            documents.column("decision_before"), documents.column("decision_after")
        )
        changed = documents.filter(pc.invert(is_same))
        self.num_unchanged += documents.num_rows - changed.num_rows
        keys = ["decision_before", "decision_after"]
        grouped = changed.group_by(keys, use_threads=False).aggregate([([], "count_all")])
        for row in grouped.to_pylist():
            pair = (row["decision_before"], row["decision_after"])
            self.transitions[pair] += row["count_all"]
            self._draw(pair, changed)

    def _add_side(self, side: str, documents: pa.Table) -> None:
        decisions = documents.column(f"decision_{side}")
        self.num_read[side] += pc.sum(pc.not_equal(decisions, ABSENT)).as_py() or 0
        kept = documents.filter(pc.equal(decisions, KEPT))
        columns = [f"{name}_{side}" for name in ("language", "num_chars", "num_tokens")]
        language, chars, tokens = columns
        sums = [([], "count_all"), (chars, "sum"), (tokens, "sum")]
        grouped = kept.select(columns).group_by(language, use_threads=False).aggregate(sums)
        for row in grouped.to_pylist():
            numbers = (row["count_all"], row[f"{chars}_sum"], row[f"{tokens}_sum"] or 0)
            key = (side, row[language] or "unknown")
            self._kept[key] = self._kept.get(key, Amount()) + Amount(*numbers)

    def _draw(self, pair: tuple[str, str], changed: pa.Table) -> None:
        """Keep a uniform sample of the documents: those with the smallest hashes of their ids."""
        is_before, is_after = (
            pc.equal(changed.column(f"decision_{side}"), decision)
            for side, decision in zip(("before", "after"), pair, strict=True)
        )
        rows = changed.filter(pc.and_(is_before, is_after))
        ids = pc.coalesce(rows.column("doc_id_before"), rows.column("doc_id_after"))
        keys = compute_order_keys(ids.to_numpy(), SEED)
        smallest = np.argsort(keys)[:NUM_EXAMPLES]
        drawn = self.rows.get(pair, [])
        for row, key in zip(
            rows.take(pa.array(smallest)).to_pylist(), keys[smallest].tolist(), strict=True
        ):
            drawn.append({**row, "key": key})
        self.rows[pair] = sorted(drawn, key=lambda row: row["key"])[:NUM_EXAMPLES]

    def sum_kept(self, side: str) -> Amount:
        """Return what a run has kept."""
        return sum((self._kept[key] for key in self._kept if key[0] == side), Amount())

    def compare_languages(self) -> dict[str, tuple[Amount, Amount]]:
        """Return language -> what is kept before and after, the largest ones first."""
        pairs: dict[str, tuple[Amount, Amount]] = {}
        for _, language in self._kept:
            before = self._kept.get(("before", language), Amount())
            after = self._kept.get(("after", language), Amount())
            pairs[language] = (before, after)

        def order(item: tuple[str, tuple[Amount, Amount]]) -> tuple[int, str]:
            language, (before, after) = item
            return -max(before.num_docs, after.num_docs), language

        return dict(sorted(pairs.items(), key=order))


def _list_transitions(
    sums: _Sums, before: RunFolder, after: RunFolder
) -> Iterable[Transition]:
    order = sorted(sums.transitions.items(), key=lambda item: (-item[1], item[0]))
    for pair, num_docs in order:
        examples = tuple(_make_example(row, before, after) for row in sums.rows[pair])
        yield Transition(*pair, num_docs, examples)


def _make_example(row: Mapping[str, Any], before: RunFolder, after: RunFolder) -> Example:
    text = ""
    for run, doc_id in ((after, row["doc_id_after"]), (before, row["doc_id_before"])):
        if doc_id is not None and not text:
            text = _read_excerpt(run, doc_id)
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
        text,
    )


def _read_excerpt(run: RunFolder, doc_id: int) -> str:
    """Return the beginning of a text as annotate left it, or as it was extracted."""
    key = run.splits[doc_id >> 32].key
    for phase in (Annotate, Extract):
        name = phase.documents.file_name(key)
        if row := read_row(run.folder(phase.name), name, doc_id, ["doc_id", "text"]):
            return row["text"][:EXCERPT_CHARS]
    return ""
