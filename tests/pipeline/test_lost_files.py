"""Input files that give no record: the run goes on, and names them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pipeline.reporting.report import (
    Report,
    list_exceeded_limits,
    make_report,
    print_report,
    to_html,
)
from pipeline.reporting.status import print_status, read_status
from pipeline.runs.run_folder import RunFolder
from terminal_output.console import SafeConsole
from tests.conftest import wet_record
from tests.pipeline.conftest import Small

ERROR_PAGE = b"<html><title>503 Slow Down</title></html>" * 20


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Six files of three pages."""
    folder = tmp_path / "crawl"
    folder.mkdir()
    paths: list[Path] = []
    for name in "abcdef":
        texts = [f"Title\n{name} {word}. " * 9 for word in ("one", "two", "three")]
        records = [
            wet_record(f"https://{name}.example.org/{number}", text, number=number)
            for number, text in enumerate(texts)
        ]
        paths.append(folder / f"{name}.warc.wet.gz")
        paths[-1].write_bytes(
            b"".join(gzip.compress(record, mtime=0) for record in records)
        )
    return paths


def run_files(small: Small, files: list[Path], **limits: float) -> tuple[Report, list[str]]:
    """Run, and return the report and the limits that the run exceeds."""
    limits = {"max_quarantined_share": 0.5, **limits}
    found, _ = small.run(input={"files": [str(path) for path in files], **limits})
    report = make_report(found)
    return report, list_exceeded_limits(report, found.config.input)


@pytest.mark.parametrize(
    "content",
    [
        ERROR_PAGE,
        gzip.compress(ERROR_PAGE, mtime=0),
        b"",
        gzip.compress(b"", mtime=0),
        b"\0" * 5_000,
    ],
    ids=["page", "compressed page", "empty", "empty gzip", "zeros"],
)
def test_a_lost_file_exceeds_the_limit_and_is_named(
    small: Small, files: list[Path], content: bytes
) -> None:
    """The other files are in the dataset."""
    files[2].write_bytes(content)
    report, faults = run_files(small, files)
    (fault,) = faults
    assert fault == (
        "16.67% of the 6 input files gave no record, input.max_lost_files_share allows "
        "0.00%: c.warc.wet.gz"
    )
    assert (report.lost_files, report.num_files) == ({"c.warc.wet.gz": 1}, 6)
    assert report.num_docs_read == 15


def test_lost_files_are_shown(
    small: Small, files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """By `report`, on its page and by `status`."""
    files[2].write_bytes(ERROR_PAGE)
    report, _ = run_files(small, files)
    console = SafeConsole()
    print_report(report, console)
    print_status(read_status(RunFolder.open(report.run_dir), now=0.0), console)
    shown = capsys.readouterr().out
    assert "Input files without a readable record: 16.67% of 6" in shown
    assert "files without a readable record: c.warc.wet.gz" in shown
    assert "Input files without a readable record" in to_html(report)


def test_a_truncated_file_is_not_lost(small: Small, files: list[Path]) -> None:
    """It gives its first records; what is cut counts as a broken record."""
    files[2].write_bytes(files[2].read_bytes()[:-20])
    report, faults = run_files(small, files)
    assert faults == []
    assert (report.lost_files, report.num_files) == ({}, 6)
    assert report.quarantine == {"warc.truncated": 1}


def test_lost_files_can_be_allowed(small: Small, files: list[Path]) -> None:
    """A limit of one in six allows one of six, and not two."""
    files[2].write_bytes(ERROR_PAGE)
    assert run_files(small, files, max_lost_files_share=1 / 6)[1] == []
    files[3].write_bytes(ERROR_PAGE)
    (fault,) = run_files(small, files, max_lost_files_share=1 / 6)[1]
    assert fault.endswith("allows 16.67%: c.warc.wet.gz, d.warc.wet.gz")


def test_both_limits_are_reported(small: Small, files: list[Path]) -> None:
    """A run that exceeds both shows both."""
    files[2].write_bytes(ERROR_PAGE)
    lost, broken = run_files(small, files, max_quarantined_share=0.0)[1]
    assert "input.max_lost_files_share allows" in lost
    assert broken == (
        "6.25% of the records are quarantined, input.max_quarantined_share allows 0.00%"
    )
