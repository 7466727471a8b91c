"""Labels that are no file names do not lead an export out of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.reporting.export import OutputExists, export_run
from tests.pipeline.conftest import Small

LABELS = ["../../escaped", "/tmp/escaped", "a/b", "..", "", "x" * 300, "EN"]


@pytest.mark.parametrize("label", LABELS)
def test_a_hostile_label_stays_in_the_folder(
    small: Small, tmp_path: Path, label: str
) -> None:
    """Its documents are in one file of the folder, whose name is made of the label."""
    annotate = {**small.tree["annotate"]}
    annotate["language"] = {**annotate["language"], "labels": {"en": label, "fr": label}}
    run, _ = small.run(annotate=annotate)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    out = tmp_path / "deep" / "out"
    written = export_run(run, out, "ccnet").files
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    made.remove(out / "export.json")
    assert [path.parent for path in made] == [out]
    assert list(written.values()) == [3]
    assert [path.name for path in made] == list(written)


def test_an_existing_folder_is_refused(small: Small, tmp_path: Path) -> None:
    """A second export says what to do; nothing of the first one is changed."""
    run, _ = small.run()
    out = tmp_path / "out"
    export_run(run, out, "ccnet")
    before = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(
        OutputExists,
        match="out exists already and is a complete export; give the name of a new folder",
    ):
        export_run(run, out, "ccnet")
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert not list(tmp_path.glob(".out*"))
