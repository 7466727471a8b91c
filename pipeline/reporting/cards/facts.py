"""Facts of a run for cards: its crawl, licence, months and domains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import RunConfig
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.reporting.queries import Totals, add_ones
from terminal_output import format_count


@dataclass(frozen=True)
class Crawled:
    """When and from where the kept documents were crawled.

    Attributes:
        months: month, such as 2026-04 -> documents, oldest first.
        domains: domain, num_docs and num_chars, the one with most characters first.
    """

    months: Mapping[str, int]
    domains: pa.Table

    @property
    def num_docs(self) -> int:
        """The kept documents."""
        return pc.sum(self.domains.column("num_docs")).as_py() or 0

    @property
    def num_chars(self) -> int:
        """Their characters."""
        return pc.sum(self.domains.column("num_chars")).as_py() or 0


def read_crawled(documents: KeptDocuments) -> Crawled:
    """Read the months and domains of the kept documents, from their stored columns."""
    months: Counter[str] = Counter()
    domains = Totals(["domain"], ["num_docs", "num_chars"])
    for table in documents.read_columns(["source_domain", "date", "num_chars"]):
        months.update(_count_months(table.column("date")))
        names = pc.fill_null(table.column("source_domain"), "")
        domains.add(add_ones(table.append_column("domain", names)))
    order = [("num_chars", "descending"), ("domain", "ascending")]
    return Crawled(dict(sorted(months.items())), domains.total().sort_by(order))


def _count_months(dates: pa.ChunkedArray) -> Counter[str]:
    """Count the months of WARC-Date values. Values that are no dates are left out."""
    is_date = pc.match_substring_regex(dates, r"^\d{4}-\d{2}-")
    months = pc.utf8_slice_codeunits(dates.filter(is_date), 0, 7)
    counts: Counter[str] = Counter()
    for row in pc.value_counts(months).to_pylist():
        counts[row["values"]] += row["counts"]
    return counts


@dataclass(frozen=True)
class Licence:
    """The terms of the texts of a dataset, with the keys of Hugging Face.

    Attributes:
        key: `license` of a dataset card.
        name: `license_name`, for the key "other"; "" for others.
        url: the address of its text; "" if it is unknown.
    """

    key: str
    name: str = ""
    url: str = ""


COMMON_CRAWL = Licence(
    "other", "common-crawl-terms-of-use", "https://commoncrawl.org/terms-of-use"
)

# Of Wikipedia, from which the sample crawl is made (NOTICE.md).
CC_BY_SA = Licence("cc-by-sa-4.0", url="https://creativecommons.org/licenses/by-sa/4.0/")

UNKNOWN = Licence("unknown")


def find_licence(config: RunConfig) -> Licence:
    """Return the terms of the texts."""
    if config.input.sample_crawl is not None:
        return CC_BY_SA
    return UNKNOWN if config.input.common_crawl is None else COMMON_CRAWL


def describe_source(config: RunConfig) -> str:
    """Return one sentence about the input of a run."""
    source = config.input
    if source.common_crawl is not None:
        crawl = source.common_crawl
        kind = f"{crawl.format.upper()} file"
        files = f"all {kind}s" if crawl.count is None else format_count(crawl.count, kind)
        snapshots = "snapshots" if len(crawl.crawls) > 1 else "snapshot"
        of_each = " of each" if len(crawl.crawls) > 1 else ""
        return (
            f"Common Crawl's {snapshots} {', '.join(crawl.crawls)}: {files}{of_each}, "
            f"from number {crawl.first:,}, read from {crawl.base_url}."
        )
    if source.sample_crawl is not None:
        return (
            "A sample crawl that corpusmill has made from Wikipedia summaries and labelled "
            "sentences, for demonstration."
        )
    files = source.files if source.text is None else source.text.files
    return f"Files given by the maker of the dataset: {', '.join(files or ())}."
