"""Fit the rates of a calibration to finished runs, from their event logs and done-records.

calibration = fit([RunFolder.open("runs/ten-files")])
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from config_files.reader import ConfigError
from pipeline.capacity.calibration import (
    Amounts,
    Calibration,
    Line,
    PhaseRates,
)
from pipeline.capacity.costs import AMOUNTS, find_cost
from pipeline.config import RunConfig
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.runs.run_folder import RunFolder

# CPU seconds of reading WARC files, by the way in which text is found, where `blocks` takes 1.
#
# Measured on 896 pages of Debian's documentation, with the recipes fineweb, c4 and pile-cc.
_READ_FACTORS = {
    "all text": 0.5,
    "blocks": 1.0,
    "resiliparse": 0.86,
    "justext": 5.5,
    "trafilatura": 11.0,
}


@dataclass(frozen=True)
class _TaskSample:
    """What one finished task took."""

    phase: str
    cpu_s: Mapping[str, float]  # by step
    peak_mb: float
    is_first: bool  # of its phase in its process: it also loads libraries and models
    amounts: Amounts
    num_splits: int  # of the run
    bytes: Mapping[str, int]  # by kind of file

    def get_amount(self, name: str) -> float:
        return self.amounts.get(name, 0.0)


def fit(runs: Sequence[RunFolder], **origin: str) -> Calibration:
    """Return the calibration that fits finished runs of one config.

    If the splits differ in size, the cost per task is separated from the cost per amount. If all
    are alike, the whole cost counts as cost per amount.

    Args:
        runs: the finished runs.
        origin: `source`, `machine`, `commit` and `date`, as in `Calibration`.

    Raises:
        ConfigError: a run is not finished, or its event log has no CPU seconds.
    """
    samples: list[_TaskSample] = []
    totals: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        samples += _read_samples(run)
        for name, amount in _sum_amounts(run, _read_split_amounts(run)).items():
            totals[name] += amount
    phases: dict[str, PhaseRates] = {}
    for phase in registry.PHASES:
        of_phase = [sample for sample in samples if sample.phase == phase.name]
        if of_phase:
            phases[phase.name] = _fit_phase(phase, of_phase)
    if _has_html(runs[0]):
        read = phases["extract"].cpu_s["read"]
        factor = find_read_factor(runs[0].config)
        phases["extract"].cpu_s["read"] = Line(
            fixed=read.fixed / factor, rate=read.rate / factor
        )
    described = {"source": ", ".join(str(run.run_dir) for run in runs), **origin}
    return Calibration.model_validate({"amounts": totals, "phases": phases, **described})


def find_read_factor(config: RunConfig) -> float:
    """Return the CPU time of reading WARC files with these rules for HTML; that of `blocks` is 1."""
    html = config.extract.warc.html
    if html.justext is not None:
        return _READ_FACTORS["justext"]
    return _READ_FACTORS[html.engine if html.main_content else "all text"]


def opens_all_splits(phase: type[Phase]) -> bool:
    """Return whether each task of a phase opens the files of many splits."""
    return phase.task_kind != "splits"


# ----------------------------------------------------------------------------- reading the runs


def _has_html(run: RunFolder) -> bool:
    counts = run.folder("extract").summary()["counters"]["counts"]
    return "type.response" in counts


def _read_split_amounts(run: RunFolder) -> dict[str, dict[str, float]]:
    """Return key of a split -> its amounts, from the done-records of the phases that count them."""
    amounts: dict[str, dict[str, float]] = {}
    for split in run.splits:
        counts: dict[str, Mapping[str, int]] = {}
        amounts[split.key] = {}
        for amount, (phase, counter) in AMOUNTS.items():
            if opens_all_splits(registry.find_phase(phase)):
                continue
            if phase not in counts:
                counts[phase] = run.folder(phase).record(split.key)["counters"]["counts"]
            amounts[split.key][amount] = float(counts[phase].get(counter, 0))
    return amounts


def _read_partition_amounts(run: RunFolder) -> dict[str, float]:
    """Return the amounts that phases count per partition, over the whole run."""
    amounts: dict[str, float] = {}
    for amount, (phase, counter) in AMOUNTS.items():
        if opens_all_splits(registry.find_phase(phase)) and run.has_finished(phase):
            counts = run.folder(phase).summary()["counters"]["counts"]
            amounts[amount] = float(counts.get(counter, 0))
    return amounts


def _read_samples(run: RunFolder) -> Iterator[_TaskSample]:
    """Yield a sample for each finished task in the event log.

    Raises:
        ConfigError: the run is not finished, or its event log has no CPU seconds.
    """
    if not run.has_finished("write_shards"):
        fault = f"{run.run_dir}: the run is not finished; only a finished run can be a calibration"
        raise ConfigError([fault])
    split_amounts = _read_split_amounts(run)
    totals = _sum_amounts(run, split_amounts)
    processes: set[tuple[str, str]] = set()
    task_ids: set[tuple[str, str]] = set()
    for event in run.read_events():
        if (
            event["event"] != "TaskFinished"
            or event["failed"]
            or not event.get("cpu_seconds")
        ):
            continue
        phase = event["phase"]
        is_first = (phase, event["worker"]) not in processes
        is_repeated = (phase, event["task_id"]) in task_ids
        processes.add((phase, event["worker"]))
        task_ids.add((phase, event["task_id"]))
        try:
            record = run.folder(phase).record(event["task_id"])
        except FileNotFoundError:
            continue  # of an earlier config of this run folder
        yield _TaskSample(
            phase=phase,
            cpu_s=event["cpu_seconds"],
            # A task that is run again may be in a process that has grown with other tasks.
            peak_mb=0.0 if is_repeated else event["peak_mb"] or 0.0,
            is_first=is_first,
            amounts=split_amounts.get(event["task_id"])
            or _read_task_amounts(record, totals, run.folder(phase).summary()["task_ids"]),
            num_splits=len(run.splits),
            bytes=_sum_bytes(phase, record),
        )
    if not processes:
        fault = f"{run.run_dir}: its log has no CPU seconds; run the config again in a new folder"
        raise ConfigError([fault])


def _sum_amounts(run: RunFolder, split_amounts: Mapping[str, Amounts]) -> Amounts:
    """Return amount -> its total over all splits and partitions of a run."""
    totals: defaultdict[str, float] = defaultdict(float)
    for amounts in split_amounts.values():
        for name, amount in amounts.items():
            totals[name] += amount
    return {**totals, **_read_partition_amounts(run)}


def _read_task_amounts(
    record: Mapping[str, Any], totals: Amounts, num_tasks: int
) -> Amounts:
    """Return what the record of a partition counts, and of other amounts its share of those of all splits."""
    counts = record.get("counters", {}).get("counts", {})
    shares = {name: total / num_tasks for name, total in totals.items()}
    return {name: float(counts.get(name, shares.get(name, 0.0))) for name in AMOUNTS}


def _sum_bytes(phase: str, record: Mapping[str, Any]) -> dict[str, int]:
    """Return kind of file -> bytes written by one task."""
    sizes: defaultdict[str, int] = defaultdict(int)
    for name, output in record["outputs"].items():
        artifact = registry.find_phase(phase).find_artifact(name)
        assert artifact is not None, f"{phase} does not declare {name}"
        sizes[artifact.kind] += output["bytes"]
    return dict(sizes)


# ------------------------------------------------------------------------------ fitting a phase


def _fit_phase(phase: type[Phase], samples: Sequence[_TaskSample]) -> PhaseRates:
    cpu_s = _fit_cpu(phase, samples)
    return PhaseRates(
        cpu_s=cpu_s,
        start_s=_fit_start(phase, samples, cpu_s),
        bytes=_fit_bytes(phase, samples),
        base_mb=_fit_base_memory(phase, samples),
    )


def _fit_cpu(phase: type[Phase], samples: Sequence[_TaskSample]) -> dict[str, Line]:
    later = [sample for sample in samples if not sample.is_first] or samples
    # in order, each once
    steps = {step: None for sample in samples for step in sample.cpu_s}
    cpu_s: dict[str, Line] = {}
    for step in steps:
        amount_name = find_cost(phase).step_amount(step)
        amounts = [sample.get_amount(amount_name) for sample in later]
        seconds = [sample.cpu_s.get(step, 0.0) for sample in later]
        if opens_all_splits(phase):
            cpu_s[step] = Line(rate=sum(seconds) / max(1.0, sum(amounts)))
        else:
            cpu_s[step] = fit_line(amounts, seconds)
    return cpu_s


def _fit_start(
    phase: type[Phase], samples: Sequence[_TaskSample], cpu_s: Mapping[str, Line]
) -> float:
    """Return the extra CPU seconds of the first task of a process.

    It is the minimum over processes, because the first process on a machine also compiles kernels,
    once for all.
    """
    extra: list[float] = []
    for sample in samples:
        if not sample.is_first:
            continue
        expected = (
            line.predict(sample.get_amount(find_cost(phase).step_amount(step)))
            for step, line in cpu_s.items()
        )
        extra.append(sum(sample.cpu_s.values()) - sum(expected))
    return max(0.0, min(extra, default=0.0))


def _fit_bytes(phase: type[Phase], samples: Sequence[_TaskSample]) -> dict[str, Line]:
    sizes: dict[str, Line] = {}
    for artifact in phase.artifacts():
        kind = artifact.kind
        if not any(kind in sample.bytes for sample in samples):
            continue
        amount_name = find_cost(phase).artifact_amount(artifact)
        amounts = [sample.get_amount(amount_name) for sample in samples]
        line = fit_line(amounts, [float(sample.bytes.get(kind, 0)) for sample in samples])
        is_by_range = find_cost(phase).exchanges is not None
        num_splits = samples[0].num_splits if is_by_range else 1
        sizes[kind] = Line(fixed=line.fixed / num_splits, rate=line.rate)
    return sizes


def _fit_base_memory(phase: type[Phase], samples: Sequence[_TaskSample]) -> float:
    """Return the largest peak of memory in MiB, without what the phase declares to hold."""
    held = dict(find_cost(phase).holds)
    if (rows := find_cost(phase).exchanges) is not None:
        held[rows] = find_cost(phase).bytes_per_row
    peaks: list[float] = []
    for sample in samples:
        held_bytes = sum(size * sample.get_amount(name) for name, size in held.items())
        peaks.append(sample.peak_mb - held_bytes / 2**20)
    return max(0.0, round(max(peaks), 1))


def fit_line(amounts: Sequence[float], values: Sequence[float]) -> Line:
    """Fit `value = fixed + rate * amount` by weighted least squares, with fixed and rate >= 0.

    The weights are 1/amount, because the deviation of large tasks is larger.
    """
    total = sum(amounts)
    if not total:
        return Line(fixed=sum(values) / max(1, len(values)))
    through_zero = Line(rate=sum(values) / total)
    if max(amounts) < 2 * min(amounts):
        return through_zero  # sizes too similar to tell fixed and rate apart
    smallest = total / len(amounts) / 100  # limits the weight of an almost empty task
    # numpy multiplies by the weights before it squares.
    weights = np.maximum(amounts, smallest) ** -0.5
    rate, fixed = np.polyfit(amounts, values, 1, w=weights).tolist()
    if rate < 0:
        return Line(fixed=sum(values) / len(values))
    return Line(fixed=fixed, rate=rate) if fixed > 0 else through_zero
