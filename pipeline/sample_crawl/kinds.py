"""The kinds of pages, their shares of the crawl, and the decision that a run must make on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What CCNet's chain must do with a page.
#
#     kept         good text in its language
#     emptied      loses every line to paragraph deduplication (`drop_all_copies`)
#     too_short    has under 300 characters
#     low_quality  must not reach the head bucket, or be dropped for its score
#     quarantined  is not a readable document
#     any          no expectation
ExpectedDecision = Literal[
    "kept", "emptied", "too_short", "low_quality", "quarantined", "any"
]


@dataclass(frozen=True)
class Kind:
    """One kind of page."""

    name: str
    # Pages of this kind per 1,000, rounded up.
    per_mille: int
    expected: ExpectedDecision


# The shares are chosen, not measured: in a crawl of 1,000 pages each rule of the chain gets
# some tens of cases.
KINDS = (
    # The rest, about half of the crawl: a site's boilerplate around 2 to 12 paragraphs that
    # no other page has.
    Kind("good", 0, "kept"),
    # The same in further languages.
    Kind("foreign", 80, "kept"),
    # Exact copies under another URL. A paragraph on two pages loses every copy, so the sources are
    # emptied too. CCNet's paper finds 70 % of a dump's characters repeated; here it is less,
    # so that small runs keep some text.
    Kind("mirror_source", 50, "emptied"),
    Kind("mirror_copy", 70, "emptied"),
    # One word in twenty is replaced, at least one per paragraph, so exact deduplication does
    # not find the copy. Fuzzy deduplication drops it if it is switched on, hence no expectation.
    Kind("near_source", 30, "kept"),
    Kind("near_copy", 30, "any"),
    # Half of the source's paragraphs are also in the copy; both have at least two more of
    # their own.
    Kind("partial_source", 30, "kept"),
    Kind("partial_copy", 30, "kept"),
    # For perplexity and the quality classifiers to find.
    Kind("word_salad", 40, "low_quality"),
    Kind("keyword_spam", 40, "low_quality"),
    # Under CCNet's 300 characters, without the title.
    Kind("short", 50, "too_short"),
    # UTF-8 read as Windows-1252, in all paragraphs or in every second one. The language may
    # still be found, hence no expectation.
    Kind("mojibake", 20, "any"),
    # Only the site's own lines: over 300 characters, every line repeated.
    Kind("boilerplate", 20, "emptied"),
    # Faults of one record: with the two below, under 1 % of a crawl of 2,000 pages or more.
    Kind("damaged_type", 1, "quarantined"),  # no WARC-Type
    Kind("damaged_uri", 1, "quarantined"),  # no WARC-Target-URI
    Kind("damaged_utf8", 1, "any"),  # bytes that are not UTF-8; a reader may replace them
    Kind("damaged_nul", 1, "any"),  # NUL characters; a reader may replace them
    # Faults of the framing. Each is at the end of a file, so a file has at most one.
    Kind("damaged_length", 1, "quarantined"),  # Content-Length beyond the end of the record
    Kind("damaged_header", 1, "quarantined"),  # noise in place of WARC/1.0
    # always the last page of the crawl: its member is cut
    Kind("truncated", 0, "quarantined"),
)

EXPECTED_DECISIONS: dict[str, ExpectedDecision] = {
    kind.name: kind.expected for kind in KINDS
}

# Kinds at the end of a file: a reader that cannot resume after the fault loses nothing
# else.
TAIL_KINDS = ("damaged_length", "damaged_header", "truncated")

# Kind of a copy -> kind of the page that it copies.
SOURCE_KINDS = {
    "mirror_copy": "mirror_source",
    "near_copy": "near_source",
    "partial_copy": "partial_source",
}


def count_kinds(num_documents: int, num_files: int) -> dict[str, int]:
    """Return the number of pages of each kind, in the order of KINDS.

    Framing faults are limited by the number of files, because each needs the end of one.
    """
    counts: dict[str, int] = {}
    for kind in KINDS:
        counts[kind.name] = -(-kind.per_mille * num_documents // 1000)  # rounded up
    counts["damaged_length"] = min(counts["damaged_length"], num_files // 2)
    counts["damaged_header"] = min(counts["damaged_header"], (num_files - 1) // 2)
    counts["truncated"] = 1
    counts["good"] = num_documents - sum(counts.values())
    return counts
