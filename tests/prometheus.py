"""A Prometheus that scrapes a port of a test, and the queries of the dashboards."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY
from tests.sockets import find_free_ports

FOLDER = REPOSITORY / "configs" / "prometheus"


needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no Prometheus: apt-get install prometheus"
)


class Prometheus:
    """A process with the alerts of the project; `kill` ends it."""

    def __init__(self, folder: Path, port: int, every_s: float) -> None:
        """Start it. It scrapes this port, with the interval as its timeout."""
        self.url = f"http://127.0.0.1:{find_free_ports(1)[0]}"
        config = {
            "global": {
                "scrape_interval": f"{int(every_s * 1000)}ms",
                "evaluation_interval": "1s",
            },
            "rule_files": [str(FOLDER / "alerts.yaml")],
            "scrape_configs": [
                {"job_name": "test", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            ],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        flags = [
            f"--config.file={folder}/prometheus.yaml",
            f"--storage.tsdb.path={folder}/data",
        ]
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    *flags,
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )
        self._log = folder / "log"

    def wait(self, timeout_s: float = 600) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/-/ready", timeout=30).close()  # noqa: S310 - our own address
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError(f"Prometheus does not answer: {self._log.read_text()[-2000:]}")

    def ask(self, what: str, **arguments: Any) -> Any:
        """Return the data of an answer of its API."""
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(address, timeout=600) as answer:  # noqa: S310 - our own address
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{arguments}: {error.read().decode()}") from error

    def series(
        self, expr: str, start: float, end: float
    ) -> dict[tuple[str, ...], list[float]]:
        """Values each second, by the values of the labels in alphabetical order of their names."""
        found = self.ask("query_range", query=expr, start=start, end=end, step=1)["result"]
        return {
            tuple(
                value for name, value in sorted(one["metric"].items()) if name != "__name__"
            ): [float(value) for _, value in one["values"]]
            for one in found
        }

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def assert_healthy(self, firing: set[str]) -> None:
        """Check that every rule can be evaluated, and that only these alerts fire."""
        found = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in found} <= {
            "ok",
            "unknown",
        }  # unknown: not evaluated yet
        assert {rule["name"] for rule in found if rule["state"] == "firing"} <= firing


@contextmanager
def run_prometheus(port: int, folder: Path, every_s: float) -> Generator[Prometheus]:
    """Run a Prometheus that scrapes this port at this interval, in seconds."""
    folder.mkdir()
    server = Prometheus(folder, port, every_s)
    try:
        server.wait()
        yield server
    finally:
        server.kill()


@dataclass(frozen=True)
class Watched:
    """The metrics of a run between two times."""

    prometheus: Prometheus
    run: str
    start: float
    end: float

    def series(self, expr: str) -> dict[tuple[str, ...], list[float]]:
        """What a panel would show."""
        expr = expr.replace("$__rate_interval", "20s").replace("$run", self.run)
        return self.prometheus.series(expr, self.start, self.end)

    def last(self, expr: str) -> dict[tuple[str, ...], float]:
        """Return the last value of each series."""
        return {labels: values[-1] for labels, values in self.series(expr).items()}

    def empty(self, name: str) -> set[tuple[str, str]]:
        """Return the panels of a dashboard with queries that have no data."""
        asked = [
            (panel["title"], target["expr"])
            for panel in panels(name)
            for target in panel["targets"]
        ]
        return {(title, expr) for title, expr in asked if not self.series(expr)}


def dashboard(name: str) -> dict[str, Any]:
    return json.loads(
        (REPOSITORY / "configs" / "grafana" / f"{name}.json").read_text(encoding="utf-8")
    )


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]
