"""The examples of docs/loader.md and docs/data-format.md run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader.cli import main
from loader.order.row_order import RowOrder
from tests.conftest import REPOSITORY
from tests.loader.conftest import Dataset, write_dataset

PAGE = (REPOSITORY / "docs" / "loader.md").read_text(encoding="utf-8")
TUTORIAL = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
FORMAT_PAGE = (REPOSITORY / "docs" / "data-format.md").read_text(encoding="utf-8")


def find_blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page that have this language."""
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of two shards with 536 rows of 2,048 tokens each."""
    folder = tmp_path_factory.mktemp("docs") / "web"
    return write_dataset(folder, [[2000] * 550] * 2, sample_tokens=2**16)


def set_addresses(text: str, dataset: Dataset) -> str:
    """Replace the addresses in an example by a dataset that exists."""
    return re.sub(r"/data/(web|code)|s3://bucket/web", str(dataset.folder), text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_python_examples_run(web: Dataset) -> None:
    """The code blocks of docs/loader.md run from top to bottom in one process."""
    pytest.importorskip("transformers")
    namespace: dict[str, Any] = {}
    blocks = find_blocks(PAGE, "python")
    assert len(blocks) == 5
    for block in blocks:
        exec(set_addresses(block, web), namespace)  # noqa: S102 - examples of our own pages
    assert namespace["resumed"].state.position == 1072
    assert namespace["step"] == 3


def test_the_example_of_the_tutorial_runs(web: Dataset) -> None:
    """Its batch has the shape that the arguments say, and its state is small."""
    (block,) = find_blocks(TUTORIAL, "python")
    namespace: dict[str, Any] = {}
    code = block.replace("runs/ccnet/dataset", str(web.folder))
    exec(code, namespace)  # noqa: S102 - examples of our own pages
    assert namespace["batch"]["input_ids"].shape == (8, 1024)
    assert 200 < len(json.dumps(namespace["state"])) < 400
    namespace["loader"].close()


def test_the_commands_run(
    web: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of docs/loader.md succeeds."""
    (block,) = find_blocks(PAGE, "sh")
    for line in block.splitlines():
        command = set_addresses(line, web).replace("out/web", str(tmp_path / "out" / "web"))
        words = shlex.split(command, comments=True)
        assert words[:3] == ["python", "-m", "loader"]
        extra = ["--seconds", "0.05"] if words[3] == "bench" else []
        with pytest.raises(SystemExit) as ended:
            main([*words[3:], *extra])
        assert ended.value.code == 0, capsys.readouterr()
    assert (tmp_path / "out" / "web.idx").exists()


def test_the_example_of_the_row_order_is_correct() -> None:
    """The order that docs/loader.md and the docstring of row_order.py show is the computed one."""
    order = RowOrder(np.array([3, 1, 5]), seed=2, interleave_depth=2, window_rows=2)
    shards, rows = order.locate(np.arange(order.epoch_rows))
    names = [f"{'abc'[shard]}{row}" for shard, row in zip(shards, rows, strict=True)]
    shown = re.findall(r"^ *row +(.*?)  ", PAGE, flags=re.MULTILINE)
    assert shown == [" ".join(names)]
    source = (REPOSITORY / "loader" / "order" / "row_order.py").read_text(encoding="utf-8")
    assert f"row                 {' '.join(names)}" in source
    assert [array.tolist() for array in order.locate_left_over(0)] == [[2], [4]]


def test_the_example_of_the_data_format_runs(web: Dataset) -> None:
    """The code of docs/data-format.md reads a row of a dataset."""
    namespace: dict[str, Any] = {}
    for block in find_blocks(FORMAT_PAGE, "python"):
        exec(set_addresses(block, web), namespace)  # noqa: S102 - examples of our own pages
    row = web.tokens[1][5 * 2048 : 6 * 2048 + 1]
    assert namespace["tokens"].tolist() == row.tolist()
