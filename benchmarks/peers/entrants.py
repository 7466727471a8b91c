"""The programs that are compared. Each runs in a separate environment, as one process.

    python -m benchmarks.peers.entrants CHAIN NAME PAGES MODELS OUTPUT

PAGES has the files of `pages.py`. MODELS has `lid.bin` (fastText), and `en.sp.model` (SentencePiece)
and `en.arpa.bin` (KenLM) of each language with a language model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import bare_calls, others, ours
from benchmarks.peers.task import Decisions, Task, read_texts


@dataclass(frozen=True)
class Entrant:
    """A program in a chain; the entrants of a chain read the same file.

    Attributes:
        requirements: of its environment, a file in `requirements/`; None is this project's.
        work: what it does, for the table.
        run: does the work; this is timed.
        read_decisions: reads what it decided; this is not timed.
    """

    chain: str
    name: str
    requirements: str | None
    work: str
    run: Callable[[Task], None]
    read_decisions: Callable[[Task], Decisions] | None = None


_RULES = "language, Gopher's quality rules, MinHash signatures"

ENTRANTS = (
    Entrant(
        "ccnet", "corpusmill", None,
        "paragraphs, language, perplexity, buckets; tokens and shards, too",
        ours.run_ccnet, ours.read_decisions,
    ),
    Entrant(
        "ccnet", "cc_net", "cc_net", "paragraphs, language, perplexity, buckets",
        others.run_cc_net, others.read_cc_net,
    ),
    Entrant(
        "ccnet", "bare calls", None, "SHA-1, fastText, SentencePiece, KenLM; nothing else",
        bare_calls.run_bare_calls,
    ),
    Entrant(
        "quality", "corpusmill", None, f"{_RULES}; tokens and shards, too",
        ours.run_quality, ours.read_decisions,
    ),
    Entrant("quality", "datatrove", "datatrove", _RULES, others.run_datatrove, others.read_datatrove),
    Entrant(
        "quality", "dolma", "dolma",
        "language, Gopher's quality and repetition rules, duplicate paragraphs (Bloom filter)",
        others.run_dolma, others.read_dolma,
    ),
    Entrant(
        "quality", "data-juicer", "data-juicer", "language, number of words, MinHash deduplication",
        others.run_data_juicer, others.read_data_juicer,
    ),
    Entrant(
        "html", "corpusmill", None, f"blocks, {_RULES}; tokens and shards, too",
        ours.run_html, ours.read_decisions,
    ),
    Entrant(
        "html", "engine trafilatura", None,
        f"corpusmill with trafilatura, {_RULES}; tokens and shards, too",
        ours.run_html_trafilatura, ours.read_decisions,
    ),
    Entrant(
        "html", "datatrove", "datatrove", f"trafilatura, {_RULES}",
        others.run_datatrove_html, others.read_datatrove,
    ),
    Entrant("main content", "blocks", None, "corpusmill's engine", ours.run_blocks, read_texts),
    Entrant(
        "main content", "trafilatura", "trafilatura", "extract()",
        others.run_trafilatura, read_texts,
    ),
)  # fmt: skip


def find_entrant(chain: str, name: str) -> Entrant:
    """Return an entrant by its chain and name."""
    (entrant,) = (each for each in ENTRANTS if (each.chain, each.name) == (chain, name))
    return entrant


if __name__ == "__main__":
    find_entrant(sys.argv[1], sys.argv[2]).run(Task(*map(Path, sys.argv[3:])))
