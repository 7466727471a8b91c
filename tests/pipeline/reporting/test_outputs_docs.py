"""The page about outputs: its columns are those of the files, and its examples run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loader.cli import app as loader_app
from pipeline.phases import registry
from pipeline.reporting import columns_docs
from pipeline.reporting.export import export_run
from pipeline.reporting.kept_documents import KeptDocuments
from pipeline.runs.run_folder import RunFolder
from stages.filters.quality import Quality
from tests.conftest import REPOSITORY
from tests.doc_blocks import Block, read_blocks
from tests.pipeline.reporting.pages import read_decisions

PAGE = REPOSITORY / "docs" / "outputs.md"
BLOCKS = [block for block in read_blocks(PAGE) if block.language == "python"]
LIBRARIES = ("megatron.core", "litgpt", "duckdb", "polars", "webdataset", "datasets")


def test_the_page_of_columns_is_up_to_date() -> None:
    """docs/columns.md is generated: `python -m pipeline.reporting.columns_docs > docs/columns.md`."""
    page = (REPOSITORY / "docs" / "columns.md").read_text(encoding="utf-8")
    assert page == columns_docs.make_page()


def test_every_column_has_a_meaning() -> None:
    """No cell of the page is empty, and no meaning is left over."""
    lines = [line for line in columns_docs.make_page().splitlines() if line[:3] == "| `"]
    rows = [re.split(r"(?<!\\) ?\| ?", line)[1:4] for line in lines]
    assert len(rows) > 60
    assert not [name for name, _, meaning in rows if not meaning]
    names = {name.strip("`") for name, _, _ in rows}
    assert set(columns_docs.MEANINGS) <= names


def read_columns(path: Path) -> list[str]:
    """Return the names of the columns of a Parquet or Arrow file."""
    if path.suffix == ".parquet":
        return pq.read_schema(path).names
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).schema.names


def test_the_page_has_every_file_and_column_of_a_run(browsed: RunFolder) -> None:
    """The run has all phases but those for exact copies and spans."""
    sections = _read_sections()
    num_files = 0
    for phase in registry.PHASES:
        if phase.name not in browsed.folders:
            continue
        root = browsed.folder(phase.name).root.get_local_path()
        assert root is not None
        for path in [*root.glob("*.parquet"), *root.glob("*.arrow")]:
            file_name = path.name.partition(".")[2]
            key = file_name if "." in file_name else path.name
            named = sections[phase.name, key]
            columns = [c for c in read_columns(path) if c not in _list_signals()]
            columns = [c for c in columns if not c.startswith("classifier_")]
            assert set(columns) <= set(named), path
            num_files += 1
    assert num_files > 20


def _list_signals() -> set[str]:
    return {column.name for column in Quality.adds}


def _read_sections() -> dict[tuple[str, str], list[str]]:
    """Return (phase, file) -> columns of the page."""
    sections: dict[tuple[str, str], list[str]] = {}
    for section in columns_docs.make_page().split("\n## ")[1:]:
        title, _, table = section.partition("\n")
        phases, _, file = title.partition(": ")
        for phase in phases.split(", "):
            columns = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
            sections[phase, file.partition(",")[0]] = columns
    return sections


@pytest.fixture
def run_block(
    kept_run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Block], dict[str, Any]]:
    """Return a function that runs a code block in a folder with the run and exports of the page."""
    run_dir = kept_run.run_dir.get_local_path()
    assert run_dir is not None
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "ccnet").symlink_to(run_dir)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))

    def run(block: Block) -> dict[str, Any]:
        export_run(kept_run, "exports/ccnet", "parquet")
        words = ["export", "megatron", "runs/ccnet/dataset", "exports/megatron/ccnet"]
        loader_app(words, standalone_mode=False)
        code = compile(block.text, f"{PAGE}:{block.line}", "exec")
        # Dataclasses look up their module.
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(code, names)  # noqa: S102
        return names

    return run


# webdataset leaves the last shard open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_examples_run(
    block: Block, run_block: Callable[[Block], dict[str, Any]], kept_run: RunFolder
) -> None:
    """Each finds the kept documents. Libraries that are not installed are skipped."""
    library = next(name for name in LIBRARIES if name in block.text)
    pytest.importorskip(library, reason=f"{library} is no dependency of the tests")
    names = run_block(block)
    decisions = list(read_decisions(kept_run).values())
    num_kept = decisions.count("kept")
    if "languages" in names:
        assert names["languages"].fetchall()[0][:2] == ("en", num_kept)
    elif "decisions" in names:
        found = dict(names["decisions"].fetchall())
        assert found == {d: decisions.count(d) for d in decisions}
    elif "scores" in names:
        found = {row[0]: row[1] for row in names["scores"].fetchall()}
        assert found == {d: decisions.count(d) for d in found}
        assert found["kept"] == num_kept
    elif "domains" in names:
        assert names["domains"]["documents"].sum() == num_kept
    elif "sample" in names:
        assert len(names["documents"]) == num_kept
    elif "data" in names:
        assert_rows(names["data"])
    elif library == "datasets":
        texts = [
            text for t in KeptDocuments(kept_run).read() for text in t["text"].to_pylist()
        ]
        assert [row["text"] for row in names["dataset"]] == texts
    else:
        assert len(names["dataset"]) == num_kept


def assert_rows(data: Any) -> None:
    """Check that litgpt's data module gives rows of one token more than the model reads."""
    data.connect(batch_size=2, max_seq_length=16)
    batch = next(iter(data.train_dataloader()))
    assert batch.shape == (2, 17)
    assert int(batch.min()) >= 0


def test_every_library_has_an_example() -> None:
    """DuckDB, polars, datasets, webdataset, Megatron and litgpt."""
    for library in LIBRARIES:
        assert any(library in block.text for block in BLOCKS), library
