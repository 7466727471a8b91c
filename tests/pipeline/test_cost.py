"""What a run would take: the model's laws, and a small run held against what it says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from config_files.reader import ConfigError
from pipeline.capacity.estimate import (
    HANDING_OUT_S,
    SHIPPED,
    Calibration,
    Cluster,
    Cost,
    Line,
    estimate,
    fit,
    read_calibration,
)
from pipeline.cli import app
from pipeline.config import RunConfig, load
from pipeline.phases.hash_partitions import partitions_for
from pipeline.phases.paragraph_dedup import BYTES_PER_PARAGRAPH
from pipeline.runs.event_log import keep
from tests.pipeline.conftest import Small

RATES = read_calibration()
HERE = Cluster(nodes=4, cores=8, memory_gb=64, price_per_core_hour=0.05)
SMALL_TASKS = "engine.memory_mb=1500"


def config_of(*overrides: str) -> RunConfig:
    return load("ccnet-common-crawl", ["annotate.minhash={}", "fuzzy_dedup={}", *overrides])


def cost_of(num_files: int = 1000, cluster: Cluster = HERE, *overrides: str) -> Cost:
    return estimate(config_of(*overrides), RATES, cluster, num_files=num_files)


@settings(max_examples=25, deadline=None)
@given(num_files=st.integers(1, 4000))
def test_twice_the_files_are_twice_the_bytes_and_no_less_work(num_files: int) -> None:
    """All that is written for text doubles with it; what a piece of work costs by itself at most does."""
    one, two = cost_of(num_files), cost_of(2 * num_files)
    assert two.amounts["tokens"] == pytest.approx(2 * one.amounts["tokens"])
    assert two.bytes_written == pytest.approx(2 * one.bytes_written, rel=0.01)
    assert two.cpu_hours > one.cpu_hours
    assert all(b.task_ids >= a.task_ids for a, b in zip(one.phases, two.phases, strict=True))


@settings(max_examples=25, deadline=None)
@given(cores=st.integers(1, 96), more=st.integers(0, 96), num_files=st.integers(1, 90_000))
def test_more_cores_are_never_slower(cores: int, more: int, num_files: int) -> None:
    """Neither in a machine nor by more machines."""
    few = cost_of(num_files, Cluster(2, cores, 4096))
    assert cost_of(num_files, Cluster(2, cores + more, 4096)).hours <= few.hours
    assert cost_of(num_files, Cluster(2 + more, cores, 4096)).hours <= few.hours


def test_partitions_are_those_that_the_phases_make() -> None:
    """Of a run that is done: as many as its phases had, and by the same function where it is larger."""
    cost = cost_of(500)
    (paragraph_dedup,) = (phase for phase in cost.phases if phase.name == "paragraph_dedup")
    memory_mb = config_of().engine.memory_mb
    assert paragraph_dedup.task_ids == partitions_for(
        int(cost.amounts["paragraphs"]), BYTES_PER_PARAGRAPH, memory_mb
    )
    assert next(p for p in cost_of(1).phases if p.name == "paragraph_dedup").task_ids == 1


def test_files_are_gathered_into_at_most_ten_thousand_units() -> None:
    """A whole snapshot keeps its number of small files bounded; asked for otherwise, it is told."""
    assert cost_of(90_000).num_splits == 10_000
    assert cost_of(9_000).num_splits == 9_000
    many = cost_of(90_000, HERE, "input.files_per_split=1")
    assert many.num_splits == 90_000
    assert any("input.files_per_split: auto" in warning for warning in many.warnings)


@pytest.mark.parametrize(
    ("num_files", "cluster", "overrides", "told"),
    [
        (90_000, HERE, [SMALL_TASKS], "set paragraph_dedup.group_splits to"),
        (90_000, HERE, [SMALL_TASKS], "fuzzy_dedup: a task would take"),
        (100, Cluster(1, 4, 2), [], "never start"),
        (
            100,
            Cluster(1, 16, 32),
            ["engine.memory_mb=4000"],
            "lets 7 tasks onto a machine of 16 cores",
        ),
        (3, Cluster(1, 64, 512), [], "fewer cores are as fast"),
        (100, Cluster(1, 4, 32, disk_gb=1), [], "1 GB are free there"),
        (90_000, HERE, [], "the driver merges over 2,340,000,000 records"),
        (100, HERE, ["write_shards.shard_tokens=9000000000"], "set write_shards.shard_tokens to"),
        (100, HERE, ["tokenize.pii={}"], "not measured, and counted as nothing: tokenize.pii"),
    ],
)
def test_what_will_not_fit_is_told_with_what_would(
    num_files: int, cluster: Cluster, overrides: list[str], told: str
) -> None:
    """Each warning names the quantity and the act."""
    assert any(told in warning for warning in cost_of(num_files, cluster, *overrides).warnings)


def test_a_whole_snapshot_fits_into_tasks_of_three_gigabytes() -> None:
    """However much there is, ranges of hashes are cut until a task holds its own."""
    told = cost_of(90_000, HERE, "engine.memory_mb=3000").warnings
    assert not [warning for warning in told if "a task would take" in warning]


def test_the_remedy_for_deduplication_is_one() -> None:
    """With the group that is proposed the warning is gone."""
    (told,) = (
        w
        for w in cost_of(90_000, HERE, SMALL_TASKS).warnings
        if w.startswith("paragraph_dedup: a task")
    )
    group = told.split("group_splits to ")[1].split(" ")[0].replace(",", "")
    after = cost_of(90_000, HERE, SMALL_TASKS, f"paragraph_dedup.group_splits={group}").warnings
    assert not any(warning.startswith("paragraph_dedup: a task") for warning in after)


@given(fixed=st.floats(0, 10), rate=st.floats(0, 10), more=st.floats(0, 10))
def test_a_line_rises_with_what_there_is(fixed: float, rate: float, more: float) -> None:
    """More in a piece of work, or more pieces, never cost less."""
    line = Line(fixed=fixed, rate=rate)
    assert line.at(1 + more, 1) >= line.at(1, 1)
    assert line.at(1, 1 + more) >= line.at(1, 1)


@pytest.fixture
def pages(small: Small) -> Small:
    """Two units of other sizes."""
    files: list[str] = []
    for name, count in (("a", 40), ("b", 160)):
        path = small.folder / f"{name}.warc.wet.gz"
        path.write_bytes(b"".join(gzip.compress(_page(f"{name}{i}")) for i in range(count)))
        files.append(str(path))
    return Small(small.folder, {**small.tree, "input": {"files": files}})


def _page(name: str) -> bytes:
    text = "\n".join(
        f"Paragraph {line} of page {name} says what no other page says, {name * 3}."
        for line in range(12)
    )
    body = text.encode()
    head = f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: <urn:uuid:{name}>\r\nWARC-Target-URI: http://e.org/{name}\r\n"
    head += f"WARC-Date: 2026-11-01T00:00:00Z\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body + b"\r\n\r\n"


def test_a_runs_own_calibration_tells_its_bytes_again(pages: Small) -> None:
    """Fitted from two units, the model gives the run's works and files exactly, and its bytes within 5 %."""
    run, _ = pages.run()
    calibration = fit([run])
    config = pages.config()
    size = sum(Path(file).stat().st_size for file in config.input.files or ())
    cost = estimate(config, calibration, HERE, num_files=2, input_bytes=float(size))
    for phase in cost.phases:
        folder = run.folder(phase.name)
        records = [folder.record(task_id) for task_id in folder.done()]
        assert phase.task_ids == len(records)
        written = sum(
            output["bytes"] for record in records for output in record["outputs"].values()
        )
        assert phase.bytes_written == pytest.approx(written, rel=0.05, abs=2000)
        assert phase.num_files == sum(len(record["outputs"]) + 1 for record in records)
    assert cost.cpu_hours > 0


def test_work_done_again_counts_in_time_but_not_in_memory(pages: Small) -> None:
    """Its process has grown by then with all that came in between."""
    run, _ = pages.run()
    before = fit([run]).phases["paragraph_dedup"]
    (event,) = (
        e
        for e in run.read_events()
        if e["event"] == "TaskFinished" and e["phase"] == "paragraph_dedup"
    )
    with keep(run.run_dir) as add:
        add({**event, "peak_mb": 9e6, "cpu_seconds": {"paragraph_dedup": 60.0}})
    after = fit([run]).phases["paragraph_dedup"]
    assert after.base_mb == before.base_mb
    assert after.cpu_s["paragraph_dedup"].rate > before.cpu_s["paragraph_dedup"].rate


def test_a_phase_takes_no_less_than_handing_out_its_work() -> None:
    """On ever so many cores."""
    for phase in cost_of(90_000, Cluster(10_000, 64, 256)).phases:
        assert phase.hours * 3600 >= phase.task_ids * HANDING_OUT_S


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The shipped one, through a file; another version and no calibration at all are refused with the way out."""
    path = tmp_path / "calibration.json"
    path.write_text(RATES.model_dump_json())
    assert read_calibration(path) == RATES
    path.write_text(json.dumps({**json.loads(SHIPPED.read_text()), "version": 0}))
    with pytest.raises(ConfigError, match="version is 0, wanted 1; measure anew: make bench"):
        read_calibration(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="is no calibration"):
        read_calibration(path)


def test_a_phase_that_was_not_measured_is_taken_from_another_calibration() -> None:
    """What a run had off has the shipped rates."""
    own = Calibration(
        source="own", amounts=RATES.amounts, phases={"extract": RATES.phases["extract"]}
    )
    filled = own.filled_by(RATES)
    assert filled.source == "own"
    assert filled.phases["annotate"] == RATES.phases["annotate"]


def test_plan_tells_what_a_snapshot_would_take_without_listing_it(tmp_path: Path) -> None:
    """Table and JSON say the same, with price, rates' origin and warnings; no network is asked."""
    arguments = [
        "plan",
        "ccnet-common-crawl.yaml",
        "--files",
        "90000",
        "--nodes",
        "10",
        "--cores",
        "32",
    ]
    arguments += [
        "--memory-gb",
        "128",
        "--price-per-core-hour",
        "0.04",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "90,000 files in 10,000 units" in shown.output
    assert "Rates measured on the demo's chain over the sample crawl" in shown.output
    told = CliRunner().invoke(app, [*arguments, "--json"])
    found = json.loads(told.output)
    assert f"Price: {found['price']:,.2f}" in shown.output
    assert found["price"] == pytest.approx(0.04 * 320 * found["hours"])
    assert found["cpu_hours"] == pytest.approx(sum(phase["cpu_hours"] for phase in found["phases"]))
