"""Logs, metrics, traces and memory statistics of a run."""

from __future__ import annotations

import gc
import gzip
import json
import logging
import socket
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.errors import StorageError
from tests.faults._small_disk import PAGE_BYTES, find_missing_tmpfs, mount_disk
from tests.pipeline.runs.waiting import wait_for
from tests.prometheus import (
    Prometheus,
    Watched,
    needs_prometheus,
    run_prometheus,
)
from tests.sockets import find_free_ports
from tests.training.conftest import make_config, read_log, train_here
from training.config import ObservabilityConfig
from training.errors import IncompatibleConfig
from training.observability.console import configure_logging
from training.observability.metrics_log import MetricsLog
from training.observability.profiling import ScheduledGC, read_memory_peaks
from training.observability.step_figures import StepTimer
from training.planning.gpus import find_peak_flops


def test_figures_are_written_to_the_log_tensorboard_and_terminal(
    language: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """TensorBoard has the losses of log.jsonl, and stderr has a line per report."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = logging.getLogger("training")
    request.addfinalizer(partial(logger.setLevel, logger.level))
    request.addfinalizer(logger.handlers.clear)
    configure_logging(is_first_rank=True)
    config = make_config(
        tmp_path / "run",
        language,
        steps=3,
        observability={"every_steps": 1, "tensorboard": True},
    )
    train_here(config)
    lines = read_log(tmp_path / "run")
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    assert {
        "loss",
        "grad_norm",
        "learning_rate",
        "tokens_per_s",
        "stall_share",
        "position",
    } <= {*board.Tags()["scalars"]}
    found = [(event.step, event.value) for event in board.Scalars("loss")]
    assert found == [
        (line["step"], pytest.approx(line["loss"], rel=1e-6)) for line in lines
    ]
    assert "step       3/3  loss" in capsys.readouterr().err


def test_a_partial_line_of_a_killed_rank_is_removed(tmp_path: Path) -> None:
    """The next run appends to the log on a new line."""
    for step, half in ((1, '{"step": 2, "loss": 3.'), (2, "")):
        log = MetricsLog(
            tmp_path, ObservabilityConfig(tensorboard=False), {"steps": 2}, writes=True
        )
        log.write(step, {"loss": 0.5})
        log.close()
        with (tmp_path / "log.jsonl").open("a") as file:
            file.write(half)
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2]


def write_many(log: MetricsLog) -> None:
    """Write more than one page."""
    for step in range(PAGE_BYTES):
        log.write(step, {"loss": 0.5})


@pytest.mark.skipif(find_missing_tmpfs() is not None, reason="needs a small disk")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """The error names the path. The log ends with a whole line."""
    with mount_disk(tmp_path, PAGE_BYTES):
        settings = ObservabilityConfig(tensorboard=False)
        log = MetricsLog(tmp_path, settings, {"steps": 9}, writes=True)
        path = tmp_path / "log.jsonl"
        with pytest.raises(StorageError, match=f"{path}: No space left on device; free"):
            write_many(log)
        log.close()
        assert path.read_text().endswith("}\n")


def test_weights_and_biases_gets_the_figures_without_a_network(
    language: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In offline mode its file holds the config and the figures."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    watching = {"every_steps": 1, "tensorboard": False, "wandb": "corpus"}
    config = make_config(tmp_path / "run", language, steps=2, observability=watching)
    train_here(config)
    (written,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    # A process of W&B writes the file, and may do so after `finish`.
    deadline = time.monotonic() + 300
    while b"grad_norm" not in written.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    content = written.read_bytes()
    assert b"grad_norm" in content
    assert b"global_batch_rows" in content


def test_a_trace_holds_the_steps_asked_for(language: Path, tmp_path: Path) -> None:
    """The Chrome trace of a rank has exactly the configured steps, also the last one of a run."""
    watching = {"every_steps": 1, "tensorboard": False, "profile_steps": [2, 3]}
    config = make_config(tmp_path / "run", language, steps=3, observability=watching)
    train_here(config)
    trace = json.loads(
        gzip.decompress((tmp_path / "run" / "profile" / "rank-00000.json.gz").read_bytes())
    )
    steps = {
        event["name"]
        for event in trace["traceEvents"]
        if str(event.get("name")).startswith("ProfilerStep")
    }
    # torch counts from 0
    assert steps == {"ProfilerStep#1", "ProfilerStep#2"}


def test_rates_are_those_of_the_steps_since_the_last_report() -> None:
    """Waits and ends belong to their steps, whenever their figures are read."""
    timer = StepTimer(started=100.0)
    timer.add_step(400, waited_s=0.1, finished=101.0)
    timer.add_step(600, waited_s=0.3, finished=102.0)
    found = timer.report(flops_per_token=6, num_ranks=2, peak_flops=10_000.0)
    assert found == pytest.approx(
        {"tokens_per_s": 500, "step_s": 1.0, "stall_share": 0.2, "mfu": 500 * 6 / 20_000}
    )
    timer.add_step(400, waited_s=0.0, finished=104.0)
    found = timer.report(flops_per_token=6, num_ranks=2, peak_flops=None)
    assert found == pytest.approx({"tokens_per_s": 200, "step_s": 2.0, "stall_share": 0.0})


def test_evaluations_are_not_part_of_the_speed() -> None:
    timer = StepTimer(started=100.0)
    with timer.exclude():
        time.sleep(0.05)
    timer.add_step(100, waited_s=0.0, finished=101.0)
    assert timer.report(6, 1, None)["step_s"] <= 0.95


def test_each_report_has_the_time_of_its_steps(language: Path, tmp_path: Path) -> None:
    """Figures are read a step late, but that of the last step at once."""
    watching = {"every_steps": 1, "tensorboard": False}
    config = make_config(tmp_path / "run", language, steps=6, observability=watching)
    train_here(config)
    text = (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8")
    steps_s = [json.loads(line)["step_s"] for line in text.splitlines()]
    # The last report once came a millisecond after the one before.
    assert len(steps_s) == 6
    assert min(steps_s) > max(steps_s[1:]) / 50


def test_garbage_is_collected_only_at_due_steps() -> None:
    """A reference cycle survives steps 1 to 3 and is freed at step 4."""

    class Node:
        itself: Any

    garbage = ScheduledGC(4)
    try:
        assert not gc.isenabled()
        node = Node()
        node.itself = node
        is_there = weakref.ref(node)
        del node
        for step in (1, 2, 3):
            garbage.collect(step)
            assert is_there()
        garbage.collect(4)
        assert not is_there()
    finally:
        garbage.close()
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("cpu", None),
    ],
)
def test_peak_flops_are_found_by_device_name(name: str, expected: float | None) -> None:
    """The PCIe card has a lower peak than the SXM card."""
    assert find_peak_flops(name) == expected


def test_a_log_of_another_rank_writes_nothing(tmp_path: Path) -> None:
    """Only rank 0 creates files."""
    log = MetricsLog(tmp_path / "run", ObservabilityConfig(), {}, writes=False)
    log.write(1, {"loss": 1.0})
    log.close()
    assert not (tmp_path / "run").exists()
    assert not torch.cuda.is_available() or read_memory_peaks(torch.device("cuda", 0))


class WaitForPrometheus(logging.Handler):
    """Lets a run wait after each report until Prometheus has asked for its figures.

    The panels otherwise depend on how long the steps take.
    """

    def __init__(self, prometheus: Prometheus) -> None:
        super().__init__()
        self._prometheus = prometheus

    def emit(self, record: logging.LogRecord) -> None:
        """Wait for figures that are newer than the record of a step."""
        if record.getMessage().startswith("step "):
            wait_for(lambda: self._find_newest() > record.created)

    def _find_newest(self) -> float:
        query = "timestamp(corpusmill_train_steps_total)"
        found = self._prometheus.ask("query", query=query)["result"]
        return max((float(each["value"][1]) for each in found), default=0.0)


@pytest.fixture
def training_log() -> Iterator[logging.Logger]:
    """The logger of a run, with its reports. Its handlers and level are restored."""
    logger = logging.getLogger("training")
    handlers, level = list(logger.handlers), logger.level
    logger.setLevel(logging.INFO)
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@needs_prometheus
def test_every_panel_of_training_shows_a_real_run(
    language: Path, tmp_path: Path, training_log: logging.Logger
) -> None:
    """Only the GPU panel is empty on CPU, losses equal the log, and no alert fires."""
    (port,) = find_free_ports(1)
    config = make_config(
        tmp_path / "tiny",
        language,
        steps=30,
        data={"global_batch_rows": 2},
        observability={
            "every_steps": 5,
            "tensorboard": False,
            "prometheus": {"port": port},
            "peak_tflops": 0.05,
        },
        validation={"manifest": str(language), "every_steps": 10, "documents": 5},
    )
    start = time.time()
    with run_prometheus(port, tmp_path / "prometheus", every_s=1) as prometheus:
        training_log.addHandler(WaitForPrometheus(prometheus))
        train_here(config)
        seen = Watched(prometheus, "tiny", start, time.time())
        assert {title for title, _ in seen.empty("training")} <= {
            "GPU memory, peak since the previous report"
        }
        (shown,) = seen.series('corpusmill_train_loss{run="$run"}').values()
        prometheus.assert_healthy(firing=set())
    losses = [line["loss"] for line in read_log(tmp_path / "tiny") if "loss" in line]
    assert set(shown) <= set(losses)
    assert len(set(shown)) > 1


def test_a_taken_port_is_refused(language: Path, tmp_path: Path) -> None:
    """The error names the key that sets another port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = make_config(
            tmp_path / "run", language, observability={"prometheus": {"port": port}}
        )
        with pytest.raises(
            IncompatibleConfig,
            match=rf"rank 0 cannot serve Prometheus on 127.0.0.1:{port} .*another port",
        ):
            train_here(config)
