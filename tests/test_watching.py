"""Dashboards and alerts as they lie in configs/: well formed, of metrics that exist, and alerts fire when they should.

What their panels show of a real run is tested beside what tells it: pipeline/reporting/test_prometheus.py, training/observability/test_observability.py.
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

LABELS: dict[str, tuple[str, ...]] = {
    **{metrics.PREFIX + metric.name: metric.labels for metric in metrics.METRICS},
    **{metric.name: ("run", "rank") for metric in loader.metrics.METRICS},
    **{metric.name: ("run",) for metric in training.observability.prometheus.METRICS},
}
"""Of all the metrics that are ours, by the name that Prometheus sees."""

OTHERS = {  # Ray's, and those of prometheus_client's process
    "ray_node_cpu_utilization",
    "ray_node_mem_used",
    "ray_node_mem_total",
    "ray_tasks",
    "process_resident_memory_bytes",
}
NAMES = re.compile(r"\b(?:ray|corpusmill|process)_\w+")


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]


# ---- as they stand ----


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_can_be_imported(name: str) -> None:
    """Ids are unique, no panel lies on another, and each takes its data from the source that the user chose."""
    found = dashboard(name)
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert {source["uid"] for source in sources} == {"${datasource}"}
            assert panel["fieldConfig"]["defaults"]["unit"]
    variables = [variable["name"] for variable in found["templating"]["list"]]
    assert variables == ["datasource", "run"]


@pytest.mark.parametrize(
    "expr",
    [target["expr"] for name in DASHBOARDS for panel in panels(name) for target in panel["targets"]]
    + [rule["expr"] for rule in rules()],
)
def test_what_is_asked_for_is_what_is_told(expr: str) -> None:
    """Each name in a panel or an alert is a metric of ours, or of those that others tell and we have seen."""
    assert set(NAMES.findall(expr)) <= {*LABELS, *OTHERS}


def test_every_metric_of_ours_is_shown_or_watched() -> None:
    """A metric that no panel and no alert asks for would be a metric for nobody."""
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


def test_the_page_lists_every_metric() -> None:
    """docs/watching.md has a row for each, as the code has it."""
    tables = (metrics.METRICS, loader.metrics.METRICS, training.observability.prometheus.METRICS)
    wanted = [row_of(metric) for table in tables for metric in table]
    page = DOCS.read_text(encoding="utf-8")
    missing = [row for row in wanted if row not in page.splitlines()]
    assert not missing, "\n".join(missing)


def row_of(metric: metrics.Metric | loader.metrics.Metric) -> str:
    name = metrics.PREFIX + metric.name if isinstance(metric, metrics.Metric) else metric.name
    return f"| `{name}` | {metric.kind} | {', '.join(LABELS[name])} | {metric.help} |"


# ---- alerts ----


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


@needs_prometheus
def test_alerts_fire_on_what_they_are_for_and_on_nothing_near_it() -> None:
    """The rules' own tests of the rules pass, and there are both for each rule."""
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
@pytest.mark.parametrize("name", [rule["alert"] for rule in rules()])
def test_the_tests_of_an_alert_can_fail(name: str, tmp_path: Path) -> None:
    """A rule that never fires, and one that always does, do not pass."""
    tree = yaml.safe_load(ALERTS.read_text())
    (tmp_path / ALERT_TESTS.name).write_text(ALERT_TESTS.read_text())
    for expr in ("vector(0) > 1", "vector(1)"):
        for rule in (rule for group in tree["groups"] for rule in group["rules"]):
            rule["expr"] = expr if rule["alert"] == name else rule["expr"]
        (tmp_path / ALERTS.name).write_text(yaml.safe_dump(tree))
        done = promtool("test", "rules", tmp_path / ALERT_TESTS.name)
        assert done.returncode != 0
        assert name in done.stdout + done.stderr


@needs_prometheus
def test_the_example_of_a_config_is_one() -> None:
    """Prometheus would start with it."""
    done = promtool("check", "config", FOLDER / "prometheus.yaml")
    assert done.returncode == 0, done.stderr
