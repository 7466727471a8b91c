"""The cost model: what each phase of a run takes, by the rates of a calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from pipeline.capacity import costs
from pipeline.capacity.calibration import Amounts, Calibration, Line, PhaseRates
from pipeline.capacity.costs import AMOUNTS, Read, find_cost, is_written, list_reads
from pipeline.capacity.fit import find_read_factor
from pipeline.capacity.resources import make_request
from pipeline.config import RunConfig
from pipeline.inputs.input_splits import WET_BYTES, get_files_per_split
from pipeline.phases import registry
from pipeline.phases.artifact import MergedArtifact
from pipeline.phases.dedup.fuzzy_candidates import FuzzyCandidates
from pipeline.phases.dedup.fuzzy_clusters import FuzzyClusters
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.dedup.fuzzy_members import FuzzyMembers
from pipeline.phases.dedup.merge_clusters import FuzzyMerge
from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from pipeline.phases.extract import Extract
from pipeline.phases.phase import Phase
from pipeline.runs.exchange import count_partitions
from storage.object_file import REQUEST_BYTES
from storage.object_store import NUM_CONNECTIONS

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

# Wall time of the dispatch of a Ray task (benchmarks/results/2026-11-24-driver_scale_ray.json).
#
# One process dispatches them one after another, so a phase takes at least this time for each on any
# number of cores. A group of tasks shares one.
DISPATCH_S = 0.003

# Of a phase without rates: its memory is that of its items, beside the process and its libraries.
UNMEASURED = PhaseRates(cpu_s={}, start_s=0.0, bytes={}, base_mb=600.0)


@dataclass(frozen=True)
class Cluster:
    """A number of equal machines, and the head.

    Attributes:
        cores: per machine.
        memory_gb: per machine, in 10^9 bytes.
        disk_gb: free space for the run folder, shared by all machines; None: unknown.
        scratch_gb: free space for files that tasks are writing, per machine; None: unknown.
        head_memory_gb: of the machine with the driver; None: it is like the others.
    """

    nodes: int
    cores: int
    memory_gb: float
    price_per_core_hour: float | None = None
    disk_gb: float | None = None
    scratch_gb: float | None = None
    head_memory_gb: float | None = None


@dataclass(frozen=True)
class PhaseEstimate:
    """The estimate for one phase.

    Attributes:
        is_measured: whether the calibration has its rates; else CPU and bytes written are 0 here.
        bytes_read: also of the input. Over the network, if the run folder is shared storage.
        num_gets: requests that read from an object store; 0 for a run folder on a disk.
        num_puts: requests that write to one.
        cpu_s: CPU seconds by step, and `start` for the start of all processes, `requests` for those
            to an object store.
        memory_mb: of the largest task.
        requested_mb: what a task requests from the cluster.
        slots: tasks that can run at the same time.
        slowest_s: seconds of the largest task, with what it waits for the store.
        latency_s: seconds that the store's latency adds to the phase.
        serial_hours: hours in which the driver, or one task, works alone.
        scratch_gb: largest use of the local disk of a machine.
        idle_share: share of the phase's core-hours that is unused while its last tasks end.
    """

    name: str
    requested_mb: int
    slots: int
    is_measured: bool = True
    num_tasks: int = 0
    num_files: int = 0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    num_gets: float = 0.0
    num_puts: float = 0.0
    cpu_s: Mapping[str, float] = field(default_factory=dict[str, float])
    memory_mb: float = 0.0
    slowest_s: float = 0.0
    latency_s: float = 0.0
    serial_hours: float = 0.0
    hours: float = 0.0
    scratch_gb: float = 0.0
    idle_share: float = 0.0

    @property
    def cpu_hours(self) -> float:
        """CPU hours of all its tasks."""
        return sum(self.cpu_s.values()) / 3600

    @property
    def request_price(self) -> float:
        """Price of its requests to the object store, in $."""
        return costs.GET_PRICE * self.num_gets + costs.PUT_PRICE * self.num_puts

    @property
    def gets_per_s(self) -> float:
        """Requests per second that read from the store, on average."""
        return self.num_gets / (3600 * self.hours) if self.hours else 0.0


@dataclass(frozen=True)
class RunEstimate:
    """The estimate for a whole run.

    Attributes:
        calibration: where the rates were measured.
        driver_bytes: memory of the driver, with the processes of Ray's head.
    """

    calibration: str
    cluster: Cluster
    num_files: int
    num_splits: int
    amounts: Amounts
    phases: tuple[PhaseEstimate, ...]
    driver_bytes: float = 0.0
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
    def request_price(self) -> float:
        """Price of all requests to the object store, in $."""
        return sum(phase.request_price for phase in self.phases)

    @property
    def bytes_written(self) -> float:
        """Bytes written by all phases. All of them are on disk at the end."""
        return sum(phase.bytes_written for phase in self.phases)

    @property
    def network_bytes(self) -> float:
        """Bytes over the network if the run folder is on shared storage: input, reads and writes."""
        return sum(phase.bytes_read + phase.bytes_written for phase in self.phases)

    def to_json(self) -> dict[str, Any]:
        """Return the estimate with its derived values, as JSON types."""
        content = asdict(self)
        names = "cpu_hours hours price request_price bytes_written network_bytes"
        content |= {name: getattr(self, name) for name in names.split()}
        for phase_content, phase in zip(content["phases"], self.phases, strict=True):
            for name in ("cpu_hours", "gets_per_s", "request_price"):
                phase_content[name] = getattr(phase, name)
        content["object_store_mb_per_node"] = OBJECT_STORE_MB
        return content


@dataclass
class _Traffic:
    """What the tasks of a phase move, all together.

    Attributes:
        parallel_gets: those that threads of a task send at the same time.
        range_bytes: read by ranges of all splits.
    """

    gets: float = 0.0
    parallel_gets: float = 0.0
    puts: float = 0.0
    bytes_read: float = 0.0
    range_bytes: float = 0.0

    def count_in_turn(self) -> float:
        """Return the requests that tasks wait for, one after another."""
        share_saved = 1 - 1 / NUM_CONNECTIONS
        num_saved = share_saved * min(self.parallel_gets, self.gets)
        return self.gets + self.puts - num_saved


@dataclass(frozen=True)
class CostModel:
    """The quantities of a run, computed phase by phase.

    Attributes:
        input_bytes: of all files; None: files of a snapshot, like WET_FILE.
        has_html: whether the files are WARC files.
        num_previous_splits: input splits of `previous_runs`, which are taken to be like the own ones.
    """

    config: RunConfig
    calibration: Calibration
    cluster: Cluster
    num_files: int
    input_bytes: float | None
    has_html: bool
    num_previous_splits: int = 0

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
        most = MAX_CLUSTERED_SHARE * amounts["documents"]
        return {**amounts, "clustered": amounts["clustered"] or most}

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
        # Documents have bands; near-duplicates and tokens grow with the text.
        for name in ("scored", "kept", "band_hashes"):
            share = measured.get(name, 0.0) / measured["documents"]
            amounts[name] = amounts["documents"] * share
        for name in AMOUNTS:
            if name not in amounts:
                amounts[name] = amounts["left"] * measured.get(name, 0.0) / measured["left"]
        return amounts

    @property
    def is_in_bucket(self) -> bool:
        """Whether the run folder is in an object store."""
        return "://" in self.config.run_dir

    @property
    def is_input_remote(self) -> bool:
        """Whether tasks download their input."""
        files = self.config.input.files or ()
        return self.config.input.common_crawl is not None or any("://" in f for f in files)

    def estimate_run(self) -> RunEstimate:
        """Return the estimate, without its warnings."""
        phases = tuple(self.estimate_phase(phase) for phase in registry.PHASES)
        clustered = self.amounts["clustered"] * self.count_tasks(FuzzyMerge)
        num_tasks = sum(phase.num_tasks for phase in phases)
        return RunEstimate(
            calibration=self.calibration.origin,
            cluster=self.cluster,
            num_files=self.num_files,
            num_splits=self.num_splits,
            amounts=self.amounts,
            phases=phases,
            driver_bytes=costs.DRIVER_BYTES
            + costs.DRIVER_BYTES_PER_TASK * num_tasks
            + min(costs.DRIVER_BYTES_PER_DROPPED * clustered, costs.MAX_DROPPED_BYTES),
        )

    def estimate_phase(self, phase: type[Phase]) -> PhaseEstimate:
        """Return the estimate for one phase.

        The tasks run in waves of `slots` tasks, and the largest is in the last wave. A phase takes no
        less time than the driver needs to dispatch its groups of tasks.
        """
        num_tasks, slots = self.count_tasks(phase), self._count_slots(phase)
        requested_mb = make_request(self.config.engine, phase.name).memory_mb
        if not num_tasks:
            return PhaseEstimate(phase.name, requested_mb, slots)
        rates = self.calibration.phases.get(phase.name)
        is_measured, rates = rates is not None, rates or UNMEASURED
        traffic = self._estimate_traffic(phase)
        written = sum(self._estimate_written(phase).values())
        cpu_s = self._estimate_cpu(phase, rates, num_tasks)
        if num_requests := traffic.gets + traffic.puts:
            cpu_s["requests"] = num_requests * costs.REQUEST_CPU_S
        num_ranges = self._count_groups(phase, num_tasks)
        num_waves = math.ceil(num_ranges / max(1, slots))
        wait_s = traffic.count_in_turn() * costs.LATENCY_S / num_ranges
        mean_s = sum(cpu_s.values()) / num_ranges + wait_s
        waves_s = (num_waves - 1 + costs.LARGEST_TASK) * mean_s + rates.start_s
        record_s = costs.RECORD_S + self.is_in_bucket * costs.LATENCY_S / NUM_CONNECTIONS
        serial_s = self._count_record_reads(phase, num_tasks) * record_s
        cpu_s["start"] = rates.start_s * min(num_ranges, slots)
        hours = (max(waves_s, num_ranges * DISPATCH_S) + serial_s) / 3600
        return PhaseEstimate(
            name=phase.name,
            requested_mb=requested_mb,
            slots=slots,
            is_measured=is_measured,
            num_tasks=num_tasks,
            # one per kind, and the done-record
            num_files=num_tasks * (len(self._estimate_written(phase)) + 1),
            bytes_read=traffic.bytes_read,
            bytes_written=written,
            num_gets=traffic.gets,
            num_puts=traffic.puts,
            cpu_s=cpu_s,
            memory_mb=rates.base_mb + self._estimate_held(phase, num_tasks) / 2**20,
            slowest_s=costs.LARGEST_TASK * mean_s,
            latency_s=num_waves * wait_s,
            serial_hours=serial_s / 3600,
            hours=hours if slots else math.inf,
            scratch_gb=self._estimate_scratch(phase, num_tasks, num_ranges, traffic) / 1e9,
            idle_share=1 - num_ranges / (num_waves * slots) if slots else 0.0,
        )

    # ---- Tasks

    def count_tasks(self, phase: type[Phase]) -> int:
        """Return the number of tasks of a phase, by the phase's own rule."""
        cost = find_cost(phase)
        if not phase.is_enabled(self.config):
            return 0
        if cost.count_tasks is not None:
            num_sources = self.num_splits + self.num_previous_splits
            return math.ceil(cost.count_tasks(self.config, self.amounts, num_sources))
        if cost.exchanges is not None:
            return self.count_ranges(phase)
        return self.num_splits

    def count_ranges(self, phase: type[Phase]) -> int:
        """Return the number of ranges in which processes read the files of all splits, of all groups of splits."""
        if find_cost(phase).exchanges is None:
            return self._count_groups(phase, self.count_tasks(phase))
        if phase is ParagraphDedup and self.config.paragraph_dedup.keep == "keep_all":
            return 0
        num_own, num_sources = self.count_splits_per_range(phase)
        num_groups = math.ceil(self.num_splits / num_own)
        group_bytes = math.ceil(self._measure_rows(phase) / num_groups)
        memory_mb = self.config.engine.get_memory_mb(phase.name)
        return num_groups * count_partitions(group_bytes, 1, memory_mb, num_sources)

    def _count_groups(self, phase: type[Phase], num_tasks: int) -> int:
        """Return the number of tasks, or of groups of tasks that read their input at once."""
        slots = self._count_slots(phase)
        group = phase.count_group_tasks(self.config, self.num_splits, num_tasks, slots)
        return math.ceil(num_tasks / (group or 1))

    def count_splits_per_range(self, phase: type[Phase]) -> tuple[int, int]:
        """Return the own splits of which one range has rows, and these with those of previous runs."""
        num_own = self.num_splits
        if phase is ParagraphDedup:
            num_own = min(num_own, self.config.paragraph_dedup.group_splits or num_own)
        # The n-grams of these come from the splits of fuzzy_candidates.
        receives = phase in (FuzzyClusters, FuzzyMembers, FuzzyDedup)
        reader = FuzzyCandidates if receives else phase
        reads_previous = reader.phases_read_in_previous_runs(self.config)
        return num_own, num_own + (self.num_previous_splits if reads_previous else 0)

    def _measure_rows(self, phase: type[Phase]) -> float:
        """Return the bytes of memory of all rows that tasks exchange; those of previous runs are in each group."""
        cost = find_cost(phase)
        num_own, num_sources = self.count_splits_per_range(phase)
        num_rows = self.amounts[cost.exchanges] if cost.exchanges else 0.0
        return cost.bytes_per_row * num_rows * num_sources / num_own

    def _count_slots(self, phase: type[Phase]) -> int:
        """Return how many tasks of a phase run at the same time."""
        request = make_request(self.config.engine, phase.name)
        # Ray packs tasks per machine, so a fraction of a task per machine is lost on each.
        by_cores = self.cluster.cores / request.num_cpus if request.num_cpus else math.inf
        by_memory = self.cluster.memory_gb * 1e9 / (request.memory_mb * 2**20)
        return self.cluster.nodes * int(min(by_cores, by_memory))

    def _count_record_reads(self, phase: type[Phase], num_tasks: int) -> int:
        """Return how many records the driver reads, for their sum, the places of segments, and the parents' rows."""
        num_own = num_tasks * (1 + sum(each.has_segments for each in phase.artifacts()))
        has_rows = find_cost(phase).exchanges is not None
        return num_own + self.count_splits_per_range(phase)[1] * has_rows

    # ---- CPU and memory

    def _estimate_cpu(
        self, phase: type[Phase], rates: PhaseRates, num_tasks: int
    ) -> dict[str, float]:
        """Return CPU seconds by step, without the start of processes and requests."""
        cost = find_cost(phase)
        num_own, num_sources = self.count_splits_per_range(phase)
        enabled = {spec.stage.name for spec in phase.plan_stages(self.config)}
        disabled = {stage.name for stage in phase.stages} - enabled
        cpu_s: dict[str, float] = {}
        for step, line in rates.cpu_s.items():
            if step not in disabled:
                amount = self.amounts[cost.step_amount(step)] * num_sources / num_own
                cpu_s[step] = line.predict(amount, num_tasks)
        if phase is Extract and self.has_html:
            cpu_s["read"] *= find_read_factor(self.config)
        return cpu_s

    def _estimate_held(self, phase: type[Phase], num_tasks: int) -> float:
        """Return the bytes that the largest task holds. A range takes half of the memory at most."""
        cost = find_cost(phase)
        held = sum(per_item * self.amounts[name] for name, per_item in cost.holds.items())
        if phase is FuzzyMerge and self.amounts["clustered"] >= 2**32:
            held += costs.WIDE_MERGE_BYTES * self.amounts["clustered"]
        half_bytes = self.config.engine.get_memory_mb(phase.name) * 2**19
        largest = costs.LARGEST_TASK * held / num_tasks
        return max(largest, min(self._measure_range(phase), half_bytes))

    def _measure_range(self, phase: type[Phase]) -> float:
        """Return the bytes of memory of the rows of the largest range of an exchange."""
        return (
            costs.LARGEST_TASK
            * self._measure_rows(phase)
            / max(1, self.count_ranges(phase))
        )

    # ---- Files and requests

    def _estimate_written(self, phase: type[Phase]) -> dict[str, float]:
        """Return kind of file -> bytes written by all tasks of a phase; 0 where they were not measured."""
        num_tasks, cost = self.count_tasks(phase), find_cost(phase)
        rates = self.calibration.phases.get(phase.name)
        measured = (
            rates.bytes
            if rates
            else {artifact.kind: Line() for artifact in phase.artifacts()}
        )
        lines = {**cost.assumed, **measured}
        if not self.calibration.amounts.get("clustered"):
            lines |= cost.assumed
        # Files of a range have a part for each split, so their fixed bytes are per split.
        num_parts = num_tasks
        if cost.exchanges is not None:
            num_parts *= self.count_splits_per_range(phase)[0]
        written: dict[str, float] = {}
        for artifact in phase.artifacts():
            if num_tasks and artifact.kind in lines and is_written(artifact, self.config):
                amount = self.amounts[cost.artifact_amount(artifact)]
                written[artifact.kind] = lines[artifact.kind].predict(amount, num_parts)
        return written

    def _estimate_traffic(self, phase: type[Phase]) -> _Traffic:
        """Return what the tasks of a phase read and write, by how many requests."""
        num_tasks, traffic = self.count_tasks(phase), _Traffic()
        opened: set[str] = set()  # parents, whose records are read
        for read in list_reads(phase, self.config):
            parent = registry.find_phase(read.artifact.phase)
            if read.artifact.kind in self._estimate_written(parent):
                self._add_read(traffic, phase, read, num_tasks)
                if read.cut_by is None and not read.has_crcs:
                    opened.add(parent.name)
        traffic.gets += len(opened) * num_tasks * costs.GETS_PER_RECORD
        traffic.gets += self._count_record_reads(phase, num_tasks) * costs.GETS_PER_RECORD
        traffic.puts += num_tasks * costs.PUTS_PER_TASK
        merged = [each for each in vars(phase).values() if isinstance(each, MergedArtifact)]
        num_merged = len(merged) + sum(each.has_segments for each in phase.artifacts())
        traffic.gets += costs.REQUESTS_PER_PHASE
        traffic.puts += costs.REQUESTS_PER_PHASE + 2 * num_merged  # with a record each
        for num_bytes in self._estimate_written(phase).values():
            traffic.puts += num_tasks * costs.count_puts(num_bytes / num_tasks)
        if not self.is_in_bucket:
            traffic.gets = traffic.puts = 0.0
        if phase is Extract:
            traffic.bytes_read = self.amounts["input"]
            per_file = math.ceil(self.amounts["input"] / self.num_files / REQUEST_BYTES)
            traffic.gets += self.num_files * per_file * self.is_input_remote
        return traffic

    def _add_read(
        self, traffic: _Traffic, phase: type[Phase], read: Read, num_tasks: int
    ) -> None:
        """Add one kind of file that the tasks of a phase read."""
        parent = registry.find_phase(read.artifact.phase)
        num_bytes = self._estimate_written(parent)[read.artifact.kind]
        if read.cut_by == costs.MERGED:
            traffic.gets += num_tasks * (read.gets or 0)
        elif read.cut_by is not None:
            cutter = registry.find_phase(read.cut_by)
            num_own, num_sources = self.count_splits_per_range(cutter)
            # Splits of previous runs get no answer.
            num_read = num_own if phase.task_kind == "splits" else num_sources
            num_gets = self.count_ranges(cutter) * num_read
            num_gets *= read.gets or costs.GETS_PER_CELL
            traffic.parallel_gets += num_gets
            traffic.gets += num_gets
            if read.artifact.has_segments:
                traffic.gets += num_tasks * costs.GETS_PER_INDEX
            num_bytes *= num_read / num_own
            traffic.range_bytes += num_bytes
        else:
            file_bytes = num_bytes / self.count_tasks(parent)
            num_gets = read.gets or costs.count_sequential_gets(file_bytes)
            if read.small_columns_of is not None:
                num_rows = self.amounts[read.small_columns_of] / self.num_splits
                num_gets, file_bytes = costs.measure_small_columns(file_bytes, num_rows)
            traffic.gets += num_tasks * num_gets
            num_bytes = num_tasks * file_bytes
        traffic.bytes_read += num_bytes

    def _estimate_scratch(
        self, phase: type[Phase], num_tasks: int, num_ranges: int, traffic: _Traffic
    ) -> float:
        """Return the bytes of scratch on a machine: outputs before their upload, input, and ranges."""
        half_bytes = self.config.engine.get_memory_mb(phase.name) * 2**19
        per_task = 0.0
        if self.is_in_bucket:
            per_task += sum(self._estimate_written(phase).values()) / num_tasks
        if phase is Extract and self.is_input_remote:
            per_task += self.amounts["input"] / self.num_files
        if find_cost(phase).uses_scratch or self._measure_range(phase) > half_bytes:
            per_task += traffic.range_bytes / self.count_ranges(phase)
        nodes = self.cluster.nodes
        num_running = min(self._count_slots(phase) // nodes, math.ceil(num_ranges / nodes))
        return num_running * costs.LARGEST_TASK * per_task
