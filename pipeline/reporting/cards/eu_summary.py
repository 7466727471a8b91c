"""The public summary of training content that the EU AI Act requires, as far as a run has facts.

Article 53(1)(d) of Regulation (EU) 2024/1689; sections and limits are those of the template that
the European Commission published on 24 July 2025. A run is one source of a model's training data,
so most answers are the provider's: they are marked TO_BE_FILLED_IN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pipeline.config import RunConfig
from pipeline.reporting.cards.facts import Crawled, describe_source, read_crawled
from pipeline.reporting.cards.markdown import escape_text, make_table
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.reporting.report import Report, make_report
from pipeline.runs.run_folder import RunFolder
from terminal_output import format_count

TO_BE_FILLED_IN = "**To be filled in.**"

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
    parts = [
        _begin(),
        _describe_general(report, crawled),
        _describe_datasets(run.config, report, crawled),
        _describe_crawl(run.config, crawled, is_sme),
        _describe_other_sources(),
        _describe_processing(run.config, len(documents.retracted)),
    ]
    return "\n".join(line for part in parts for line in (*part, ""))


def _begin() -> list[str]:
    return [
        "# Public summary of training content",
        "",
        "Draft for Article 53(1)(d) of Regulation (EU) 2024/1689, in the order of the template of",
        "the European Commission of July 2025. It covers the dataset of one run. Add the other",
        f"sources of the model. Answers that a run cannot give are marked: {TO_BE_FILLED_IN}",
    ]


def _describe_general(report: Report, crawled: Crawled) -> list[str]:
    return [
        "## 1. General information",
        "",
        "### 1.1 Provider identification",
        "",
        f"- Provider name and contact details: {TO_BE_FILLED_IN}",
        f"- Authorised representative name and contact details: {TO_BE_FILLED_IN}",
        "",
        "### 1.2 Model identification",
        "",
        f"- Versioned model name or names: {TO_BE_FILLED_IN}",
        f"- Model dependencies: {TO_BE_FILLED_IN}",
        f"- Date of placement of the model on the Union market: {TO_BE_FILLED_IN}",
        "",
        "### 1.3 Modalities, overall size and other characteristics",
        "",
        *_describe_size(report, crawled),
    ]


def _describe_size(report: Report, crawled: Crawled) -> list[str]:
    modalities = [
        ("text", "yes", _name_size_range(report.num_tokens)),
        ("image, audio, video, other", "no", "none in this dataset"),
    ]
    languages = [
        (escape_text(language), num_docs, report.language_tokens.get(language, 0))
        for language, num_docs in report.languages.items()
    ]
    last_month = _format_period(crawled).rpartition(" to ")[2]
    return [
        *make_table(("modality", "in the data", "size"), modalities),
        "",
        f"- Documents of this dataset: {crawled.num_docs:,}",
        f"- Characters: {crawled.num_chars:,}",
        f"- Tokens, before removals on request: {report.num_tokens:,}",
        f"- Types of content: text of public web pages. {TO_BE_FILLED_IN}",
        f"- Latest date of acquisition: {last_month}, the last month of the crawl",
        f"- Training on data that is acquired later: {TO_BE_FILLED_IN}",
        f"- Other characteristics and comments: {TO_BE_FILLED_IN}",
        "",
        f"Linguistic characteristics: {len(report.languages):,} languages, as a model has",
        "identified them. Numbers are those before removals on request.",
        "",
        *make_table(("language", "documents", "tokens"), languages),
    ]


def _describe_datasets(config: RunConfig, report: Report, crawled: Crawled) -> list[str]:
    return [
        "## 2. List of data sources",
        "",
        "### 2.1 Publicly available datasets",
        "",
        f"- {escape_text(describe_source(config))}",
        f"- Crawl files read: {report.num_files:,}",
        f"- Documents read: {report.num_docs_read:,}; kept: {crawled.num_docs:,}",
        f"- Other publicly available datasets: {TO_BE_FILLED_IN}",
        "",
        "### 2.2 Private datasets obtained from third parties",
        "",
        f"None in this dataset. Of the model: {TO_BE_FILLED_IN}",
    ]


def _describe_crawl(config: RunConfig, crawled: Crawled, is_sme: bool) -> list[str]:
    listed = crawled.domains.slice(0, count_domains(crawled.domains.num_rows, is_sme))
    rows = [
        (escape_text(row["domain"]) or "(none)", row["num_docs"], row["num_chars"])
        for row in listed.to_pylist()
    ]
    share = "5 %, at most 1,000" if is_sme else "10 %"
    return [
        "### 2.3 Data crawled and scraped from online sources",
        "",
        f"- Were crawlers used by the provider or on its behalf? {TO_BE_FILLED_IN}",
        *_describe_crawler(config),
        f"- Period of data collection: {_format_period(crawled)} (the dates of the records).",
        f"- Purposes of the crawler, and kinds of websites: {TO_BE_FILLED_IN}",
        "- Modality: text.",
        "",
        f"Domain names with most content: {listed.num_rows:,} of {crawled.domains.num_rows:,}",
        f"({share}), by the characters of the kept documents. A domain is the host of a URL.",
        "",
        *make_table(("domain", "documents", "characters"), rows),
    ]


def count_domains(num_domains: int, is_sme: bool) -> int:
    """Return how many domains a provider must list."""
    if is_sme:
        return min(MAX_SME_DOMAINS, math.ceil(num_domains * SME_DOMAIN_SHARE))
    return math.ceil(num_domains * DOMAIN_SHARE)


def _describe_crawler(config: RunConfig) -> Iterator[str]:
    if config.input.common_crawl is None:
        yield f"- Crawler name and identifier: {TO_BE_FILLED_IN}"
        yield f"- Behaviour of the crawler: {TO_BE_FILLED_IN}"
        return
    yield (
        "- Crawler name and identifier: CCBot, of the Common Crawl Foundation, not operated "
        "by the maker of this dataset (https://commoncrawl.org/ccbot)."
    )
    yield (
        "- Behaviour of the crawler: the Common Crawl Foundation states that CCBot follows "
        "robots.txt. Paywalls, captchas and other behaviour: see its page."
    )


def _describe_other_sources() -> list[str]:
    return [
        "### 2.4 User data",
        "",
        f"None in this dataset. Of the model: {TO_BE_FILLED_IN}",
        "",
        "### 2.5 Synthetic data",
        "",
        f"None was generated for this dataset. Of the model: {TO_BE_FILLED_IN}",
        "",
        "### 2.6 Other sources of data",
        "",
        f"None in this dataset. Of the model: {TO_BE_FILLED_IN}",
    ]


def _describe_processing(config: RunConfig, num_retracted: int) -> list[str]:
    opt_outs = [f"- {sentence}" for sentence in _list_opt_outs(config, num_retracted)]
    illegal = [f"- {sentence}" for sentence in _list_content_rules(config)]
    return [
        "## 3. Data processing aspects",
        "",
        "### 3.1 Respect of reservation of rights",
        "",
        f"- Signatory of the Code of Practice: {TO_BE_FILLED_IN}",
        *opt_outs,
        f"- Policy to comply with Union copyright law, and its address: {TO_BE_FILLED_IN}",
        "",
        "### 3.2 Removal of illegal content",
        "",
        *illegal,
        f"- Other measures: {TO_BE_FILLED_IN}",
        "",
        "### 3.3 Other information",
        "",
        f"{TO_BE_FILLED_IN}",
    ]


def _list_opt_outs(config: RunConfig, num_retracted: int) -> Iterator[str]:
    """Yield what was done about opt-outs, one sentence each."""
    if config.extract.url is None:
        yield "No list of URLs or domains was excluded when the pages were read."
    else:
        yield "Pages whose addresses match the lists and words of `extract.url` were excluded."
    documents = format_count(num_retracted, "document")
    yield f"Left out on request after they were read: {documents}."
    yield (
        "Opt-outs in HTTP headers, in HTML or in other protocols were not evaluated: "
        f"{TO_BE_FILLED_IN}"
    )


def _list_content_rules(config: RunConfig) -> Iterator[str]:
    """Yield the rules that may remove illegal content, one sentence each."""
    if config.extract.url is not None:
        yield "Block lists of URLs, domains, words and patterns (`extract.url`) were applied."
    classifiers = config.annotate.classifiers
    if classifiers is not None and config.select.classifiers is not None:
        names = ", ".join(f"`{name}`" for name in classifiers.by_name)
        yield f"Classifiers judged the texts: {names}. What they find: {TO_BE_FILLED_IN}"
    if config.tokenize.pii is not None:
        yield "E-mail and IP addresses, and phone, card and account numbers were replaced."
    else:
        yield "Personal data was not replaced."


def _format_period(crawled: Crawled) -> str:
    """Return the first and the last month, such as 04/2026 to 05/2026."""
    if not crawled.months:
        return f"unknown: {TO_BE_FILLED_IN}"
    months = list(crawled.months)
    return f"{_format_month(months[0])} to {_format_month(months[-1])}"


def _format_month(month: str) -> str:
    year, _, number = month.partition("-")
    return f"{number}/{year}"


def _name_size_range(num_tokens: int) -> str:
    """Return the template's range of text sizes for this dataset alone."""
    if num_tokens < _BILLION:
        return "less than 1 billion tokens"
    if num_tokens <= 10 * _TRILLION:
        return "1 billion to 10 trillion tokens"
    return "more than 10 trillion tokens"
