"""Random documents of a run with a decision, language, domain or score.

for sample in draw_samples(run, Filter(decision="perplexity.tail"), num_samples=20, seed=0):
    print(sample.url, sample.value, sample.text)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from config_files.reader import ConfigError
from pipeline.phases.annotate import Annotate
from pipeline.phases.extract import Extract
from pipeline.phases.registry import DECIDING_PHASES
from pipeline.phases.tokenize import compute_order_keys
from pipeline.reporting.explain.find import read_row
from pipeline.reporting.explain.text import format_values
from pipeline.retraction.retracted import read_retracted
from pipeline.runs.run_folder import RunFolder, RunSplit
from pipeline.runs.split_output import read_table
from stages.warc.documents import extract_source_domains

_COLUMNS = ["doc_id", "url", "decision", "value", "limit", "language"]


@dataclass(frozen=True)
class Filter:
    """Which documents are drawn. None: all.

    Attributes:
        decision: "kept" or a drop reason.
        language: code of the language.
        domain: host of the URL, in lower case.
        scores: stored column -> lowest and highest value, both inclusive. A document that was
            dropped before it got the score is not drawn.
    """

    decision: str | None = None
    language: str | None = None
    domain: str | None = None
    scores: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )


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
    run: RunFolder, wanted: Filter, num_samples: int, seed: int
) -> list[Sample]:
    """Return random documents. The same run, filter and seed give the same ones.

    Args:
        run: the run. Splits without decisions are left out.
        wanted: which documents are drawn.
        num_samples: number of documents, if there are enough.
        seed: of the choice.

    Raises:
        ConfigError: no document matches, or no stored column has the name of a score.
    """
    drawn: pa.Table | None = None
    retracted = read_retracted(run)
    for split in run.splits:
        for rows in _read_decisions(run, split):
            found = retracted.leave_out(_filter(run, split, rows, wanted))
            keys = pa.array(compute_order_keys(found.column("doc_id").to_numpy(), seed))
            found = found.append_column("key", keys)
            both = found if drawn is None else pa.concat_tables([drawn, found])
            # The smallest keys are a uniform sample, in any order of the splits.
            drawn = both.sort_by("key").slice(0, num_samples)
    if drawn is None or not drawn.num_rows:
        decisions = ", ".join(list_decisions(run)) or "none yet"
        raise ConfigError(
            [f"no document of {run.run_dir} matches; its decisions: {decisions}"]
        )
    return [_read_sample(run, row) for row in drawn.drop_columns("key").to_pylist()]


def list_decisions(run: RunFolder) -> list[str]:
    """Return the decisions that documents of the finished splits have got, sorted."""
    found: set[str] = set()
    for split in run.splits:
        for rows in _read_decisions(run, split):
            found.update(pc.unique(rows.column("decision")).to_pylist())
    return sorted(found)


def _read_decisions(run: RunFolder, split: RunSplit) -> Iterator[pa.Table]:
    """Yield the decisions of each phase that has done the split."""
    for phase in DECIDING_PHASES:
        folder = run.folder(phase.name)
        try:
            source = folder.open(phase.decisions.file_name(split.key))
        except FileNotFoundError:
            return
        yield read_table(source, _COLUMNS)


def _filter(run: RunFolder, split: RunSplit, rows: pa.Table, wanted: Filter) -> pa.Table:
    for column in ("decision", "language"):
        if (value := getattr(wanted, column)) is not None:
            rows = rows.filter(pc.equal(rows.column(column), value))
    if wanted.domain is not None:
        domains = extract_source_domains(rows.column("url"))
        rows = rows.filter(pc.equal(domains, wanted.domain))
    if wanted.scores and rows.num_rows:
        ids = _find_by_scores(run, split, wanted.scores)
        rows = rows.filter(pc.is_in(rows.column("doc_id"), value_set=ids))
    return rows


def _find_by_scores(
    run: RunFolder, split: RunSplit, scores: Mapping[str, tuple[float, float]]
) -> pa.Array:
    """Return the ids of the documents whose scores are in the ranges."""
    name = Annotate.documents.file_name(split.key)
    with run.folder(Annotate.name).open(name) as file:
        stored = pq.read_schema(file).names
    if unknown := sorted(scores.keys() - set(stored)):
        raise ConfigError(
            [f"--score {unknown[0]}: no such column; stored are {', '.join(stored)}"]
        )
    rows = read_table(run.folder(Annotate.name).open(name), ["doc_id", *scores])
    for column, (low, high) in scores.items():
        values = rows.column(column)
        is_inside = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
        rows = rows.filter(is_inside)
    return rows.column("doc_id").combine_chunks()


def _read_sample(run: RunFolder, row: Mapping[str, Any]) -> Sample:
    key = run.splits[row["doc_id"] >> 32].key
    texts: list[str | None] = []
    for phase in (Extract, Annotate):
        name = phase.documents.file_name(key)
        found = read_row(run.folder(phase.name), name, row["doc_id"], ["text"])
        texts.append(found["text"] if found else None)
    return Sample(**row, text_before=texts[0], text=texts[1])


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
