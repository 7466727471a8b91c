"""Croissant metadata of an exported dataset, version 1.0.

The specification is at https://docs.mlcommons.org/croissant/docs/croissant-spec.html.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pipeline.reporting.cards.facts import describe_source, find_licence
from pipeline.reporting.kept_documents import KeptDocuments

# The JSON-LD context that the specification prescribes.
CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}

# Format of an export -> media type and pattern of its data files.
FILES = {
    "parquet": ("application/x-parquet", "data/train-*.parquet"),
    "jsonl": ("application/jsonlines", "data/train-*.jsonl.gz"),
}

# The page of the dataset, which its maker fills in.
DATASET_URL = "https://example.org/to-be-filled-in"

# Columns whose values have a type that Arrow does not state.
TYPES = {"date": "sc:DateTime", "url": "sc:URL"}


def make_croissant(documents: KeptDocuments, name: str, format: str) -> bytes:
    """Return the content of croissant.json.

    Args:
        documents: the documents of the export.
        name: the name of the dataset.
        format: parquet or jsonl.
    """
    config = documents.run.config
    licence = find_licence(config)
    media_type, pattern = FILES[format]
    files = {
        "@type": "cr:FileSet",
        "@id": "data-files",
        "encodingFormat": media_type,
        "includes": pattern,
    }
    records = {
        "@type": "cr:RecordSet",
        "@id": "documents",
        "name": "documents",
        "description": "One record per document.",
        "field": [_describe_column(column) for column in documents.schema],
    }
    dataset = {
        "@context": dict(CONTEXT),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": f"Documents of a web crawl. {describe_source(config)}",
        "license": licence.url or licence.key,
        "url": DATASET_URL,
        "distribution": [files],
        "recordSet": [records],
    }
    return json.dumps(dataset, indent=1, ensure_ascii=False).encode() + b"\n"


def _describe_column(column: pa.Field) -> dict[str, Any]:
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    source = {"fileSet": {"@id": "data-files"}, "extract": {"column": column.name}}
    data_type = _name_type(column.type.value_type if is_list else column.type)
    field: dict[str, Any] = {
        "@type": "cr:Field",
        "@id": f"documents/{column.name}",
        "name": column.name,
        "dataType": TYPES.get(column.name, data_type),
        "source": source,
    }
    return field | ({"repeated": True} if is_list else {})


def _name_type(arrow_type: pa.DataType) -> str:
    """Return the type of schema.org for a type of Arrow."""
    if pa.types.is_boolean(arrow_type):
        return "sc:Boolean"
    if pa.types.is_integer(arrow_type):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(arrow_type) else "sc:Text"
