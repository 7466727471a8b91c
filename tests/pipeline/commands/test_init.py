"""`init` writes a config that `plan` accepts, and says what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from pipeline import cli
from pipeline.config import load
from pipeline.inputs.inspect_files import inspect_files
from pipeline.inputs.new_config import list_recipes
from pipeline.planning.plan import make_plan
from pipeline.terminal import DONE, WRONG_USAGE
from storage.object_store import ObjectStore
from tests.stages.warc.files import A, make_page, member, response


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an empty cache."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def crawl(folder: Path) -> Path:
    """A folder with two WET files and a note."""
    crawl = folder / "crawl"
    (crawl / "deep").mkdir(parents=True)
    (crawl / "a.warc.wet.gz").write_bytes(member(A))
    (crawl / "deep" / "b.warc.wet.gz").write_bytes(member(A + A))
    (crawl / "README.md").write_text("# Our crawl")
    return crawl


def init(*arguments: object) -> tuple[int, str]:
    """Return exit code and output of `init`. Lines are joined, because the terminal wraps them."""
    result = CliRunner().invoke(cli.make_program(), ["init", *map(str, arguments)])
    return result.exit_code, result.output.replace("\n", " ")


@pytest.mark.parametrize("recipe", list_recipes())
def test_plan_accepts_the_config_of_every_recipe(crawl: Path, recipe: str) -> None:
    """It reads the files that were found, and has the recipe's stages."""
    code, output = init("crawl", "--to", "first.yaml", "--recipe", recipe)
    assert code == DONE, output
    assert "Found 2 WET files (gzip)" in output
    assert "not read: crawl/README.md: it begins b'# Our crawl'" in output
    assert "python -m pipeline plan first.yaml" in output
    config = load("first.yaml")
    assert config.input.files == ("crawl",)
    assert config.run_dir == "runs/first"
    plan = make_plan(config)
    names = [file.name for split in plan.splits for file in split.files]
    assert names == ["a.warc.wet.gz", "b.warc.wet.gz"]


def test_the_config_is_short_and_names_its_schema(crawl: Path) -> None:
    """Editors find the schema in the first line."""
    assert init("crawl")[0] == DONE
    lines = Path("ccnet.yaml").read_text().splitlines()
    assert len(lines) < 70
    address = lines[0].removeprefix("# yaml-language-server: $schema=")
    assert Path(address).is_file()


def test_pages_get_main_content(folder: Path) -> None:
    """CCNet's recipe is written for text; menus are omitted from HTML."""
    (folder / "page.warc").write_bytes(response(make_page("P")))
    assert init("page.warc")[0] == DONE
    assert load("ccnet.yaml").extract.warc.html.main_content


def test_an_existing_config_is_not_replaced(crawl: Path) -> None:
    """The message names --to."""
    Path("ccnet.yaml").write_text("mine")
    code, output = init("crawl")
    assert code == WRONG_USAGE
    assert "ccnet.yaml exists and is not replaced; name another file with --to" in output
    assert Path("ccnet.yaml").read_text() == "mine"


def test_files_that_a_folder_would_not_give_are_named(crawl: Path) -> None:
    """A file without a known ending, and one that is no crawl file in spite of its ending."""
    (crawl / "part-0").write_bytes(member(A))
    (crawl / "error.warc.gz").write_bytes(b"<html>503 Slow Down</html>")
    code, output = init("crawl")
    assert code == DONE
    assert "not read: crawl/error.warc.gz: it is a web page" in output
    written = yaml.safe_load(Path("ccnet.yaml").read_text())["input"]["files"]
    assert written == ["crawl/a.warc.wet.gz", "crawl/deep/b.warc.wet.gz", "crawl/part-0"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["empty"], "empty: the folder has no files"),
        (["nothing"], "nothing: no such file or folder in "),
        (
            ["crawl/README.md"],
            "crawl/README.md: found no WET, WARC, ARC, JSONL or Parquet file:   not read: ",
        ),
        (
            ["crawl", "page.warc"],
            "every page would be read twice; name the files of one kind, such as 'crawl/*.warc.wet.gz'",
        ),
        (
            ["crawl", "rows.jsonl"],
            "found 1 JSONL and 2 WET files; a run reads crawl files or rows",
        ),
        (["crawl", "--recipe", "cnet"], "--recipe is 'cnet', expected one of c4, ccnet,"),
    ],
)
def test_a_wrong_input_is_explained(crawl: Path, entries: list[str], message: str) -> None:
    """Nothing is written."""
    del crawl
    Path("empty").mkdir()
    Path("page.warc").write_bytes(response(make_page("P")))
    Path("rows.jsonl").write_text('{"text": "a"}')
    code, output = init(*entries)
    assert code == WRONG_USAGE
    assert message in output
    assert not Path("ccnet.yaml").exists()


def test_the_columns_of_texts_are_found(folder: Path) -> None:
    """By their usual names, in objects too; `plan` accepts the config."""
    row = {"raw_content": "Text", "metadata": {"url": "https://example.org/"}, "id": 5}
    (folder / "rows").mkdir()
    (folder / "rows" / "a.jsonl").write_text(json.dumps(row) + "\n")
    pq.write_table(pa.Table.from_pylist([row]), folder / "rows" / "b.parquet")
    code, output = init("rows", "--to", "rows.yaml", "--recipe", "fineweb")
    assert code == DONE, output
    assert "Found 2 JSONL and Parquet files" in output
    config = load("rows.yaml")
    assert config.input.text is not None
    wanted = {"text": "raw_content", "url": "metadata.url", "id": "id", "date": None}
    assert wanted.items() <= config.input.text.model_dump().items()
    assert len(make_plan(config).splits) == 2


def test_rows_without_a_known_column_are_explained(folder: Path) -> None:
    """The message has the columns, and the key to set."""
    (folder / "a.jsonl").write_text('{"words": "Text", "n": 1}\n')
    code, output = init("a.jsonl")
    assert code == WRONG_USAGE
    assert (
        "it has words, n; write a config and name the column in input.text.text" in output
    )


def test_files_in_a_bucket_are_recognized(bucket_store: ObjectStore) -> None:
    """Only their beginnings are read, and the config has the address of the folder."""
    bucket_store.put("a.warc.wet.gz", member(A))
    bucket_store.put("b.warc.wet.gz", member(A))
    found = inspect_files([str(bucket_store)])
    assert found.entries == (str(bucket_store),)
    assert found.summary.startswith("2 WET files (gzip)")
