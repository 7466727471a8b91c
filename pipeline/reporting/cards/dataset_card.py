"""The dataset card of an export: a README.md with the YAML header of Hugging Face.

The header's keys are those of https://huggingface.co/docs/hub/datasets-cards. dataset_card.md is the
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import yaml

from pipeline.config import RunConfig
from pipeline.reporting.cards.facts import (
    COMMON_CRAWL,
    Crawled,
    describe_source,
    find_licence,
    read_crawled,
)
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.reporting.report import Report, make_report
from pipeline.reporting.report.provenance import Model, list_models
from pipeline.reporting.report.summary import describe_reason
from pipeline.reporting.templates import (
    escape_markdown,
    make_markdown_table,
    quote_code,
    render,
    trust,
)

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
    return render(
        "cards/dataset_card.md",
        escape_markdown,
        config=config,
        report=report,
        name=name,
        version=trust(metadata.version("corpusmill")),
        table=make_markdown_table,
        header=trust(_make_header(report, crawled, config, name)),
        numbers=_list_numbers(report, crawled, len(documents.retracted)),
        languages=list(report.languages.items())[:_NUM_SHOWN],
        columns=[
            (quote_code(each.name), quote_code(str(each.type))) for each in documents.schema
        ],
        steps=[
            (quote_code(step.name), step.num_docs, step.num_chars) for step in report.steps
        ],
        reasons=[
            (quote_code(reason), num_docs, describe_reason(reason))
            for reason, num_docs in report.reasons.items()
        ],
        recipe=trust(_dump_recipe(config)),
        models=[_describe_model(model) for model in list_models(config)],
        source=describe_source(config),
        licence=find_licence(config),
        terms_url=COMMON_CRAWL.url,
    ).encode()


def _make_header(report: Report, crawled: Crawled, config: RunConfig, name: str) -> str:
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
        "size_categories": [name_size(crawled.num_docs)],
        "tags": ["common-crawl", "web", "corpusmill"],
        "configs": [{"config_name": "default", "data_files": files}],
    }
    return yaml.safe_dump(header, sort_keys=False, allow_unicode=True)


def name_size(num_docs: int) -> str:
    """Return the name of a number of documents."""
    return _SIZES[max(lowest for lowest in _SIZES if lowest <= num_docs)]


def _list_numbers(
    report: Report, crawled: Crawled, num_retracted: int
) -> Iterator[tuple[str, str]]:
    months = list(crawled.months)
    yield "documents", f"{crawled.num_docs:,}"
    yield "characters", f"{crawled.num_chars:,}"
    yield "domains", f"{crawled.domains.num_rows:,}"
    yield "crawled", f"{months[0]} to {months[-1]}" if months else "unknown"
    if report.num_tokens:
        yield "tokens, as the run counted them", f"{report.num_tokens:,}"
    if num_retracted:
        yield "left out on request", f"{num_retracted:,}"


def _describe_model(model: Model) -> tuple[str, str, str, str]:
    """Return name, description, licence and origin."""
    if not model.origin:
        return model.name, "", "to be filled in", "a file of the dataset's maker"
    origin = f"{model.origin}, version {model.version}"
    return model.name, model.description, model.licence, origin


def _dump_recipe(config: RunConfig) -> str:
    tree = config.model_dump(mode="json")
    recipe = {name: tree[name] for name in _RECIPE if name in tree}
    recipe["tokenize"] = {"pii": tree["tokenize"]["pii"]}
    return yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
