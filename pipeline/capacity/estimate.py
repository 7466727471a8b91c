"""What a run of any size would take of any cluster: work, files, bytes, memory, CPU, hours, price. A pure model.

Promises: `estimate` computes a value and starts nothing. Partitions are cut as the phases cut them; rates, bytes and
survival are those of a run that was measured (`fit` reads its log and its done-records), in straight lines: so much per
piece of work, and so much for what is in it. What will not fit is told with what would make it fit.
Leaves to others: measuring (benchmarks/calibrate.py), how far the model is off (docs/planning.md says).

    calibration = fit([RunFolder.open("runs/ten-files")])
    cost = estimate(config, calibration, Cluster(nodes=10, cores=32, memory_gb=128), num_files=90_000)
    cost.cpu_hours, cost.hours, cost.price, cost.warnings

What is in a piece of work is counted in list_amounts(). What it does not know: that a larger crawl repeats more (the share
that deduplication leaves is that of the measured run, and so an upper bound), and waiting for disks and networks.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.execution.resources import request_of
from pipeline.phases import registry
from pipeline.phases.hash_partitions import MAX_PARTITIONS, MIN_BUCKETS, pieces_for
from pipeline.phases.phase import Phase
from pipeline.planning.input_splits import MAX_SPLITS, WET_BYTES, files_per_split
from pipeline.runs.run_folder import RunFolder

VERSION = 1
"""Of the calibration file."""

SHIPPED = Path(__file__).with_name("calibration.json")
"""Measured by benchmarks/calibrate.py; `make bench` writes another."""

Amounts = Mapping[str, float]


def list_amounts() -> dict[str, tuple[str, str]]:
    """Return amount -> the phase and the counter that measure it, as the phases declare.

    They are: bytes of the input, documents and bytes of text in it, paragraphs that are hashed; characters and
    documents that annotate stored; hashes of their MinHash bands; documents kept, and their tokens.
    """
    amounts: dict[str, tuple[str, str]] = {}
    for phase in registry.PHASES:
        for amount, counter in phase.amounts.items():
            amounts[amount] = (phase.name, counter)
    return amounts


WET_FILE: Amounts = {"input": WET_BYTES, "documents": 26_000, "text": 172e6, "paragraphs": 3.4e6}
"""Of a file of a real snapshot: 78 documents of CC-MAIN-2026-17 have 6,600 bytes and 130 lines each and are compressed
to 0.41; so 75 MB are 26,000 documents, which makes 2.3 billion of 90,000 files."""

PIECE_S = 15e-6
"""And for one of a unit's pieces (buckets.py), however little is in it, where partitions are ranges of hashes."""

OBJECT_STORE_MB = 200
"""Ray's, per machine: only names of work and results pass through it (engine.py)."""

HANDING_OUT_S = 0.016
"""Of the driver's CPU for each task, by Ray Data: benchmarks/driver_scale.py --ray. One after another, so that a phase
takes no less, on however many cores."""

IDLE_SHARE = 0.2
"""Of a phase's core-hours that its last tasks leave to nobody: above it, a word is said."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Line(_Strict):
    """fixed + rate x amount."""

    fixed: float = 0.0
    rate: float = 0.0

    def at(self, amount: float, task_ids: float = 1.0) -> float:
        """Of so many pieces of work that have so much in all."""
        return self.fixed * task_ids + self.rate * amount


class PhaseRates(_Strict):
    """What one phase took where it was measured."""

    cpu_s: dict[str, Line] = Field(
        description="Seconds of CPU by step, per piece of work and per amount."
    )
    start_s: float = Field(
        description="More of it in the first piece of work of a process: libraries, models."
    )
    bytes: dict[str, Line] = Field(
        description="Bytes written by kind of file; in phases across units fixed: per unit."
    )
    base_mb: float = Field(description="Memory of a task beside what it holds by HELD_BYTES.")


class Calibration(_Strict):
    """What was measured, and where."""

    version: int = VERSION
    source: str = Field(description="What was run.")
    machine: str = ""
    commit: str | None = None
    date: str = ""
    amounts: dict[str, float] = Field(description="Of all that was run: see `list_amounts`.")
    phases: dict[str, PhaseRates]

    def filled_by(self, other: Calibration) -> Calibration:
        """The same with the other's rates for steps and phases that were not on where this was measured."""
        phases = dict(other.phases)
        for name, mine in self.phases.items():
            steps = {**(phases[name].cpu_s if name in phases else {}), **mine.cpu_s}
            phases[name] = mine.model_copy(update={"cpu_s": steps})
        return self.model_copy(update={"phases": phases})


def read_calibration(path: Path = SHIPPED) -> Calibration:
    """The calibration in a file.

    Raises:
        ConfigError: it is none, or of another version.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.get("version") != VERSION:
            raise ConfigError(
                [
                    f"{path}: version is {found.get('version')!r}, wanted {VERSION}; measure anew: make bench"
                ]
            )
        return Calibration.model_validate(found)
    except (OSError, ValueError, ValidationError, AttributeError) as error:
        raise ConfigError(
            [f"{path} is no calibration: {error}; make one: python -m benchmarks.calibrate"]
        ) from error


# ------------------------------------------------------------------------------------------------------------- fitting


@dataclass(frozen=True)
class _Work:
    phase: str
    cpu_s: Mapping[str, float]
    peak_mb: float
    is_first: bool  # of its process in this phase
    amounts: Amounts
    num_splits: int
    bytes: Mapping[str, int]  # by kind of file


def fit(runs: Sequence[RunFolder], **where: str) -> Calibration:
    """The calibration that finished runs of one config amount to.

    Runs with units of other sizes tell what a piece of work costs from what is in it; of units that are all alike
    everything counts as what is in them.

    Raises:
        ConfigError: a run is not finished, or its log has no CPU seconds.
    """
    task_ids = [task_id for run in runs for task_id in _works(run)]
    totals: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        for split in _amounts_of_splits(run).values():
            for name, amount in split.items():
                totals[name] += amount
    phases = {
        phase.name: _rates(phase, mine)
        for phase in registry.PHASES
        if (mine := [w for w in task_ids if w.phase == phase.name])
    }
    return Calibration(
        source=where.pop("source", ", ".join(str(run.run_dir) for run in runs)),
        amounts=dict(totals),
        phases=phases,
        **where,  # pyright: ignore[reportArgumentType] - machine, commit, date
    )


def _amounts_of_splits(run: RunFolder) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for split in run.splits:
        counts: dict[str, Mapping[str, int]] = {}
        for phase, _ in list_amounts().values():
            if phase not in counts:
                counts[phase] = run.folder(phase).record(split.key)["counters"]["counts"]
        found[split.key] = {
            amount: float(counts[phase].get(counter, 0))
            for amount, (phase, counter) in list_amounts().items()
        }
    return found


def _works(run: RunFolder) -> Iterator[_Work]:
    if not run.has_finished("write_shards"):
        raise ConfigError(
            [f"{run.run_dir}: the run is not finished; only a finished one can be a calibration"]
        )
    splits = _amounts_of_splits(run)
    seen: set[tuple[str, str]] = set()
    done: set[tuple[str, str]] = set()
    for event in run.read_events():
        if event["event"] != "TaskFinished" or event["failed"] or not event.get("cpu_seconds"):
            continue
        phase, task_id = event["phase"], event["task_id"]
        is_first = (phase, event["worker"]) not in seen
        seen.add((phase, event["worker"]))
        is_again = (phase, task_id) in done  # maybe in a process that has grown since
        done.add((phase, task_id))
        peak_mb = 0.0 if is_again else event["peak_mb"] or 0.0
        try:
            record = run.folder(phase).record(task_id)
        except FileNotFoundError:
            continue  # of a config that was changed since
        sizes: defaultdict[str, int] = defaultdict(int)
        for name, output in record["outputs"].items():
            artifact = registry.find_phase(phase).find_artifact(name)
            assert artifact is not None, f"{phase} does not declare {name}"
            sizes[artifact.kind] += output["bytes"]
        if task_id in splits:
            amounts = splits[task_id]
        else:
            counts = record["counters"]["counts"]
            amounts = {amount: float(counts.get(amount, 0)) for amount in list_amounts()}
        yield _Work(phase, event["cpu_seconds"], peak_mb, is_first, amounts, len(splits), sizes)
    if not seen:
        raise ConfigError(
            [
                f"{run.run_dir}: its log has no CPU seconds: it was made by an older version; run it anew"
            ]
        )


def _opens_all_splits(phase: type[Phase]) -> bool:
    """Whether each task opens the files of every split."""
    return phase.task_kind != "splits"


def _rates(phase: type[Phase], task_ids: Sequence[_Work]) -> PhaseRates:
    cost = phase.cost
    later = [task_id for task_id in task_ids if not task_id.is_first] or task_ids
    pieces = (
        MIN_BUCKETS if cost.is_hash_partitioned else 0
    )  # runs that are measured have one partition
    opens = cost.open_s + pieces * PIECE_S
    cpu: dict[str, Line] = {}
    for step in dict.fromkeys(step for task_id in task_ids for step in task_id.cpu_s):
        seconds = [max(0.0, w.cpu_s.get(step, 0.0) - opens * w.num_splits) for w in later]
        amounts = [w.amounts.get(cost.step_amount(step), 0.0) for w in later]
        # across units what is fixed has been taken off already
        cpu[step] = (
            Line(rate=sum(seconds) / max(1.0, sum(amounts)))
            if _opens_all_splits(phase)
            else _line(amounts, seconds)
        )
    firsts = [task_id for task_id in task_ids if task_id.is_first]
    dearer = [
        sum(w.cpu_s.values())
        - opens * w.num_splits
        - sum(line.at(w.amounts.get(cost.step_amount(step), 0.0)) for step, line in cpu.items())
        for w in firsts
    ]
    sizes: dict[str, Line] = {}
    for artifact in phase.artifacts():
        if not any(artifact.kind in task_id.bytes for task_id in task_ids):
            continue
        line = _line(
            [w.amounts.get(cost.artifact_amount(artifact), 0.0) for w in task_ids],
            [w.bytes.get(artifact.kind, 0) for w in task_ids],
        )
        num_splits = task_ids[0].num_splits if cost.is_hash_partitioned else 1
        sizes[artifact.kind] = line.model_copy(update={"fixed": line.fixed / num_splits})
    held = cost.held_bytes / 2**20
    base = max(w.peak_mb - held * w.amounts.get(cost.held_amount, 0.0) for w in task_ids)
    return PhaseRates(
        cpu_s=cpu,
        start_s=max(
            0.0, min(dearer, default=0.0)
        ),  # the first process ever on a machine compiles too: once, not each
        bytes=sizes,
        base_mb=max(0.0, round(base, 1)),
    )


def _line(amounts: Sequence[float], values: Sequence[float]) -> Line:
    """The straight line nearest to the points, those with more in them allowed to be further off; nothing below 0."""
    total = sum(amounts)
    if not total:
        return Line(fixed=sum(values) / max(1, len(values)))
    through_zero = Line(rate=sum(values) / total)
    if max(amounts) < 2 * min(amounts):
        return through_zero  # all alike: what is fixed cannot be told from the rest
    weights = [1 / max(amount, total / len(amounts) / 100) for amount in amounts]
    whole = sum(weights)
    mean_x = sum(w * x for w, x in zip(weights, amounts, strict=True)) / whole
    mean_y = sum(w * y for w, y in zip(weights, values, strict=True)) / whole
    spread = sum(w * (x - mean_x) ** 2 for w, x in zip(weights, amounts, strict=True))
    rate = (
        sum(
            w * (x - mean_x) * (y - mean_y)
            for w, x, y in zip(weights, amounts, values, strict=True)
        )
        / spread
    )
    fixed = mean_y - rate * mean_x
    if rate < 0:
        return Line(fixed=sum(values) / len(values))
    return Line(fixed=fixed, rate=rate) if fixed > 0 else through_zero


# ---------------------------------------------------------------------------------------------------------- estimating


@dataclass(frozen=True)
class Cluster:
    """Machines that are alike. cores and memory_gb (of 10^9 bytes) are those of one of them."""

    nodes: int
    cores: int
    memory_gb: float
    price_per_core_hour: float | None = None
    disk_gb: float | None = None  # where the run folder lies, for all of it; None: not known


def this_machine(
    config: RunConfig,
    nodes: int,
    cores: int | None,
    memory_gb: float | None,
    price_per_core_hour: float | None,
) -> Cluster:
    """Machines like this one, where nothing else is said."""
    folder = Path(config.run_dir).absolute()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    is_this_disk = nodes == 1 and cores is None and "://" not in config.run_dir
    return Cluster(
        nodes,
        cores or config.engine.workers or os.cpu_count() or 1,
        memory_gb or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9,
        price_per_core_hour,
        shutil.disk_usage(existing).free / 1e9 if is_this_disk else None,
    )


@dataclass(frozen=True)
class PhaseCost:
    """What one phase would take."""

    name: str
    task_ids: int
    num_files: int
    bytes_read: float
    bytes_written: float
    cpu_s: Mapping[
        str, float
    ]  # by step; `start`: of every process; `open`: every unit's files in every partition
    memory_mb: float  # of the largest task
    asked_mb: int  # that the task asks the cluster for
    slots: int  # tasks at a time
    hours: float
    idle_share: float  # of its core-hours, while its last tasks end

    @property
    def cpu_hours(self) -> float:
        """Of all its tasks."""
        return sum(self.cpu_s.values()) / 3600


@dataclass(frozen=True)
class Cost:
    """What a run would take."""

    calibration: str
    cluster: Cluster
    num_files: int
    num_splits: int
    amounts: Amounts
    phases: tuple[PhaseCost, ...]
    warnings: tuple[str, ...]

    @property
    def cpu_hours(self) -> float:
        """Of all tasks."""
        return sum(phase.cpu_hours for phase in self.phases)

    @property
    def hours(self) -> float:
        """From start to end."""
        return sum(phase.hours for phase in self.phases)

    @property
    def price(self) -> float | None:
        """Of all cores for all the hours, also those in which they wait."""
        each = self.cluster.price_per_core_hour
        return None if each is None else each * self.cluster.nodes * self.cluster.cores * self.hours

    @property
    def bytes_written(self) -> float:
        """Of all phases; all of it is on disk at the end."""
        return sum(phase.bytes_written for phase in self.phases)

    @property
    def network_bytes(self) -> float:
        """Where the run folder is storage that all machines share: all that is fetched, read and written."""
        return self.amounts["input"] + sum(
            phase.bytes_read + phase.bytes_written for phase in self.phases
        )

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        derived = ("cpu_hours", "hours", "price", "bytes_written", "network_bytes")
        found = asdict(self) | {name: getattr(self, name) for name in derived}
        for phase, mine in zip(found["phases"], self.phases, strict=True):
            phase["cpu_hours"] = mine.cpu_hours
        return found | {"object_store_mb_per_node": OBJECT_STORE_MB}


def estimate(
    config: RunConfig,
    calibration: Calibration,
    cluster: Cluster,
    *,
    num_files: int,
    input_bytes: float | None = None,
) -> Cost:
    """What a run of the config over so many files would take.

    Args:
        config: what would be run; its input is not looked at.
        calibration: what was measured.
        cluster: where it would run.
        num_files: files of the input.
        input_bytes: of all of them; None: they are of a snapshot, like WET_FILE.

    Raises:
        ConfigError: numbers out of range.
    """
    if num_files < 1 or cluster.nodes < 1 or cluster.cores < 1 or cluster.memory_gb <= 0:
        raise ConfigError(["--files, --nodes and --cores must be at least 1, --memory-gb above 0"])
    return _Model(config, calibration, cluster, num_files, input_bytes).cost()


@dataclass(frozen=True)
class _Model:
    config: RunConfig
    calibration: Calibration
    cluster: Cluster
    num_files: int
    input_bytes: float | None

    @cached_property
    def num_splits(self) -> int:
        return math.ceil(self.num_files / files_per_split(self.config.input, self.num_files))

    @cached_property
    def amounts(self) -> Amounts:
        """Of the whole run: the input's own, and of what comes after it the shares that the measured run had."""
        seen = self.calibration.amounts
        if self.input_bytes is not None:
            return {
                name: self.input_bytes * seen.get(name, 0.0) / seen["input"]
                for name in list_amounts()
            }
        known = {name: amount * self.num_files for name, amount in WET_FILE.items()}
        known["left"] = known["text"] * seen["left"] / seen["text"]
        for name in ("scored", "kept"):
            known[name] = known["documents"] * seen[name] / seen["documents"]
        for name in list_amounts():
            if name not in known:
                known[name] = known["left"] * seen.get(name, 0.0) / seen["left"]
        return known

    def task_ids(self, phase: type[Phase]) -> int:
        """As the phases count them."""
        return phase.estimate_num_tasks(self.config, self.num_splits, self.amounts)

    def openings(self, phase: type[Phase]) -> int:
        """How often a unit's files are opened by a phase across units."""
        if not _opens_all_splits(phase):
            return 0
        return self.task_ids(phase) * phase.splits_per_task(self.config, self.num_splits)

    def pieces(self, phase: type[Phase]) -> int:
        """Pieces of all units' files that a phase goes through."""
        partitions = math.ceil(self.openings(phase) / self.num_splits)
        return self.num_splits * pieces_for(
            partitions, self.amounts[phase.cost.grows_with] / self.num_splits
        )

    def written(self, phase: type[Phase]) -> dict[str, float]:
        """Bytes by kind of file."""
        task_ids = self.task_ids(phase)
        if not task_ids or phase.name not in self.calibration.phases:
            return {}
        times = self.openings(phase) if phase.cost.is_hash_partitioned else task_ids
        lines = self.calibration.phases[phase.name].bytes
        return {
            artifact.kind: lines[artifact.kind].at(
                self.amounts[phase.cost.artifact_amount(artifact)], times
            )
            for artifact in phase.artifacts()
            if artifact.kind in lines
        }

    def cost(self) -> Cost:
        phases = tuple(self.phase(phase) for phase in registry.PHASES)
        return Cost(
            calibration=_origin(self.calibration),
            cluster=self.cluster,
            num_files=self.num_files,
            num_splits=self.num_splits,
            amounts=self.amounts,
            phases=phases,
            warnings=tuple(self.warnings(phases)),
        )

    def phase(self, phase: type[Phase]) -> PhaseCost:
        name, model = phase.name, phase.cost
        task_ids, request = self.task_ids(phase), request_of(self.config.engine, name)
        by_cores = self.cluster.cores / request.num_cpus if request.num_cpus else math.inf
        by_memory = self.cluster.memory_gb * 1e9 / (request.memory_mb * 2**20)
        slots = self.cluster.nodes * int(min(by_cores, by_memory))
        rates = self.calibration.phases.get(name)
        if not task_ids or rates is None:
            hours = task_ids * HANDING_OUT_S / 3600
            return PhaseCost(
                name, task_ids, 0, 0.0, 0.0, {}, 0.0, request.memory_mb, slots, hours, 0.0
            )
        on = {stage.name for stage in phase.enabled_stages(self.config)}
        off = {stage.name for stage in phase.stages} - on
        cpu = {
            step: line.at(self.amounts[model.step_amount(step)], task_ids)
            for step, line in rates.cpu_s.items()
            if step not in off
        }
        if opened := self.openings(phase):
            pieces = self.pieces(phase) if model.is_hash_partitioned else 0
            cpu["open"] = opened * model.open_s + pieces * PIECE_S
        for artifact, open_s in model.open_artifact_s.items():
            parent = registry.find_phase(artifact.phase)
            cpu[artifact.kind] = self.openings(parent) * open_s
        each_s, waves = sum(cpu.values()) / task_ids, math.ceil(task_ids / max(1, slots))
        cpu["start"] = rates.start_s * min(task_ids, slots)
        held = model.held_bytes * self.amounts[model.held_amount] / task_ids
        written = self.written(phase)
        read = 0.0
        for artifact in phase.reads:
            parent = registry.find_phase(artifact.phase)
            read += self.written(parent).get(artifact.kind, 0.0)
        return PhaseCost(
            name=name,
            task_ids=task_ids,
            num_files=task_ids * (len(rates.bytes) + 1),
            bytes_read=read,
            bytes_written=sum(written.values()),
            cpu_s=cpu,
            memory_mb=rates.base_mb + held / 2**20,
            asked_mb=request.memory_mb,
            slots=slots,
            hours=max(waves * each_s + rates.start_s, task_ids * HANDING_OUT_S) / 3600
            if slots
            else math.inf,
            idle_share=1 - task_ids / (waves * slots) if slots else 0.0,
        )

    def warnings(self, phases: Iterable[PhaseCost]) -> Iterator[str]:
        """What will not fit, or will not go well, and what would."""
        cluster, engine = self.cluster, self.config.engine
        total = sum(phase.hours for phase in phases)
        for phase in phases:
            if not phase.slots:
                yield (
                    f"{phase.name}: a task asks for {phase.asked_mb:,} MB, a machine has {cluster.memory_gb:g} GB: it "
                    f"would never start; lower engine.memory_mb, or take larger machines"
                )
            elif phase.task_ids and phase.memory_mb > phase.asked_mb:
                yield self._too_large(phase)
            if phase.slots and phase.idle_share > IDLE_SHARE and phase.hours > 0.05 * total:
                yield (
                    f"{phase.name}: {phase.task_ids:,} tasks on {phase.slots:,} places leave {phase.idle_share:.0%} of "
                    f"its core-hours to nobody"
                    + (
                        "; fewer cores are as fast"
                        if phase.task_ids <= phase.slots
                        else " in the last wave"
                    )
                )
        if (fits := int(cluster.memory_gb * 1e9 / (engine.memory_mb * 2**20))) < cluster.cores:
            yield (
                f"engine.memory_mb {engine.memory_mb:,} lets {fits} tasks onto a machine of {cluster.cores} cores: the "
                f"others idle; {int(cluster.memory_gb * 1e9 / 2**20 / cluster.cores):,} would use all"
            )
        if self.num_splits > MAX_SPLITS:
            num_files = sum(phase.num_files for phase in phases)
            yield (
                f"{self.num_splits:,} units make {num_files:,} files; input.files_per_split: auto makes {MAX_SPLITS:,} "
                f"units at most"
            )
        if (disk := cluster.disk_gb) is not None and (
            needed := sum(p.bytes_written for p in phases) / 1e9
        ) > disk:
            yield f"the run folder takes {needed:,.0f} GB, {disk:,.0f} GB are free there; set run_dir to a larger disk"
        for phase in registry.PHASES:
            merge_gb = phase.cost.driver_bytes * self.amounts["documents"] / 1e9
            if phase.is_enabled(self.config) and merge_gb > cluster.memory_gb / 2:
                yield (
                    f"{phase.name}: the driver merges over {self.amounts['documents']:,.0f} records, up to "
                    f"{merge_gb:,.0f} GB of sparse files, of which only what fits into memory is fast"
                )
        missing: list[str] = []
        for phase in registry.PHASES:
            missing += self._unmeasured(phase)
        if missing:
            yield f"not measured, and counted as nothing: {', '.join(missing)}; calibrate by a run that has them"

    def _too_large(self, estimated: PhaseCost) -> str:
        phase = registry.find_phase(estimated.name)
        base = self.calibration.phases[phase.name].base_mb
        message = (
            f"{phase.name}: a task would take {estimated.memory_mb:,.0f} MB, "
            f"and asks for {estimated.asked_mb:,}"
        )
        room_mb = max(1.0, estimated.asked_mb - base)
        raise_memory = f"raise engine.memory_mb to {estimated.memory_mb:,.0f}"
        if (estimated.memory_mb - base) / room_mb > 1:
            if phase.cost.is_hash_partitioned:
                message += f" (hashes are cut into {MAX_PARTITIONS:,} ranges at most)"
            per_split = self.amounts[phase.cost.held_amount] / self.num_splits
            if smaller := phase.suggest_smaller_tasks(room_mb * 2**20, per_split):
                return f"{message}; {smaller}, or {raise_memory}"
            if not _opens_all_splits(phase) and self.num_splits < self.num_files:
                return f"{message}; lower input.files_per_split, or {raise_memory}"
        return (
            f"{message}; raise engine.memory_mb (or engine.phases.{phase.name}.memory_mb) "
            f"to {estimated.memory_mb:,.0f}"
        )

    def _unmeasured(self, phase: type[Phase]) -> list[str]:
        if not self.task_ids(phase):
            return []
        rates = self.calibration.phases.get(phase.name)
        if rates is None and not phase.stages:
            return [phase.name]
        return [
            f"{phase.name}.{spec.stage.name}"
            for spec in phase.plan_stages(self.config)
            if rates is None or spec.stage.name not in rates.cpu_s
        ]


def _origin(calibration: Calibration) -> str:
    about = [
        calibration.source,
        calibration.machine,
        calibration.date[:10],
        (calibration.commit or "")[:9],
    ]
    return "; ".join(part for part in about if part)
