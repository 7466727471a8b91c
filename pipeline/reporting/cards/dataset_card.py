"""The dataset card of an export: a README.md with the YAML header of Hugging Face.

The header's keys are those of https://huggingface.co/docs/hub/datasets-cards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import yaml

from pipeline.config import RunConfig
from pipeline.reporting.cards.facts import (
    CC_BY_SA,
    COMMON_CRAWL,
    UNKNOWN,
    Crawled,
    describe_source,
    find_licence,
    list_models,
    read_crawled,
)
from pipeline.reporting.cards.markdown import escape_text, make_table
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.reporting.report import Report, make_report
from pipeline.reporting.report.summary import describe_reason

# Hugging Face knows ISO 639 codes. Other labels of language models are left out of the header.
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}")

# `size_categories` of Hugging Face: lowest number of documents -> name.
_SIZES = {
    0: "n<1K",
    10**3: "1K<n<10K",
    10**4: "10K<n<100K",
    10**5: "100K<n<1M",
    10**6: "1M<n<10M",
    10**7: "10M<n<100M",
    10**8: "100M<n<1B",
    10**9: "1B<n<10B",
    10**10: "10B<n<100B",
    10**11: "100B<n<1T",
    10**12: "n>1T",
}

# The sections of a config that decide about documents and texts.
_RECIPE = (
    "extract",
    "exact_dedup",
    "paragraph_dedup",
    "substring_dedup",
    "annotate",
    "fuzzy_dedup",
    "select",
)

# Languages and domains of the tables.
_NUM_SHOWN = 20


def make_dataset_card(documents: KeptDocuments, name: str) -> bytes:
    """Return the content of README.md.

    Args:
        documents: the documents of the export.
        name: the name of the dataset.
    """
    config = documents.run.config
    report = make_report(documents.run)
    crawled = read_crawled(documents)
    parts = [
        _make_header(report, crawled, config, name),
        [f"# {escape_text(name)}"],
        _describe_content(report, crawled, documents),
        _describe_recipe(report, config),
        _list_models(config),
        _describe_terms(config),
        _describe_limits(config),
    ]
    lines = [line for part in parts for line in (*part, "")]
    return "\n".join(lines).encode()


def _make_header(
    report: Report, crawled: Crawled, config: RunConfig, name: str
) -> list[str]:
    languages = [code for code in report.languages if _LANGUAGE_CODE.fullmatch(code)]
    licence = find_licence(config)
    terms = {"license": licence.key}
    if licence.name:
        terms |= {"license_name": licence.name, "license_link": licence.url}
    files = [{"split": "train", "path": "data/train-*"}]
    header: dict[str, Any] = {
        "pretty_name": name,
        "language": sorted(languages),
        **terms,
        "task_categories": ["text-generation"],
        "size_categories": [_name_size(crawled.num_docs)],
        "tags": ["common-crawl", "web", "corpusmill"],
        "configs": [{"config_name": "default", "data_files": files}],
    }
    text = yaml.safe_dump(header, sort_keys=False, allow_unicode=True)
    return ["---", *text.splitlines(), "---"]


def _name_size(num_docs: int) -> str:
    return _SIZES[max(lowest for lowest in _SIZES if lowest <= num_docs)]


def _describe_content(
    report: Report, crawled: Crawled, documents: KeptDocuments
) -> list[str]:
    months = list(crawled.months)
    period = f"{months[0]} to {months[-1]}" if months else "unknown"
    rows = [
        ("documents", f"{crawled.num_docs:,}"),
        ("characters", f"{crawled.num_chars:,}"),
        ("domains", f"{crawled.domains.num_rows:,}"),
        ("crawled", period),
    ]
    if report.num_tokens:
        rows.append(("tokens, as the run counted them", f"{report.num_tokens:,}"))
    if len(documents.retracted):
        rows.append(("left out on request", f"{len(documents.retracted):,}"))
    languages = [
        (escape_text(language), num_docs)
        for language, num_docs in list(report.languages.items())[:_NUM_SHOWN]
    ]
    columns = [(f"`{column.name}`", f"`{column.type}`") for column in documents.schema]
    return [
        f"Text of web pages, made by corpusmill {metadata.version('corpusmill')}.",
        "The same crawl and recipe give the same documents and the same bytes.",
        "",
        *make_table(("", ""), rows),
        "",
        *make_table(("language", "documents"), languages),
        "",
        f"{len(report.languages):,} languages in all. The columns:",
        "",
        *make_table(("column", "type"), columns),
    ]


def _describe_recipe(report: Report, config: RunConfig) -> list[str]:
    steps = [(f"`{step.name}`", step.num_docs, step.num_chars) for step in report.steps]
    reasons = [
        (f"`{reason}`", num_docs, escape_text(describe_reason(reason)))
        for reason, num_docs in report.reasons.items()
    ]
    tree = config.model_dump(mode="json")
    recipe = {name: tree[name] for name in _RECIPE if name in tree}
    recipe["tokenize"] = {"pii": tree["tokenize"]["pii"]}
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    return [
        "## How it was made",
        "",
        "What is left after each step:",
        "",
        *make_table(("step", "documents", "characters"), steps),
        "",
        "Why documents were dropped:",
        "",
        *make_table(("reason", "documents", "meaning"), reasons),
        "",
        "<details><summary>The config</summary>",
        "",
        "```yaml",
        *text.splitlines(),
        "```",
        "",
        "</details>",
    ]


def _list_models(config: RunConfig) -> list[str]:
    rows = [
        tuple(map(escape_text, (m.name, m.description, m.licence, m.origin)))
        for m in list_models(config)
    ]
    header = ("name", "what", "licence", "origin")
    return ["## Models, tokenizers and lists", "", *make_table(header, rows)]


def _describe_terms(config: RunConfig) -> list[str]:
    licence = find_licence(config)
    lines = ["## Source and terms", "", escape_text(describe_source(config)), ""]
    if licence is CC_BY_SA:
        return [*lines, f"The texts are under [{licence.key}]({licence.url})."]
    if licence is UNKNOWN:
        return [
            *lines,
            "The terms of these files: to be filled in. Data of Common Crawl is used under",
            f"[Common Crawl's terms of use]({COMMON_CRAWL.url}).",
        ]
    return [
        *lines,
        f"Data of Common Crawl is used under [Common Crawl's terms of use]({licence.url}).",
        "The texts belong to the authors and publishers of the pages. This card gives no",
        "licence to them, so its header says `license: other`.",
    ]


def _describe_limits(config: RunConfig) -> list[str]:
    return [
        "## Limitations",
        "",
        "This list follows from the config. Read samples before you use the texts.",
        "",
        *(f"- {sentence}" for sentence in _list_limits(config)),
    ]


def _list_limits(config: RunConfig) -> Iterator[str]:
    """Yield what users of the texts should know, one sentence each."""
    yield "Pages are what their sites published. Statements in them may be false or harmful."
    if config.tokenize.pii is None:
        yield "Personal data was not replaced."
    else:
        yield (
            "E-mail addresses and the like were replaced by patterns. Names and postal "
            "addresses were not."
        )
    if config.annotate.classifiers is None or config.select.classifiers is None:
        yield "No classifier judged the content, so toxic and adult pages may be included."
    yield "Languages are the labels of a model, which errs on short and mixed texts."
    if config.select.perplexity is not None:
        yield (
            "Limits on perplexity favour texts like the language model's training texts, "
            "and so their dialect and style."
        )
    if config.fuzzy_dedup is None:
        yield "Near-duplicates were not removed."
    if config.annotate.decontamination is None or config.select.decontamination is None:
        yield "Texts of evaluation sets were not searched for."
    yield (
        "Requests of site owners that came after the crawl are not considered, unless the "
        "maker of the dataset says so."
    )
