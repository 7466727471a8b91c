"""A local HTTP server with a small snapshot: WARC files, and a columnar index of their pages.

It answers ranges as data.commoncrawl.org does, counts requests, and fails as a test asks.
"""

from __future__ import annotations

import gzip
import io
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.stages.warc.files import member, page, record

CRAWL = "CC-MAIN-2026-17"
_TABLE = f"cc-index/table/cc-main/warc/crawl={CRAWL}"


@dataclass
class Snapshot:
    """Files of a snapshot by their names, and the faults of the server.

    Attributes:
        failures: name -> status codes of the next answers, first one first.
        cuts: name -> bytes after which the next answer ends early.
        requests: method, name and range of each request.
    """

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    failures: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    cuts: dict[str, int] = field(default_factory=dict[str, int])
    requests: list[tuple[str, str, str | None]] = field(
        default_factory=list[tuple[str, str, str | None]]
    )
    url: str = ""

    def count(self, part_of_name: str) -> int:
        """Return the number of requests of files with this in their names."""
        return sum(part_of_name in name for _, name, _ in self.requests)


def make_snapshot(pages: list[tuple[str, str, str]], rows_per_group: int = 4) -> Snapshot:
    """Return a snapshot of pages.

    Args:
        pages: URL, languages and a word of each page, in the order of the index.
        rows_per_group: of the index.
    """
    snapshot = Snapshot()
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
    snapshot.files |= {name: bytes(warc) for name, warc in warcs.items()}
    half = len(rows) // 2
    names = [f"{_TABLE}/subset=warc/part-{i:05d}.c000.gz.parquet" for i in range(2)]
    for name, some in zip(names, (rows[:half], rows[half:]), strict=True):
        snapshot.files[name] = _to_parquet(some, rows_per_group)
    other = f"{_TABLE}/subset=robotstxt/part-00000.c000.gz.parquet"
    listed = "\n".join([other, *names]).encode()
    snapshot.files[f"crawl-data/{CRAWL}/cc-index-table.paths.gz"] = gzip.compress(
        listed, mtime=0
    )
    return snapshot


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


class _Handler(BaseHTTPRequestHandler):
    """Answers from the snapshot of its server."""

    protocol_version = "HTTP/1.1"
    snapshot: Snapshot

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        name = self.path.lstrip("/").replace("%3D", "=")
        asked = self.headers.get("Range")
        self.snapshot.requests.append((self.command, name, asked))
        if failures := self.snapshot.failures.get(name):
            self._send(failures.pop(0), b"")
        elif name not in self.snapshot.files:
            self._send(404, b"")
        else:
            self._send_file(name, asked)

    def _send_file(self, name: str, asked: str | None) -> None:
        content = self.snapshot.files[name]
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked or "")
        if match is None:
            self._send(200, content)
            return
        start, last = int(match[1]), min(int(match[2]), len(content) - 1)
        if start >= len(content):
            self._send(416, b"", f"bytes */{len(content)}")
            return
        place = f"bytes {start}-{last}/{len(content)}"
        cut = self.snapshot.cuts.pop(name, None)
        self._send(206, content[start : last + 1], place, cut)

    def _send(
        self, status: int, body: bytes, place: str | None = None, cut: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if place is not None:
            self.send_header("Content-Range", place)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@contextmanager
def serve(snapshot: Snapshot) -> Generator[Snapshot]:
    """Serve a snapshot on 127.0.0.1; `snapshot.url` is its address."""
    handler = type("Handler", (_Handler,), {"snapshot": snapshot})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    snapshot.url = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield snapshot
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
