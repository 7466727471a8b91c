"""The dashboards and alerts of configs/: they are valid, use existing metrics, and alerts fire correctly.

The panels are tested on real runs in pipeline/reporting/test_prometheus.py and
training/observability/test_observability.py.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import loader.metrics
import training.observability.prometheus
from pipeline.reporting import prometheus as metrics
from tests.conftest import REPOSITORY
from tests.prometheus import FOLDER, dashboard, needs_prometheus, panels

DASHBOARDS = ("pipeline", "training")
ALERTS = FOLDER / "alerts.yaml"
ALERT_TESTS = FOLDER / "alerts_test.yaml"
DOCS = REPOSITORY / "docs" / "watching.md"

# Name in Prometheus -> labels, for all our metrics.
LABELS: dict[str, tuple[str, ...]] = {
    **{metrics.PREFIX + metric.name: metric.labels for metric in metrics.METRICS},
    **{metric.name: ("run", "rank") for metric in loader.metrics.METRICS},
    **{metric.name: ("run",) for metric in training.observability.prometheus.METRICS},
}

OTHERS = {  # of Ray, and of prometheus_client
    "ray_node_cpu_utilization",
    "ray_node_mem_used",
    "ray_node_mem_total",
    "ray_tasks",
    "process_resident_memory_bytes",
}
NAMES = re.compile(r"\b(?:ray|corpusmill|process)_\w+")


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
    ]


# ---- files ----


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_can_be_imported(name: str) -> None:
    """Panel ids are unique, panels do not overlap, and all use the data source of the variable."""
    found = dashboard(name)
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            sources = [
                panel["datasource"],
                *(target["datasource"] for target in panel["targets"]),
            ]
            assert {source["uid"] for source in sources} == {"${datasource}"}
            assert panel["fieldConfig"]["defaults"]["unit"]
    variables = [variable["name"] for variable in found["templating"]["list"]]
    assert variables == ["datasource", "run"]


@pytest.mark.parametrize(
    "expr",
    [
        target["expr"]
        for name in DASHBOARDS
        for panel in panels(name)
        for target in panel["targets"]
    ]
    + [rule["expr"] for rule in rules()],
)
def test_expressions_use_existing_metrics(expr: str) -> None:
    """Each name in a panel or an alert is one of our metrics, or a known metric of others."""
    assert set(NAMES.findall(expr)) <= {*LABELS, *OTHERS}


def test_every_metric_is_in_a_panel_or_an_alert() -> None:
    """Only the listed metrics are exported for other uses."""
    asked = [
        target["expr"]
        for name in DASHBOARDS
        for panel in panels(name)
        for target in panel["targets"]
    ]
    asked += [rule["expr"] for rule in rules()]
    unseen = LABELS.keys() - {name for expr in asked for name in NAMES.findall(expr)}
    assert unseen == {
        "corpusmill_loader_position_rows",
        "corpusmill_loader_tokens_total",
        "corpusmill_loader_broken_lines",
        "corpusmill_train_memory_retries_total",
    }


def test_docs_list_every_metric() -> None:
    """docs/watching.md has a row for each metric, with the help text of the code."""
    tables = (
        metrics.METRICS,
        loader.metrics.METRICS,
        training.observability.prometheus.METRICS,
    )
    wanted = [format_row(metric) for table in tables for metric in table]
    page = DOCS.read_text(encoding="utf-8")
    missing = [row for row in wanted if row not in page.splitlines()]
    assert not missing, "\n".join(missing)


def format_row(metric: metrics.Metric | loader.metrics.Metric) -> str:
    name = (
        metrics.PREFIX + metric.name if isinstance(metric, metrics.Metric) else metric.name
    )
    return f"| `{name}` | {metric.kind} | {', '.join(LABELS[name])} | {metric.help} |"


# ---- alerts ----


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False
    )


@needs_prometheus
def test_alert_rules_pass_their_tests() -> None:
    """Promtool passes, and each rule has a test that fires and one that does not."""
    done = promtool("test", "rules", ALERT_TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [
        case
        for test in yaml.safe_load(ALERT_TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    wanted = {rule["alert"] for rule in rules()}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == wanted
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == wanted


@needs_prometheus
def test_prometheus_accepts_the_example_config() -> None:
    """Promtool accepts the config."""
    done = promtool("check", "config", FOLDER / "prometheus.yaml")
    assert done.returncode == 0, done.stderr
