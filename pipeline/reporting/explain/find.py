"""Find documents in the files of a run: by URL, by id, and in the shards."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.phases.annotate import Annotate
from pipeline.phases.extract import Extract
from pipeline.phases.previous_runs import find_owner
from pipeline.phases.select import Select
from pipeline.reporting.explain.trace import OtherDocument, ShardLocation
from pipeline.reporting.queries import open_output, read_row
from pipeline.retraction.records import find_recorded_ids
from pipeline.retraction.retracted import read_retracted
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import read_matching_rows
from shardwriter.format import MANIFEST_FILE, Manifest, ShardIndex, sample_key
from stages.filters.block_list import normalize_urls
from stages.mixing.mix import COPY_SHIFT
from stages.settings.quality import MAX_COPIES

_MAX_URLS = 10_000  # of one host, compared with a URL that no document has


def find_doc_ids(run: RunFolder, key: str) -> Iterator[int]:
    """Yield the ids of the documents with this doc_id or URL. A crawl may hold a URL repeatedly.

    A URL that no document has is compared in the normal form of retractions and block lists, without
    scheme, port and `www.`. The id of a copy is that of its document.
    """
    if key.isdecimal():
        copy = int(key) >> COPY_SHIFT
        yield int(key) - (copy << COPY_SHIFT) if copy < MAX_COPIES else int(key)
        return
    found: set[int] = set()
    for source in _open_url_files(run):
        with source:
            rows = read_matching_rows(source, "url", key, ["doc_id"])
            doc_ids = rows.column("doc_id").to_pylist()
            found.update(doc_ids)
            yield from doc_ids
    if not found:
        for normal, _, doc_id in _find_urls(run, key):
            if normal == normalize_url(key):
                found.add(doc_id)
                yield doc_id
    # The URL of a retracted document may have been removed.
    yield from sorted(find_recorded_ids(run, key) - found)


def find_nearest_url(run: RunFolder, key: str) -> str | None:
    """Return the URL of the same host that is most like a URL, in normal form."""
    urls = {normal: url for normal, url, _ in islice(_find_urls(run, key), _MAX_URLS)}
    nearest = difflib.get_close_matches(normalize_url(key), urls, 1)
    return urls[nearest[0]] if nearest else None


def normalize_url(url: str) -> str:
    """Return the normal form of a URL or of an entry of a block list."""
    return normalize_urls(pa.array([url]))[0].as_py()


def _find_urls(run: RunFolder, key: str) -> Iterator[tuple[str, str, int]]:
    """Yield normal form, URL and doc_id of the documents of a URL's host."""
    host = normalize_url(key).partition("/")[0]
    if not host:
        return
    for source in _open_url_files(run):
        with source:
            rows = pq.read_table(source, columns=["url", "doc_id"])
        normal = normalize_urls(rows.column("url"))
        is_host = pc.starts_with(normal, f"{host}/")
        is_host = pc.or_(is_host, pc.equal(normal, host))
        found = rows.filter(is_host)
        columns = (normal.filter(is_host), found.column("url"), found.column("doc_id"))
        yield from zip(*(column.to_pylist() for column in columns), strict=True)


def _open_url_files(run: RunFolder) -> Iterator[pa.NativeFile]:
    """Yield the files of extract with the URLs of documents, of the splits that it has done."""
    for split in run.splits:
        for artifact in (Extract.documents, Extract.decisions):
            with contextlib.suppress(FileNotFoundError):
                yield open_output(run, artifact, split.key)


def describe_other(run: RunFolder, doc_id: int) -> OtherDocument:
    """Return another document with its URL and its last decision.

    Args:
        run: the run in which the id is stored.
        doc_id: of this run, or of a previous run: those are numbered after the run's own splits.
    """
    owner = find_owner(doc_id, len(run.splits), run.previous)
    home, own_id = owner or (run, doc_id)
    run_dir = str(home.run_dir) if owner else None
    for artifact in (Select.decisions, Annotate.decisions, Extract.decisions):
        if row := read_row(home, artifact, own_id, ["doc_id", "url", "decision"]):
            is_retracted = read_retracted(home).find(own_id) is not None
            return OtherDocument(own_id, run_dir, row["url"], row["decision"], is_retracted)
    return OtherDocument(own_id, run_dir)


def find_in_shards(run: RunFolder, doc_id: int) -> ShardLocation | None:
    """Return where a document is stored, or None if it is in no shard."""
    dataset = run.dataset
    if not dataset.exists(MANIFEST_FILE):
        return None
    content = dataset.read_bytes(MANIFEST_FILE)
    for entry in Manifest.loads(content, dataset.locate(MANIFEST_FILE)).shards:
        index = ShardIndex.from_bytes(
            dataset.read_bytes(entry.index_file), entry.index_file
        )
        rows = np.flatnonzero(index.doc_ids == np.uint64(doc_id))
        if len(rows):
            row = int(rows[0])
            start, end = (int(token) for token in index.doc_starts[row : row + 2])
            # sample_starts is the first token of each sample, so this is the sample around `start`.
            sample = int(np.searchsorted(index.sample_starts, start, side="right")) - 1
            key = sample_key(entry.shard, sample)
            return ShardLocation(entry.file, row, key, start, end - start)
    return None
