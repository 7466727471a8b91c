"""Opening the folder of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config_files.reader import ConfigError
from pipeline.planning.recorded_plan import load_plan
from pipeline.runs.run_folder import RunFolder, RunNotFound
from tests.pipeline.conftest import Small


@pytest.fixture
def finished(small: Small) -> RunFolder:
    """A finished run."""
    return small.run(extract={"length": {"min_chars": 5}})[0]


def test_folder_without_a_run_suggests_another(finished: RunFolder, tmp_path: Path) -> None:
    """The message names the most similar run folder, or the command that starts a run."""
    with pytest.raises(
        RunNotFound,
        match=rf"no run here \(run\.json is missing\); did you mean {finished.run_dir}\?",
    ):
        RunFolder.open(tmp_path / "runn")
    with pytest.raises(RunNotFound, match="start one with `python -m pipeline run`"):
        RunFolder.open(tmp_path / "nowhere" / "run")


def test_run_json_describes_the_run(finished: RunFolder) -> None:
    """run.json holds the whole config, the folders of the phases and the keys of the splits."""
    described = json.loads((Path(str(finished.run_dir)) / "run.json").read_bytes())
    assert described["config"]["extract"]["length"]["min_chars"] == 5
    assert described["folders"] == dict(finished.folders)
    assert Path(str(finished.folder("select").root)).is_dir()
    assert [split.key for split in finished.splits] == described["splits"]


def test_config_of_a_run_is_typed(finished: RunFolder, tmp_path: Path) -> None:
    """The config is a checked RunConfig whose run_dir is the present folder."""
    assert finished.config.extract.length is not None
    assert finished.config.extract.length.min_chars == 5
    moved = Path(str(finished.run_dir)).rename(tmp_path / "moved")
    assert RunFolder.open(str(moved)).config.run_dir == str(moved)


def test_run_of_another_version_opens_without_its_config(finished: RunFolder) -> None:
    """An unknown key is an error of the config only when the config is used."""
    path = Path(str(finished.run_dir)) / "run.json"
    described = json.loads(path.read_bytes())
    described["config"]["select"]["astrology"] = {}
    path.write_bytes(json.dumps(described).encode())
    found = RunFolder.open(finished.run_dir)
    assert found.has_finished("select")
    with pytest.raises(ConfigError, match="astrology"):
        found.config  # noqa: B018 - the property is checked when it is read


def test_plan_of_a_run_has_its_folders(finished: RunFolder) -> None:
    """The plan that is built from a run folder leads to the stored outputs."""
    plan = load_plan(finished)
    assert [split.key for split in plan.splits] == [split.key for split in finished.splits]
    for phase in plan.phases:
        assert plan.folder(phase.name) == finished.folder(phase.name)
