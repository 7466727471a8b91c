"""Count the documents of each domain: read, kept, and lost to each reason."""

from __future__ import annotations

from typing import Any

import numpy as np

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
    names = [name or "" for name in index.names["source_domain"].values]
    decisions = [name or "" for name in index.names["decision"].values]
    domain_of_row = index.read_numbers("source_domain")
    is_kept = index.is_named("decision", KEPT)
    num_docs = np.bincount(domain_of_row, minlength=len(names))
    num_kept = np.bincount(domain_of_row[is_kept], minlength=len(names))
    part = name_part.strip().lower()
    wanted = [i for i, name in enumerate(names) if part in name and num_docs[i]]
    order = {
        "num_docs": lambda i: (-num_docs[i], names[i]),
        "num_kept": lambda i: (-num_kept[i], names[i]),
        "num_lost": lambda i: (num_kept[i] - num_docs[i], names[i]),
        "name": lambda i: names[i],
    }[sort_key]
    page = sorted(wanted, key=order)[offset : offset + num_domains]
    # Positions in the page; rows of other domains get -1.
    places = np.full(len(names), -1)
    places[page] = np.arange(len(page))
    row_places = places[domain_of_row]
    is_lost = (row_places >= 0) & ~is_kept
    pairs = row_places[is_lost] * len(decisions) + index.read_numbers("decision")[is_lost]
    counts = np.bincount(pairs, minlength=len(page) * len(decisions))
    losses = counts.reshape(len(page), len(decisions))
    return {
        "num_domains": len(wanted),
        "domains": [
            {
                "name": names[i],
                "num_docs": int(num_docs[i]),
                "num_kept": int(num_kept[i]),
                "reasons": _list_reasons(losses[place], decisions),
            }
            for place, i in enumerate(page)
        ],
    }


def _list_reasons(counts: Any, decisions: list[str]) -> list[dict[str, Any]]:
    """Return the reasons for which most documents of a domain were lost."""
    order = np.argsort(-counts, kind="stable")[:NUM_REASONS]
    return [
        {"reason": decisions[i], "num_docs": int(counts[i])}
        for i in order.tolist()
        if counts[i]
    ]
