"""The estimate of a run: properties of the model, and a comparison with a small run."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from config_files.reader import ConfigError
from pipeline.capacity.calibration import (
    SHIPPED,
    Calibration,
    Line,
    read_calibration,
    read_shipped,
)
from pipeline.capacity.estimate import estimate
from pipeline.capacity.fit import fit
from pipeline.capacity.model import DISPATCH_S, Cluster, PhaseEstimate, RunEstimate
from pipeline.cli import app
from pipeline.config import InputConfig, RunConfig, load
from pipeline.phases.dedup.merge_clusters import MAX_MEMBERS_PER_TASK
from pipeline.phases.dedup.paragraph_dedup import BYTES_PER_HASH
from pipeline.runs.event_log import open_log
from pipeline.runs.exchange import count_partitions
from tests.conftest import REPOSITORY
from tests.pipeline.conftest import Small
from tests.stages.warc.files import response

RATES = read_calibration()
RECIPES = sorted(
    path.stem
    for path in (REPOSITORY / "configs").glob("*.yaml")
    if not path.stem.startswith("train-")
)
HERE = Cluster(nodes=4, cores=8, memory_gb=64, price_per_core_hour=0.05)
SMALL_TASKS = "engine.memory_mb=1500"


def make_config(*overrides: str) -> RunConfig:
    return load("ccnet-common-crawl", ["annotate.minhash={}", "fuzzy_dedup={}", *overrides])


def estimate_snapshot(
    num_files: int = 1000, cluster: Cluster = HERE, *overrides: str
) -> RunEstimate:
    return estimate(make_config(*overrides), RATES, cluster, num_files=num_files)


@settings(max_examples=25, deadline=None)
@given(num_files=st.integers(1, 4000))
def test_twice_the_files_take_twice_the_bytes_and_more_cpu(num_files: int) -> None:
    """Bytes and tokens double; the number of tasks and the CPU hours do not fall."""
    one, two = estimate_snapshot(num_files), estimate_snapshot(2 * num_files)
    assert two.amounts["tokens"] == pytest.approx(2 * one.amounts["tokens"])
    assert two.bytes_written == pytest.approx(2 * one.bytes_written, rel=0.01)
    assert two.cpu_hours > one.cpu_hours
    assert all(
        b.num_tasks >= a.num_tasks for a, b in zip(one.phases, two.phases, strict=True)
    )


@settings(max_examples=25, deadline=None)
@given(cores=st.integers(1, 96), more=st.integers(0, 96), num_files=st.integers(1, 90_000))
def test_more_cores_never_take_longer(cores: int, more: int, num_files: int) -> None:
    """More cores per machine or more machines do not raise the hours."""
    few = estimate_snapshot(num_files, Cluster(2, cores, 4096))
    assert estimate_snapshot(num_files, Cluster(2, cores + more, 4096)).hours <= few.hours
    assert estimate_snapshot(num_files, Cluster(2 + more, cores, 4096)).hours <= few.hours


def test_estimate_has_as_many_partitions_as_the_phase() -> None:
    """The number of partitions comes from the function that the phases use."""
    cost = estimate_snapshot(500)
    (paragraph_dedup,) = (phase for phase in cost.phases if phase.name == "paragraph_dedup")
    memory_mb = make_config().engine.memory_mb
    assert paragraph_dedup.num_tasks == count_partitions(
        int(cost.amounts["distinct_paragraphs"]), BYTES_PER_HASH, memory_mb, cost.num_splits
    )
    assert (
        next(
            p for p in estimate_snapshot(1).phases if p.name == "paragraph_dedup"
        ).num_tasks
        == 1
    )


def test_files_are_grouped_into_at_most_ten_thousand_splits() -> None:
    """A snapshot has at most 10,000 input splits; a config with more is warned."""
    assert estimate_snapshot(90_000).num_splits == 10_000
    assert estimate_snapshot(9_000).num_splits == 9_000
    many = estimate_snapshot(90_000, HERE, "input.files_per_split=1")
    assert many.num_splits == 90_000
    assert any("input.files_per_split: auto" in warning for warning in many.warnings)


@pytest.mark.parametrize(
    ("num_files", "cluster", "overrides", "expected"),
    [
        (100, Cluster(1, 4, 2), [], "never start"),
        (
            100,
            Cluster(1, 16, 32),
            ["engine.memory_mb=4000"],
            "allows 7 tasks on a machine of 16 cores",
        ),
        (3, Cluster(1, 64, 512), [], "fewer cores are as fast"),
        (100, Cluster(1, 4, 32, disk_gb=1), [], "1 GB are free there"),
        (400_000, HERE, [], "engine.phases.fuzzy_merge.memory_mb) to 119,"),
        (
            100,
            HERE,
            ["write_shards.shard_tokens=9000000000"],
            "set write_shards.shard_tokens to",
        ),
        (100, HERE, ["tokenize.pii={}"], "not measured, counted as zero: tokenize.pii"),
    ],
)
def test_warnings_name_the_setting_that_helps(
    num_files: int, cluster: Cluster, overrides: list[str], expected: str
) -> None:
    """Each warning names the quantity and the remedy."""
    assert any(
        expected in warning
        for warning in estimate_snapshot(num_files, cluster, *overrides).warnings
    )


def test_snapshot_fits_into_tasks_of_three_gigabytes() -> None:
    """Hash space is cut into as many partitions as the memory of a task requires."""
    merge = "engine.phases={fuzzy_merge: {memory_mb: 28_000}}"
    warnings = estimate_snapshot(90_000, HERE, "engine.memory_mb=3000", merge).warnings
    assert not [warning for warning in warnings if "a task would take" in warning]


def find_merge(found: RunEstimate) -> PhaseEstimate:
    """Return the estimate for fuzzy_merge."""
    return next(phase for phase in found.phases if phase.name == "fuzzy_merge")


def test_memory_of_the_merge_grows_with_near_duplicates() -> None:
    """Its one task holds 36 bytes per document with near-duplicates: measured ones, or a third of all."""
    base_mb = RATES.phases["fuzzy_merge"].base_mb
    unmeasured = find_merge(estimate_snapshot(1000))
    assert unmeasured.num_tasks == 1
    assert unmeasured.memory_mb - base_mb == pytest.approx(36 * 26e6 / 3 / 2**20)
    amounts = {**RATES.amounts, "clustered": RATES.amounts["left"] / 1e6}
    measured = RATES.model_copy(update={"amounts": amounts})
    found = estimate(make_config(), measured, HERE, num_files=1000)
    held_mb = 36 * found.amounts["left"] / 1e6 / 2**20
    assert find_merge(found).memory_mb - base_mb == pytest.approx(held_mb)
    assert find_merge(estimate_snapshot(1000, HERE, "fuzzy_dedup=null")).num_tasks == 0


def test_many_near_duplicates_are_merged_by_ranges_first() -> None:
    """Two more phases have tasks where one task cannot merge all pairs."""
    for num_files, is_divided in ((100, False), (90_000, True)):
        num_tasks = {
            phase.name: phase.num_tasks for phase in estimate_snapshot(num_files).phases
        }
        assert (num_tasks["fuzzy_forests"] > 1) == is_divided
        assert num_tasks["fuzzy_ranges"] == num_tasks["fuzzy_forests"]


@given(fixed=st.floats(0, 10), rate=st.floats(0, 10), more=st.floats(0, 10))
def test_line_never_falls(fixed: float, rate: float, more: float) -> None:
    """A larger amount or more tasks never predict less."""
    line = Line(fixed=fixed, rate=rate)
    assert line.predict(1 + more, 1) >= line.predict(1, 1)
    assert line.predict(1, 1 + more) >= line.predict(1, 1)


@pytest.fixture
def pages(small: Small) -> Small:
    """A config with two input splits of different sizes."""
    files: list[str] = []
    for name, count in (("a", 40), ("b", 160)):
        path = small.folder / f"{name}.warc.wet.gz"
        path.write_bytes(
            b"".join(gzip.compress(_page(f"{name}{i}"), mtime=0) for i in range(count))
        )
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


def test_calibration_of_a_run_predicts_its_own_bytes(pages: Small) -> None:
    """The predicted tasks and files are exact, the bytes within 5 %."""
    run, _ = pages.run()
    calibration = fit([run])
    config = pages.config()
    size = sum(Path(file).stat().st_size for file in config.input.files or ())
    cost = estimate(config, calibration, HERE, num_files=2, input_bytes=float(size))
    for phase in cost.phases:
        folder = run.folder(phase.name)
        # The manifest, the cuts and the places are written by `finish`, not by a task.
        task_ids = folder.list_done() - {"manifest", "cuts"}
        records = [
            folder.record(task_id)
            for task_id in task_ids
            if not task_id.startswith("places_of_")
        ]
        assert phase.num_tasks == len(records)
        written = sum(
            output["bytes"] for record in records for output in record["outputs"].values()
        )
        assert phase.bytes_written == pytest.approx(written, rel=0.05, abs=2000)
        assert phase.num_files == sum(len(record["outputs"]) + 1 for record in records)
    assert cost.cpu_hours > 0


def test_repeated_task_counts_in_cpu_but_not_in_memory(pages: Small) -> None:
    """The process of a repeated task may have grown with other tasks."""
    run, _ = pages.run()
    before = fit([run]).phases["paragraph_dedup"]
    (event,) = (
        e
        for e in run.read_events()
        if e["event"] == "TaskFinished" and e["phase"] == "paragraph_dedup"
    )
    with open_log(run.run_dir) as add:
        add({**event, "peak_mb": 9e6, "cpu_seconds": {"paragraph_dedup": 60.0}})
    after = fit([run]).phases["paragraph_dedup"]
    assert after.base_mb == before.base_mb
    assert after.cpu_s["paragraph_dedup"].rate > before.cpu_s["paragraph_dedup"].rate


def test_phase_takes_at_least_the_dispatch_of_its_groups() -> None:
    """The lower bound holds on any number of cores. On a large cluster each task is a group."""
    for phase in estimate_snapshot(90_000, Cluster(10_000, 64, 256)).phases:
        assert phase.hours * 3600 >= phase.num_tasks * DISPATCH_S


def test_unmeasured_clusters_are_a_third_of_the_documents() -> None:
    """fuzzy_dedup has as many tasks as they need, not one."""
    (phase,) = (
        each for each in estimate_snapshot(1000).phases if each.name == "fuzzy_dedup"
    )
    assert phase.num_tasks == math.ceil(26e6 / 3 / MAX_MEMBERS_PER_TASK)
    assert phase.cpu_hours > 0.04


def test_calibration_file_round_trips(tmp_path: Path) -> None:
    """A written calibration is read back; another version and other files are refused."""
    path = tmp_path / "calibration.json"
    path.write_text(RATES.model_dump_json())
    assert read_calibration(path) == RATES
    path.write_text(json.dumps({**json.loads(SHIPPED.read_text()), "version": 0}))
    with pytest.raises(
        ConfigError, match="version is 0, expected 2; measure again: make bench"
    ):
        read_calibration(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="is not a calibration"):
        read_calibration(path)


def test_missing_phases_come_from_the_other_calibration() -> None:
    """A phase that was off in the measured run gets the shipped rates."""
    own = Calibration(
        source="own", amounts=RATES.amounts, phases={"extract": RATES.phases["extract"]}
    )
    filled = own.filled_by(RATES)
    assert filled.source == "own"
    assert filled.phases["annotate"] == RATES.phases["annotate"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_stage_of_the_shipped_recipes_is_measured(recipe: str) -> None:
    """Over WET and over WARC files."""
    for input_format in ("wet", "warc"):
        settings = f"{{common_crawl: {{crawl: CC-MAIN-2026-17, format: {input_format}}}}}"
        config = load(recipe, [f"input={settings}"])
        rates = read_shipped(has_html=config.input.has_html())
        found = estimate(config, rates, HERE, num_files=10)
        assert [each for each in found.warnings if "not measured" in each] == []


def test_a_warc_file_has_the_pages_of_a_wet_file_and_takes_longer() -> None:
    """It has more bytes for each page, and HTML is parsed."""
    found: dict[str, RunEstimate] = {}
    for name in ("wet", "warc"):
        config = load("ccnet-common-crawl", [f"input.common_crawl.format={name}"])
        rates = read_shipped(has_html=config.input.has_html())
        found[name] = estimate(config, rates, HERE, num_files=10)
    wet, warc = found["wet"], found["warc"]
    assert warc.amounts["documents"] == pytest.approx(wet.amounts["documents"])
    assert warc.amounts["input"] > 10 * wet.amounts["input"]
    assert warc.phases[0].cpu_s["read"] > 5 * wet.phases[0].cpu_s["read"]


@pytest.mark.parametrize(
    ("names", "has_html"),
    [
        (["CC-MAIN-1.warc.gz"], True),
        (["old.arc.gz", "a.warc"], True),
        (["CC-MAIN-1.warc.wet.gz"], False),
        (["https://example.org/files/a.warc.zst"], True),
        (["crawl/*.wet"], False),
        (["archive/rows"], False),
    ],
)
def test_html_is_known_by_the_names_of_files(names: list[str], *, has_html: bool) -> None:
    """Common Crawl's WET files have both words in their names."""
    assert InputConfig(files=tuple(names)).has_html() is has_html
    assert InputConfig(files=("folder",)).has_html(names) is has_html


def test_other_engines_for_html_take_longer_than_measured() -> None:
    """The rates are those of `blocks`, whichever engine the measured run had."""
    rates = read_shipped(has_html=True)
    seconds: list[float] = []
    for engine in ("blocks", "trafilatura"):
        config = load("fineweb", [f"extract.warc.html.engine={engine}"])
        found = estimate(config, rates, HERE, num_files=10, input_bytes=1e8)
        seconds.append(found.phases[0].cpu_s["read"])
    assert seconds[1] == pytest.approx(11 * seconds[0])


def test_a_run_with_another_engine_predicts_itself(small: Small) -> None:
    """Its rates are stored as those of `blocks`."""
    html = "".join(f"<p>Paragraph {i} of the page says a thing.</p>" for i in range(200))
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + html.encode()
    path = small.folder / "a.warc"
    path.write_bytes(response(page))
    run, _ = small.run(input={"files": [str(path)]})
    (event,) = (
        each
        for each in run.read_events()
        if each["event"] == "TaskFinished" and each["phase"] == "extract"
    )
    size = float(path.stat().st_size)
    cost = estimate(run.config, fit([run]), HERE, num_files=1, input_bytes=size)
    assert cost.phases[0].cpu_s["read"] == pytest.approx(event["cpu_seconds"]["read"])


def test_idle_cores_of_a_short_run_are_not_reported() -> None:
    """Nobody rents a cluster for it."""
    config, rates = load("fineweb"), read_shipped(has_html=True)
    for input_bytes, is_reported in ((1e7, False), (1e12, True)):
        found = estimate(config, rates, HERE, num_files=1, input_bytes=input_bytes)
        assert any("are idle" in each for each in found.warnings) is is_reported


def test_plan_command_estimates_a_snapshot_offline(tmp_path: Path) -> None:
    """Table and JSON agree, and no network is used."""
    command = (
        "plan ccnet-common-crawl.yaml --files 90000 --nodes 10 --cores 32 --memory-gb 128"
    )
    arguments = [*command.split(), "--price-per-core-hour", "0.04"]
    arguments += ["--run-dir", str(tmp_path / "run")]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "90,000 files in 10,000 input splits" in shown.output
    assert "Rates measured on the demo's chain over the sample crawl" in shown.output
    as_json = CliRunner().invoke(app, [*arguments, "--json"])
    found = json.loads(as_json.output)
    assert f"Price: {found['price']:,.2f}" in shown.output
    assert found["price"] == pytest.approx(0.04 * 320 * found["hours"])
    assert found["cpu_hours"] == pytest.approx(
        sum(phase["cpu_hours"] for phase in found["phases"])
    )
