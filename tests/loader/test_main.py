"""The command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from loader.__main__ import main
from tests.loader.conftest import Dataset, Make


def test_inspect_shows_the_dataset(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts, languages, some documents."""
    assert main(["inspect", str(dataset.folder)]) == 0
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
    """Text decoded by the wrong tokenizer would be nonsense."""
    (tmp_path / "tokenizer.json").write_text("{}")
    assert (
        main(["inspect", str(dataset.folder), "--tokenizer", str(tmp_path / "tokenizer.json")]) == 1
    )
    assert "give the tokenizer that made the dataset" in capsys.readouterr().err


def test_check_proves_the_order(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """For each number of ranks, even ones that do not divide the batch."""
    worlds = ["--worlds", "1", "2", "5"]
    assert (
        main(
            [
                "check",
                str(dataset.folder),
                "--seq-len",
                "16",
                "--global-batch-rows",
                "6",
                "--read",
                *worlds,
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert shown.count(": exact") == 3
    assert "0 damaged" in shown


def test_check_finds_damage(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading every row finds the sample that changed."""
    made = make([[60, 60]])
    path = made.folder / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    data[-1300] ^= 1
    path.write_bytes(data)
    main(["check", str(made.folder), "--seq-len", "16", "--worlds", "1", "--read"])
    assert "in 1 samples" in capsys.readouterr().out


def test_bench_prints_both_ways(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """int64 batches and tokens as stored."""
    assert main(["bench", str(dataset.folder), "--seq-len", "16", "--seconds", "0.05"]) == 0
    shown = capsys.readouterr().out
    assert "int64" in shown
    assert "stored" in shown
    assert "tokens/s" in shown


def test_export_writes(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the formats."""
    for name in ("megatron", "mds", "parquet"):
        assert main(["export", name, str(dataset.folder), str(tmp_path / name)]) == 0
    assert capsys.readouterr().out.count("24 documents") == 3
    assert (tmp_path / "megatron.bin").exists()


def test_what_is_wrong_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for a missing file."""
    assert main(["inspect", str(tmp_path / "none")]) == 1
    assert "error: " in capsys.readouterr().err
