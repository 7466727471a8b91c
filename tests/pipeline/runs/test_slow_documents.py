"""Notes on documents that took too long: written by any process, read by the tries that follow."""

from __future__ import annotations

from pathlib import Path

from pipeline.runs.slow_documents import SlowDocuments, read_notes, write_note
from storage import open_store

NOTE = SlowDocuments("language", 4 << 32, 4 << 32 | 9, 300)


def test_a_task_reads_its_notes(tmp_path: Path) -> None:
    """Notes of other tasks, other files, and a folder that does not exist are no notes."""
    phase = open_store(str(tmp_path / "annotate-1"))
    assert read_notes(phase, "000004-ab", 300) == []
    write_note(phase, "000004-ab", NOTE, 301.23)
    write_note(phase, "000005-cd", NOTE, 301.23)
    (tmp_path / "annotate-1/too_slow/000004-ab.language.1-x.300s").touch()
    assert read_notes(phase, "000004-ab", 300) == [NOTE]


def test_a_larger_limit_makes_a_note_void(tmp_path: Path) -> None:
    """The documents may take longer than when the note was written."""
    phase = open_store(str(tmp_path))
    write_note(phase, "a", NOTE, 301.0)
    assert read_notes(phase, "a", 301) == []
    assert read_notes(phase, "a", 299) == [NOTE]
