"""Count the documents of each domain: read, kept, and lost to each reason."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.reporting.browse.index import Index
from pipeline.reporting.explain.trace import KEPT

# Reasons that are named for one domain.
NUM_REASONS = 3

# How domains can be sorted; all but the name from the highest number to the lowest.
SORT_KEYS = ("num_docs", "num_kept", "num_lost", "name")


def list_domains(
    index: Index, name_part: str, sort_key: str, offset: int, num_domains: int
) -> dict[str, Any]:
    """Return a page of the table of domains, as JSON.

    Args:
        index: the index.
        name_part: only domains with this part in their names.
        sort_key: one of SORT_KEYS.
        offset: number of domains to pass over.
        num_domains: number of domains to return, if there are enough.
    """
    names, num_docs, num_kept = count_domains(index)
    decisions = [name or "" for name in index.names["decision"].values]
    part = name_part.strip().lower()
    wanted = [i for i, name in enumerate(names) if part in name and num_docs[i]]
    order = {
        "num_docs": lambda i: (-num_docs[i], names[i]),
        "num_kept": lambda i: (-num_kept[i], names[i]),
        "num_lost": lambda i: (num_kept[i] - num_docs[i], names[i]),
        "name": lambda i: names[i],
    }[sort_key]
    page = sorted(wanted, key=order)[offset : offset + num_domains]
    domains: list[dict[str, Any]] = []
    for i, losses in zip(page, _count_losses(index, page), strict=True):
        domains.append(
            {
                "name": names[i],
                "num_docs": int(num_docs[i]),
                "num_kept": int(num_kept[i]),
                "reasons": _list_reasons(losses, decisions),
            }
        )
    return {"num_domains": len(wanted), "domains": domains}


def count_domains(
    index: Index,
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Return the domains, and the documents of each that were read and kept."""
    names = [name or "" for name in index.names["source_domain"].values]
    domains = index.read_numbers("source_domain")
    num_docs = np.bincount(domains, minlength=len(names))
    is_kept = index.is_named("decision", KEPT)
    return names, num_docs, np.bincount(domains[is_kept], minlength=len(names))


def _count_losses(index: Index, domains: list[int]) -> NDArray[np.int64]:
    """Return the lost documents of some domains by decision, (domains, decisions)."""
    # Places in the list; rows of other domains get -1.
    places = np.full(len(index.names["source_domain"].values), -1)
    places[domains] = np.arange(len(domains))
    row_places = places[index.read_numbers("source_domain")]
    is_lost = (row_places >= 0) & ~index.is_named("decision", KEPT)
    num_decisions = len(index.names["decision"].values)
    pairs = row_places[is_lost] * num_decisions + index.read_numbers("decision")[is_lost]
    counts = np.bincount(pairs, minlength=len(domains) * num_decisions)
    return counts.reshape(len(domains), num_decisions)


def _list_reasons(counts: Any, decisions: list[str]) -> list[dict[str, Any]]:
    """Return the reasons for which most documents of a domain were lost."""
    order = np.argsort(-counts, kind="stable")[:NUM_REASONS]
    return [
        {"reason": decisions[i], "num_docs": int(counts[i])}
        for i in order.tolist()
        if counts[i]
    ]
