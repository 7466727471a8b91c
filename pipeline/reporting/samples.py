"""Random documents of a run with a decision, language, domain or score.

for sample in draw_samples(run, Search(decision="perplexity.tail"), num_samples=20, seed=0):
    print(sample.url, sample.value, sample.text)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from config_files.reader import ConfigError
from pipeline.phases.annotate import Annotate
from pipeline.phases.extract import Extract
from pipeline.reporting.browse.index import NAMED, build_index
from pipeline.reporting.browse.search import (
    UNKNOWN,
    Order,
    Search,
    count_names,
    describe_rows,
    find_documents,
    list_page,
)
from pipeline.reporting.explain.text import format_values
from pipeline.reporting.queries import read_row
from pipeline.retraction.retracted import read_retracted
from pipeline.runs.run_folder import RunFolder


@dataclass(frozen=True)
class Sample:
    """A document with its decision.

    Attributes:
        value, limit: of the rule that dropped it; None if it has none.
        text_before: as extracted.
        text: as annotate left it; None if it was dropped before.
    """

    doc_id: int
    url: str
    decision: str
    value: float | None
    limit: float | None
    language: str | None
    text_before: str | None
    text: str | None


def draw_samples(
    run: RunFolder, wanted: Search, num_samples: int, seed: int
) -> list[Sample]:
    """Return random documents. The same run, search and seed give the same ones.

    Args:
        run: the run.
        wanted: which documents are drawn.
        num_samples: number of documents, if there are enough.
        seed: of the choice.

    Raises:
        ConfigError: no document matches, or no stored column has the name of a score.
        RunNotFound: extract has not finished an input split yet.
    """
    columns = None if wanted.scores else ("doc_id", "url", *NAMED)
    with build_index(run, columns=columns) as index:
        found = find_documents(index, wanted)
        found &= ~np.isin(index.doc_ids, read_retracted(run).ids)
        rows = list_page(index, found, Order("random", seed), 0, num_samples)
        if not len(rows):
            everything = np.ones(index.num_docs, np.bool_)
            decisions = ", ".join(sorted(count_names(index, "decision", everything)))
            raise ConfigError(
                [f"no document of {run.run_dir} matches; its decisions: {decisions}"]
            )
        return [_read_sample(run, row) for row in describe_rows(index, rows)]


def _read_sample(run: RunFolder, row: Mapping[str, Any]) -> Sample:
    doc_id = int(row["doc_id"])
    texts: list[str | None] = []
    for artifact in (Extract.documents, Annotate.documents):
        found = read_row(run, artifact, doc_id, ["text"])
        texts.append(found["text"] if found else None)
    return Sample(
        doc_id=doc_id,
        **{name: row[name] for name in ("url", "decision", "value", "limit")},
        language=None if row["language"] == UNKNOWN else row["language"],
        text_before=texts[0],
        text=texts[1],
    )


def format_sample(sample: Sample, num_chars: int, is_before: bool) -> list[str]:
    """Return a sample as lines: decision, URL, and the beginning of a text.

    Args:
        sample: the document.
        num_chars: characters of the text to show; 0: all.
        is_before: show the text before duplicate lines were removed.
    """
    values = {"value": sample.value, "limit": sample.limit, "detail": None}
    head = (
        f"{sample.decision}{format_values(values)}  {sample.language or '-'}  {sample.url}"
    )
    text = sample.text_before if is_before or sample.text is None else sample.text
    if text is None:
        return [head, "    (no text is stored: it was dropped when it was extracted)"]
    shown = text[:num_chars] if num_chars else text
    lines = [f"    {line}" for line in shown.split("\n")]
    if len(shown) < len(text):
        lines.append(f"    ... {len(text) - len(shown):,} more characters")
    return [head, *lines]


def to_json(sample: Sample) -> str:
    """Return a sample as a line of JSON."""
    return json.dumps(asdict(sample), ensure_ascii=False) + "\n"
