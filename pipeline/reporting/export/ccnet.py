"""The kept documents of a run as CCNet writes them: gzipped JSON lines.

The fields, their names and their meaning are those of CCNet's `mined` folder, with one file per
language and bucket. Labels that are no file names are quoted.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.runs.phase_folder import PendingOutput
from storage.names import FileNames


def write_ccnet(documents: KeptDocuments, output: PendingOutput) -> Counter[str]:
    """Write one file per language and bucket; return file -> documents."""
    written: Counter[str] = Counter()
    names = FileNames(".json.gz")
    with contextlib.ExitStack() as stack:
        files: dict[str, gzip.GzipFile] = {}
        for table in documents.read():
            for document in map(_convert_to_ccnet, table.to_pylist()):
                label = f"{document['language'] or 'unknown'}_{document['bucket']}"
                name = names.make(label)
                if name not in files:
                    raw = stack.enter_context(output.path(name).open("xb"))
                    files[name] = stack.enter_context(open_gzip(raw))
                files[name].write(dump_json(document))
                written[name] += 1
    return written


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
