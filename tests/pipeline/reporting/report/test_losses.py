"""Losses: a domain, language or input split of which one phase drops nearly all documents is named."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.reporting import queries
from pipeline.reporting.report import losses as module
from pipeline.reporting.report import make_report, print_report, to_html
from pipeline.reporting.report.losses import Loss, Losses, find_losses
from pipeline.runs.run_folder import RunFolder
from terminal_output.console import SafeConsole
from tests.conftest import wet_record
from tests.pipeline.conftest import Small, make_small
from tests.pipeline.reporting.pages import LETTERS, PAGES, RULES

# Domain -> the kinds of its pages in each of two files.
SITES = {
    "sound.example": (["good"] * 5, ["good"] * 3),
    "copies.example": (["copy"] * 4, ["copy"] * 3 + ["good"]),
    "short.example": (["short"] * 9, ["short"] * 9),
    "french.example": (["french"] * 6, ["french"] * 6),
    "small.example": (["short"], []),
}

Alarms = set[tuple[str, str, int, str, int, str]]


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, lid_file: Path
) -> RunFolder:
    """A run over two files with pages of all sites. French is not wanted."""
    small = make_small(tmp_path_factory.mktemp("losses"), tiny_tokenizer, lid_file)
    files: list[str] = []
    for number, name in enumerate(("first", "second")):
        records: list[bytes] = []
        for domain, kinds in SITES.items():
            for kind in kinds[number]:
                letters = f"{number}{len(records)}".translate(LETTERS)
                text = PAGES[kind].replace("{}", letters)
                records.append(wet_record(f"https://{domain}/{letters}", f"Title\n{text}"))
        path = small.folder / f"{name}.warc.wet"
        path.write_bytes(b"".join(records))
        files.append(str(path))
    report = {"alarm_lost_share": 0.75, "alarm_min_documents": 4}
    return small.run(input={"files": files}, report=report, **RULES)[0]


def with_settings(found: RunFolder, share: float | None, min_documents: int) -> RunFolder:
    """Return the same run with another `report` section."""
    section = {"alarm_lost_share": share, "alarm_min_documents": min_documents}
    config = {**found.recorded_config, "report": section}
    return replace(found, recorded_config=config)


def count_by_hand(found: RunFolder, share: float, min_documents: int) -> Alarms:
    """Return the losses, from the rows of all decisions."""
    counts: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for phase in ("extract", "annotate", "select"):
        for split in found.splits:
            path = found.folder(phase).path(f"{split.key}.decisions.parquet")
            for row in pq.read_table(path).to_pylist():
                if row["decision"] == "language.not_wanted":
                    continue
                names = {"domain": row["url"].split("/")[2], "input split": split.key}
                if row["language"]:
                    names["language"] = row["language"]
                for group in names.items():
                    counts.setdefault(group, Counter())[phase, row["decision"]] += 1
    alarms: Alarms = set()
    for (kind, name), decisions in counts.items():
        for phase in ("extract", "annotate", "select"):
            reasons = {
                reason: number
                for (where, reason), number in decisions.items()
                if where == phase and reason != "kept"
            }
            num_docs, num_lost = decisions.total(), sum(reasons.values())
            if num_lost and num_docs >= min_documents and num_lost >= share * num_docs:
                reason = max(sorted(reasons), key=lambda name: reasons[name])
                alarms.add((kind, name, num_docs, phase, num_lost, reason))
    return alarms


def as_rows(losses: Losses) -> Alarms:
    """Return the losses as tuples, with the keys of input splits only."""
    return {
        (e.kind, e.name.split(" ")[0], e.num_docs, e.phase, e.num_lost, e.reason)
        for e in losses.found
    }


@pytest.mark.parametrize("share", [0.2, 0.8, 0.95])
@pytest.mark.parametrize("min_documents", [1, 8, 18, 99])
def test_losses_equal_a_count_by_hand(
    found: RunFolder, share: float, min_documents: int
) -> None:
    """Over all decisions of a run, for every setting."""
    losses = find_losses(with_settings(found, share, min_documents))
    assert as_rows(losses) == count_by_hand(found, share, min_documents)
    numbers = [loss.num_lost for loss in losses.found]
    assert numbers == sorted(numbers, reverse=True)


def test_a_loss_names_the_phase_and_the_reason(found: RunFolder) -> None:
    """A domain is reported with its counts; domains that are small or not wanted are left out."""
    losses = find_losses(found)
    assert [loss for loss in losses.found if loss.kind == "domain"] == [
        Loss("domain", "short.example", 18, "extract", 18, "length.too_few_chars"),
        Loss("domain", "copies.example", 8, "annotate", 6, "paragraphs.none_left"),
    ]
    assert losses.num_docs_read == 47


def test_a_lost_file_is_named(small: Small) -> None:
    """An input split is reported with the name of its file."""
    path = small.folder / "lost.warc.wet"
    text = PAGES["copy"]
    records = [wet_record(f"https://{i}.example/", f"Title\n{text}") for i in range(9)]
    path.write_bytes(b"".join(records))
    report = {"alarm_min_documents": 9, "alarm_lost_share": 0.8}
    lost = small.run(input={"files": [str(path)]}, report=report, **RULES)[0]
    (loss,) = find_losses(lost).found
    assert loss.name == f"{lost.splits[0].key} (lost.warc.wet)"
    assert (loss.kind, loss.num_docs, loss.num_lost) == ("input split", 9, 8)


def test_sums_do_not_depend_on_the_memory_for_them(
    found: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adding up after every file gives the same losses."""
    before = find_losses(found)
    monkeypatch.setattr(queries, "MAX_ROWS_HELD", 0)
    assert find_losses(found) == before


def test_a_part_of_a_large_run_is_read(
    found: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more documents than the limit, every second split is read; all splits are judged."""
    monkeypatch.setattr(module, "MAX_DOCS_READ", 24)
    losses = find_losses(with_settings(found, 0.2, 1))
    assert losses.num_docs_read == 25
    assert {e.name.split(" ")[0] for e in losses.found if e.kind == "input split"} == {
        split.key for split in found.splits
    }


def test_other_losses_are_counted(
    found: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report holds the largest losses of each kind, and the number of the others."""
    every = find_losses(with_settings(found, 0.2, 1))
    monkeypatch.setattr(module, "NUM_REPORTED", 1)
    some = find_losses(with_settings(found, 0.2, 1))
    assert len(some.found) == len({loss.kind for loss in every.found})
    assert len(some.found) + some.num_others == len(every.found)
    assert some.found[0] == every.found[0]


def test_no_warnings_if_they_are_off(found: RunFolder) -> None:
    """`alarm_lost_share: null` reads nothing."""
    assert find_losses(with_settings(found, None, 1)) == Losses()


def test_damaged_decisions_are_left_out_with_a_warning(
    found: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """The report is written all the same."""
    name = f"{found.splits[0].key}.decisions.parquet"
    path = found.folder("extract").path(name)
    content = path.read_bytes()
    path.write_bytes(b"damaged")
    losses = find_losses(found)
    path.write_bytes(content)
    assert "the decisions in it are not counted" in caplog.text
    assert losses.num_docs_read == 47 - 10


def test_terminal_and_page_show_losses(found: RunFolder) -> None:
    """The exit summary and the page name domain, share, phase and reason."""
    report = make_report(found)
    out = io.StringIO()
    print_report(report, SafeConsole(width=160, file=out))
    assert "Nearly all documents dropped by one phase" in out.getvalue()
    page = to_html(report)
    for text in ("copies.example", "75.0%", "paragraphs.none_left"):
        assert text in out.getvalue()
        assert text in page


def test_more_losses_are_shown_as_a_number(found: RunFolder) -> None:
    """Both outputs say how many are not shown."""
    loss = Loss("domain", "a.example", 10, "select", 10, "length.too_few_chars")
    report = replace(make_report(found), losses=Losses((loss,) * 15, num_others=2000))
    out = io.StringIO()
    print_report(report, SafeConsole(width=160, file=out))
    assert "2,003 more" in out.getvalue()
    assert "2,000 more" in to_html(report)
