"""The questions of the page: reads their parameters, and answers with values for JSON.

ANSWERS["documents"](Session(index), Parameters({"domain": ["example.org"]}))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np

from config_files.reader import ConfigError
from pipeline.reporting.browse.differences import compare_texts
from pipeline.reporting.browse.documents import describe_document
from pipeline.reporting.browse.domains import SORT_KEYS, list_domains
from pipeline.reporting.browse.histograms import Decided, describe_histograms, find_edges
from pipeline.reporting.browse.index import Index
from pipeline.reporting.browse.limits import Limit, list_limits, list_overrides
from pipeline.reporting.browse.search import (
    Order,
    Search,
    count_names,
    find_documents,
    list_page,
    parse_scores,
)
from pipeline.reporting.browse.texts import describe_documents, search_texts
from pipeline.reporting.drawing import draw_histogram
from pipeline.reporting.preview.effects import Effects, compare_effects

MAX_ON_PAGE = 100

# The sides of the histograms, from the bottom up.
DRAWN = ("kept", "newly_kept", "newly_dropped", "dropped")

# Documents that change sides, of which the page shows a few.
NUM_EXAMPLES = 5

# Largest doc_id and seed.
MAX_NUMBER = 2**64 - 1


class Session:
    """A run that is browsed."""

    def __init__(self, index: Index) -> None:
        self.index = index

    @cached_property
    def effects(self) -> Effects:
        """The effects of other limits. The latest ones are kept."""
        return Effects(self.index)

    @cached_property
    def limits(self) -> list[Limit]:
        """The limits that can be changed, each with its bounds."""
        limits: list[Limit] = []
        for limit in list_limits(self.index.run.config, self.index.score_names):
            values = self.index.read_numbers(limit.score)[: self.index.num_scored]
            edges, _ = find_edges(values.astype(np.float64))
            low, high = limit.bounds or (float(edges[0]), float(edges[-1]))
            if limit.value is not None:
                low, high = min(low, limit.value), max(high, limit.value)
            limits.append(replace(limit, bounds=(low, high)))
        return limits


class Parameters:
    """The parameters of a question, from the URL. A wrong one raises ConfigError."""

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        """Return a parameter, or ""."""
        return self.texts(name)[0] if self.texts(name) else ""

    def texts(self, name: str) -> Sequence[str]:
        """Return all values of a parameter."""
        return self._values.get(name, ())

    def number(self, name: str, default: int, highest: int = MAX_NUMBER) -> int:
        """Return a whole number of 0 or more."""
        given = self.text(name)
        if not given:
            return default
        # `isdecimal` is true for digits of all scripts, which int() reads too.
        if len(given) > len(str(highest)) or not given.isdecimal() or int(given) > highest:
            raise ConfigError([f"{name} is {given!r}, wanted a number in 0..{highest}"])
        return int(given)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of some words; the first one is the default."""
        given = self.text(name) or choices[0]
        if given not in choices:
            raise ConfigError([f"{name} is {given!r}, wanted one of {', '.join(choices)}"])
        return given


def describe_run(session: Session, parameters: Parameters) -> dict[str, Any]:
    """Return what the page shows before any question: names and numbers of the run."""
    del parameters
    index = session.index
    everything = np.ones(index.num_docs, np.bool_)
    return {
        "run_dir": str(index.run.run_dir),
        "num_docs": index.num_docs,
        "num_scored": index.num_scored,
        "num_splits": index.num_splits,
        "num_planned_splits": len(index.run.splits),
        "decisions": count_names(index, "decision", everything),
        "languages": count_names(index, "language", everything),
        "scores": index.score_names,
    }


def answer_documents(session: Session, parameters: Parameters) -> dict[str, Any]:
    """Return a page of the documents that a search finds."""
    index = session.index
    search = Search(
        url=parameters.text("url"),
        domain=parameters.text("domain"),
        language=parameters.text("language"),
        decision=parameters.text("decision"),
        scores=parse_scores(parameters.texts("score")),
    )
    found = find_documents(index, search)
    num_docs = parameters.number("num_docs", 20, MAX_ON_PAGE)
    answer: dict[str, Any] = {"num_found": int(found.sum())}
    if text := parameters.text("text"):
        first_row = parameters.number("first_row", 0, index.num_docs)
        hits = search_texts(index, found, text, first_row=first_row, max_found=num_docs)
        rows = np.array(hits.rows, np.int64)
        answer |= {"num_searched": hits.num_searched, "next_row": hits.next_row}
    else:
        order = Order(parameters.text("order") or "random", parameters.number("seed", 0))
        offset = parameters.number("offset", 0, index.num_docs)
        rows = list_page(index, found, order, offset, num_docs)
    answer["decisions"] = count_names(index, "decision", found)
    answer["languages"] = count_names(index, "language", found)
    answer["documents"] = describe_documents(index, rows)
    return answer


def answer_document(session: Session, parameters: Parameters) -> dict[str, Any]:
    """Return a document with its trace."""
    return describe_document(session.index, parameters.number("doc_id", 0))


def answer_differences(session: Session, parameters: Parameters) -> dict[str, Any]:
    """Return the words in which two documents differ."""
    first, second = (parameters.number(name, 0) for name in ("first", "second"))
    return compare_texts(session.index, first, second)


def answer_domains(session: Session, parameters: Parameters) -> dict[str, Any]:
    """Return a page of the table of domains."""
    return list_domains(
        session.index,
        parameters.text("name"),
        parameters.choice("order", SORT_KEYS),
        parameters.number("offset", 0, session.index.num_docs),
        parameters.number("num_domains", 50, MAX_ON_PAGE),
    )


def describe_limits(session: Session, parameters: Parameters) -> dict[str, Any]:
    """Return the limits that can be changed."""
    del parameters
    is_outdated = session.effects.is_outdated
    return {
        "limits": [asdict(limit) for limit in session.limits],
        "is_outdated": is_outdated,
    }


def answer_effect(session: Session, parameters: Parameters) -> dict[str, Any]:
    """Return the effect of changed limits, and the histograms of a score under them."""
    index = session.index
    changes: dict[str, str] = {}
    for entry in parameters.texts("set"):
        key, _, value = entry.partition("=")
        changes[key] = value
    overrides = list_overrides(session.limits, changes)
    before = session.effects.compute(())
    after = session.effects.compute(tuple(overrides))
    score = parameters.choice("score", index.score_names)
    found = asdict(compare_effects(index, before, after, num_examples=NUM_EXAMPLES))
    for side in ("examples_kept", "examples_dropped"):
        for example in found[side]:
            example["doc_id"] = str(example["doc_id"])  # exceeds 2^53
    sides = (Decided(effect.filters, effect.is_kept) for effect in (before, after))
    bins = describe_histograms(index, score, *sides)
    for one in bins["histograms"]:
        one["drawing"] = asdict(
            draw_histogram(
                one, bins["edges"], DRAWN, is_log=bins["is_log"], is_stacked=True
            )
        )
    scored = np.arange(index.num_docs) < index.num_scored
    return {
        "overrides": overrides,
        "num_scored": index.num_scored,
        "scored": count_names(index, "language", scored),
        **found,
        "histograms": bins,
    }


ANSWERS: Mapping[str, Callable[[Session, Parameters], dict[str, Any]]] = {
    "run": describe_run,
    "documents": answer_documents,
    "document": answer_document,
    "differences": answer_differences,
    "domains": answer_domains,
    "limits": describe_limits,
    "effect": answer_effect,
}
