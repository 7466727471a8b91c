"""Facts of a run for cards: its crawl, models with their licences, months and domains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import RunConfig
from pipeline.models.registry import REGISTRY
from pipeline.phases import registry
from pipeline.phases.phase import list_model_references
from pipeline.reporting.kept_documents import KeptDocuments
from terminal_output import format_count

# Rows of domains that are held before equal ones are added up.
MAX_ROWS_HELD = 2**22

# The documents and characters of a domain.
DOMAINS = pa.schema(
    [
        pa.field("domain", pa.string()),
        pa.field("num_docs", pa.int64()),
        pa.field("num_chars", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Model:
    """A model, tokenizer or list that the run has used."""

    name: str
    description: str
    licence: str
    origin: str


@dataclass(frozen=True)
class Crawled:
    """When and from where the kept documents were crawled.

    Attributes:
        months: month, such as 2026-04 -> documents, oldest first.
        domains: DOMAINS, the one with most characters first.
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


def list_models(config: RunConfig) -> list[Model]:
    """Return the models, tokenizers and lists of a config, in the order of their use."""
    references: dict[str, None] = {}
    for phase in registry.PHASES:
        if phase.is_enabled(config):
            references.update(
                dict.fromkeys(list_model_references(phase.plan_stages(config)))
            )
    models: list[Model] = []
    for reference in references:
        asset = REGISTRY.get(reference)
        if asset is None:
            origin = "a file of the dataset's maker"
            models.append(Model(reference, "", "to be filled in", origin))
        else:
            origin = f"{asset.origin}, version {asset.version}"
            models.append(Model(reference, asset.description, asset.licence, origin))
    return models


def read_crawled(documents: KeptDocuments) -> Crawled:
    """Read the months and domains of the kept documents, from their stored columns."""
    months: Counter[str] = Counter()
    parts = [DOMAINS.empty_table()]
    max_rows = MAX_ROWS_HELD
    for table in documents.read_columns(["source_domain", "date", "num_chars"]):
        months.update(_count_months(table.column("date")))
        ones = pa.repeat(pa.scalar(1, pa.int64()), table.num_rows)
        names = pc.fill_null(table.column("source_domain"), "")
        columns = [names, ones, table.column("num_chars")]
        parts.append(_add_up([pa.table(columns, schema=DOMAINS)]))
        if sum(part.num_rows for part in parts) > max_rows:
            parts = [_add_up(parts)]
            # So that each row is added up a few times only, however many domains there are.
            max_rows = max(MAX_ROWS_HELD, 2 * parts[0].num_rows)
    order = [("num_chars", "descending"), ("domain", "ascending")]
    return Crawled(dict(sorted(months.items())), _add_up(parts).sort_by(order))


def _count_months(dates: pa.ChunkedArray) -> Counter[str]:
    """Count the months of WARC-Date values. Values that are no dates are left out."""
    is_date = pc.match_substring_regex(dates, r"^\d{4}-\d{2}-")
    months = pc.utf8_slice_codeunits(dates.filter(is_date), 0, 7)
    counts: Counter[str] = Counter()
    for row in pc.value_counts(months).to_pylist():
        counts[row["values"]] += row["counts"]
    return counts


def _add_up(parts: Iterable[pa.Table]) -> pa.Table:
    """Return DOMAINS with one row per domain."""
    groups = pa.concat_tables(parts).group_by("domain", use_threads=False)
    sums = groups.aggregate([("num_docs", "sum"), ("num_chars", "sum")])
    return sums.rename_columns(DOMAINS.names).cast(DOMAINS)


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
