r"""Asks a finished run what became of its documents, from what the phases stored.

Promises: every document that was read has exactly one last fate; `explain` tells its whole story (where it stood in
the crawl, what deduplication took from it, every score, every rule it met, the shard that holds it), and reads
nothing but the run folder, so it works long after, elsewhere, without the input.
Leaves to others: sums over all documents (report.py).

    run = open_run("runs/ccnet")
    for story in explain(run, "https://example.org/page"):
        print("\\n".join(story.lines))
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import RunConfig
from pipeline.inputs import Unit
from pipeline.plan import RunPlan, plan_units
from pipeline.store import PhaseFolder, to_json, write_atomically
from shardwriter.format import MANIFEST_FILE, Manifest, ShardIndex

RUN_FILE = "run.json"

SCORES = ("language", "language_score", "perplexity", "reference_score")


class RunNotFound(Exception):
    """There is no run, or not as much of one as is asked for."""


@dataclass(frozen=True)
class Run:
    """A run folder, as its run.json describes it."""

    run_dir: Path
    config: Mapping[str, Any]
    folders: Mapping[str, str]  # phase -> name of its folder
    units: Sequence[str]

    def folder(self, phase: str) -> PhaseFolder:
        """Where the phase's outputs lie."""
        return PhaseFolder(self.run_dir / self.folders[phase])

    @property
    def dataset(self) -> Path:
        """Folder of shards, indexes and manifest.json."""
        return self.run_dir / self.folders["write_shards"]


def record_run(plan: RunPlan) -> None:
    """Write run.json: which folders belong together, and the config in full."""
    description = {
        "config": plan.config.model_dump(mode="json"),
        "folders": {phase.name: plan.folder(phase.name).root.name for phase in plan.phases},
        "units": [unit.key for unit in plan.units],
    }
    write_atomically(plan.run_dir / RUN_FILE, to_json(description))


def open_run(run_dir: str | Path) -> Run:
    """The run in a folder.

    Raises:
        RunNotFound: it holds none.
    """
    path = Path(run_dir) / RUN_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        siblings = [str(p.parent) for p in Path(run_dir).parent.glob(f"*/{RUN_FILE}")]
        nearest = difflib.get_close_matches(str(run_dir), siblings, 1) or siblings[:1]
        hint = f"; did you mean {nearest[0]}?" if nearest else "; start one with `python -m pipeline run`"
        raise RunNotFound(f"{run_dir}: no run here ({RUN_FILE} is missing){hint}") from error
    return Run(Path(run_dir), found["config"], found["folders"], found["units"])


@dataclass(frozen=True)
class _KnownUnit(Unit):
    """A unit of a run of which only its name is needed: its files may be gone."""

    name: str

    @property
    def key(self) -> str:
        return self.name


def plan_of(run: Run, config: RunConfig) -> RunPlan:
    """A plan that reads what the run has stored, under a config that may differ in `select`. Needs no input."""
    config = config.model_copy(update={"run_dir": str(run.run_dir)})
    plan = plan_units(config, [_KnownUnit(i, (), key) for i, key in enumerate(run.units)])
    folders = {name: folder.removeprefix(f"{name}-") for name, folder in run.folders.items()}
    phases = (replace(phase, fingerprint=folders.get(phase.name, phase.fingerprint)) for phase in plan.phases)
    return replace(plan, phases=tuple(phases))


@dataclass(frozen=True)
class Story:
    """What became of one document, as lines for people and as columns for programs."""

    doc_id: int
    fate: str
    lines: tuple[str, ...]
    columns: Mapping[str, Any]


def explain(run: Run, key: str) -> list[Story]:
    """The stories of the documents with that doc_id, or that URL (a crawl may hold a page more than once).

    Raises:
        RunNotFound: the run has not got as far as extract, or holds no such document.
    """
    doc_ids = [int(key)] if key.isdecimal() else list(_ids_of_url(run, key))
    stories = [story for doc_id in doc_ids if (story := _story(run, doc_id))]
    if not stories:
        raise RunNotFound(
            f"{run.run_dir}: no document {key!r} among what was read; its record may be in the quarantine"
        )
    return stories


def find_in_shards(run: Run, doc_id: int) -> tuple[str, int] | None:
    """Shard file and position among its documents, for a document that was kept and written."""
    path = run.dataset / MANIFEST_FILE
    if not path.exists():
        return None
    for entry in Manifest.loads(path.read_bytes(), str(path)).shards:
        index = ShardIndex.from_bytes((run.dataset / entry.index_file).read_bytes(), entry.index_file)
        position = np.flatnonzero(index.doc_ids == np.uint64(doc_id))
        if len(position):
            return entry.file, int(position[0])
    return None


def _ids_of_url(run: Run, url: str) -> Iterator[int]:
    for unit in run.units:
        for name in (f"{unit}.documents.parquet", f"{unit}.fates.parquet"):
            path = run.folder("extract").path(name)
            if path.exists():
                yield from _rows(path, "url", url, ["doc_id", "url"]).column("doc_id").to_pylist()


def _rows(path: Path, column: str, value: Any, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a Parquet file with that value, found by its statistics where it is sorted."""
    schema = pq.read_schema(path)
    scalar = pa.scalar(value, schema.field(column).type)
    return pq.read_table(path, columns=columns, filters=pc.field(column) == scalar)


def row_of(path: Path, doc_id: int, columns: Sequence[str] | None = None) -> dict[str, Any] | None:
    """A document's row of a Parquet file, or None."""
    return next(iter(_rows(path, "doc_id", doc_id, columns).to_pylist()), None)


def _story(run: Run, doc_id: int) -> Story | None:
    index = doc_id >> 32
    if index >= len(run.units):
        return None
    unit = run.units[index]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for phase in ("extract", "annotate", "select"):
        for kind in ("documents", "fates"):
            path = run.folder(phase).path(f"{unit}.{kind}.parquet")
            if path.exists() and (row := row_of(path, doc_id)):
                found[phase, kind] = row
    if not found:
        return None
    columns = {k: v for row in found.values() for k, v in row.items()}
    fate = next((f"{row['fate']}" for (_, kind), row in reversed(found.items()) if kind == "fates"), "not decided yet")
    lines = [f"document {doc_id}: {columns['url']}", *_chapters(run, doc_id, found, fate)]
    return Story(doc_id, fate, tuple(lines), columns)


def _chapters(run: Run, doc_id: int, found: Mapping[tuple[str, str], dict[str, Any]], fate: str) -> Iterator[str]:
    if read := found.get(("extract", "documents")):
        yield f"read         {read['warc_file']} at byte {read['warc_offset']}, {read['date']}, title {read['title']!r}"
        yield f"             {read['original_num_chars']:,} characters in {read['original_num_lines']:,} paragraphs"
    if scored := found.get(("annotate", "documents")):
        yield from _removed(read, scored)
        scores = [f"{name} {scored[name]}" for name in SCORES if scored.get(name) is not None]
        yield f"annotate     {', '.join(scores)}"
    for phase in ("extract", "annotate", "select"):
        decided = found.get((phase, "fates"))
        if decided and decided["fate"] != "kept":
            yield f"{phase:<12} dropped: {decided['fate']}{why(decided)}"
        if decided and decided.get("representative") is not None:
            yield f"             near-duplicate of document {_named(run, decided['representative'])}"
    if fate == "kept":
        bucket = found["select", "fates"].get("bucket")
        yield f"select       kept{f', bucket {bucket}' if bucket else ''}"
        place = find_in_shards(run, doc_id)
        yield f"shards       {f'{place[0]}, document {place[1]}' if place else 'not written yet'}"


def _named(run: Run, doc_id: int) -> str:
    """Number, URL and fate of another document, for those who want to go on there."""
    path = run.folder("select").path(f"{run.units[doc_id >> 32]}.fates.parquet")
    if not path.exists():  # its unit is not selected yet
        return str(doc_id)
    (row,) = _rows(path, "doc_id", doc_id, ["doc_id", "url", "fate"]).to_pylist()
    return f"{doc_id}: {row['url']} ({'kept' if row['fate'] == 'kept' else 'dropped: ' + row['fate']})"


def _removed(read: Mapping[str, Any] | None, scored: Mapping[str, Any]) -> Iterator[str]:
    if read is None:
        return
    lines, by_rules = read["text"].split("\n"), scored.get("lines_removed")
    after = {*scored["kept_lines"], *(by_rules or ())}
    gone = [line for i, line in enumerate(lines) if i not in after]
    num_chars = scored["num_chars"] + (scored.get("chars_removed") or 0)
    yield f"deduplicate  {len(gone)} paragraphs removed, {len(after)} left ({num_chars:,} characters)"
    yield from _listed(gone)
    if by_rules is not None:
        left = f"{len(scored['kept_lines'])} left ({scored['num_chars']:,} characters)"
        yield f"lines        {len(by_rules)} removed, {left}"
        yield from _listed([lines[i] for i in by_rules])


def _listed(gone: Sequence[str]) -> Iterator[str]:
    yield from (f"             - {line[:100]!r}" for line in gone[:5])
    if len(gone) > 5:
        yield f"             - and {len(gone) - 5} more"


def why(decided: Mapping[str, Any]) -> str:
    """The value that decided, the limit it was held against, and what is no number."""
    parts = [f"{name} {decided[name]:g}" for name in ("value", "limit") if decided[name] is not None]
    parts += [str(decided["detail"])] if decided["detail"] is not None else []
    return f" ({', '.join(parts)})" if parts else ""
