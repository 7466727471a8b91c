"""What other limits would keep: decisions on all documents, from the scores of the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from config_files.reader import ConfigError
from pipeline.errors import TaskFailed
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.select import Select
from pipeline.phases.tokenize import compute_order_keys
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.browse.index import Index, Names, decode_languages, take_rows
from pipeline.reporting.browse.search import UNKNOWN, describe_rows
from pipeline.reporting.browse.texts import read_excerpts
from pipeline.reporting.explain.trace import KEPT
from pipeline.reporting.preview.stored_scores import SelectInMemory, change_plan
from pipeline.runs.run_folder import RunNotFound
from stages.contract import Stage

# Documents that change sides, of which the page shows a few.
NUM_EXAMPLES = 5

# Decisions under other limits that are kept: 2 bytes a document each.
NUM_CACHED = 4


@dataclass(frozen=True)
class Effect:
    """The decisions of select with changed limits.

    Attributes:
        phase: the phase with these limits.
        filters: its filters, opened.
        documents: the scored documents as its filters read them.
        decisions: (num_scored,) int16, places in `names`.
        names: "kept", then the reasons.
    """

    phase: SelectInMemory
    filters: Sequence[Stage[Any]]
    documents: pa.Table
    decisions: NDArray[np.int16]
    names: Sequence[str]

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

    def __init__(self, index: Index) -> None:
        """Check that the run has decided.

        Raises:
            RunNotFound: select is not done yet.
        """
        if not index.run.has_finished(Select.name):
            raise RunNotFound(
                f"{index.run.run_dir}: select is not done yet; run the config to its end first"
            )
        self._index = index
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
            ConfigError: an override is wrong.
        """
        config = self._index.run.change_config(overrides)
        phase = SelectInMemory(change_plan(self._plan, config), self.documents)
        try:
            dropped = phase.decide_all()
        except (ValueError, TaskFailed) as error:
            raise ConfigError([f"select: {error}"]) from error
        names = Names()
        names.encode(pa.chunked_array([[KEPT]]))
        reasons = names.encode(dropped.column("reason")).to_numpy()
        decisions = np.zeros(self._index.num_scored, np.int16)
        scored_ids = self._index.doc_ids[: self._index.num_scored]
        decisions[np.searchsorted(scored_ids, dropped.column("doc_id").to_numpy())] = (
            reasons
        )
        found = [name or "" for name in names.values]
        return Effect(phase, phase.open_filters(), self.documents, decisions, found)


def compare_effects(index: Index, before: Effect, after: Effect) -> dict[str, Any]:
    """Return what changes, as JSON: numbers in all, by language and by reason."""
    reasons_before, reasons_after = before.count_reasons(), after.count_reasons()
    reasons = {
        name: [reasons_before.get(name, 0), reasons_after.get(name, 0)]
        for name in sorted(reasons_before.keys() | reasons_after.keys())
    }
    num_chars = index.read_numbers("num_chars")[: index.num_scored]
    return {
        "num_scored": index.num_scored,
        "num_kept": [int(effect.is_kept.sum()) for effect in (before, after)],
        "num_chars": [int(num_chars[effect.is_kept].sum()) for effect in (before, after)],
        "languages": _compare_languages(index, before, after),
        "reasons": reasons,
        "newly_kept": _list_examples(index, ~before.is_kept & after.is_kept, before),
        "newly_dropped": _list_examples(index, before.is_kept & ~after.is_kept, after),
    }


def _compare_languages(index: Index, before: Effect, after: Effect) -> dict[str, list[int]]:
    """Return language -> documents scored, kept before, kept after; most documents first."""
    names = index.names["language"].values
    languages = index.read_numbers("language")[: index.num_scored]
    counts = np.stack(
        [
            np.bincount(languages[chosen], minlength=len(names))
            for chosen in (slice(None), before.is_kept, after.is_kept)
        ]
    )
    order = np.argsort(-counts[0], kind="stable").tolist()
    return {names[i] or UNKNOWN: counts[:, i].tolist() for i in order if counts[0, i]}


def _list_examples(
    index: Index, is_changed: NDArray[np.bool_], dropping: Effect
) -> dict[str, Any]:
    """Return the number of changed documents, and a few with the rule that drops them.

    Args:
        index: the index.
        is_changed: (num_scored,) the documents.
        dropping: the limits under which they are dropped.
    """
    rows = np.flatnonzero(is_changed)
    keys = compute_order_keys(index.doc_ids[rows], 0)
    # The smallest keys are a uniform sample, which stays similar while a slider moves.
    num_examples = min(NUM_EXAMPLES, len(rows))
    smallest = np.argpartition(keys, num_examples - 1)[:num_examples] if len(rows) else []
    chosen = rows[smallest]
    documents = take_rows(dropping.documents, chosen)
    dropped = {row["doc_id"]: row for row in dropping.phase.decide(documents).to_pylist()}
    excerpts = read_excerpts(index, chosen)
    examples: list[dict[str, Any]] = []
    for described in describe_rows(index, chosen):
        doc_id = int(described["doc_id"])
        rule = {
            name: dropped[doc_id][name] for name in ("reason", "value", "limit", "detail")
        }
        examples.append({**described, **rule, "excerpt": excerpts.get(doc_id)})
    return {"num_docs": len(rows), "examples": examples}
