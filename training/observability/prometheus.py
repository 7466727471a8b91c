"""The Prometheus endpoint of each rank: figures of the run (rank 0) and of its loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import loader.metrics
from loader.metrics import Metric, StatsCollector
from training.config import ObservabilityConfig
from training.errors import IncompatibleConfig
from training.observability.metrics_log import MetricsLog

_GIB = 2.0**30


def _counter(name: str, help_text: str, figure: str) -> Metric:
    return Metric(f"corpusmill_train_{name}", "counter", help_text, figure)


def _gauge(name: str, help_text: str, figure: str, scale: float = 1.0) -> Metric:
    return Metric(f"corpusmill_train_{name}", "gauge", help_text, figure, scale)


# Metrics of the run, with the values of the last report. The metrics of each rank's loader
# are in loader/metrics.py.
METRICS = (
    _counter("steps_total", "Finished steps, including those before a resume.", "step"),
    _gauge("steps_planned", "Steps of the whole run.", "steps_planned"),
    _gauge("last_report_timestamp_seconds", "Time of the last report.", "time"),
    _gauge("loss", "Mean loss per label in the last reported step.", "loss"),
    _gauge("validation_loss", "Last loss over all held-out documents.", "validation/loss"),
    _gauge("gradient_norm", "Gradient norm before clipping.", "grad_norm"),
    _gauge("learning_rate", "Learning rate of the last reported step.", "learning_rate"),
    _counter("bad_steps_total", "Steps skipped by the anomaly guard.", "bad_steps"),
    _gauge(
        "tokens_per_second", "Over all ranks, since the previous report.", "tokens_per_s"
    ),
    _gauge("step_seconds", "Mean step time since the previous report.", "step_s"),
    _gauge("stall_ratio", "Share of that time spent waiting for rows.", "stall_share"),
    _gauge("mfu_ratio", "Model FLOPs utilization, on devices with a known peak.", "mfu"),
    _gauge(
        "memory_active_peak_bytes",
        "Peak of active CUDA memory on rank 0.",
        "memory_active_peak_gib",
        _GIB,
    ),
    _gauge(
        "memory_reserved_peak_bytes",
        "Peak of reserved CUDA memory on rank 0.",
        "memory_reserved_peak_gib",
        _GIB,
    ),
    _counter(
        "memory_retries_total",
        "Failed CUDA allocations that were retried after freeing the cache.",
        "memory_retries",
    ),
)


def serve_prometheus(
    config: ObservabilityConfig,
    run_dir: Path,
    rank: int,
    loader_stats: Callable[[], Mapping[str, Any]],
    metrics_log: MetricsLog,
) -> Callable[[], None]:
    """Start the endpoint of this rank, if it is configured.

    The ranks of a machine use consecutive ports.

    Returns:
        A function that stops the endpoint.

    Raises:
        IncompatibleConfig: the port is taken.
    """
    if config.prometheus is None:
        return lambda: None
    labels = {"run": run_dir.name}
    loader_labels = {**labels, "rank": str(rank)}
    loader_collector = StatsCollector(loader.metrics.METRICS, loader_stats, loader_labels)
    # A function, because `latest` is replaced by a new dict at each report.
    run_collector = StatsCollector(METRICS, lambda: metrics_log.latest, labels)
    # Each rank of a machine has its own port.
    port = config.prometheus.port + int(os.environ.get("LOCAL_RANK", "0"))
    host = config.prometheus.host
    try:
        return loader.metrics.serve_metrics(
            port, loader_collector, run_collector, host=host
        )
    except OSError as error:
        raise IncompatibleConfig(
            f"rank {rank} cannot serve Prometheus on {host}:{port} "
            f"(observability.prometheus): {error}; "
            f"choose another port, or set observability.prometheus to null"
        ) from error
