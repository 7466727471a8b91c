"""Find documents by URL, domain, language, decision and scores, and count them.

search = Search(domain="example.org", scores={"perplexity": (100.0, 300.0)})
found = find_documents(index, search)      # (n,) bool
rows = list_page(index, found, Order("random", seed=7), offset=0, num_docs=20)
describe_rows(index, rows)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from config_files.reader import ConfigError
from pipeline.phases.tokenize import compute_order_keys
from pipeline.reporting.browse.index import NAMED, Index, take_rows
from pipeline.reporting.explain.trace import KEPT

# In a search, documents that were dropped for any reason.
DROPPED = "dropped"

# In a search and in answers, documents without a language.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Search:
    """Which documents are wanted. None or empty: all.

    Attributes:
        url: a part of the URL, in any case.
        domain: the host of the URL, or a domain above it.
        language: a code, or UNKNOWN.
        decision: "kept", DROPPED, a reason, or a stage, which stands for all of its reasons.
        scores: stored column -> lowest and highest value, both inclusive. A document without the
            score is not found.
    """

    url: str | None = None
    domain: str | None = None
    language: str | None = None
    decision: str | None = None
    scores: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )


@dataclass(frozen=True)
class Order:
    """The order of the documents that were found.

    Attributes:
        by: "random", "input", or a score; "-perplexity" lists the highest value first.
        seed: of the random order.
    """

    by: str = "random"
    seed: int = 0


def parse_scores(given: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return column -> lowest and highest value, of entries such as `perplexity=100:300`.

    Raises:
        ConfigError: an entry is not COLUMN=LOW:HIGH.
    """
    scores: dict[str, tuple[float, float]] = {}
    for entry in given:
        column, _, limits = entry.partition("=")
        low, colon, high = limits.partition(":")
        try:
            scores[column] = (float(low or "-inf"), float(high or "inf"))
        except ValueError:
            colon = ""
        if not colon:
            raise ConfigError(
                [f"--score {entry!r}: expected COLUMN=LOW:HIGH, like perplexity=:300"]
            )
    return scores


def find_documents(index: Index, search: Search) -> NDArray[np.bool_]:
    """Return which documents are wanted, (n,).

    Raises:
        ConfigError: no stored score has the name of one in the search.
    """
    found = np.ones(index.num_docs, np.bool_)
    if search.decision:
        wanted = search.decision
        found &= _match(index, "decision", lambda name: _is_decision(name, wanted))
    if search.language:
        language = None if search.language == UNKNOWN else search.language
        found &= _match(index, "language", lambda name: name == language)
    if search.domain:
        domain = search.domain.strip().lower()
        found &= _match(index, "source_domain", lambda name: _is_within(name, domain))
    for column, (low, high) in search.scores.items():
        check_score(index, column)
        values = index.read_numbers(column)
        found &= (values >= low) & (values <= high)
    if search.url:
        urls = index.documents.column("url")
        is_match = pc.match_substring(urls, search.url.strip(), ignore_case=True)
        found &= pc.fill_null(is_match, False).to_numpy()
    return found


def check_score(index: Index, column: str) -> None:
    """Raise ConfigError if there is no such score."""
    if column not in index.score_names:
        stored = ", ".join(index.score_names)
        raise ConfigError([f"score {column!r}: no such score; stored are {stored}"])


def _match(
    index: Index, column: str, is_wanted: Callable[[str | None], bool]
) -> NDArray[np.bool_]:
    """Return where the value of a column of NAMED is wanted, (n,)."""
    names = index.names[column].values
    by_number = np.fromiter(map(is_wanted, names), np.bool_, len(names))
    return by_number[index.read_numbers(column)]


def _is_decision(name: str | None, wanted: str) -> bool:
    if name is None or name == wanted:
        return name == wanted
    if wanted == DROPPED:
        return "." in name  # "kept" and "not decided yet" are no reasons
    return name.startswith(f"{wanted}.")


def _is_within(host: str | None, domain: str) -> bool:
    return host is not None and (host == domain or host.endswith(f".{domain}"))


def count_names(index: Index, column: str, found: NDArray[np.bool_]) -> dict[str, int]:
    """Return value -> number of found documents, largest first, for a column of NAMED."""
    names = index.names[column].values
    counts = np.bincount(index.read_numbers(column)[found], minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    return {names[i] or UNKNOWN: int(counts[i]) for i in order.tolist() if counts[i]}


def list_page(
    index: Index, found: NDArray[np.bool_], order: Order, offset: int, num_docs: int
) -> NDArray[np.int64]:
    """Return the rows of some of the found documents, in their order.

    Args:
        index: the index.
        found: (n,) which documents were found.
        order: their order.
        offset: number of documents to pass over.
        num_docs: number of documents to return, if there are enough.
    """
    rows = np.flatnonzero(found)
    keys = _sort_keys(index, rows, order)
    end = offset + num_docs
    if end < len(rows):
        first = np.argpartition(keys, end)[: end + 1]
        rows, keys = rows[first], keys[first]
    rows = rows[np.lexsort((index.doc_ids[rows], keys))]
    return rows[offset:end]


def _sort_keys(index: Index, rows: NDArray[np.int64], order: Order) -> NDArray[Any]:
    """Return the sort key of each row, (num_rows,)."""
    if order.by == "random":
        return compute_order_keys(index.doc_ids[rows], order.seed)
    if order.by == "input":
        return index.doc_ids[rows]
    column = order.by.removeprefix("-")
    check_score(index, column)
    values = index.read_numbers(column)[rows].astype(np.float64)
    return -values if order.by != column else values  # NaN is last either way


def describe_rows(index: Index, rows: NDArray[Any]) -> list[dict[str, Any]]:
    """Return documents with their decisions and scores, as JSON. Ids are text: they exceed 2^53."""
    described: list[dict[str, Any]] = []
    for row in take_rows(index.documents, rows).to_pylist():
        names = {column: index.names[column].values[row[column]] for column in NAMED}
        scores = {name: row[name] for name in index.score_names if row[name] is not None}
        other = row["representative"]
        described.append(
            {
                "doc_id": str(row["doc_id"]),
                "url": row["url"],
                "title": row.get("title"),
                "domain": names["source_domain"],
                "language": names["language"] or UNKNOWN,
                "decision": names["decision"],
                "is_kept": names["decision"] == KEPT,
                "value": row["value"],
                "limit": row["limit"],
                "representative": None if other is None else str(other),
                "scores": scores,
            }
        )
    return described
