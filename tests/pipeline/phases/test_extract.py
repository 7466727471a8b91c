"""Optional stages of extract in a small run: text repair and lists of blocked URLs."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.conftest import Small
from tests.pipeline.phases.outputs import read_decisions, read_documents, write_wet


def test_repaired_text_is_stored_and_deduplicated(small: Small, tmp_path: Path) -> None:
    """Mojibake is repaired first, and the repaired page is a copy of the correct one."""
    sound, broken = (
        "The treaty was signed in the tÃ©nt of Ghent.",
        "The treaty was signed in the tént of Ghent.",
    )
    run, _ = small.run(
        input=write_wet(tmp_path / "m.warc.wet", [sound, broken]),
        extract={"unicode": {}, "length": None},
    )
    assert read_documents(run, "extract")["text"].to_pylist() == [broken] * 2
    assert read_documents(run, "annotate")["text"].to_pylist() == [broken]


def test_blocked_urls_are_dropped_first(small: Small, tmp_path: Path) -> None:
    """The decision names the entry of the block list. Another list changes the fingerprint."""
    (tmp_path / "list.txt").write_text("example.org/1\n")
    files = write_wet(
        tmp_path / "u.warc.wet",
        ["The treaty was signed in Ghent.", "The treaty was signed in Bruges."],
    )
    run, _ = small.run(
        input=files, extract={"url": {"domains": [str(tmp_path / "list.txt")]}}
    )
    assert read_documents(run, "extract")["url"].to_pylist() == ["https://example.org/0"]
    decisions = read_decisions(run, "extract")
    assert [(row["decision"], row["detail"]) for row in decisions] == [
        ("url.domain_blocked", "list: example.org/1")
    ]
    before = small.plan(
        input=files, extract={"url": {"domains": [str(tmp_path / "list.txt")]}}
    )
    (tmp_path / "list.txt").write_text("example.net\n")
    after = small.plan(
        input=files, extract={"url": {"domains": [str(tmp_path / "list.txt")]}}
    )
    assert (
        run.folders["extract"]
        == before.folder("extract").root.name
        != after.folder("extract").root.name
    )
