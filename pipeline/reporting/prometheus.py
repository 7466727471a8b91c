"""What a run tells Prometheus, through Ray's metrics: all that is counted, and by what name.

Promises: METRICS is all there is; counters begin where the run stood when this driver began, so that one that goes on
does not begin at nothing; Ray keeps what counters were told when the driver ends, and gauges end with it. Labels are
bounded, whatever the input holds. The engine in one process has no metrics.
Leaves to others: what happens (engine.py), fetching and showing (docs/watching.md).

    metrics = RunMetrics(plan)
    for event in run(plan):
        metrics.note(event)       # <node>:<metrics port>/metrics has: ray_corpusmill_documents_total{phase="extract"} 7
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.execution.engine import Event, PhaseStarted, TaskFinished
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.planning.run_plan import RunPlan
from stages.contract import Counters

PREFIX = "ray_"
"""What Ray puts before every name: dashboards and alerts ask for `ray_corpusmill_...`."""

MAX_VALUES = 200
"""Values that a metric's own label may have in a run; later ones are `other`. lid.176 knows 176 languages."""


@dataclass(frozen=True)
class Metric:
    """One name, with labels `run` (the run folder's name and the dataset's fingerprint), `phase`, and maybe its own.

    counts: the count of done-records that a counter sums up; of one that ends in a dot, what follows is the own label.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    counts: str = ""
    own_label: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all its labels."""
        return ("run", "phase", self.own_label) if self.own_label else ("run", "phase")


METRICS = (
    Metric("corpusmill_work_planned", "gauge", "Pieces of work of a phase, once it has begun."),
    Metric(
        "corpusmill_work_done", "gauge", "Those that are done, earlier starts of the run included."
    ),
    Metric("corpusmill_work_failed", "gauge", "Those that failed since this driver began."),
    Metric(
        "corpusmill_last_event_timestamp_seconds",
        "gauge",
        "When a phase, or work of it, last began or ended.",
    ),
    Metric(
        "corpusmill_documents_total", "counter", "Documents that a phase has taken in.", "documents"
    ),
    Metric(
        "corpusmill_dropped_documents_total",
        "counter",
        "Those dropped, by reason.",
        "dropped.",
        "reason",
    ),
    Metric(
        "corpusmill_language_documents_total",
        "counter",
        "Those kept, by language.",
        "language.",
        "language",
    ),
    Metric(
        "corpusmill_characters_total",
        "counter",
        "Characters of text that a phase has left.",
        "chars",
    ),
    Metric(
        "corpusmill_tokens_total",
        "counter",
        "Tokens made (tokenize), and in shards (write_shards).",
        "tokens",
    ),
    Metric(
        "corpusmill_language_tokens_total",
        "counter",
        "Those made, by language.",
        "language_tokens.",
        "language",
    ),
    Metric(
        "corpusmill_input_bytes_total",
        "counter",
        "Bytes of crawl files, as they lie.",
        "file_bytes",
    ),
    Metric(
        "corpusmill_records_total", "counter", "Records in them, broken ones too.", "num_records"
    ),
    Metric(
        "corpusmill_quarantined_records_total",
        "counter",
        "The broken ones, by cause.",
        "quarantined.",
        "cause",
    ),
    Metric(
        "corpusmill_stage_seconds_total",
        "counter",
        "Seconds of workers in each step of finished work, since this driver began.",
        own_label="stage",
    ),
    Metric(
        "corpusmill_retries_total",
        "counter",
        "Tries of finished work beyond the first, since this driver began.",
    ),
)

_Series = tuple[str, str, str]  # name of a metric, phase, value of its own label or ""


class RunMetrics:
    """Counts the events of a run, and tells the sums to Ray as soon as Ray is there.

    counters, gauges: what stands now, by name, phase, and value of the own label ("" where there is none).
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._run = (
            f"{plan.run_dir.name}-{(plan.phase('write_shards').fingerprint or 'unknown')[:8]}"
        )
        self._is_on = plan.config.engine.kind == "ray"
        self.counters: defaultdict[_Series, float] = defaultdict(float)
        self.gauges: dict[_Series, float] = {}
        self._told: defaultdict[_Series, float] = defaultdict(float)
        self._values: defaultdict[str, set[str]] = defaultdict(set)
        self._of_ray: dict[str, Any] = {}

    def note(self, event: Event) -> None:
        """Take note of an event."""
        if not self._is_on:
            return
        phase = registry.find_phase(event.phase)(self._plan)
        if isinstance(event, PhaseStarted):
            self._begin(phase, event.num_tasks, event.num_done)
        elif isinstance(event, TaskFinished):
            self._finish(phase, event)
        elif event.was_complete:
            num_tasks = phase.folder.summary()["task_ids"]
            self._set_works(phase.name, planned=num_tasks, done=num_tasks, failed=0)
            self._take(phase.name, event.counters)
        self.gauges["corpusmill_last_event_timestamp_seconds", phase.name, ""] = time.time()
        self._tell()

    def _begin(self, phase: Phase, num_tasks: int, num_done: int) -> None:
        self._set_works(phase.name, planned=num_tasks, done=num_done, failed=0)
        if num_done:
            for record in phase.folder.records(
                sorted(phase.folder.done().intersection(phase.task_ids()))
            ):
                self._take(phase.name, Counters.from_json(record["counters"]))

    def _finish(self, phase: Phase, event: TaskFinished) -> None:
        if event.failed is not None:
            self.gauges["corpusmill_work_failed", phase.name, ""] += 1
            return
        self.gauges["corpusmill_work_done", phase.name, ""] += 1
        self._take(phase.name, Counters.from_json(phase.folder.record(event.task_id)["counters"]))
        for step, seconds in event.seconds.items():
            self._add("corpusmill_stage_seconds_total", phase.name, seconds, step)
        # a stage with tasks of its own tries its part by itself; each look is a request where the run is in a bucket
        resources = self._plan.config.engine.phases.get(phase.name)
        handed_over = event.seconds if resources and resources.stages else ()
        parts = [event.task_id, *(f"{event.task_id}.{step}" for step in handed_over)]
        retries = sum(max(0, phase.folder.attempts(part) - 1) for part in parts)
        self._add("corpusmill_retries_total", phase.name, retries)

    def _set_works(self, phase: str, **numbers: int) -> None:
        for name, number in numbers.items():
            self.gauges[f"corpusmill_work_{name}", phase, ""] = number

    def _take(self, phase: str, counters: Counters) -> None:
        for metric, value, number in amounts(counters):
            self._add(metric.name, phase, number, value)

    def _add(self, name: str, phase: str, number: float, value: str = "") -> None:
        seen = self._values[name]
        if value not in seen and len(seen) >= MAX_VALUES:
            value = "other"
        seen.add(value)
        self.counters[name, phase, value] += number

    def _tell(self) -> None:
        ray = sys.modules.get(
            "ray"
        )  # the engine starts it once there is work; what is told before that is lost
        if ray is None or not ray.is_initialized():
            return
        for series, number in self.counters.items():
            if more := number - self._told[series]:  # Ray's counters refuse 0
                self._metric(series[0]).inc(float(more), self._labels(*series))
                self._told[series] = number
        for series, number in self.gauges.items():
            self._metric(series[0]).set(float(number), self._labels(*series))

    def _metric(self, name: str) -> Any:
        from ray.util import metrics

        if name not in self._of_ray:
            made = metrics.Counter if _BY_NAME[name].kind == "counter" else metrics.Gauge
            self._of_ray[name] = made(name, _BY_NAME[name].help, _BY_NAME[name].labels)
        return self._of_ray[name]

    def _labels(self, name: str, *values: str) -> dict[str, str]:
        # Ray raises for what is not ASCII, as the name of a run folder or of a model's language may be.
        ascii_values = (
            value.encode("ascii", "backslashreplace").decode() for value in (self._run, *values)
        )
        return dict(zip(_BY_NAME[name].labels, ascii_values, strict=False))


def amounts(counters: Counters) -> Iterator[tuple[Metric, str, int]]:
    """What a tally adds to each counter, with the value of the counter's own label."""
    for name, number in counters.counts.items():
        prefix, dot, rest = name.partition(".")
        if (metric := _BY_COUNT.get(prefix + dot)) is not None:
            yield metric, rest, number


_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
_BY_COUNT: Mapping[str, Metric] = {metric.counts: metric for metric in METRICS if metric.counts}
