"""HTTP servers on this machine for tests, with the faults of real ones. They use real sockets."""

from __future__ import annotations

import hashlib
import math
import re
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

LAST_MODIFIED = "Mon, 02 Nov 2020 10:00:00 GMT"

FAULTS = (
    "short answer",  # Content-Length is too small by 100
    "withheld",  # the last 100 bytes are promised and never sent
    "longer answer",  # 50 bytes more than Content-Range says
    "other range",  # five bytes further than requested
    "whole object",  # 200 with all bytes instead of 206
    "shorter object",  # the object ends in the middle of the range
    "other version",  # the object was replaced; If-Match is ignored
    "no answer",
    "503",
)

# Only a checksum of the content shows it.
FLIPPED_BIT = "flipped bit"


class Handler(BaseHTTPRequestHandler):
    """Answers that a test defines. Nothing is printed."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Answer a request."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def send(
        self,
        status: int,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        """Send an answer; close the connection after `cut` bytes of the body."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Ignore connections that the client has closed."""


@contextmanager
def serve(
    handler: type[Handler], certificate: Path | None = None, **state: Any
) -> Generator[str]:
    """Serve on 127.0.0.1, with the state as attributes of the handler; yield the address.

    Args:
        handler: Answers the requests.
        certificate: A file with a certificate and its key, to serve by https.
        **state: Attributes of the handler.
    """
    bound = type("BoundHandler", (handler,), state)
    server = _Server(("127.0.0.1", 0), bound)
    scheme = "http"
    if certificate is not None:
        scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class FileServer:
    """Serves files by range, as S3 and web servers do.

    Attributes:
        files: path without "/" at the start -> content.
        folder: where other files are read, or None.
        failures: path -> status codes of its next answers, first one first.
        cuts: path -> bytes after which the connection of its next answer is closed.
        fault: how ranges are answered: one of FAULTS, FLIPPED_BIT, or "".
        num_healthy: number of GET requests that are answered correctly before the fault begins.
        num_faulty: number of GET requests with the fault, or None for all later ones.
        requests: method, path and Range header of every request.
        ranges: path and range of every GET request of a file.
    """

    def __init__(self, source: dict[str, bytes] | Path) -> None:
        self.files = source if isinstance(source, dict) else dict[str, bytes]()
        self.folder = source if isinstance(source, Path) else None
        self.failures: dict[str, list[int]] = {}
        self.cuts: dict[str, int] = {}
        self.fault, self.num_healthy = "", 0
        self.num_faulty: int | None = None
        self.requests: list[tuple[str, str, str | None]] = []
        self.ranges: list[tuple[str, int, int]] = []
        self.is_closed = threading.Event()
        self._serving = serve(_FileHandler, state=self)
        self.url = self._serving.__enter__()
        self.port = int(self.url.rpartition(":")[2])

    def close(self) -> None:
        """Stop the server and end the requests that it does not answer."""
        self.is_closed.set()
        self._serving.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None."""
        if self.folder is not None and (self.folder / path).is_file():
            return (self.folder / path).read_bytes()
        return self.files.get(path)

    def choose_fault(self) -> str:
        """Return the fault of the newest range."""
        last = math.inf if self.num_faulty is None else self.num_healthy + self.num_faulty
        return self.fault if self.num_healthy < len(self.ranges) <= last else ""

    def list_ranges(self, part_of_path: str) -> list[str | None]:
        """Return the Range headers of the requests of files with this in their paths."""
        return [asked for _, path, asked in self.requests if part_of_path in path]


class _FileHandler(Handler):
    state: FileServer

    def answer(self) -> None:
        path, asked = unquote(self.path).strip("/"), self.headers.get("Range")
        self.state.requests.append((self.command, path, asked))
        content = self.state.read(path)
        if failures := self.state.failures.get(path):
            self.send(failures.pop(0))
        elif content is None:
            self.send(404)
        elif self.command == "HEAD":
            self.send(200, content, _describe(content))
        else:
            self._send_range(path, content, asked)

    def _send_range(self, path: str, content: bytes, asked: str | None) -> None:
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked or "bytes=0-")
        assert found is not None
        start, stop = int(found[1] or 0), int(found[2] or len(content) - 1) + 1
        if not found[1]:  # the last bytes
            start, stop = max(0, len(content) - int(found[2])), len(content)
        self.state.ranges.append((path, start, stop))
        if asked and start >= len(content):
            self.send(416, headers={"Content-Range": f"bytes */{len(content)}"})
            return
        cut = self.state.cuts.pop(path, None)
        fault = self.state.choose_fault()
        if fault == "no answer":
            self.state.is_closed.wait(600)
        elif fault == "503":
            self.send(503)
        elif fault:
            self._send_wrong(content, start, min(stop, len(content)), fault)
        else:
            body = content[start:stop]
            place = f"bytes {start}-{start + len(body) - 1}/{len(content)}"
            headers = {"Content-Range": place} if asked else {}
            self.send(206 if asked else 200, body, headers | _describe(content), cut)

    def _send_wrong(self, content: bytes, start: int, stop: int, fault: str) -> None:
        if fault == "other version":
            content = content[::-1]
        if fault == "shorter object":
            content = content[: (start + stop) // 2]
            stop = len(content)
        body = content[start:stop]
        if fault == FLIPPED_BIT:
            body = body[:-1] + bytes([body[-1] ^ 1])
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        if fault == "short answer":
            body = body[:-100]
        if fault == "longer answer":
            body += b"?" * 50
        if fault == "other range":
            body = content[start + 5 : stop + 5]
            headers["Content-Range"] = f"bytes {start + 5}-{stop + 4}/{len(content)}"
        if fault == "whole object":
            body, headers = content, {}
        headers |= {"Content-Length": str(len(body)), **_describe(content)}
        if fault == "withheld":
            body = body[:-100]
        self.send(206 if "Content-Range" in headers else 200, body, headers)
        if fault == "withheld":
            self.state.is_closed.wait(600)


def _describe(content: bytes) -> dict[str, str]:
    """Return the headers that identify the version of a file."""
    etag = hashlib.sha256(content).hexdigest()[:16]
    return {"ETag": f'"{etag}"', "Last-Modified": LAST_MODIFIED}
