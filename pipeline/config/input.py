"""The `input` section: which crawl files a run reads."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.settings.base import Settings, Share


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


class CommonCrawl(Settings):
    """A slice of a Common Crawl snapshot, as listed in its wet.paths.gz or warc.paths.gz."""

    crawl: str = Field(
        pattern=r"^CC-MAIN-\w+(-\w+)*$",
        description="Name of the snapshot, such as CC-MAIN-2026-17.",
    )
    format: Literal["wet", "warc"] = Field(
        default="wet", description="Which list of the snapshot to read."
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


class InputConfig(Settings):
    """The crawl to read: exactly one of `sample_crawl`, `files` and `common_crawl`."""

    sample_crawl: SampleCrawl | None = Field(
        default=None, description="A crawl that is made on this machine from real texts."
    )
    files: tuple[str, ...] | None = Field(
        default=None,
        description="WET, WARC or ARC files: paths, patterns (**, *, ?) or folders, relative to the "
        "working directory; addresses of files (https, s3), or of folders on s3. A folder gives "
        "the files below it that end in .warc, .wet or .arc, or these with .gz.",
    )
    common_crawl: CommonCrawl | None = Field(
        default=None, description="A slice of a Common Crawl snapshot."
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
        sources = ("sample_crawl", "files", "common_crawl")
        given = [name for name in sources if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                "give exactly one of sample_crawl, files, common_crawl; "
                f"found {', '.join(given) or 'none'}"
            )
        return self
