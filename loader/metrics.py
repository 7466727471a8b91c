"""Prometheus metrics of a loader, and an endpoint that serves metrics of this process.

The values are read when Prometheus requests them, in a thread of the endpoint. Reading takes
microseconds and takes no lock that a batch waits for. The trainer serves further metrics on the
same endpoint (training/observability/). docs/watching.md lists all of them.

    loader = TokenLoader("/data/web", seq_len=2048, global_batch_rows=512)
    collector = StatsCollector(METRICS, loader.stats, {"rank": "0"})
    close = serve_metrics(9465, collector)              # http://127.0.0.1:9465/metrics
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Metric:
    """A metric and the value that it exports.

    name:  name of the metric in Prometheus
    kind:  "counter" or "gauge"
    help:  description of the metric
    stat:  key of the value in the statistics, for a loader in `TokenLoader.stats()`
    scale: factor from the unit of the value to the unit of the metric
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    stat: str
    scale: float = 1.0


METRICS = (
    Metric(
        "corpusmill_loader_position_rows",
        "gauge",
        "Rows read so far, over all ranks and epochs.",
        "position",
    ),
    Metric(
        "corpusmill_loader_rows_total", "counter", "Rows returned by this rank.", "rows"
    ),
    Metric(
        "corpusmill_loader_tokens_total",
        "counter",
        "Tokens returned by this rank.",
        "tokens",
    ),
    Metric(
        "corpusmill_loader_wait_seconds_total",
        "counter",
        "Time that batches waited for reads.",
        "wait_s",
    ),
    Metric(
        "corpusmill_loader_skipped_rows_total",
        "counter",
        "Damaged rows that were left out of the loss.",
        "skipped_rows",
    ),
    Metric(
        "corpusmill_loader_damaged_samples_total",
        "counter",
        "Samples with a wrong checksum.",
        "damaged_samples",
    ),
    Metric(
        "corpusmill_loader_retries_total",
        "counter",
        "Requests that were repeated.",
        "retries",
    ),
    Metric(
        "corpusmill_loader_refetches_total",
        "counter",
        "Blocks that were fetched again because of a wrong checksum.",
        "refetches",
    ),
    Metric(
        "corpusmill_loader_fetched_bytes_total",
        "counter",
        "Bytes fetched over the network.",
        "fetched_bytes",
    ),
    Metric(
        "corpusmill_loader_cache_hits_total",
        "counter",
        "Reads found in the cache.",
        "cache_hits",
    ),
    Metric(
        "corpusmill_loader_cache_misses_total",
        "counter",
        "Reads not found in the cache.",
        "cache_misses",
    ),
    Metric(
        "corpusmill_loader_broken_lines",
        "gauge",
        "Lines of an instruction file that were skipped because they are malformed.",
        "broken_lines",
    ),
)


class StatsCollector:
    """Exports statistics under the names of metrics, with the interface of prometheus_client.

    Args:
        metrics: the metrics; one whose key is missing in the statistics is not exported.
        read_stats: returns the current statistics.
        labels: label name -> value, for all metrics.
    """

    def __init__(
        self,
        metrics: tuple[Metric, ...],
        read_stats: Callable[[], Mapping[str, Any]],
        labels: Mapping[str, str],
    ) -> None:
        self._metrics, self._read_stats, self._labels = metrics, read_stats, labels

    def collect(self) -> Iterator[Any]:
        """Yield the current value of each metric."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        stats = self._read_stats()
        for metric in self._metrics:
            # Instruction data and token datasets have different statistics.
            if metric.stat in stats:
                make_family = families[metric.kind]
                family = make_family(metric.name, metric.help, labels=list(self._labels))
                value = stats[metric.stat] * metric.scale
                family.add_metric(list(self._labels.values()), value)
                yield family


def serve_metrics(
    port: int, *collectors: StatsCollector, host: str = "127.0.0.1"
) -> Callable[[], None]:
    """Serve metrics to Prometheus, with memory and CPU time of this process.

    Returns:
        A function that stops the endpoint.

    Raises:
        OSError: the port is in use.
        ImportError: prometheus_client is not installed.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

    # A new registry: the global one of prometheus_client would also export metrics of other
    # libraries, and refuses to register a second loader.
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for collector in collectors:
        registry.register(collector)
    server, thread = start_http_server(port, host, registry)

    def close() -> None:
        server.shutdown()
        # shutdown() ends the loop, but keeps the port. server_close() frees it.
        server.server_close()
        thread.join()

    return close
