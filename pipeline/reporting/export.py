"""Export the kept documents of a run as CCNet writes them: gzipped JSON lines.

The fields, their names and their meaning are those of CCNet's `mined` folder. Documents are in
input order, and the same run gives the same bytes. Labels that are no file names are quoted.

    export_ccnet(RunFolder.open("runs/ccnet"), Path("mined"))     # mined/en_head.json.gz, ...
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from pipeline.phases.annotate import Annotate
from pipeline.phases.select import Select
from pipeline.runs.run_folder import RunFolder, RunNotFound
from pipeline.runs.split_output import read_row_groups, read_table
from storage.names import FileNames


class OutputExists(FileExistsError):
    """The folder of an export exists already."""


def export_ccnet(run: RunFolder, out: Path) -> Counter[str]:
    """Write the kept documents of a run into a new folder, and return file -> documents.

    Raises:
        RunNotFound: select is not done yet.
        OutputExists: the folder exists already.
    """
    if not run.has_finished("select"):
        raise RunNotFound(
            f"{run.run_dir}: select is not done yet, so nothing is kept; run the config to its end first"
        )
    if out.exists():
        raise OutputExists(
            f"{out} exists already; give the name of a new folder, or delete it"
        )
    # The folder appears when it is complete.
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as aside:
        folder = Path(aside) / "export"
        folder.mkdir()
        written = _write_files(run, folder)
        folder.rename(out)
    return written


def _write_files(run: RunFolder, folder: Path) -> Counter[str]:
    """Write one file per language and bucket, and return file -> documents."""
    written: Counter[str] = Counter()
    names = FileNames(".json.gz")
    with contextlib.ExitStack() as stack:
        files: dict[str, gzip.GzipFile] = {}
        for document in _read_kept(run):
            name = names.make(f"{document['language'] or 'unknown'}_{document['bucket']}")
            if name not in files:
                raw = stack.enter_context((folder / name).open("xb"))
                # No file name and no time in the gzip header: equal runs give equal bytes.
                files[name] = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
            files[name].write(json.dumps(document, ensure_ascii=False).encode() + b"\n")
            written[name] += 1
    return written


def _read_kept(run: RunFolder) -> Iterator[dict[str, Any]]:
    """Yield the kept documents in input order."""
    for split in run.splits:
        source = run.folder("select").open(Select.decisions.file_name(split.key))
        decisions = read_table(source, ["doc_id", "decision", "bucket"])
        kept = decisions.filter(pc.equal(decisions.column("decision"), "kept"))
        ids = kept.column("doc_id").combine_chunks()
        for group in read_row_groups(
            run.folder("annotate").open(Annotate.documents.file_name(split.key))
        ):
            positions = pc.index_in(group.column("doc_id"), value_set=ids)
            rows = group.filter(pc.is_valid(positions))
            buckets = kept.column("bucket").take(positions.drop_null()).fill_null("all")
            yield from (
                _convert_to_ccnet(row)
                for row in rows.append_column("bucket", buckets).to_pylist()
            )


def _convert_to_ccnet(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with CCNet's field names. `cc_segment` is the file it was read from."""
    document: dict[str, Any] = {
        "url": row["url"],
        "date_download": row["date"],
        "digest": row["digest"],
        "length": row["num_chars"],
        "nlines": row["num_lines"],
        "source_domain": row["source_domain"],
        "title": row["title"],
        "raw_content": row["text"],
        "cc_segment": row["warc_file"],
        "original_nlines": row["original_num_lines"],
        "original_length": row["original_num_chars"],
        "line_ids": row["kept_lines"],
        "language": row["language"],
        "language_score": row["language_score"],
        "bucket": row["bucket"],
    }
    if row.get("perplexity") is not None:  # CCNet omits it for languages without a model
        document["perplexity"] = row["perplexity"]
    return document
