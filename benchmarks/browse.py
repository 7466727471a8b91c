"""Measure how long the page of `browse` waits for its answers, on a run of a million documents.

    python -m benchmarks.browse --run runs/ccnet --documents 1000000 --save

The run is made of copies of a finished one: the documents, scores and decisions are repeated under
new ids, URLs are changed, and texts are cut. Then each question of the page is asked in turns. A
slider is asked at another position each time, so that no answer is in the cache.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.frame import finish, make_parser, print_table
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.extract import Extract
from pipeline.phases.select import Select
from pipeline.reporting.browse import build_index
from pipeline.reporting.browse.answers import ANSWERS, Parameters, Session
from pipeline.runs.run_folder import RunFolder, number_splits
from pipeline.runs.split_output import read_table, write_parquet
from stages.counters import Counters
from storage import open_store

GOAL_S = 1.0
TEXT_CHARS = 300

COPIED: Mapping[str, Sequence[Artifact]] = {
    Extract.name: (Extract.documents, Extract.decisions),
    Annotate.name: (Annotate.documents, Annotate.decisions),
    Select.name: (Select.decisions,),
}


def copy_run(source: RunFolder, folder: Path, num_docs: int) -> RunFolder:
    """Write a run of at least this many documents, with one split for each copy of the source.

    Only what the page reads is written: the folders of other phases are missing.
    """
    counts = source.folder(Extract.name).summary()["counters"]["counts"]
    num_copies = -(-num_docs // counts["documents"])
    keys = [f"{number:06d}-{number:08x}" for number in range(num_copies)]
    folder.mkdir(parents=True)
    run = replace(source, run_dir=open_store(folder), splits=number_splits(keys))
    run.record()
    for phase, artifacts in COPIED.items():
        tables = [read_artifact(source, artifact) for artifact in artifacts]
        target = run.folder(phase)
        target.begin()
        for number, key in enumerate(keys):
            with target.commit(key) as output:
                for artifact, table in zip(artifacts, tables, strict=True):
                    path = output.path(artifact.file_name(key))
                    write_parquet(renumber(table, number), path)
        counters = Counters.from_json(source.folder(phase).summary()["counters"])
        total = Counters.sum([counters] * num_copies).to_json()
        target.finish({"task_ids": num_copies, "of": "", "counters": total})
    return run


def read_artifact(run: RunFolder, artifact: Artifact) -> pa.Table:
    """Read the files of all splits. Ids become numbers from 0; texts are cut."""
    tables = [
        read_table(run.folder(artifact.phase).open(artifact.file_name(split.key)))
        for split in run.splits
    ]
    table = pa.concat_tables(tables).combine_chunks()
    for column in ("text", "page_sample"):
        if column in table.column_names:
            place = table.schema.get_field_index(column)
            cut = pc.utf8_slice_codeunits(table.column(column), 0, TEXT_CHARS)
            table = table.set_column(place, table.schema.field(column), cut)
    return table


def renumber(table: pa.Table, number: int) -> pa.Table:
    """Return the rows as those of one split, with other domains."""
    columns = {name: table.column(name) for name in table.column_names}
    for name in ("doc_id", "representative"):
        if name in columns:
            columns[name] = _move_id(columns[name], number)
    domain = f"copy{number}."
    columns["url"] = pc.replace_substring_regex(
        columns["url"], "://", f"://{domain}", max_replacements=1
    )
    if "source_domain" in columns:
        columns["source_domain"] = pc.binary_join_element_wise(
            domain, columns["source_domain"], ""
        )
    return pa.table([columns[name] for name in table.column_names], schema=table.schema)


def _move_id(ids: pa.ChunkedArray, number: int) -> pa.ChunkedArray:
    """Return `split << 32 | record` with a record number that is unique among all old splits."""
    splits = pc.shift_right(ids, pa.scalar(32, pa.uint64()))
    records = pc.bit_wise_and(ids, pa.scalar(0xFFFF_FFFF, pa.uint64()))
    # A WET file of the demo has fewer than 2**20 records.
    unique = pc.add(pc.shift_left(splits, pa.scalar(20, pa.uint64())), records)
    return pc.add(unique, pa.scalar(number << 32, pa.uint64()))


def list_questions(round_number: int) -> Iterator[tuple[str, str, dict[str, list[str]]]]:
    """Yield a name for each question of the page, the question and its parameters."""
    seed = {"seed": [str(round_number)], "num_docs": ["20"]}
    yield "first page", "documents", seed
    yield "domain", "documents", {**seed, "domain": ["copy7.www.loom-35.es.example"]}
    perplexity = {**seed, "decision": ["perplexity"], "language": ["en"]}
    yield "reason and language", "documents", perplexity
    yield "range of a score", "documents", {**seed, "score": ["perplexity=100:300"]}
    yield "highest scores", "documents", {**seed, "order": ["-perplexity"]}
    yield "part of URL", "documents", {**seed, "url": [f"articles/{1234 + round_number}"]}
    yield "text, one step", "documents", {**seed, "text": ["nothing has this text"]}
    yield "domains", "domains", {}
    for key, value in (
        ("select.language.min_score", 0.6 + round_number / 50),
        ("select.perplexity.percentiles.1", 40 + round_number),
        ("select.classifiers.wikipedia_reference.keep_top", 0.5 + round_number / 50),
    ):
        changed = {"set": [f"{key}={value:g}"], "score": ["perplexity"]}
        yield f"slider {key}", "effect", changed


def measure(session: Session, num_rounds: int) -> dict[str, list[float]]:
    """Return question -> seconds of each round, after one that is not counted."""
    seconds: dict[str, list[float]] = {}
    for round_number in range(num_rounds + 1):
        for name, question, parameters in list_questions(round_number):
            start = time.perf_counter()
            json.dumps(ANSWERS[question](session, Parameters(parameters)))
            if round_number:
                seconds.setdefault(name, []).append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--run", default="runs/ccnet", help="a finished run of ccnet.yaml")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="keep the copied run here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="browse-bench-") as temporary:
        folder = options.folder or Path(temporary) / "run"
        if not (folder / "run.json").exists():
            copy_run(RunFolder.open(options.run), folder, options.documents)
        start = time.perf_counter()
        with build_index(RunFolder.open(folder)) as index:
            start_s = time.perf_counter() - start
            seconds = measure(Session(index), options.rounds)
            num_docs, index_bytes = index.num_docs, index.documents.nbytes
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{num_docs:,} documents, index {index_bytes / 1e6:,.0f} MB in {start_s:.1f} s")
    rows: list[tuple[str, ...]] = []
    for name, values in seconds.items():
        median = statistics.median(values)
        verdict = "" if median < GOAL_S else "MISSED"
        rows.append((name, f"{median:.3f}", f"{max(values):.3f}", verdict))
    print_table(("question", "median s", "longest s", ""), rows)
    print(f"peak memory of the process {peak_mb:,.0f} MB")
    figures = {
        "documents": num_docs,
        "index_bytes": index_bytes,
        "start_s": start_s,
        "peak_mb": peak_mb,
        "seconds": seconds,
    }
    finish(options, "browse", figures, ("pyarrow", "numpy"))


if __name__ == "__main__":
    main()
