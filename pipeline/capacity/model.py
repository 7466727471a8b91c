"""The cost model: what each phase of a run takes, by the rates of a calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from pipeline.capacity.calibration import Amounts, Calibration, PhaseRates
from pipeline.capacity.costs import (
    AMOUNTS,
    count_splits_per_task,
    estimate_num_tasks,
    find_cost,
)
from pipeline.capacity.fit import OPEN_PIECE_S, find_read_factor, opens_all_splits
from pipeline.capacity.resources import make_request
from pipeline.config import RunConfig
from pipeline.inputs.input_splits import WET_BYTES, get_files_per_split
from pipeline.phases import registry
from pipeline.phases.extract import Extract
from pipeline.phases.phase import Phase
from pipeline.runs.exchange import NUM_RANGES

# Amounts of one WET file of a snapshot, in bytes and items.
#
# Source: 78 documents of CC-MAIN-2026-17. They have 6,600 bytes and 130 lines each and are compressed
# to 0.41 of their size, so 75 MB hold 26,000 documents, and 90,000 files 2.3 billion. 60 % of their lines
# are different; in an input split, which has more pages, the share is lower.
WET_FILE: Amounts = {
    "input": WET_BYTES,
    "content": 173e6,
    "documents": 26_000,
    "text": 172e6,
    "paragraphs": 3.4e6,
    "distinct_paragraphs": 2.0e6,
}

# Compressed bytes of a WARC file of a snapshot. It has the pages of one WET file.
WARC_BYTES = 1e9

# Ray's object store per machine. Only task ids and results pass through it.
OBJECT_STORE_MB = 200

# Share of documents with near-duplicates where the calibration has none: an upper bound.
MAX_CLUSTERED_SHARE = 1 / 3

# CPU seconds of the driver per Ray task in Ray Data (benchmarks/runs/driver_scale.py --ray).
#
# The driver dispatches Ray tasks one after another, so a phase takes at least this time for each on
# any number of cores. A group of tasks shares one.
DISPATCH_S = 0.009


@dataclass(frozen=True)
class Cluster:
    """A number of equal machines.

    Attributes:
        cores: per machine.
        memory_gb: per machine, in 10^9 bytes.
        disk_gb: free space for the run folder, shared by all machines; None: unknown.
    """

    nodes: int
    cores: int
    memory_gb: float
    price_per_core_hour: float | None = None
    disk_gb: float | None = None


@dataclass(frozen=True)
class PhaseEstimate:
    """The estimate for one phase.

    Attributes:
        cpu_s: CPU seconds by step, and `start` for the start of all processes, `open` for opening
            the files of all splits in all tasks.
        memory_mb: of the largest task.
        requested_mb: what a task requests from the cluster.
        slots: tasks that run at the same time.
        idle_share: share of the phase's core-hours that is unused while its last tasks end.
        num_opened: files that its tasks open, where each reads the files of all splits.
    """

    name: str
    num_tasks: int
    num_files: int
    bytes_read: float
    bytes_written: float
    cpu_s: Mapping[str, float]
    memory_mb: float
    requested_mb: int
    slots: int
    hours: float
    idle_share: float
    num_opened: int = 0

    @property
    def cpu_hours(self) -> float:
        """CPU hours of all its tasks."""
        return sum(self.cpu_s.values()) / 3600


@dataclass(frozen=True)
class RunEstimate:
    """The estimate for a whole run.

    Attributes:
        calibration: where the rates were measured.
    """

    calibration: str
    cluster: Cluster
    num_files: int
    num_splits: int
    amounts: Amounts
    phases: tuple[PhaseEstimate, ...]
    warnings: tuple[str, ...] = ()

    @property
    def cpu_hours(self) -> float:
        """CPU hours of all tasks."""
        return sum(phase.cpu_hours for phase in self.phases)

    @property
    def hours(self) -> float:
        """Hours from start to end; the phases run one after another."""
        return sum(phase.hours for phase in self.phases)

    @property
    def price(self) -> float | None:
        """Price of all cores for all the hours, including those in which they wait."""
        price = self.cluster.price_per_core_hour
        if price is None:
            return None
        return price * self.cluster.nodes * self.cluster.cores * self.hours

    @property
    def bytes_written(self) -> float:
        """Bytes written by all phases. All of them are on disk at the end."""
        return sum(phase.bytes_written for phase in self.phases)

    @property
    def network_bytes(self) -> float:
        """Bytes over the network if the run folder is on shared storage: input, reads and writes."""
        moved = [phase.bytes_read + phase.bytes_written for phase in self.phases]
        return self.amounts["input"] + sum(moved)

    def to_json(self) -> dict[str, Any]:
        """Return the estimate with its derived values, as JSON types."""
        content = asdict(self)
        for name in ("cpu_hours", "hours", "price", "bytes_written", "network_bytes"):
            content[name] = getattr(self, name)
        for phase_content, phase in zip(content["phases"], self.phases, strict=True):
            phase_content["cpu_hours"] = phase.cpu_hours
        content["object_store_mb_per_node"] = OBJECT_STORE_MB
        return content


@dataclass(frozen=True)
class CostModel:
    """The quantities of a run, computed phase by phase."""

    config: RunConfig
    calibration: Calibration
    cluster: Cluster
    num_files: int
    input_bytes: float | None  # None: files of a snapshot, like WET_FILE
    has_html: bool

    @cached_property
    def num_splits(self) -> int:
        """Number of input splits."""
        return math.ceil(
            self.num_files / get_files_per_split(self.config.input, self.num_files)
        )

    @cached_property
    def amounts(self) -> Amounts:
        """The amounts of the whole run.

        Amounts of the input are known. For later amounts, the shares of the measured run are used:
        for example `tokens = left * measured tokens / measured left`. A run without near-duplicates
        gives no share of them.
        """
        amounts = self._scale_measured()
        found = amounts["clustered"]
        clustered = found or MAX_CLUSTERED_SHARE * amounts["documents"]
        return {**amounts, "clustered": clustered}

    def _scale_measured(self) -> dict[str, float]:
        """Return the amounts by the shares of the measured run."""
        measured = self.calibration.amounts
        if self.input_bytes is not None:
            factor = self.input_bytes / measured["input"]
            return {name: factor * measured.get(name, 0.0) for name in AMOUNTS}
        if self.has_html:
            factor = WET_FILE["documents"] * self.num_files / measured["documents"]
            amounts = {name: factor * measured.get(name, 0.0) for name in AMOUNTS}
            content = WARC_BYTES * self.num_files * measured["content"] / measured["input"]
            return {**amounts, "input": WARC_BYTES * self.num_files, "content": content}
        amounts = {name: amount * self.num_files for name, amount in WET_FILE.items()}
        amounts["left"] = amounts["text"] * measured["left"] / measured["text"]
        for name in ("scored", "kept"):
            amounts[name] = amounts["documents"] * measured[name] / measured["documents"]
        for name in AMOUNTS:
            if name not in amounts:
                amounts[name] = amounts["left"] * measured.get(name, 0.0) / measured["left"]
        return amounts

    def estimate_run(self) -> RunEstimate:
        """Return the estimate, without its warnings."""
        return RunEstimate(
            calibration=self.calibration.origin,
            cluster=self.cluster,
            num_files=self.num_files,
            num_splits=self.num_splits,
            amounts=self.amounts,
            phases=tuple(self.estimate_phase(phase) for phase in registry.PHASES),
        )

    def estimate_phase(self, phase: type[Phase]) -> PhaseEstimate:
        """Return the estimate for one phase.

        The tasks are equally large and run in waves of `slots` tasks, or groups that read together. A phase takes no less time
        than the driver needs to dispatch its groups of tasks.
        """
        num_tasks = self.count_tasks(phase)
        slots = self._count_slots(phase)
        requested_mb = make_request(self.config.engine, phase.name).memory_mb
        rates = self.calibration.phases.get(phase.name)
        if not num_tasks or rates is None:
            hours = num_tasks * DISPATCH_S / 3600
            return PhaseEstimate(
                phase.name, num_tasks, 0, 0.0, 0.0, {}, 0.0, requested_mb, slots, hours, 0.0
            )
        cpu_s = self._estimate_cpu(phase, rates, num_tasks)
        group_tasks = self._count_group_tasks(phase, num_tasks)
        wave_tasks = max(1, slots) * (group_tasks or 1)
        num_waves = math.ceil(num_tasks / wave_tasks)
        task_s = sum(cpu_s.values()) / num_tasks
        waves_s = num_waves * (group_tasks or 1) * task_s + rates.start_s
        num_groups = math.ceil(num_tasks / (group_tasks or 1))
        hours = max(waves_s, num_groups * DISPATCH_S) / 3600
        cpu_s["start"] = rates.start_s * min(num_tasks, slots)
        return PhaseEstimate(
            name=phase.name,
            num_tasks=num_tasks,
            num_files=num_tasks
            * (len(rates.bytes) + 1),  # one per kind, and the done-record
            bytes_read=self._estimate_read(phase),
            bytes_written=sum(self._estimate_written(phase).values()),
            cpu_s=cpu_s,
            memory_mb=self._estimate_memory(phase, rates, num_tasks),
            requested_mb=requested_mb,
            slots=slots,
            hours=hours if slots else math.inf,
            idle_share=1 - num_tasks / (num_waves * wave_tasks) if slots else 0.0,
            num_opened=self._count_opened_files(phase),
        )

    def count_tasks(self, phase: type[Phase]) -> int:
        """Return the number of tasks of a phase, by the phase's own rule."""
        return estimate_num_tasks(phase, self.config, self.num_splits, self.amounts)

    def _count_slots(self, phase: type[Phase]) -> int:
        """Return how many tasks of a phase run at the same time."""
        request = make_request(self.config.engine, phase.name)
        # Ray packs tasks per machine, so a fraction of a task per machine is lost on each.
        by_cores = self.cluster.cores / request.num_cpus if request.num_cpus else math.inf
        by_memory = self.cluster.memory_gb * 1e9 / (request.memory_mb * 2**20)
        return self.cluster.nodes * int(min(by_cores, by_memory))

    def _count_reads(self, phase: type[Phase]) -> int:
        """Return how often processes read the input of a phase's tasks, or of a group of tasks."""
        num_tasks = self.count_tasks(phase)
        return math.ceil(num_tasks / (self._count_group_tasks(phase, num_tasks) or 1))

    def _count_group_tasks(self, phase: type[Phase], num_tasks: int) -> int | None:
        """Return how many of its tasks read their input at once."""
        slots = self._count_slots(phase)
        return phase.count_group_tasks(self.config, self.num_splits, num_tasks, slots)

    def _count_openings(self, phase: type[Phase]) -> int:
        """Return how often the files of a split are opened by a phase that opens all splits."""
        if not opens_all_splits(phase):
            return 0
        num_opened = count_splits_per_task(phase, self.config, self.num_splits)
        return self._count_reads(phase) * num_opened

    def _count_opened_files(self, phase: type[Phase]) -> int:
        """Return how many files a phase that opens all splits opens in all its tasks together."""
        return self._count_openings(phase) * len(find_cost(phase).reads)

    def _estimate_cpu(
        self, phase: type[Phase], rates: PhaseRates, num_tasks: int
    ) -> dict[str, float]:
        """Return CPU seconds by step, without the start of processes."""
        cost = find_cost(phase)
        enabled = {spec.stage.name for spec in phase.plan_stages(self.config)}
        disabled = {stage.name for stage in phase.stages} - enabled
        cpu_s: dict[str, float] = {}
        for step, line in rates.cpu_s.items():
            if step not in disabled:
                cpu_s[step] = line.predict(self.amounts[cost.step_amount(step)], num_tasks)
        if phase is Extract and self.has_html:
            cpu_s["read"] *= find_read_factor(self.config)
        num_openings = self._count_openings(phase)
        if num_openings:
            num_pieces = self.num_splits * NUM_RANGES if cost.is_hash_partitioned else 0
            cpu_s["open"] = num_openings * cost.open_s + num_pieces * OPEN_PIECE_S
        for artifact, open_s in cost.open_artifact_s.items():
            parent = registry.find_phase(artifact.phase)
            cpu_s[artifact.kind] = self._count_openings(parent) * open_s
        return cpu_s

    def _estimate_memory(
        self, phase: type[Phase], rates: PhaseRates, num_tasks: int
    ) -> float:
        """Return the MiB of one task, if all tasks are equally large."""
        cost = find_cost(phase)
        held_bytes = cost.held_bytes * self.amounts[cost.held_amount] / num_tasks
        if cost.is_hash_partitioned:  # a larger partition is read in parts
            memory_mb = self.config.engine.get_memory_mb(phase.name)
            held_bytes = min(held_bytes, memory_mb * 2**19)
        return rates.base_mb + held_bytes / 2**20

    def _estimate_written(self, phase: type[Phase]) -> dict[str, float]:
        """Return kind of file -> bytes written by all tasks of a phase."""
        num_tasks = self.count_tasks(phase)
        rates = self.calibration.phases.get(phase.name)
        if not num_tasks or rates is None:
            return {}
        # Files of a partition have a part for each split, so their fixed bytes are per split.
        cost = find_cost(phase)
        is_per_split = cost.is_hash_partitioned
        num_parts = self._count_openings(phase) if is_per_split else num_tasks
        written: dict[str, float] = {}
        for artifact in phase.artifacts():
            if artifact.kind in rates.bytes:
                amount = self.amounts[cost.artifact_amount(artifact)]
                written[artifact.kind] = rates.bytes[artifact.kind].predict(
                    amount, num_parts
                )
        return written

    def _estimate_read(self, phase: type[Phase]) -> float:
        """Return the bytes that a phase reads from its parents' files, an upper bound."""
        total = 0.0
        for artifact in find_cost(phase).reads:
            parent = registry.find_phase(artifact.phase)
            total += self._estimate_written(parent).get(artifact.kind, 0.0)
        return total
