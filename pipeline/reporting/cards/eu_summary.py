"""The public summary of training content that the EU AI Act requires, as far as a run has facts.

Article 53(1)(d) of Regulation (EU) 2024/1689; sections and limits are those of the template that
the European Commission published on 24 July 2025. A run is one source of a model's training data,
so most answers are the provider's: they are marked TO_BE_FILLED_IN. eu_summary.md is the text.
"""

from __future__ import annotations

import math

from markupsafe import Markup

from pipeline.reporting.cards.facts import Crawled, describe_source, read_crawled
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.reporting.report import make_report
from pipeline.reporting.templates import (
    escape_markdown,
    make_markdown_table,
    quote_code,
    render,
)
from pipeline.runs.run_folder import RunFolder
from terminal_output import format_count

TO_BE_FILLED_IN = Markup("**To be filled in.**")

# The template asks for the domains with most content: one in ten, and of small and medium
# enterprises one in twenty, at most 1,000.
DOMAIN_SHARE = 0.10
SME_DOMAIN_SHARE = 0.05
MAX_SME_DOMAINS = 1_000

_BILLION, _TRILLION = 10**9, 10**12


def make_eu_summary(run: RunFolder, *, is_sme: bool = False) -> str:
    """Return the summary of a run as Markdown.

    Args:
        run: a run whose select is done.
        is_sme: list as many domains as a small or medium enterprise must.

    Raises:
        RunNotFound: select is not done yet.
    """
    documents = KeptDocuments(run)
    report, crawled = make_report(run), read_crawled(documents)
    period = _format_period(crawled)
    listed = crawled.domains.slice(0, count_domains(crawled.domains.num_rows, is_sme))
    domains = [
        (row["domain"] or "(none)", row["num_docs"], row["num_chars"])
        for row in listed.to_pylist()
    ]
    languages = [
        (language, num_docs, report.language_tokens.get(language, 0))
        for language, num_docs in report.languages.items()
    ]
    return render(
        "cards/eu_summary.md",
        escape_markdown,
        code=quote_code,
        open=TO_BE_FILLED_IN,
        config=run.config,
        report=report,
        crawled=crawled,
        is_sme=is_sme,
        size_range=name_size_range(report.num_tokens),
        period=period,
        last_month=period.rpartition(" to ")[2],
        source=describe_source(run.config),
        num_retracted=format_count(len(documents.retracted), "document"),
        listed=listed,
        languages=make_markdown_table(("language", "documents", "tokens"), languages),
        domains=make_markdown_table(("domain", "documents", "characters"), domains),
    )


def count_domains(num_domains: int, is_sme: bool) -> int:
    """Return how many domains a provider must list."""
    if is_sme:
        return min(MAX_SME_DOMAINS, math.ceil(num_domains * SME_DOMAIN_SHARE))
    return math.ceil(num_domains * DOMAIN_SHARE)


def _format_period(crawled: Crawled) -> str:
    """Return the first and the last month, such as 04/2026 to 05/2026."""
    if not crawled.months:
        return "unknown"
    months = list(crawled.months)
    first, last = (month.split("-") for month in (months[0], months[-1]))
    return f"{first[1]}/{first[0]} to {last[1]}/{last[0]}"


def name_size_range(num_tokens: int) -> str:
    """Return the template's range of text sizes for this dataset alone."""
    if num_tokens < _BILLION:
        return "less than 1 billion tokens"
    if num_tokens <= 10 * _TRILLION:
        return "1 billion to 10 trillion tokens"
    return "more than 10 trillion tokens"
