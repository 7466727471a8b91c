"""The estimate of a run: properties of the model, and a comparison with a small run."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
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
from pipeline.phases.dedup.merge_clusters import MEMBERS_PER_BATCH
from pipeline.runs.event_log import open_log
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
BUSY = Cluster(nodes=50, cores=96, memory_gb=384, scratch_gb=100, head_memory_gb=3)
SMALL_TASKS = "engine.memory_mb=1500"
IN_BUCKET = "run_dir=s3://bucket/run"


def make_config(*overrides: str) -> RunConfig:
    settings = [
        "paragraph_dedup.group_splits=null",
        "annotate.minhash={}",
        "fuzzy_dedup={}",
    ]
    return load("ccnet-common-crawl", [*settings, *overrides])


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
        (90_000, HERE, [SMALL_TASKS], "extract: a task would take 2,480 MB"),
        (
            90_000,
            HERE,
            ["write_shards.shard_tokens=500000"],
            "raise write_shards.shard_tokens",
        ),
        (
            400_000,
            HERE,
            [],
            "4.4 snapshots of Common Crawl; run each in another run_dir",
        ),
        (90_000, BUSY, [IN_BUCKET], "fuzzy_clusters: its tasks write"),
        (
            90_000,
            BUSY,
            [IN_BUCKET],
            "the driver needs 3.5 GB of memory on the head, which has 3",
        ),
        (90_000, BUSY, [IN_BUCKET], "raise engine.phases.select.num_cpus"),
        (
            90_000,
            BUSY,
            [IN_BUCKET, "write_shards.shard_tokens=100000"],
            "of them in write_shards; raise write_shards.shard_tokens",
        ),
        (
            1_800_000,
            BUSY,
            [IN_BUCKET, "fuzzy_dedup.rule=null"],
            "raise input.files_per_split",
        ),
        (100, Cluster(1, 4, 2), [], "never start"),
        (
            100,
            Cluster(1, 16, 32),
            ["engine.memory_mb=4000"],
            "allows 7 tasks on a machine of 16 cores",
        ),
        (3, Cluster(1, 64, 512), [], "fewer cores are as fast"),
        (100, Cluster(1, 4, 32, disk_gb=1), [], "1 GB are free there"),
        (
            400_000,
            HERE,
            [],
            "fuzzy_merge: a task would take 131,",
        ),
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
    settings = ("engine.memory_mb=3000", "engine.phases.fuzzy_merge.memory_mb=30000")
    warnings = estimate_snapshot(90_000, HERE, *settings).warnings
    assert not [warning for warning in warnings if "a task would take" in warning]


def test_memory_of_the_merge_grows_with_near_duplicates() -> None:
    """It is 36 bytes per document with near-duplicates, a third of all where they were not measured."""
    found = estimate_snapshot(1000)
    merge = find_estimate(found, "fuzzy_merge")
    assert merge.memory_mb == pytest.approx(340 + 1.1 * 36 * 26e6 / 3 / 2**20)
    assert found.driver_bytes == pytest.approx(2e9 + 24 * 26e6 / 3, rel=0.01)
    off = estimate_snapshot(1000, HERE, "fuzzy_dedup=null")
    assert find_estimate(off, "fuzzy_merge").memory_mb == 0
    assert off.driver_bytes < 2.1e9


def find_estimate(found: RunEstimate, name: str) -> PhaseEstimate:
    return next(phase for phase in found.phases if phase.name == name)


def test_a_run_folder_on_a_disk_takes_no_requests() -> None:
    """In a bucket, the same tasks send requests, pay for them and wait for them."""
    on_disk, in_bucket = (
        estimate_snapshot(90_000, HERE, "input.common_crawl=null", "input.files=[a]", *more)
        for more in ([], [IN_BUCKET])
    )
    assert on_disk.request_price == 0
    assert 5 < in_bucket.request_price < 200
    for here, there in zip(on_disk.phases, in_bucket.phases, strict=True):
        assert (here.num_gets, here.num_puts, here.latency_s) == (0, 0, 0)
        assert here.num_tasks == there.num_tasks
        if here.num_tasks:
            assert min(there.num_gets, there.num_puts, there.latency_s) > 0
            assert there.hours > here.hours


def test_requests_of_an_exchange_follow_its_cells() -> None:
    """10,000 splits allow 128 tasks. Each reads an index, and once of each split exactly its rows."""
    found = estimate_snapshot(90_000, HERE, IN_BUCKET)
    phase = find_estimate(found, "paragraph_dedup")
    assert phase.num_tasks == 128
    # Its done-records are read twice, those of extract once, and its summary once.
    assert phase.num_gets == 128 * (10_000 + 3) + 2 * 128 + 10_000 + 1
    assert phase.bytes_read == pytest.approx(8 * 2e6 * 90_000, rel=0.01)
    # Its ranges do not fit into memory, so they are in scratch: 3 tasks of a machine.
    cluster = replace(HERE, nodes=50)
    in_scratch = find_estimate(estimate_snapshot(90_000, cluster), "paragraph_dedup")
    assert in_scratch.scratch_gb == pytest.approx(3 * 1.1 * 1.44e3 / 128, rel=0.05)
    groups = find_estimate(
        estimate_snapshot(90_000, HERE, IN_BUCKET, "paragraph_dedup.group_splits=300"),
        "paragraph_dedup",
    )
    assert groups.num_tasks == 34 * 32
    assert groups.num_gets < phase.num_gets / 3


def test_splits_of_previous_runs_are_read_by_every_exchange() -> None:
    """Three runs of the same size before take four times the reads, and no other phase takes more."""
    config = make_config(IN_BUCKET)
    alone, last = (
        estimate(config, RATES, HERE, num_files=1000, num_previous_splits=num_previous)
        for num_previous in (0, 3000)
    )
    for before, after in zip(alone.phases, last.phases, strict=True):
        if before.name in ("paragraph_dedup", "fuzzy_candidates", "fuzzy_clusters"):
            assert after.bytes_read == pytest.approx(4 * before.bytes_read, rel=0.01)
            assert after.num_gets > 4 * before.num_gets
        elif before.name in ("extract", "select", "tokenize", "write_shards"):
            assert after == before


def test_band_hashes_grow_with_documents() -> None:
    """Each document that annotate keeps has 16 band hashes, however long its text is."""
    amounts = estimate_snapshot(1000).amounts
    assert amounts["band_hashes"] == pytest.approx(16 * amounts["scored"])


def test_a_phase_without_rates_is_marked(tmp_path: Path) -> None:
    """Its memory and its reads follow from its rows; its CPU hours and its hours are unknown."""
    command = f"plan ccnet-common-crawl.yaml --files 90000 --run-dir {tmp_path}/run"
    shown = CliRunner().invoke(app, [*command.split(), "--set", "substring_dedup={}"])
    rows = [line.split() for line in shown.output.splitlines() if "substring_dedup" in line]
    name, num_tasks, _, cpu_hours, memory_mb, _, slowest_s, hours, _ = rows[0]
    assert (name, num_tasks) == ("substring_dedup", "256")
    assert {cpu_hours, slowest_s, hours} == {"?"}
    assert memory_mb == "2,600"  # half of engine.memory_mb, beside the process
    assert rows[1][:4] == ["substring_dedup", "50.7", "TB", "?"]
    assert "not measured, counted as zero: substring_dedup" in shown.output


@pytest.mark.parametrize("recipe", ["fineweb", "refinedweb"])
def test_recipes_of_html_are_counted_as_warc_files(recipe: str) -> None:
    """A snapshot of them has 90 TB compressed, and 331 TB of records."""
    config = load(recipe)
    rates = read_shipped(has_html=config.input.has_html())
    found = estimate(config, rates, HERE, num_files=90_000)
    assert find_estimate(found, "extract").bytes_read == pytest.approx(90e12)
    assert found.amounts["content"] == pytest.approx(331e12, rel=0.01)
    assert find_estimate(found, "extract").cpu_hours > 3000


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
    assert phase.num_tasks == math.ceil(26e6 / 3 / MEMBERS_PER_BATCH)
    assert phase.cpu_hours > 0.02


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


def test_plan_command_estimates_a_snapshot_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table and JSON agree, and no network is used."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path))
    command = (
        "plan ccnet-common-crawl.yaml --files 90000 --nodes 10 --cores 32 --memory-gb 128 "
        "--price-per-core-hour 0.04 --scratch-gb 1000 --head-memory-gb 64 --run-dir s3://bucket/run"
    )
    arguments = command.split()
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "90,000 files in 10,000 input splits" in shown.output
    assert "Rates measured on the demo's chain over the sample crawl" in shown.output
    as_json = CliRunner().invoke(app, [*arguments, "--json"])
    found = json.loads(as_json.output)
    assert f"Price: {found['price']:,.2f}" in shown.output
    assert f"object store: {found['request_price']:,.2f} $" in shown.output
    assert found["price"] == pytest.approx(0.04 * 320 * found["hours"])
    assert found["cpu_hours"] == pytest.approx(
        sum(phase["cpu_hours"] for phase in found["phases"])
    )
