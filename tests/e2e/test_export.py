"""Export of kept documents in CCNet's format."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from pipeline.reporting.export import export_run
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder, RunNotFound

pytestmark = pytest.mark.models

CCNET_FIELDS = {
    *(
        "url",
        "date_download",
        "digest",
        "length",
        "nlines",
        "source_domain",
        "title",
        "raw_content",
        "cc_segment",
    ),
    *(
        "original_nlines",
        "original_length",
        "line_ids",
        "language",
        "language_score",
        "bucket",
        "perplexity",
    ),
}


def test_the_export_has_ccnets_files_and_fields(
    reference_run: Path, tmp_path: Path
) -> None:
    """One file per language and bucket. Lengths and line ids agree with the texts."""
    run = RunFolder.open(reference_run)
    written = export_run(run, tmp_path / "mined", "ccnet").files
    documents = [
        (path.name, json.loads(line))
        for path in sorted((tmp_path / "mined").glob("*.gz"))
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    assert written == Counter(name for name, _ in documents)
    assert (
        Counter(document["language"] for _, document in documents)
        == make_report(run).languages
    )
    assert {name for document in documents for name in document[1]} == CCNET_FIELDS
    for name, document in documents:
        assert name == f"{document['language']}_{document['bucket']}.json.gz"
        assert (
            len(document["raw_content"])
            == document["length"]
            <= document["original_length"]
        )
        assert (
            document["raw_content"].count("\n") + 1
            == document["nlines"]
            == len(document["line_ids"])
        )


def test_exports_are_reproducible_and_overwrite_nothing(
    reference_run: Path, tmp_path: Path
) -> None:
    """Two exports have the same bytes; an existing folder is refused."""
    run = RunFolder.open(reference_run)
    for folder in ("one", "two"):
        export_run(run, tmp_path / folder, "ccnet")
    one, two = (
        {
            p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in (tmp_path / folder).iterdir()
        }
        for folder in ("one", "two")
    )
    assert one == two
    with pytest.raises(FileExistsError):
        export_run(run, tmp_path / "one", "ccnet")


def test_a_run_without_select_has_nothing_to_export(
    reference_run: Path, tmp_path: Path
) -> None:
    """The message names the command to run first."""
    (tmp_path / "run.json").write_text((reference_run / "run.json").read_text())
    with pytest.raises(RunNotFound, match="run the config to its end"):
        export_run(RunFolder.open(tmp_path), tmp_path / "mined", "ccnet")
