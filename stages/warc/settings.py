"""Settings of the record reader: the section `warc` of a run's config."""

from __future__ import annotations

from pydantic import Field

from stages.contract import Settings
from stages.html.extraction import HtmlSettings


class WarcAdvanced(Settings):
    """Limits and choices of the record reader that hardly any run needs to change."""

    max_record_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="Largest record, and largest page in a record after decompression. Larger ones are quarantined "
        "without being held in memory (zip bombs).",
    )
    min_content_bytes: int = Field(
        default=0, ge=0, description="Skip records whose content is shorter than this."
    )
    max_faults: int = Field(
        default=1000,
        ge=1,
        description="Number of broken places after which the rest of a file is not read.",
    )
    media_types: tuple[str, ...] = Field(
        default=("text/html", "application/xhtml+xml", "text/plain"),
        description="Content types of HTTP responses to read (lower case, without parameters).",
    )
    http_statuses: tuple[int, ...] = Field(
        default=(200,), description="Status codes of HTTP responses to read."
    )
    max_undecodable_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Largest share of a WET text's characters that may be invalid UTF-8; each becomes U+FFFD.",
    )


class WarcSettings(Settings):
    """How records become documents."""

    first_line_is_title: bool = Field(
        default=True,
        description="Whether the first line of a WET text is its title, which is taken off the text (CCNet).",
    )
    html: HtmlSettings = Field(
        default=HtmlSettings(), description="Text extraction from the pages of WARC files."
    )
    advanced: WarcAdvanced = Field(
        default=WarcAdvanced(), description="Limits that hardly any run needs to change."
    )
