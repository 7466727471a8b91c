"""The metrics of a run: they agree with its stored counters, also after it was resumed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from config_files.reader import ConfigError
from pipeline.errors import RunAborted
from pipeline.execution import engine
from pipeline.execution.engine import Event, TaskFinished
from pipeline.execution.inline import InlineEngine
from pipeline.phases import registry
from pipeline.phases.run_plan import RunPlan
from pipeline.reporting.prometheus import (
    MAX_LABEL_VALUES,
    METRICS,
    RunMetrics,
    find_metrics,
)
from stages.contract import Counters
from tests.conftest import REPOSITORY, wet_record
from tests.pipeline.conftest import Small
from tests.prometheus import (
    Watched,
    needs_prometheus,
    panels,
    run_prometheus,
)
from tests.sockets import find_free_ports

PAGES = ["the treaty was signed in the museum", "le chat et la souris"]


def write_crawl(folder: Path) -> list[Path]:
    """Write four files of good pages, short pages and repeated lines; the last file is truncated."""
    paths = [folder / f"{name}.warc.wet" for name in "abcd"]
    for path in paths:
        words = [f"{path.stem}{letter}" for letter in "abcdefghijklmnopqrst"]
        texts = [
            f"Title\n{PAGES[i % 2]}, {word}\nsaid in every page"
            for i, word in enumerate(words)
        ]
        texts += ["Title\nshort"] * 3
        path.write_bytes(
            b"".join(
                wet_record(f"https://example.org/{path.stem}/{i}", t)
                for i, t in enumerate(texts)
            )
        )
    paths[-1].write_bytes(paths[-1].read_bytes()[:-40])
    return paths


@pytest.fixture
def plan(small: Small) -> RunPlan:
    """A plan for the Ray engine; the tests run it in this process."""
    files = [str(path) for path in write_crawl(small.folder)]
    return small.plan(input={"files": files}, engine={"kind": "ray"})


def run_inline(plan: RunPlan) -> Iterable[Event]:
    return engine.run(plan, InlineEngine(plan.config.engine))


def record_all(plan: RunPlan, events: Iterable[Event]) -> RunMetrics:
    metrics = RunMetrics(plan)
    for event in events:
        metrics.record(event)
    return metrics


def select_stored(metrics: RunMetrics) -> dict[tuple[str, str, str], float]:
    """Return the counters that come from done-records; they are equal for every driver of a run."""
    names = {metric.name for metric in METRICS if metric.counter}
    return {
        series: number for series, number in metrics.counters.items() if series[0] in names
    }


def test_resumed_run_continues_its_counters(plan: RunPlan) -> None:
    """An uninterrupted, a resumed and a complete run end with equal counters and gauges."""
    whole = record_all(plan, run_inline(plan))
    assert select_stored(whole)["corpusmill_documents_total", "extract", ""] == 91
    complete = record_all(plan, run_inline(plan))
    assert (select_stored(complete), select_task_gauges(complete)) == (
        select_stored(whole),
        select_task_gauges(whole),
    )
    for phase in registry.list_enabled(plan.config):
        folder = Path(plan.folder(phase.name).root)
        (folder / "phase.json").unlink()
        next((folder / "done").iterdir()).unlink()
    resumed = record_all(plan, run_inline(plan))
    assert (select_stored(resumed), select_task_gauges(resumed)) == (
        select_stored(whole),
        select_task_gauges(whole),
    )


def select_task_gauges(metrics: RunMetrics) -> dict[tuple[str, str, str], float]:
    return {
        series: number
        for series, number in metrics.gauges.items()
        if series[0].startswith("corpusmill_tasks_")
    }


def test_failures_and_retries_are_counted(plan: RunPlan) -> None:
    """Failed tasks and tasks whose process had died are counted."""
    Path(plan.splits[1].files[0].location).unlink()
    events: list[Event] = []
    metrics = RunMetrics(plan)
    with contextlib.suppress(RunAborted):
        for event in run_inline(plan):
            if isinstance(event, TaskFinished) and event.task_id == plan.splits[0].key:
                metrics.record(replace(event, num_deaths=1))
            else:
                metrics.record(event)
            events.append(event)
    assert metrics.gauges["corpusmill_tasks_failed", "extract", ""] == 1
    assert metrics.gauges["corpusmill_tasks_done", "extract", ""] == 3
    assert metrics.counters["corpusmill_retries_total", "extract", ""] == 1


def test_labels_are_bounded(plan: RunPlan) -> None:
    """Two thousand languages make 200 series, and one for all others."""
    metrics = RunMetrics(plan)
    counters = Counters()
    for i in range(2000):
        counters.add(f"language.l{i:04d}")
    metrics.record(engine.PhaseStarted("select", 1, 0))
    metrics.add_counters("select", counters)
    series = {
        s: n
        for s, n in metrics.counters.items()
        if s[0] == "corpusmill_language_documents_total"
    }
    assert len(series) == MAX_LABEL_VALUES + 1
    assert sum(series.values()) == 2000


def test_used_port_is_an_error(small: Small) -> None:
    """The port is checked first, because Ray would wait half a minute without a message."""
    import socket

    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            RunAborted,
            match=rf"engine.metrics_port is {port}, which cannot be opened: .*in use",
        ):
            list(engine.run(small.plan(engine={"kind": "ray", "metrics_port": port})))


def test_inline_engine_refuses_a_metrics_port(small: Small) -> None:
    """A port without Ray is a fault of the config."""
    with pytest.raises(
        ConfigError,
        match=r"metrics_port is 9464, but engine.kind is inline: the metrics are Ray's",
    ):
        small.config(engine={"kind": "inline", "metrics_port": 9464})


@needs_prometheus
@pytest.mark.ray
def test_every_panel_shows_data_of_a_real_run(small: Small) -> None:
    """On Ray no panel is empty, the totals equal those of the report, and no other alert fires."""
    files = [str(path) for path in write_crawl(small.folder)]
    (port,) = find_free_ports(1)
    small.config(
        input={"files": files, "max_quarantined_share": 0.5},
        engine={"kind": "ray", "metrics_port": port, "workers": 2},
    )
    start = time.time()
    command = [sys.executable, "-m", "pipeline", "run", str(small.path)]
    with run_prometheus(port, small.folder / "prometheus", every_s=2) as prometheus:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (run,) = prometheus.ask(
            "label/run/values", **{"match[]": "ray_corpusmill_tasks_planned"}
        )
        seen = Watched(prometheus, run, start, time.time())
        assert run.startswith("run-")
        assert not seen.empty("pipeline")
        shown = {
            panel["title"]: seen.last(panel["targets"][0]["expr"])
            for panel in panels("pipeline")
        }
        prometheus.assert_healthy(firing={"CorpusmillQuarantine"})  # one of 93 records

    report = json.loads((small.folder / "run" / "report.json").read_text())
    assert {reason: n for (_, reason), n in shown["Dropped, by reason"].items()} == report[
        "reasons"
    ]
    assert {
        lang: n for (lang,), n in shown["Documents kept, by language"].items()
    } == report["languages"]
    assert {lang: n for (lang,), n in shown["Tokens, by language"].items()} == report[
        "language_tokens"
    ]
    assert shown["Tokens"] == dict.fromkeys(
        [("tokenize",), ("write_shards",)], report["num_tokens"]
    )
    assert {
        cause: n for (cause,), n in shown["Quarantined records, by cause"].items()
    } == report["quarantine"]
    assert set(shown["Tasks done"].values()) == {1.0}
    seconds = {
        ": ".join(dict.fromkeys(step)): n
        for step, n in shown["Worker seconds, by stage"].items()
    }
    # 10 ms, because once one of sixteen counters had lost 5 ms on its way through Ray, for a reason not found.
    assert seconds == pytest.approx(
        {step: report["seconds"][step] for step in seconds}, abs=0.01
    )


def test_tokens_by_language_are_counted_by_one_phase(small: Small) -> None:
    """Panels add up all phases, so a second phase with this metric would double the tokens."""
    run, _ = small.run()
    found: set[str] = set()
    for phase in run.stage_versions:
        counters = Counters.from_json(run.folder(phase).summary()["counters"])
        names = {metric.name for metric, _, _ in find_metrics(counters)}
        if "corpusmill_language_tokens_total" in names:
            found.add(phase)
    assert found == {"tokenize"}
