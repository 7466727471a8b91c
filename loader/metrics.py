"""What a loader, or a whole training process, tells Prometheus: an endpoint that is asked, never waited for.

Promises: figures are read when Prometheus asks, in a thread of the endpoint's own; reading takes microseconds and no
lock that a batch waits for. METRICS is all that a loader tells; each is a value of its `stats()` under another name.
Leaves to others: what a trainer has to tell beside (training/observability/), fetching and showing (docs/watching.md).

    loader = TokenLoader("/data/web", seq_len=2048, global_batch_rows=512)
    close = serve(9465, StatsCollector(METRICS, loader.stats, {"rank": "0"}))   # http://127.0.0.1:9465/metrics
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Metric:
    """One name, and the figure that it tells."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    figure: str
    scale: float = 1.0  # from the figure's unit to the metric's


METRICS = (
    Metric(
        "corpusmill_loader_position_rows",
        "gauge",
        "Rows of the global order dealt out so far.",
        "position",
    ),
    Metric("corpusmill_loader_rows_total", "counter", "Rows handed out by this rank.", "rows"),
    Metric("corpusmill_loader_tokens_total", "counter", "Tokens in them.", "tokens"),
    Metric(
        "corpusmill_loader_wait_seconds_total",
        "counter",
        "Time that batches waited for reads: stalls.",
        "wait_s",
    ),
    Metric(
        "corpusmill_loader_skipped_rows_total",
        "counter",
        "Rows left out of the loss: damaged.",
        "skipped_rows",
    ),
    Metric(
        "corpusmill_loader_damaged_samples_total",
        "counter",
        "Samples that are not as written.",
        "damaged_samples",
    ),
    Metric(
        "corpusmill_loader_retries_total", "counter", "Requests that had to be repeated.", "retries"
    ),
    Metric(
        "corpusmill_loader_refetches_total",
        "counter",
        "Blocks fetched anew: a checksum was wrong.",
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
        "Reads that the cache answered.",
        "cache_hits",
    ),
    Metric(
        "corpusmill_loader_cache_misses_total",
        "counter",
        "Reads that it could not answer.",
        "cache_misses",
    ),
    Metric(
        "corpusmill_loader_broken_lines",
        "gauge",
        "Lines of instructions left out: broken.",
        "broken_lines",
    ),
)


class StatsCollector:
    """StatsCollector under their metrics' names, as prometheus_client collects them; what has no figure now is left out."""

    def __init__(
        self,
        metrics: tuple[Metric, ...],
        read: Callable[[], Mapping[str, Any]],
        labels: Mapping[str, str],
    ) -> None:
        self._metrics, self._read, self._labels = metrics, read, labels

    def collect(self) -> Iterator[Any]:
        """The families of this moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = self._read()
        for metric in self._metrics:
            if metric.figure in figures:
                made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = made(metric.name, metric.help, labels=list(self._labels))
                family.add_metric(
                    list(self._labels.values()), figures[metric.figure] * metric.scale
                )
                yield family


def serve(port: int, *figures: StatsCollector, host: str = "127.0.0.1") -> Callable[[], None]:
    """Answer Prometheus until the function that is returned is called; the process' own memory and CPU are told too.

    Raises:
        OSError: the port is taken.
        ImportError: there is no prometheus_client.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for each in figures:
        registry.register(each)
    server, thread = start_http_server(port, host, registry)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
