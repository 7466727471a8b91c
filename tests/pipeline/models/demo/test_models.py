"""The demo's models: another text, setting or program gives another entry of the cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.models.cache import Entry
from pipeline.models.demo import models as demo_models
from pipeline.models.demo.models import TRAINED


def find_folders() -> dict[str, Path]:
    """Return the folder of each model in the cache."""
    return {name: Entry(asset).folder for name, asset in TRAINED.items()}


def test_equal_settings_have_one_folder_per_language() -> None:
    """A language, or another kind of model, gives another folder."""
    folders = find_folders()
    assert folders == find_folders()
    assert len({folder.name for folder in folders.values()}) == len(folders) == 7


@pytest.mark.parametrize(
    ("settings", "changed", "kind"),
    [
        ("describe_settings", lambda: {"order": 4}, "demo-lm"),
        ("_REFERENCE", replace(demo_models._REFERENCE, num_epochs=7), "demo-reference"),
    ],
)
def test_each_setting_changes_the_folder(
    settings: str, changed: object, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of other settings are not taken for these."""
    before = find_folders()
    monkeypatch.setattr(demo_models, settings, changed)
    after = find_folders()
    for name, folder in before.items():
        assert (after[name] != folder) == name.startswith(kind)


def test_another_lmplz_changes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tools are identified by digest, because their version is unknown."""
    before = find_folders()["demo-lm-en"]
    (tmp_path / "lmplz").write_bytes(b"one build")
    monkeypatch.setenv("CORPUSMILL_KENLM_BIN", str(tmp_path))
    first = find_folders()["demo-lm-en"]
    (tmp_path / "lmplz").write_bytes(b"another build")
    assert len({before, first, find_folders()["demo-lm-en"]}) == 3
