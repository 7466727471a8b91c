r"""Asks a finished run what became of its documents, from what the phases stored.

Promises: every document that was read has exactly one last fate; `explain` tells its whole story (where it stood in
the crawl, what deduplication took from it and who else has it, every score, every rule with its limit, also those
behind the one that decided, the near-duplicate in its place, the shard and row that hold it), and reads nothing but
the run folder, so it works long after, elsewhere, without the input.
Leaves to others: sums over all documents (report.py).

    run = RunFolder.open("runs/ccnet")
    for story in explain(run, "https://example.org/page"):
        print("\\n".join(story.lines))
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from config_files.reader import ConfigError
from pipeline.errors import TaskFailed
from pipeline.models.registry import AssetError
from pipeline.phases.annotate import COPY_BY, Annotate
from pipeline.phases.extract import EXTRACTED, Extract
from pipeline.phases.hash_partitions import read_around
from pipeline.phases.paragraph_dedup import ParagraphDedup
from pipeline.phases.phase import Artifact
from pipeline.phases.select import REPRESENTATIVE, Select
from pipeline.planning.previous_runs import find_owner, list_previous_splits
from pipeline.planning.recorded_plan import load_plan
from pipeline.planning.stage_spec import StageSpec
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder, RunNotFound
from shardwriter.format import MANIFEST_FILE, Manifest, ShardIndex, sample_key
from stages.contract import evaluate_all_rules
from stages.dedup.paragraphs import hash_paragraph
from stages.filters.perplexity import PerplexityFilterSettings

SCORES = ("language", "language_score", "perplexity", "classifier_wikipedia_reference")
"""What is told first of all that annotate has stored."""

STORED = (
    Extract.documents,
    Extract.decisions,
    Annotate.documents,
    Annotate.decisions,
    Select.decisions,
)
"""Files that hold a row of a document, in the order in which they are written."""

NO_SCORES = {*EXTRACTED.names, "num_chars", "num_lines", "chars_removed"}

NUM_LISTED = 5
"""Lines shown of those that were taken out."""


@dataclass(frozen=True)
class DocumentTrace:
    """What became of one document, as lines for people and as columns for programs."""

    doc_id: int
    decision: str
    lines: tuple[str, ...]
    columns: Mapping[str, Any]


def explain(run: RunFolder, key: str) -> list[DocumentTrace]:
    """The stories of the documents with that doc_id, or that URL (a crawl may hold a page more than once).

    Raises:
        RunNotFound: the run has not got as far as extract, or holds no such document.
    """
    doc_ids = [int(key)] if key.isdecimal() else list(_ids_of_url(run, key))
    traces = [trace for doc_id in doc_ids if (trace := _trace(run, doc_id))]
    if not traces:
        raise RunNotFound(
            f"{run.run_dir}: no document {key!r} among what was read; its record may be in the quarantine"
        )
    return traces


class InShard(NamedTuple):
    """Where a document lies in a dataset."""

    shard: str  # the file
    row: int  # its position among the documents of the shard
    sample: str  # the key of the sample, and so of the members of the tar
    token_start: int  # counted in the shard's tokens
    num_tokens: int


def find_in_shards(run: RunFolder, doc_id: int) -> InShard | None:
    """The place of a document that was kept and written."""
    dataset = run.dataset
    if not dataset.exists(MANIFEST_FILE):
        return None
    content = dataset.read_bytes(MANIFEST_FILE)
    for entry in Manifest.loads(content, dataset.locate(MANIFEST_FILE)).shards:
        index = ShardIndex.from_bytes(dataset.read_bytes(entry.index_file), entry.index_file)
        for row in np.flatnonzero(index.doc_ids == np.uint64(doc_id)):
            start, end = (int(token) for token in index.doc_starts[row : row + 2])
            sample = int(np.searchsorted(index.sample_starts, start, side="right")) - 1
            return InShard(
                entry.file, int(row), sample_key(entry.shard, sample), start, end - start
            )
    return None


def _ids_of_url(run: RunFolder, url: str) -> Iterator[int]:
    for split in run.splits:
        for stored in (Extract.documents, Extract.decisions):
            with contextlib.suppress(FileNotFoundError):  # not extracted yet
                yield from (
                    _rows(
                        run.folder("extract"),
                        stored.file_name(split.key),
                        "url",
                        url,
                        ["doc_id"],
                    )
                    .column("doc_id")
                    .to_pylist()
                )


def _rows(
    folder: PhaseFolder, name: str, column: str, value: Any, columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows of a Parquet file with that value, found by its statistics where it is sorted."""
    with folder.open(name) as file:
        scalar = pa.scalar(value, pq.read_schema(file).field(column).type)
        return pq.read_table(file, columns=columns, filters=pc.field(column) == scalar)


def row_of(
    folder: PhaseFolder, name: str, doc_id: int, columns: Sequence[str] | None = None
) -> dict[str, Any] | None:
    """A document's row of a Parquet file; None where it has none, or is not there yet."""
    with contextlib.suppress(FileNotFoundError):
        return next(iter(_rows(folder, name, "doc_id", doc_id, columns).to_pylist()), None)
    return None


def _trace(run: RunFolder, doc_id: int) -> DocumentTrace | None:
    index = doc_id >> 32
    if index >= len(run.splits):
        return None
    split = run.splits[index].key
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for stored in STORED:
        if row := row_of(run.folder(stored.phase), stored.file_name(split), doc_id):
            found[stored.phase, stored.kind] = row
    if not found:
        return None
    columns = {k: v for row in found.values() for k, v in row.items()}
    decision = next(
        (f"{row['decision']}" for (_, kind), row in reversed(found.items()) if kind == "decisions"),
        "not decided yet",
    )
    lines = [f"document {doc_id}: {columns['url']}", *_chapters(run, doc_id, found, decision)]
    return DocumentTrace(doc_id, decision, tuple(lines), columns)


def _chapters(
    run: RunFolder, doc_id: int, found: Mapping[tuple[str, str], dict[str, Any]], decision: str
) -> Iterator[str]:
    if read := found.get(("extract", "documents")):
        yield f"read         {read['warc_file']} at byte {read['warc_offset']}, {read['date']}, title {read['title']!r}"
        yield f"             {read['original_num_chars']:,} characters in {read['original_num_lines']:,} paragraphs"
        yield from _rules(run, doc_id, "extract")
    if scored := found.get(("annotate", "documents")):
        yield from _removed(run, doc_id, read, scored)
        yield from _scores(scored)
        yield from _rules(run, doc_id, "annotate")
    elif read and not decision.startswith("exact_dedup.") and ("annotate", "decisions") in found:
        gone = _duplicate_lines(run, doc_id)
        lines = read["text"].split("\n")
        yield f"deduplicate  {len(gone)} paragraphs removed, {len(lines) - len(gone)} left"
        yield from _with_copies(run, doc_id, [lines[i] for i in gone])
    for phase in ("extract", "annotate", "select"):
        decided = found.get((phase, "decisions"))
        if decided and decided["decision"] != "kept":
            yield f"{phase:<12} dropped: {decided['decision']}{why(decided)}"
        if decided and decided.get("representative") is not None:
            what = "copy" if decided["decision"].startswith("exact_dedup.") else "near-duplicate"
            yield f"             {what} of document {_named(run, decided['representative'])}"
        if phase == "select" and decided and decided["decision"] != "kept":
            yield from _rules(run, doc_id, phase, decided.get("representative"))
    if decision == "kept":
        bucket = found["select", "decisions"].get("bucket")
        yield f"select       kept{f', bucket {bucket}' if bucket else ''}"
        yield from _rules(run, doc_id, "select")
        if place := find_in_shards(run, doc_id):
            yield f"shards       {place.shard}, document {place.row}, in sample {place.sample}"
            yield f"             {place.num_tokens:,} tokens from the shard's token {place.token_start:,} on"
        else:
            yield "shards       not written yet"


def _scores(scored: Mapping[str, Any]) -> Iterator[str]:
    """All that annotate has stored of a document beside its text: what people ask for first, then the rest."""
    found = {name: value for name, value in scored.items() if isinstance(value, str | int | float)}
    first = {name: found[name] for name in SCORES if name in found}
    yield f"annotate     {', '.join(f'{name} {value}' for name, value in first.items())}"
    rest = sorted(found.keys() - first.keys() - NO_SCORES)
    yield from (f"             {name} {_short(found[name])}" for name in rest)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _rules(
    run: RunFolder, doc_id: int, phase: str, representative: int | None = None
) -> Iterator[str]:
    """What every rule of a phase makes of what is stored of a document, also those behind the one that decided."""
    try:
        plan = load_plan(run)
        read: Artifact = Extract.documents if phase == "extract" else Annotate.documents
        name = read.file_name(run.splits[doc_id >> 32].key)
        rows = _rows(run.folder(read.phase), name, "doc_id", doc_id)
        stages = Select(plan).stage_specs() if phase == "select" else plan.phase(phase).stages
        rows = rows.append_column(REPRESENTATIVE, pa.array([representative], REPRESENTATIVE.type))
        rows = rows.append_column(COPY_BY, pa.nulls(1, COPY_BY.type))  # what is stored is no copy
        with evaluate_all_rules() as results:
            for spec in stages:
                if spec.stage.reasons and (phase == "select" or _is_mere_rule(spec)):
                    rows = spec.opened().apply(rows).kept
        cutoffs = [line for spec in stages for line in _cutoffs(spec, rows)]
    except (AssetError, ConfigError, OSError, TaskFailed, ValueError) as error:
        yield f"             its rules cannot be told: {error}"
        return
    for result in results:
        verdict = "breaks" if _first(result.is_broken) else "passes"
        shown = {name: _first(getattr(result, name)) for name in ("value", "limit", "detail")}
        yield f"             {verdict} {result.reason}{why(shown)}"
    yield from cutoffs


def _cutoffs(spec: StageSpec, rows: pa.Table) -> Iterator[str]:
    """Where the buckets of the document's language end: the limits of those that no rule of theirs drops."""
    if isinstance(spec.settings, PerplexityFilterSettings):
        language = rows.column("language")[0].as_py()
        if ends := spec.settings.cutoffs.get(language):
            yield f"             buckets of {language}: head below {ends[0]:g}, middle below {ends[1]:g}"


def _is_mere_rule(spec: StageSpec) -> bool:
    """Whether a stage only judges: then what is stored is what it has judged, and no model is needed for it."""
    return not spec.stage.adds.names and not spec.stage.required_files(spec.settings)


def _first(values: Any) -> Any:
    return values[0].as_py() if isinstance(values, pa.Array | pa.ChunkedArray) else values


def _named(run: RunFolder, doc_id: int) -> str:
    """Number, URL and fate of another document, and the earlier run that has it, for those who want to go on there."""
    there = find_owner(doc_id, len(run.splits), run.previous)
    home, doc_id = there or (run, doc_id)
    where = f"{doc_id} of {home.run_dir}" if there else f"{doc_id}"
    for stored in (Select.decisions, Annotate.decisions, Extract.decisions):
        name = stored.file_name(home.splits[doc_id >> 32].key)
        if row := row_of(home.folder(stored.phase), name, doc_id, ["doc_id", "url", "decision"]):
            return f"{where}: {row['url']} ({'kept' if row['decision'] == 'kept' else 'dropped: ' + row['decision']})"
    return where  # its unit has not got that far, or the earlier run is no longer there


def _removed(
    run: RunFolder, doc_id: int, read: Mapping[str, Any] | None, scored: Mapping[str, Any]
) -> Iterator[str]:
    if read is None:
        return
    lines, by_rules = read["text"].split("\n"), scored.get("lines_removed")
    after = {*scored["kept_lines"], *(by_rules or ())}
    gone = [line for i, line in enumerate(lines) if i not in after]
    num_chars = scored["num_chars"] + (scored.get("chars_removed") or 0)
    yield f"deduplicate  {len(gone)} paragraphs removed, {len(after)} left ({num_chars:,} characters)"
    yield from _with_copies(run, doc_id, gone)
    if by_rules is not None:
        left = f"{len(scored['kept_lines'])} left ({scored['num_chars']:,} characters)"
        yield f"lines        {len(by_rules)} removed, {left}"
        yield from _listed([lines[i] for i in by_rules])


def _duplicate_lines(run: RunFolder, doc_id: int) -> list[int]:
    """The lines of a document that deduplicate took."""
    plan = load_plan(run)
    duplicate_lines = ParagraphDedup(plan).duplicate_lines_of(plan.splits[doc_id >> 32])
    return (
        duplicate_lines[duplicate_lines >> np.uint64(32) == np.uint64(doc_id & 0xFFFF_FFFF)]
        .astype(np.uint32)
        .tolist()
    )


def _with_copies(run: RunFolder, doc_id: int, gone: Sequence[str]) -> Iterator[str]:
    """The longest of the paragraphs that were taken, and for each another document that has it."""
    gone = sorted(gone, key=len, reverse=True)
    copies = _copies(run, doc_id, gone[:NUM_LISTED])
    for shown, line in zip(_listed(gone), gone[:NUM_LISTED], strict=False):
        yield shown
        elsewhere = (
            f"also in document {_named(run, copies[line])}"
            if line in copies
            else "twice in this document"
        )
        yield f"               {elsewhere}{', or in an earlier run' if line not in copies and run.previous else ''}"
    yield from list(_listed(gone))[NUM_LISTED:]


def _copies(run: RunFolder, doc_id: int, lines: Sequence[str]) -> dict[str, int]:
    """Of each line the first other document, in input order, among those that deduplicate compared this one with."""
    wanted = {line: hash_paragraph(line) for line in lines}
    # Not `run.config`: a run of a version with other keys can still be explained.
    size = run.recorded_config["paragraph_dedup"]["group_splits"] or len(run.splits)
    first = (doc_id >> 32) // size * size
    files = [
        (len(run.splits) + i, split.run.folder("extract"), split.key)
        for i, split in enumerate(list_previous_splits(run.previous))
    ]
    files += [
        (i, run.folder("extract"), run.splits[i].key)
        for i in range(first, min(first + size, len(run.splits)))
    ]
    copies: dict[str, int] = {}
    for index, folder, split in files:
        for line, number in wanted.items():
            with contextlib.suppress(FileNotFoundError):  # the earlier run is no longer there
                if line in copies:
                    continue
                near = read_around(folder.open(Extract.hashes.file_name(split)), number)
                records = near["record"].to_numpy()[near["hash"].to_numpy() == np.uint64(number)]
                others = [index << 32 | int(record) for record in np.sort(records)]
                copies.update((line, other) for other in [o for o in others if o != doc_id][:1])
        if len(copies) == len(wanted):
            break
    return copies


def _listed(gone: Sequence[str]) -> Iterator[str]:
    yield from (f"             - {line[:100]!r}" for line in gone[:NUM_LISTED])
    if len(gone) > NUM_LISTED:
        yield f"             - and {len(gone) - NUM_LISTED} more"


def why(decided: Mapping[str, Any]) -> str:
    """The value that decided, the limit it was held against, and what is no number."""
    parts = [
        f"{name} {decided[name]:g}" for name in ("value", "limit") if decided[name] is not None
    ]
    parts += [str(decided["detail"])] if decided["detail"] is not None else []
    return f" ({', '.join(parts)})" if parts else ""
