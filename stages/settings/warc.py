"""Settings of the readers of records and rows, and of text extraction from HTML pages."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from stages.settings.base import Settings


class JustextSettings(Settings):
    """Settings of jusText."""

    stop_words: tuple[str, ...] = Field(
        default=("English",),
        min_length=1,
        description="Languages, by English name (100 are known), whose stop words distinguish "
        "sentences from menus. Pages in other languages give hardly any text.",
    )

    @field_validator("stop_words")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from justext import get_stoplists

        known = get_stoplists()
        for name in names:
            if name not in known:
                near = get_close_matches(name, sorted(known), n=3, cutoff=0.4) or [
                    "English"
                ]
                raise ValueError(
                    f"jusText has no stop words for {name!r}; the nearest names are: "
                    f"{', '.join(near)}"
                )
        return names


class HtmlSettings(Settings):
    """How text is extracted from pages."""

    main_content: bool = Field(
        default=False,
        description="Remove navigation, footers and other boilerplate. Takes twice the time. "
        "Pages of which hardly anything is left keep all text (docs/stages.md).",
    )
    engine: Literal["blocks", "resiliparse", "trafilatura"] = Field(
        default="blocks",
        description="The rules that find the main content. `blocks`: ours, from text, links and "
        "names of elements. `resiliparse`: those of its main content extraction, as in DCLM; "
        "they keep more boilerplate. `trafilatura`: as in FineWeb and RefinedWeb; four times "
        "slower than `blocks`, and needs the extra trafilatura.",
    )
    justext: JustextSettings | None = Field(
        default=None,
        description="Extract the main text with jusText (as Pile-CC) instead of resiliparse; "
        "null: use resiliparse.",
    )
    alt_texts: bool = Field(
        default=False, description="Keep the alternative texts of images."
    )
    list_bullets: bool = Field(
        default=False, description="Start list items with a bullet or a number."
    )

    page_sample_chars: int = Field(
        default=0,
        ge=0,
        description="Store this many characters of all text of a page, before boilerplate is "
        "removed. `annotate.language.read: page_sample` identifies its language (Pile-CC).",
    )

    @model_validator(mode="after")
    def _check_one_engine(self) -> Self:
        given = [name for name in ("alt_texts", "list_bullets") if getattr(self, name)]
        if self.justext is not None and (self.main_content or given):
            names = ["main_content", *given] if self.main_content else given
            raise ValueError(
                f"{', '.join(names)} are settings of resiliparse; remove them, or set justext "
                "to null"
            )
        if self.engine == "trafilatura" and not self.main_content:
            raise ValueError(
                f"engine {self.engine} finds main content; set main_content: true"
            )
        if self.main_content and self.engine != "resiliparse" and given:
            raise ValueError(
                f"{', '.join(given)} are settings of resiliparse; remove them, or set engine "
                "to resiliparse"
            )
        return self


class WarcAdvanced(Settings):
    """Limits and choices of the record reader that hardly any run needs to change."""

    max_record_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="Largest record, and largest page in a record after decompression. Larger "
        "ones are quarantined without being held in memory (zip bombs).",
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
        description="Largest share of a WET text's characters that may be invalid UTF-8; each "
        "becomes U+FFFD.",
    )


class WarcSettings(Settings):
    """How records become documents."""

    first_line_is_title: bool = Field(
        default=True,
        description="Whether the first line of a WET text is its title, which is taken off the "
        "text (CCNet).",
    )
    html: HtmlSettings = Field(
        default=HtmlSettings(), description="Text extraction from the pages of WARC files."
    )
    advanced: WarcAdvanced = Field(
        default=WarcAdvanced(), description="Limits that hardly any run needs to change."
    )


class TextColumns(Settings):
    """The columns of a row. `metadata.url` is the column `url` in the object `metadata`."""

    text: str = Field(
        default="text", min_length=1, description="Column with the text of a document."
    )
    url: str | None = Field(
        default=None, min_length=1, description="Column with its URL; null: there is none."
    )
    id: str | None = Field(
        default=None,
        min_length=1,
        description="Column with the name of a document, which stands in for a missing URL. "
        "Without both, the name is `<file>#<row>`.",
    )
    date: str | None = Field(
        default=None, min_length=1, description="Column with the time of its collection."
    )
    title: str | None = Field(
        default=None, min_length=1, description="Column with its title."
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The columns to read, each once."""
        given = (self.text, self.url, self.id, self.date, self.title)
        return tuple(dict.fromkeys(name for name in given if name is not None))
