"""What would fail at its phase is found before the first task."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from config_files.reader import ConfigError
from pipeline.execution.engine import run
from pipeline.phases import stage_spec
from pipeline.phases.stage_spec import StageCache, StageSpec
from pipeline.planning.preflight import check_models, find_shortage_of_disk
from stages.contract import Stage
from tests.pipeline.conftest import Small


def test_every_model_that_cannot_be_opened_is_one_fault(
    small: Small, tmp_path: Path
) -> None:
    """The faults of all phases are listed at once, with phase, stage and cause."""
    broken = tmp_path / "broken"
    broken.write_text("no model")
    plan = small.plan(
        annotate={"language": {"model": str(broken)}}, tokenize={"tokenizer": str(broken)}
    )
    with pytest.raises(ConfigError) as caught:
        check_models(plan)
    language, tokenizer = caught.value.faults
    assert language.startswith("annotate.language cannot be opened: ")
    assert tokenizer.startswith("tokenize.tokenize cannot be opened: ")
    assert all(str(broken) in fault for fault in (language, tokenizer))


def test_stages_that_are_kept_open_are_those_of_the_tasks(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is opened twice by a run in one process."""
    opened: list[StageSpec] = []
    load = StageSpec.load

    def count_load(spec: StageSpec) -> Stage[Any]:
        opened.append(spec)
        return load(spec)

    monkeypatch.setattr(StageSpec, "load", count_load)
    monkeypatch.setattr(stage_spec, "OPENED_STAGES", StageCache())
    plan = small.plan()
    check_models(plan, keeps_open=True)
    num_opened = len(opened)
    assert num_opened > 0
    list(run(plan))
    assert len(opened) == num_opened


def test_languages_are_compared_with_the_labels_of_a_fetched_model(
    small: Small, lid_file: Path, tmp_path: Path
) -> None:
    """The labels of a model that is not on this machine are unknown when the config is read."""
    model = tmp_path / "later.bin"
    model.touch()
    plan = small.plan(
        annotate={"language": {"model": str(model)}},
        select={"language": {"keep": ["english"]}},
    )
    shutil.copyfile(lid_file, model)
    with pytest.raises(ConfigError) as caught:
        check_models(plan)
    (fault,) = caught.value.faults
    assert fault.startswith("select.language.keep: 'english' is no language of ")
    assert fault.endswith("did you mean 'en'?")


def test_models_of_finished_phases_are_not_opened(small: Small, lid_file: Path) -> None:
    """A run that is complete needs no model."""
    plan = small.plan()
    check_models(plan)
    list(run(plan))
    kept = lid_file.read_bytes()
    lid_file.write_bytes(b"no model")
    try:
        check_models(plan)
    finally:
        lid_file.write_bytes(kept)


def test_a_disk_that_is_too_small_is_named(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has the need and the free space; a large disk gives none."""
    plan = small.plan()
    assert find_shortage_of_disk(plan) is None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    shortage = find_shortage_of_disk(plan)
    assert shortage is not None
    assert "GB there, 0.0 GB are free; set run_dir to a larger disk" in shortage
