"""The `input` section: which crawl files a run reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from stages.settings.base import Settings, Share
from stages.settings.languages import LanguageCode
from stages.settings.warc import TextColumns

# Common Crawl's text files end in .warc.wet.gz.
_HTML_FILE = re.compile(r"\.w?arc(?!\.wet)(\.|$)")


class SampleCrawl(Settings):
    """A crawl that is made on this machine from real texts, with a table of expected decisions."""

    documents: int = Field(default=20_000, ge=100, description="Number of pages.")
    seed: int = Field(default=1, ge=0, description="The same seed gives the same bytes.")
    documents_per_file: int = Field(
        default=2_500, ge=1, description="Pages per crawl file."
    )
    format: Literal["wet", "warc"] = Field(
        default="wet", description="Extracted text (wet) or HTML responses (warc)."
    )


class PageQuery(Settings):
    """Pages of a snapshot, found in its columnar index. All of the given conditions must hold."""

    domains: tuple[str, ...] = Field(
        default=(),
        description="Registered domains, with all their hosts: wikipedia.org has "
        "en.wikipedia.org.",
    )
    hosts: tuple[str, ...] = Field(
        default=(), description="Hosts, in addition to `domains`: en.wikipedia.org."
    )
    languages: tuple[LanguageCode, ...] = Field(
        default=(), description="Main language of the page, as Common Crawl identified it."
    )
    url_pattern: str | None = Field(
        default=None,
        min_length=1,
        description="Regular expression (RE2) that occurs in the URL, such as ^https://[^/]+/blog/.",
    )
    max_pages: int | None = Field(
        default=None,
        ge=1,
        description="Number of pages, the first in the order of the index; null: all. Without "
        "`domains` and `hosts` it also bounds how much of the index is read.",
    )
    pages_per_split: int = Field(
        default=2_000, ge=1, description="Pages that one task fetches, at most."
    )
    requests_per_s: float = Field(
        default=10,
        gt=0,
        description="Requests per second of the whole run, over all machines. Fewer are sent "
        "after the server has refused one (403, 429, 503).",
    )

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        conditions = ("domains", "hosts", "languages", "url_pattern")
        if not any(getattr(self, name) for name in conditions):
            raise ValueError(f"give at least one of {', '.join(conditions)}")
        return self


# The name of a snapshot.
CrawlName = Annotated[str, Field(pattern=r"^CC-MAIN-\w+(-\w+)*$")]


class CommonCrawl(Settings):
    """A slice of Common Crawl snapshots: files by their position, or pages by the index."""

    crawl: Annotated[
        Annotated[CrawlName, Tag("|name")]
        | Annotated[tuple[CrawlName, ...], Field(min_length=1), Tag("|names")],
        Discriminator(lambda given: "|name" if isinstance(given, str) else "|names"),
    ] = Field(
        description="Name of the snapshot, such as CC-MAIN-2026-17, or a list of names. `first`, "
        "`count` and `pages.max_pages` hold for each snapshot.",
    )
    format: Literal["wet", "warc"] = Field(
        default="wet",
        description="Which list of the snapshot to read. With `pages` it is warc: only WARC files "
        "have an index.",
    )
    pages: PageQuery | None = Field(
        default=None,
        description="Fetch single pages by domain, language or URL, instead of whole files.",
    )
    first: int = Field(
        default=0, ge=0, description="Position in the list of the first file."
    )
    count: int | None = Field(
        default=None,
        ge=1,
        description="Number of files; null reads to the end of the list.",
    )
    base_url: str = Field(
        default="https://data.commoncrawl.org/",
        pattern=r"^(https?|s3)://",
        description="Address of the snapshots: Common Crawl's server, s3://commoncrawl/, or a "
        "mirror.",
    )

    @property
    def crawls(self) -> tuple[str, ...]:
        """The names of the snapshots."""
        return (self.crawl,) if isinstance(self.crawl, str) else self.crawl

    @field_validator("crawl")
    @classmethod
    def _check_repeated(cls, given: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not isinstance(given, str):
            repeated = [name for name, number in Counter(given).items() if number > 1]
            if repeated:
                raise ValueError(f"{', '.join(repeated)} given twice; name each once")
        return given

    @model_validator(mode="before")
    @classmethod
    def _read_warc_for_pages(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("pages") is not None:
            return {"format": "warc", **given}
        return given

    @model_validator(mode="after")
    def _check_pages(self) -> Self:
        if self.pages is None:
            return self
        if self.format == "wet":
            raise ValueError(
                "pages are read from WARC files; remove format, or set it to warc"
            )
        if self.first or self.count is not None:
            raise ValueError("first and count choose files; with pages use pages.max_pages")
        return self


class TextInput(TextColumns):
    """Files with one document per row: JSONL or Parquet."""

    files: tuple[str, ...] = Field(
        min_length=1,
        description="As `input.files`. A folder gives the files below it that end in .jsonl, "
        ".ndjson, .json or .parquet, or these with .gz, .zst or .lz4. Large uncompressed JSONL "
        "and Parquet files on a disk are read by several tasks.",
    )


class InputConfig(Settings):
    """What to read: exactly one of `sample_crawl`, `files`, `text` and `common_crawl`."""

    sample_crawl: SampleCrawl | None = Field(
        default=None, description="A crawl that is made on this machine from real texts."
    )
    files: tuple[str, ...] | None = Field(
        default=None,
        description="WET, WARC or ARC files: paths, patterns (**, *, ?) or folders, relative to the "
        "working directory; addresses of files (https, s3), or of folders on s3. A folder gives "
        "the files below it that end in .warc, .wet or .arc, or these with .gz, .zst or .lz4.",
    )
    text: TextInput | None = Field(
        default=None, description="JSONL or Parquet files with a column of texts."
    )
    common_crawl: CommonCrawl | None = Field(
        default=None, description="A slice of Common Crawl snapshots."
    )
    files_per_split: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="Files per input split, which one task reads; raise it for many small "
        "files. auto: one, and more above 10,000 files, which gives at most 10,000 splits.",
    )
    max_quarantined_share: Share = Field(
        default=0.01,
        description="Largest share of broken records; above it the run ends with exit code 3.",
    )

    max_lost_files_share: Share = Field(
        default=0.0,
        description="Largest share of input files that give no record at all, such as an error "
        "page in place of a WARC file; above it the run ends with exit code 3.",
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        sources = ("sample_crawl", "files", "text", "common_crawl")
        given = [name for name in sources if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                "give exactly one of sample_crawl, files, text, common_crawl; "
                f"found {', '.join(given) or 'none'}"
            )
        return self

    def has_html(self, names: Iterable[str] = ()) -> bool:
        """Return whether the input is HTML of WARC or ARC files, by the settings and the names of files.

        Args:
            names: names of the files, where they are known. A folder in `files` does not tell.
        """
        crawl = self.sample_crawl or self.common_crawl
        if crawl is not None:
            return crawl.format == "warc"
        return any(_HTML_FILE.search(name) for name in (*names, *(self.files or ())))
