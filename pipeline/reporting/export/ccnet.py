"""The kept documents of a run as CCNet writes them: gzipped JSON lines.

The fields, their names and their meaning are those of CCNet's `mined` folder, with one file per
language and bucket. Labels that are no file names are quoted.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.reporting.export.destination import Destination
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.runs.phase_folder import PendingOutput
from storage.names import FileNames


def write_ccnet(documents: KeptDocuments, destination: Destination) -> dict[str, Any]:
    """Write one file per language and bucket; return file -> documents, bytes and digest."""
    written: Counter[str] = Counter()

    def write(output: PendingOutput) -> None:
        written.update(_write_files(documents, output))
        output.record = {"counters": {"counts": dict(written), "histograms": {}}}

    # One task: each input split has documents of every file.
    record = destination.write("ccnet", write)
    files: dict[str, Any] = {}
    for name, stored in sorted(record["outputs"].items()):
        num_docs = record["counters"]["counts"][name]
        size = {"num_bytes": stored["bytes"], "sha256": stored["sha256"]}
        files[name] = {"num_docs": num_docs, **size}
    return files


def _write_files(documents: KeptDocuments, output: PendingOutput) -> Counter[str]:
    """Write the files and return file -> documents."""
    written: Counter[str] = Counter()
    names = FileNames(".json.gz")
    with contextlib.ExitStack() as stack:
        files: dict[str, gzip.GzipFile] = {}
        for document in _read_documents(documents):
            name = names.make(f"{document['language'] or 'unknown'}_{document['bucket']}")
            if name not in files:
                raw = stack.enter_context(output.path(name).open("xb"))
                files[name] = stack.enter_context(open_gzip(raw))
            files[name].write(dump_json(document))
            written[name] += 1
    return written


def _read_documents(documents: KeptDocuments) -> Iterator[dict[str, Any]]:
    for table in documents.read():
        yield from map(_convert_to_ccnet, table.to_pylist())


def open_gzip(raw: Any) -> gzip.GzipFile:
    """Open a gzip file for writing.

    It has no file name and no time in its header: equal runs give equal bytes.
    """
    return gzip.GzipFile("", "wb", 6, raw, mtime=0)


def dump_json(document: Mapping[str, Any]) -> bytes:
    """Return a document as a line of JSON."""
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


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
        "bucket": row["bucket"] or "all",
    }
    if row.get("perplexity") is not None:  # CCNet omits it for languages without a model
        document["perplexity"] = row["perplexity"]
    return document
