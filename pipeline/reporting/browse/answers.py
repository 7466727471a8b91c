"""The questions of the page: reads their parameters, and answers with values for JSON.

ANSWERS["documents"](index, Parameters({"domain": ["example.org"]}))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from config_files.reader import ConfigError
from pipeline.reporting.browse.documents import describe_document
from pipeline.reporting.browse.domains import SORT_KEYS, list_domains
from pipeline.reporting.browse.index import Index
from pipeline.reporting.browse.search import (
    Order,
    Search,
    count_names,
    describe_rows,
    find_documents,
    list_page,
)
from pipeline.reporting.browse.texts import read_excerpts, search_texts
from pipeline.reporting.samples import parse_scores

MAX_ON_PAGE = 100

# Largest doc_id and seed.
MAX_NUMBER = 2**64 - 1


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


def describe_run(index: Index, parameters: Parameters) -> dict[str, Any]:
    """Return what the page shows before any question: names and numbers of the run."""
    del parameters
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


def answer_documents(index: Index, parameters: Parameters) -> dict[str, Any]:
    """Return a page of the documents that a search finds."""
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
    excerpts = read_excerpts(index, rows)
    answer["documents"] = [
        {**document, "excerpt": excerpts.get(int(document["doc_id"]))}
        for document in describe_rows(index, rows)
    ]
    return answer


def answer_document(index: Index, parameters: Parameters) -> dict[str, Any]:
    """Return a document with its trace."""
    return describe_document(index, parameters.number("doc_id", 0))


def answer_domains(index: Index, parameters: Parameters) -> dict[str, Any]:
    """Return a page of the table of domains."""
    return list_domains(
        index,
        parameters.text("name"),
        parameters.choice("order", SORT_KEYS),
        parameters.number("offset", 0, index.num_docs),
        parameters.number("num_domains", 50, MAX_ON_PAGE),
    )


ANSWERS: Mapping[str, Callable[[Index, Parameters], dict[str, Any]]] = {
    "run": describe_run,
    "documents": answer_documents,
    "document": answer_document,
    "domains": answer_domains,
}
