"""Metrics of a run for Prometheus, exported through Ray. docs/watching.md lists them.

metrics = RunMetrics(plan)
for event in run(plan):
    metrics.record(event)

# <node>:<metrics port>/metrics: ray_corpusmill_documents_total{phase="extract"} 7
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.execution.engine import Event, PhaseFinished, PhaseStarted, TaskFinished
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.phases.run_plan import RunPlan
from stages.counters import Counters
from terminal_output import escape

# Ray puts this before every name: dashboards and alerts ask for `ray_corpusmill_...`.
PREFIX = "ray_"

# Values that a metric's own label may take in a run. Later ones become `other`.
#
# Each value is a time series in Prometheus. lid.176 has 176 languages.
MAX_LABEL_VALUES = 200

OTHER = "other"


@dataclass(frozen=True)
class Metric:
    """A metric with the labels `run` and `phase`, and possibly a third one.

    The label `run` is the name of the run folder and the start of the dataset's fingerprint.

    Attributes:
        counter: the counter of the done-records that the metric adds up. If it ends in a dot it is
            a family: `dropped.` stands for `dropped.length.too_few_chars` and all others, and the
            part after the dot is the value of the metric's own label.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    counter: str = ""
    own_label: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of all its labels."""
        return ("run", "phase", self.own_label) if self.own_label else ("run", "phase")


TASKS_PLANNED = Metric(
    "corpusmill_tasks_planned", "gauge", "Tasks of a phase; set when the phase starts."
)
TASKS_DONE = Metric(
    "corpusmill_tasks_done",
    "gauge",
    "Tasks that are done, by this driver or an earlier one.",
)
TASKS_FAILED = Metric(
    "corpusmill_tasks_failed", "gauge", "Tasks that failed since this driver started."
)
LAST_EVENT = Metric(
    "corpusmill_last_event_timestamp_seconds",
    "gauge",
    "Time of the last start or end of a phase or task.",
)
STAGE_SECONDS = Metric(
    "corpusmill_stage_seconds_total",
    "counter",
    "Worker seconds in each stage of finished tasks, since this driver started.",
    own_label="stage",
)
RETRIES = Metric(
    "corpusmill_retries_total",
    "counter",
    "Repetitions of finished tasks whose process had died, since this driver started.",
)

# Those of the counters of done-records: name, counter, own label, help.
_COUNTED = (
    ("documents", "documents", "", "Documents that a phase has read."),
    ("dropped_documents", "dropped.", "reason", "Documents dropped, by reason."),
    ("language_documents", "language.", "language", "Documents kept, by language."),
    ("characters", "chars", "", "Characters of text that a phase has kept."),
    (
        "tokens",
        "tokens",
        "",
        "Tokens made (tokenize) and written to shards (write_shards).",
    ),
    ("language_tokens", "language_tokens.", "language", "Tokens made, by language."),
    ("input_bytes", "file_bytes", "", "Bytes of input files read, compressed."),
    ("records", "num_records", "", "Records read, including broken ones."),
    ("quarantined_records", "quarantined.", "cause", "Broken records, by cause."),
)

METRICS = (
    TASKS_PLANNED,
    TASKS_DONE,
    TASKS_FAILED,
    LAST_EVENT,
    *(
        Metric(f"corpusmill_{name}_total", "counter", meaning, counter, label)
        for name, counter, label, meaning in _COUNTED
    ),
    STAGE_SECONDS,
    RETRIES,
)

# The name of a metric, the phase, and the value of the third label or "".
Series = tuple[str, str, str]


class RunMetrics:
    """Add up the events of a run and export the totals through Ray, once Ray has started.

    Counters that come from done-records include the tasks of earlier drivers of the run, so a
    resumed run continues where it stopped. The in-process engine exports nothing.

    Attributes:
        counters: the current totals.
        gauges: the current values.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        fingerprint = plan.phase("write_shards").fingerprint or "unknown"
        self._run = f"{plan.run_dir.name}-{fingerprint[:8]}"
        self._is_enabled = plan.config.engine.kind != "inline"
        self.counters: defaultdict[Series, float] = defaultdict(float)
        self.gauges: dict[Series, float] = {}
        self._exported: defaultdict[Series, float] = defaultdict(float)
        self._label_values: defaultdict[str, set[str]] = defaultdict(set)
        self._ray_metrics: dict[str, Any] = {}

    def record(self, event: Event) -> None:
        """Add an event and export the new totals."""
        if not self._is_enabled:
            return
        phase = registry.find_phase(event.phase)(self._plan)
        if isinstance(event, PhaseStarted):
            self._start_phase(phase, event.num_tasks, event.num_done)
        elif isinstance(event, TaskFinished):
            self._finish_task(phase, event)
        elif isinstance(event, PhaseFinished) and event.was_complete:
            num_tasks = phase.folder.summary()["task_ids"]
            self._set_tasks(phase.name, num_tasks, num_tasks)
            self.add_counters(phase.name, event.counters)
        self.gauges[LAST_EVENT.name, phase.name, ""] = time.time()
        self._export()

    def add_counters(self, phase: str, counters: Counters) -> None:
        """Add the counters of done-records to the metrics that declare them."""
        for metric, label_value, number in find_metrics(counters):
            self._add(metric, phase, number, label_value)

    def _start_phase(self, phase: Phase, num_tasks: int, num_done: int) -> None:
        self._set_tasks(phase.name, num_tasks, num_done)
        if num_done:
            done = sorted(phase.folder.list_done().intersection(phase.task_ids()))
            for record in phase.folder.records(done):
                self.add_counters(phase.name, Counters.from_json(record["counters"]))

    def _finish_task(self, phase: Phase, event: TaskFinished) -> None:
        if event.failed is not None:
            self.gauges[TASKS_FAILED.name, phase.name, ""] += 1
            return
        self.gauges[TASKS_DONE.name, phase.name, ""] += 1
        record = phase.folder.record(event.task_id)
        self.add_counters(phase.name, Counters.from_json(record["counters"]))
        for step, seconds in event.seconds.items():
            self._add(STAGE_SECONDS, phase.name, seconds, step)
        self._add(RETRIES, phase.name, event.num_deaths)

    def _set_tasks(self, phase: str, num_planned: int, num_done: int) -> None:
        self.gauges[TASKS_PLANNED.name, phase, ""] = num_planned
        self.gauges[TASKS_DONE.name, phase, ""] = num_done
        self.gauges[TASKS_FAILED.name, phase, ""] = 0

    def _add(
        self, metric: Metric, phase: str, number: float, label_value: str = ""
    ) -> None:
        seen = self._label_values[metric.name]
        if label_value not in seen and len(seen) >= MAX_LABEL_VALUES:
            label_value = OTHER
        seen.add(label_value)
        self.counters[metric.name, phase, label_value] += number

    def _export(self) -> None:
        # The engine starts Ray when there is a task to run. Ray loses what is set before that.
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return
        for series, number in self.counters.items():
            increase = number - self._exported[series]
            if increase:  # Ray's counters refuse 0
                self._get_ray_metric(series[0]).inc(
                    float(increase), self._make_labels(*series)
                )
                self._exported[series] = number
        for series, number in self.gauges.items():
            self._get_ray_metric(series[0]).set(float(number), self._make_labels(*series))

    def _get_ray_metric(self, name: str) -> Any:
        from ray.util import metrics

        if name not in self._ray_metrics:
            metric = _METRIC_BY_NAME[name]
            kind = metrics.Counter if metric.kind == "counter" else metrics.Gauge
            self._ray_metrics[name] = kind(name, metric.help, metric.labels)
        return self._ray_metrics[name]

    def _make_labels(self, name: str, *values: str) -> dict[str, str]:
        # Ray refuses characters beyond ASCII; the name of a run folder or a language may have some.
        ascii_values = [
            escape(value).encode("ascii", "backslashreplace").decode()
            for value in (self._run, *values)
        ]
        return dict(zip(_METRIC_BY_NAME[name].labels, ascii_values, strict=False))


def find_metrics(counters: Counters) -> Iterator[tuple[Metric, str, int]]:
    """Yield each metric that these counters add to, the value of its third label, and the number."""
    for name, number in counters.counts.items():
        family, dot, member = name.partition(".")
        metric = _METRIC_BY_COUNTER.get(family + dot)
        if metric is not None:
            yield metric, member, number


_METRIC_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
_METRIC_BY_COUNTER: Mapping[str, Metric] = {m.counter: m for m in METRICS if m.counter}
