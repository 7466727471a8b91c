"""A server of objects that breaks the rules of HTTP. It uses real sockets."""

from __future__ import annotations

import hashlib
import math
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

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


class OddServer:
    """Serves objects by range, as S3 and web servers do.

    objects:     path without "/" at the start -> content
    fault:       how ranges are answered: one of FAULTS, FLIPPED_BIT, or ""
    num_healthy: number of ranges that are answered correctly before the fault begins
    num_faulty:  number of ranges with the fault, or None for all later ones
    ranges:      path and range of every GET request
    """

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.fault, self.num_healthy = objects, "", 0
        self.num_faulty: int | None = None
        self.ranges: list[tuple[str, int, int]] = []
        self._is_over = threading.Event()
        handler = type("BoundHandler", (_Handler,), {"state": self})
        self._server = _QuietServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the server and end the requests that it does not answer."""
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Do not answer until the server is closed."""
        self._is_over.wait(600)

    def choose_fault(self, number: int) -> str:
        """Return the fault of a range; the first one has the number 1."""
        last = math.inf if self.num_faulty is None else self.num_healthy + self.num_faulty
        return self.fault if self.num_healthy < number <= last else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Ignore connections that the client has closed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: OddServer

    def do_HEAD(self) -> None:
        path = self.path.strip("/")
        if path not in self.state.objects:
            self._answer(404, {}, b"")
            return
        content = self.state.objects[path]
        self._answer(200, {"Content-Length": str(len(content))}, b"", content)

    def do_GET(self) -> None:
        path = self.path.strip("/")
        content = self.state.objects.get(path)
        if content is None:
            self._answer(404, {"Content-Length": "0"}, b"")
            return
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "bytes=0-"))
        assert found is not None
        start, stop = int(found[1] or 0), int(found[2] or len(content) - 1) + 1
        if not found[1]:  # the last bytes
            start, stop = max(0, len(content) - int(found[2])), len(content)
        self.state.ranges.append((path, start, stop))
        if start >= len(content):
            unsatisfied = {
                "Content-Range": f"bytes */{len(content)}",
                "Content-Length": "0",
            }
            self._answer(416, unsatisfied, b"")
            return
        fault = self.state.choose_fault(len(self.state.ranges))
        self._answer_range(content, start, min(stop, len(content)), fault)

    def _answer_range(self, content: bytes, start: int, stop: int, fault: str) -> None:
        if fault == "no answer":
            self.state.wait()
            return
        if fault == "503":
            self._answer(503, {"Content-Length": "0"}, b"")
            return
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
        headers["Content-Length"] = str(len(body))
        if fault == "withheld":
            body = body[:-100]
        self._answer(206 if "Content-Range" in headers else 200, headers, body, content)
        if fault == "withheld":
            self.state.wait()

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, content: bytes = b""
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()[:16]}"')
        self.send_header("Last-Modified", LAST_MODIFIED)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""
