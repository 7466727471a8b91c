"""The command line of the loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from loader.cli import main
from tests.loader.conftest import Dataset, Make
from tests.processes import run_python


def run_cli(*arguments: str | Path) -> int | str | None:
    """Run the command line in this process and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_inspect_shows_counts_languages_and_documents(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output names the tokenizer, the counts, the languages and some documents."""
    assert run_cli("inspect", dataset.folder) == 0
    shown = capsys.readouterr().out
    for part in (
        "tiny, 50,000 ids, uint16",
        "shards     5,",
        "language   en",
        "document 0",
        "documents  24",
    ):
        assert part in shown


def test_inspect_refuses_another_tokenizer(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tokenizer with another digest would show wrong text, so it is an error."""
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    assert run_cli("inspect", dataset.folder, "--tokenizer", tokenizer) == 1
    assert "give the tokenizer that made the dataset" in capsys.readouterr().err


def test_check_confirms_the_order_for_each_number_of_ranks(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also for numbers of ranks that do not divide the batch."""
    order = ["--seq-len", "16", "--global-batch-rows", "6", "--world-sizes", "1,2,5"]
    assert run_cli("check", dataset.folder, *order, "--read") == 0
    shown = capsys.readouterr().out
    assert shown.count(": exact") == 3
    assert "0 damaged" in shown


def test_check_refuses_a_malformed_list_of_ranks(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage ends with exit code 2 and shows what was given."""
    assert run_cli("check", dataset.folder, "--seq-len", "16", "--world-sizes", "2,x") == 2
    assert "'2,x' is not a list of numbers" in capsys.readouterr().err


def test_check_finds_damaged_rows(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading every row finds the sample that changed, and the exit code is 1."""
    made = make([[60, 60]])
    path = made.folder / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    data[-1300] ^= 1
    path.write_bytes(data)
    order = ["--seq-len", "16", "--world-sizes", "1"]
    assert run_cli("check", made.folder, *order, "--read") == 1
    shown = capsys.readouterr().out
    assert "    1 rank, 64 rows a step" in shown
    assert ", in 1 sample\n" in shown


def test_bench_measures_both_outputs(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """The speed of int64 batches and of stored tokens is printed."""
    assert run_cli("bench", dataset.folder, "--seq-len", "16", "--seconds", "0.05") == 0
    shown = capsys.readouterr().out
    assert "int64" in shown
    assert "stored" in shown
    assert "tokens/s" in shown


def test_export_writes_each_format(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every format gets all documents."""
    for name in ("megatron", "parquet"):
        assert run_cli("export", name, dataset.folder, tmp_path / name) == 0
    assert capsys.readouterr().out.count("24 documents") == 2
    assert (tmp_path / "megatron.bin").exists()


def test_a_missing_dataset_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is a message and no traceback."""
    assert run_cli("inspect", tmp_path / "none") == 1
    shown = capsys.readouterr().err
    assert "there is no dataset; correct the path, or make the dataset" in shown
    assert len(shown.splitlines()) == 1


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` shows each command with its summary, and the exit codes."""
    assert run_cli("--help") == 0
    shown = capsys.readouterr().out
    for part in ("inspect", "check", "bench", "export", "Exit codes: 0 done"):
        assert part in shown


def test_the_command_line_says_how_to_install_typer() -> None:
    """Without Typer, `python -m loader` ends with one line that names the package to install."""
    code = (
        "import runpy, sys; sys.modules['typer'] = None; "
        "runpy.run_module('loader', run_name='__main__')"
    )
    ended = run_python("-c", code)
    assert ended.returncode == 1
    assert ended.stderr.strip().endswith("run pip install typer")
    assert len(ended.stderr.splitlines()) == 1


def test_a_dataset_is_packed_checked_and_measured(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pack` prints what it did to the documents; the other commands read the packed rows."""
    made = make([[30, 1, 90, 7, 40, 64] * 9])
    assert run_cli("pack", made.folder, "--seq-len", "64") == 0
    shown = capsys.readouterr().out
    assert "2,088 tokens; no token is left out" in shown
    assert f"documents cut{9:>30}  16.67%   plain rows" in shown
    assert str(made.folder / "packed-64.rows") in shown
    order = ["--seq-len", "64", "--packed"]
    assert run_cli("check", made.folder, *order, "--read") == 0
    assert run_cli("which", made.folder, *order, "--step", "1") == 0
    assert run_cli("bench", made.folder, *order, "--seconds", "0") == 0
    blocked = made.folder / "shard-000000.tar" / "x.rows"
    assert run_cli("pack", made.folder, "--seq-len", "64", "--out", blocked) == 1
    assert "shard-000000.tar" in capsys.readouterr().err
