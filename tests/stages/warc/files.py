"""Build WARC and ARC records for the tests of the reader, and read files of them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from stages.kernels.invisible_characters import remove_invisible
from stages.settings.warc import WarcSettings
from stages.warc.reader import WarcReader

MIB = 1 << 20
DEFAULT = WarcSettings()


def record(
    content: bytes,
    *,
    kind: str = "conversion",
    length: int | None = None,
    without: str = "",
    **fields: str,
) -> bytes:
    """Build a WARC record.

    Args:
        content: the block of the record.
        kind: WARC-Type.
        length: Content-Length; None: the true length.
        without: name of a field to omit.
        fields: further fields, with underscores in place of hyphens.
    """
    named = {
        "WARC-Type": kind,
        "WARC-Target-URI": "http://Example.org:80/a",
        "WARC-Date": "2026-01-02T03:04:05Z",
        "WARC-Block-Digest": "sha1:AAAA",
        "Content-Type": "text/plain",
    }
    for name, value in fields.items():
        named[name.replace("_", "-")] = value
    # Last, as in most files: a reader must not depend on the order of the fields.
    named["Content-Length"] = str(len(content) if length is None else length)
    named.pop(without, None)
    header = "WARC/1.0\r\n"
    for name, value in named.items():
        header += f"{name}: {value}\r\n"
    return header.encode() + b"\r\n" + content + b"\r\n\r\n"


def response(http: bytes) -> bytes:
    """Build a WARC record of an HTTP response."""
    return record(
        http,
        kind="response",
        Content_Type="application/http; msgtype=response",
        WARC_Payload_Digest="sha1:P",
    )


def page(
    body: bytes, *headers: str, status: str = "200 OK", content_type: str = "text/html"
) -> bytes:
    """Build an HTTP response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def member(content: bytes) -> bytes:
    """Compress with gzip; equal input gives equal bytes."""
    return gzip.compress(content, compresslevel=6, mtime=0)


def make_text(name: str) -> bytes:
    """Build the content of a WET record, long enough to be found after damage."""
    text = f"Title {name}\n"
    for i in range(40):
        text += f"line {i} of {name}\n"
    return text.encode()


A, B, C = record(make_text("A")), record(make_text("B")), record(make_text("C"))

ARC_START = (
    b"filedesc://a.arc 0.0.0.0 20100101000000 text/plain 76\n"
    b"1 0 InternetArchive\nURL IP-address Archive-date Content-type Archive-length\n\n"
)


def arc_record(
    http: bytes, *, url: str = "http://Example.org:80/a", length: int | None = None
) -> bytes:
    """Build an ARC record; `length` replaces its true length."""
    num_bytes = len(http) if length is None else length
    header = f"{url} 192.0.2.1 20260102030405 text/html {num_bytes}\n"
    return header.encode() + http + b"\n"


def make_page(name: str) -> bytes:
    """Build an HTTP response with the same title and lines as `make_text`."""
    title, _, lines = make_text(name).partition(b"\n")
    return page(b"<title>" + title + b"</title><pre>" + lines + b"</pre>")


ARC_A, ARC_B, ARC_C = map(arc_record, map(make_page, "ABC"))
_COUNT = iter(range(10**9))


class Reading:
    """The tables and the report of one file."""

    def __init__(
        self,
        folder: Path,
        data: bytes,
        settings: WarcSettings = DEFAULT,
        batch_bytes: int = MIB,
    ) -> None:
        self.path = folder / f"{next(_COUNT)}.warc"
        self.path.write_bytes(data)
        self.reader = WarcReader(self.path, settings, split=0, batch_bytes=batch_bytes)
        self.tables = list(self.reader)
        self.report = self.reader.report
        self.path.unlink()

    @property
    def rows(self) -> list[dict[str, object]]:
        """All documents, in order."""
        rows: list[dict[str, object]] = []
        for table in self.tables:
            rows += table.to_pylist()
        return rows

    @property
    def names(self) -> str:
        """The names given to `make_text`, of all documents, in order."""
        return "".join(str(row["title"]).removeprefix("Title ") for row in self.rows)

    @property
    def causes(self) -> list[str]:
        """The causes of the quarantine entries, without the prefix "warc."."""
        return [entry.cause.removeprefix("warc.") for entry in self.report.quarantine]


# Records that state a wrong length.
SHORT, LONG = record(make_text("X"), length=100), record(make_text("X"), length=1000)
ARC_SHORT = arc_record(make_page("X"), length=100)
ARC_LONG = arc_record(make_page("X"), length=1500)
ARC_HUGE = arc_record(make_page("X"), length=10**12)

# A gzip member with a wrong checksum.
BAD_CRC = bytearray(member(B))
BAD_CRC[-6] ^= 1


def clean_in_python(content: str) -> tuple[str, str]:
    """Return title and text of a WET content, computed line by line."""
    lines = re.split(r"\r\n|\n|\r", content.replace("\0", " "))
    title, *others = map(str.rstrip, map(remove_invisible, lines))
    return title.lstrip(), "\n".join(others).rstrip("\n")
