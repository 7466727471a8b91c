"""A small snapshot of Common Crawl: WARC files, and a columnar index of their pages."""

from __future__ import annotations

import gzip
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.stages.warc.files import member, page, record

CRAWL = "CC-MAIN-2026-17"
_TABLE = f"cc-index/table/cc-main/warc/crawl={CRAWL}"


def make_snapshot(
    pages: list[tuple[str, str, str]], rows_per_group: int = 4
) -> dict[str, bytes]:
    """Return the files of a snapshot of pages, by their names.

    Args:
        pages: URL, languages and a word of each page, in the order of the index.
        rows_per_group: of the index.
    """
    rows: list[dict[str, Any]] = []
    warcs: dict[str, bytearray] = {}
    for number, (url, languages, word) in enumerate(pages):
        name = f"crawl-data/{CRAWL}/segments/1/warc/CC-MAIN-{number % 2}.warc.gz"
        warc = warcs.setdefault(name, bytearray(member(record(b"x", kind="warcinfo"))))
        packed = member(_make_record(url, word))
        host = url.split("/")[2]
        rows.append(
            {
                "url": url,
                "url_host_name": host,
                "url_host_registered_domain": ".".join(host.split(".")[-2:]),
                "content_languages": languages,
                "warc_filename": name,
                "warc_record_offset": len(warc),
                "warc_record_length": len(packed),
            }
        )
        warc += packed + member(record(b"{}", kind="metadata"))
    files = {name: bytes(warc) for name, warc in warcs.items()}
    half = len(rows) // 2
    names = [f"{_TABLE}/subset=warc/part-{i:05d}.c000.gz.parquet" for i in range(2)]
    for name, some in zip(names, (rows[:half], rows[half:]), strict=True):
        files[name] = _to_parquet(some, rows_per_group)
    other = f"{_TABLE}/subset=robotstxt/part-00000.c000.gz.parquet"
    listed = "\n".join([other, *names]).encode()
    files[f"crawl-data/{CRAWL}/cc-index-table.paths.gz"] = gzip.compress(listed, mtime=0)
    return files


def _make_record(url: str, word: str) -> bytes:
    body = f"<html><title>{word}</title><p>" + f"The page about {word} has words. " * 20
    http = page(body.encode())
    return record(
        http,
        kind="response",
        WARC_Target_URI=url,
        Content_Type="application/http; msgtype=response",
    )


def _to_parquet(rows: list[dict[str, Any]], rows_per_group: int) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), target, row_group_size=rows_per_group)
    return target.getvalue()
