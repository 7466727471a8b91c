"""The Croissant metadata of an export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.reporting.cards.croissant import CONTEXT
from pipeline.reporting.export import export_run
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.runs.run_folder import RunFolder


# Of rdflib, which mlcroissant uses.
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_mlcroissant_reads_the_documents(
    kept_run: RunFolder, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds no error, and every document in the files beside the metadata."""
    mlcroissant = pytest.importorskip("mlcroissant")
    monkeypatch.chdir(tmp_path)
    export_run(kept_run, tmp_path / "out", format, file_chars=1)
    dataset = mlcroissant.Dataset(jsonld=str(tmp_path / "out" / "croissant.json"))
    assert not dataset.metadata.issues.errors
    records = list(dataset.records("documents"))
    texts = [text for t in KeptDocuments(kept_run).read() for text in t["text"].to_pylist()]
    assert sorted(r["documents/text"].decode() for r in records) == sorted(texts)
    assert {len(record) for record in records} == {len(KeptDocuments(kept_run).schema)}


def test_the_required_properties_are_there(kept_run: RunFolder, tmp_path: Path) -> None:
    """The required properties of the specification, and one field per column."""
    export_run(kept_run, tmp_path / "out", "parquet")
    dataset = json.loads((tmp_path / "out" / "croissant.json").read_bytes())
    required = {"@context", "@type", "name", "description", "license", "url"}
    assert required < set(dataset)
    assert dataset["@context"] == CONTEXT
    assert dataset["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    (files,) = dataset["distribution"]
    assert sorted((tmp_path / "out").glob(files["includes"]))
    (records,) = dataset["recordSet"]
    schema = KeptDocuments(kept_run).schema
    assert [field["name"] for field in records["field"]] == schema.names
    repeated = [field["name"] for field in records["field"] if field.get("repeated")]
    assert repeated == ["kept_lines"]
