"""Every cause of a quarantined record and every reason of a skipped one.

A cause starts with the module that finds it: `warc.` here, `html.` in stages/html/extraction.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stages.html import extraction

# Cause of a quarantine entry -> description.
CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "warc.empty_file": "The file has no bytes.",
        "warc.not_a_warc": "The file has no header of a WARC or ARC record.",
        "warc.garbage": "Bytes between records that belong to none.",
        "warc.truncated": "The file ends inside a record or a gzip member.",
        "warc.compression_corrupt": "Decompression fails, or a checksum is wrong.",
        "warc.header_too_long": "The header of a record does not end within 64 KiB.",
        "warc.header_missing": (
            "A required header field of a record is missing or has no valid value."
        ),
        "warc.content_length_wrong": "No record ends where Content-Length says that this one ends.",
        "warc.record_too_large": (
            "A record, or its page after decompression, is above max_record_bytes. If it also "
            "expands more than 100 times, its gzip member is not decompressed to its end."
        ),
        "warc.not_utf8": (
            "The share of undecodable characters in a text is above max_undecodable_share."
        ),
        "warc.http_header_broken": "The content type is HTTP, but the content has no HTTP header of at most 256 KiB.",
        "warc.too_many_faults": (
            "The file has more than max_faults broken places; the rest was not read."
        ),
        **extraction.CAUSES,
    }
)

_OTHER_TYPES = (
    "warcinfo",
    "request",
    "metadata",
    "revisit",
    "resource",
    "continuation",
    "unknown",
)


def _describe_other_types() -> dict[str, str]:
    descriptions: dict[str, str] = {}
    for name in _OTHER_TYPES:
        descriptions[f"type_{name}"] = f"Records of the type {name} contain no document."
    return descriptions


# Reason -> description, for intact records that do not become documents by design.
SKIPPED: Mapping[str, str] = MappingProxyType(
    {
        **_describe_other_types(),
        "media_type": "The content type is not in media_types.",
        "http_status": "The HTTP status is not in http_statuses.",
        "not_http": "The response does not use HTTP (DNS, for example).",
        "content_too_short": "The content is below min_content_bytes.",
    }
)
