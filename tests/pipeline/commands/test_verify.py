"""`verify RUN --deep` names every damaged file of a run and changes no output."""

from __future__ import annotations

import gc
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline import cli
from pipeline.execution.engine import OutputDamaged
from pipeline.runs.phase_folder import DAMAGED
from pipeline.runs.run_folder import RunFolder
from pipeline.terminal import FAILED, WRONG_USAGE
from tests.pipeline.conftest import Small

# webdataset leaves shards open
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def verify(*arguments: object) -> tuple[int, str]:
    """Return exit code and output of `verify`. Lines are joined, because the terminal wraps them."""
    result = CliRunner().invoke(cli.app, ["verify", *map(str, arguments)])
    gc.collect()
    return result.exit_code, result.output.replace("\n", "")


def flip_bit(run: RunFolder, phase: str, suffix: str) -> Path:
    """Flip a bit in the middle of the first output with that suffix; return its path."""
    folder = run.folder(phase)
    path = next(path for path in folder.path("").iterdir() if path.name.endswith(suffix))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def read_files(run: RunFolder) -> dict[Path, bytes]:
    """Return the contents of all outputs and records of all phases."""
    return {
        path: path.read_bytes()
        for phase in run.folders
        for path in sorted(run.folder(phase).path("").rglob("*"))
        if path.is_file() and DAMAGED not in path.parts
    }


@pytest.mark.parametrize(
    ("phase", "suffix", "source"),
    [
        ("extract", ".documents.parquet", "the input files"),
        ("paragraph_dedup", ".repeated.arrow", "extract"),
        ("annotate", ".documents.parquet", "extract"),
        ("tokenize", ".tokens.bin", "annotate"),
        ("tokenize", ".documents.arrow", "annotate"),
    ],
)
def test_a_flipped_bit_of_an_output_is_named(
    small: Small, phase: str, suffix: str, source: str
) -> None:
    """With the phase that makes the file again, and exit code 1. The next run makes it again."""
    found, _ = small.run()
    whole = read_files(found)
    path = flip_bit(found, phase, suffix)
    damaged = read_files(found)
    # Without --deep, only the dataset is checked.
    assert verify(found.run_dir)[0] == 0
    code, output = verify(found.run_dir, "--deep")
    assert code == FAILED
    assert f"{path.name}: found sha256" in output
    assert f"; {phase} makes it again from {source}" in output
    assert read_files(found) == damaged
    _, events = small.run()
    files = [Path(event.file).name for event in events if isinstance(event, OutputDamaged)]
    assert files == [path.name]
    code, output = verify(found.run_dir, "--deep")
    assert (code, "every file of every phase is as its task wrote it" in output) == (
        0,
        True,
    )
    assert read_files(found) == whole


def test_a_flipped_bit_of_a_shard_is_named(small: Small) -> None:
    """Also without --deep: the shard, its sample, and the phase that makes it again."""
    found, _ = small.run()
    path = flip_bit(found, "write_shards", ".tar")
    for arguments in ([], ["--deep"]):
        code, output = verify(found.run_dir, *arguments)
        assert code == FAILED
        assert path.name in output
        assert "; write_shards makes it again from tokenize" in output


def test_the_manifest_of_another_dataset_is_named(small: Small) -> None:
    """Its shards have the same names and are whole. The next run writes the manifest again."""
    found, _ = small.run()
    other, _ = small.run("other", write_shards={"seed": 7})
    path = found.folder("write_shards").path("manifest.json")
    whole = path.read_bytes()
    path.write_bytes(other.folder("write_shards").path("manifest.json").read_bytes())
    code, output = verify(found.run_dir, "--deep")
    assert code == FAILED
    assert f"{path}: found" in output
    small.run()
    assert path.read_bytes() == whole


def test_the_faults_are_printed_as_json(small: Small) -> None:
    """Only the JSON object is on stdout; the exit code is the same."""
    found, _ = small.run()
    assert verify_json(found.run_dir, "--deep") == (
        0,
        {"dataset": str(found.dataset), "faults": [], "damaged": []},
    )
    path = flip_bit(found, "annotate", ".documents.parquet")
    code, printed = verify_json(found.run_dir, "--deep")
    (damaged,) = printed["damaged"]
    assert (code, printed["faults"]) == (FAILED, [])
    assert (damaged["phase"], damaged["damage"]["file"]) == ("annotate", path.name)
    assert damaged["damage"]["found"] == f"sha256 {hash_file(path)}"
    path = flip_bit(found, "write_shards", ".tar")
    code, printed = verify_json(found.run_dir)
    assert (code, [each["damage"]["file"] for each in printed["damaged"]]) == (
        FAILED,
        [path.name],
    )
    assert all(fault["where"].startswith(path.name) for fault in printed["faults"])


def verify_json(*arguments: object) -> tuple[int, Any]:
    """Return exit code and JSON output of `verify --json`."""
    result = CliRunner().invoke(cli.app, ["verify", "--json", *map(str, arguments)])
    gc.collect()
    return result.exit_code, json.loads(result.stdout)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_dataset_has_no_phases_to_check(small: Small) -> None:
    """The message says which folder --deep needs."""
    found, _ = small.run()
    code, output = verify(found.dataset, "--deep")
    assert code == WRONG_USAGE
    assert "is a dataset; --deep needs the folder of its run" in output
