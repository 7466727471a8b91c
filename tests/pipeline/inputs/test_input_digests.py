"""Local input files are known by their content, even if their times are wrong."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

import pytest

from pipeline.errors import RunAborted
from pipeline.execution.engine import run
from pipeline.inputs import input_digests
from pipeline.inputs.input_digests import MEMORY_FILE, SETTLED_S, compute_digests
from tests.conftest import wet_record
from tests.e2e.conftest import digests
from tests.pipeline.conftest import Small


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of remembered digests, which do not wait until their files have settled."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(input_digests, "SETTLED_S", -60.0)
    return tmp_path / "cache" / MEMORY_FILE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of four bytes."""
    path = tmp_path / "a.wet"
    path.write_bytes(b"1234")
    return path


def replace_content(path: Path, content: bytes) -> None:
    """Write other content of equal size, and set the modification time back."""
    status = path.stat()
    assert len(content) == status.st_size
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_digest_is_remembered_while_the_file_stays_as_it_is(
    file: Path, memory: Path
) -> None:
    """The remembered digest is returned, and the file is not read again."""
    assert compute_digests([file]) == [(4, sha256(b"1234"))]
    memory.write_text(memory.read_text().replace(sha256(b"1234"), "0" * 64))
    assert compute_digests([file]) == [(4, "0" * 64)]


def test_the_memory_holds_files_that_exist(file: Path, memory: Path) -> None:
    """A deleted file is forgotten when another one is remembered."""
    compute_digests([file])
    other = file.with_name("b.wet")
    other.write_bytes(b"56")
    file.unlink()
    compute_digests([other])
    assert [Path(name).name for name in json.loads(memory.read_text())] == ["b.wet"]


def test_a_memory_that_cannot_be_written_is_a_warning(
    file: Path, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The digests are right."""
    memory.parent.write_text("no folder")
    assert compute_digests([file]) == [(4, sha256(b"1234"))]
    assert "the next run reads new files again" in caplog.text


def test_changed_content_of_equal_size_and_time_is_noticed(
    file: Path, memory: Path
) -> None:
    """A file that was written in place, and one that got the name of another."""
    compute_digests([file])
    replace_content(file, b"5678")
    assert compute_digests([file]) == [(4, sha256(b"5678"))]
    other = file.with_name("b.wet")
    other.write_bytes(b"9999")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.rename(file)
    assert compute_digests([file]) == [(4, sha256(b"9999"))]
    assert len(json.loads(memory.read_text())) == 1


def test_a_file_that_has_just_changed_is_read_each_time(
    file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes within one tick of the file system's clock look like one."""
    monkeypatch.setattr(input_digests, "SETTLED_S", SETTLED_S)
    assert SETTLED_S >= 2
    compute_digests([file])
    assert not memory.exists()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"/a": {"sha256": "x"}}'])
def test_a_damaged_memory_is_forgotten(
    file: Path, memory: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The files are read again, and a warning names the memory."""
    found = compute_digests([file])
    memory.write_bytes(damage)
    with caplog.at_level(logging.WARNING, "pipeline"):
        assert compute_digests([file]) == found
    assert f"{memory}: " in caplog.text
    assert "all input files are read again" in caplog.text


# ---- whole runs ----


def make_pages(word: str) -> bytes:
    """A WET file of three pages; words of equal length give equal sizes."""
    texts = [f"Title\n{word} {number}. " * 9 for number in ("one", "two", "three")]
    records = [wet_record(f"https://example.org/{i}", text) for i, text in enumerate(texts)]
    return b"".join(records)


def test_a_finished_run_notices_changed_content_of_equal_size_and_time(
    small: Small, memory: Path, wet_file: Path
) -> None:
    """Its second run gives the bytes of a run that never saw the old content."""
    wet_file.write_bytes(make_pages("alpha"))
    first, _ = small.run()
    replace_content(wet_file, make_pages("gamma"))
    second, _ = small.run()
    assert second.splits != first.splits
    fresh, _ = small.run("fresh")
    mine, wanted = (digests(Path(str(found.run_dir))) for found in (second, fresh))
    old = {name for name in mine if first.splits[0].key in name}
    assert {name: digest for name, digest in mine.items() if name not in old} == wanted


def test_content_that_changes_after_planning_is_not_recorded(
    small: Small, memory: Path, wet_file: Path
) -> None:
    """The run names the file, records nothing of it, and reads the new content next time."""
    wet_file.write_bytes(make_pages("alpha"))
    plan = small.plan()
    replace_content(wet_file, make_pages("gamma"))
    message = rf"{wet_file} on \S+ has changed since the run was planned: found sha256 \w+"
    with pytest.raises(RunAborted, match=message):
        list(run(plan))
    assert not plan.folder("extract").list_done()
    found, _ = small.run()
    fresh, _ = small.run("fresh")
    assert digests(Path(str(found.run_dir))) == digests(Path(str(fresh.run_dir)))


def test_a_file_system_with_wrong_times_is_found_out_when_the_file_is_read(
    small: Small, memory: Path, wet_file: Path
) -> None:
    """The remembered digest is wrong. The run is refused once only."""
    wet_file.write_bytes(make_pages("alpha"))
    small.plan()
    old = json.loads(memory.read_text())
    wet_file.write_bytes(make_pages("gamma"))
    small.plan()
    new = json.loads(memory.read_text())
    for key in old:
        old[key]["state"] = new[key]["state"]
    memory.write_text(json.dumps(old))
    with pytest.raises(RunAborted, match="has changed since the run was planned"):
        small.run()
    small.run()
