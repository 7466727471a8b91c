"""Estimate the tasks, files, requests, bytes, memory, hours and price of a run. Starts nothing.

    calibration = read_shipped(has_html=False)
    cluster = Cluster(nodes=10, cores=32, memory_gb=128)
    found = estimate(config, calibration, cluster, num_files=90_000)
    found.cpu_hours, found.hours, found.price, found.warnings

The model is a straight line per step and per kind of file, and counts requests to an object store by
formulas (costs.py). It ignores that a larger crawl holds a larger share of duplicates, and the time
spent waiting for disks and for the bandwidth of networks. docs/planning.md compares it with runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from config_files.reader import ConfigError
from pipeline.capacity.calibration import Calibration, read_shipped
from pipeline.capacity.estimate_warnings import find_warnings
from pipeline.capacity.model import Cluster, CostModel, RunEstimate
from pipeline.config import RunConfig
from pipeline.phases.run_plan import RunPlan


def estimate(
    config: RunConfig,
    calibration: Calibration,
    cluster: Cluster,
    *,
    num_files: int,
    input_bytes: float | None = None,
    names: Sequence[str] = (),
    num_previous_splits: int = 0,
) -> RunEstimate:
    """Estimate a run of the config over this many input files.

    Args:
        config: the config. Its input is not read.
        calibration: the measured rates.
        cluster: the machines.
        num_files: number of input files.
        input_bytes: bytes of all input files; None: files of a snapshot, like WET_FILE.
        names: names of input files, where they are known.
        num_previous_splits: input splits of all `previous_runs`.

    Raises:
        ConfigError: a number is out of range.
    """
    if num_files < 1 or cluster.nodes < 1 or cluster.cores < 1 or cluster.memory_gb <= 0:
        raise ConfigError(
            ["--files, --nodes and --cores must be at least 1, --memory-gb above 0"]
        )
    has_html = config.input.has_html(names)
    model = CostModel(
        config, calibration, cluster, num_files, input_bytes, has_html, num_previous_splits
    )
    found = model.estimate_run()
    return replace(found, warnings=tuple(find_warnings(model, found)))


def estimate_plan(
    plan: RunPlan, cluster: Cluster, calibration: Calibration | None = None
) -> RunEstimate:
    """Estimate a planned run.

    Args:
        plan: its input splits are estimated; it has at least one.
        cluster: the machines.
        calibration: the measured rates; None: the shipped ones.
    """
    config, names = plan.config, list_names(plan)
    # The sizes of the files of a snapshot are known to the server only.
    crawl = config.input.common_crawl
    is_snapshot = crawl is not None and crawl.pages is None
    input_bytes = float(sum(split.num_bytes for split in plan.splits))
    return estimate(
        config,
        calibration or read_shipped(has_html=config.input.has_html(names)),
        cluster,
        names=names,
        num_files=sum(len(split.files) for split in plan.splits),
        input_bytes=None if is_snapshot else input_bytes,
        num_previous_splits=len(plan.previous_splits),
    )


def list_names(plan: RunPlan) -> list[str]:
    """Return the names of the files of the first input split."""
    return [file.location for split in plan.splits[:1] for file in split.files]


def estimate_here(plan: RunPlan) -> RunEstimate:
    """Estimate a planned run on this machine."""
    return estimate_plan(plan, describe_cluster(plan.config, 1, None, None, None))


def describe_cluster(
    config: RunConfig,
    nodes: int,
    cores: int | None,
    memory_gb: float | None,
    price_per_core_hour: float | None,
    **others: float | None,
) -> Cluster:
    """Return a cluster, with the cores and the memory of this machine where they are None."""
    folder = Path(config.run_dir).absolute()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    is_this_machine = nodes == 1 and cores is None and "://" not in config.run_dir
    own_memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return Cluster(
        nodes=nodes,
        cores=cores or config.engine.workers or os.cpu_count() or 1,
        memory_gb=memory_gb or own_memory_gb,
        price_per_core_hour=price_per_core_hour,
        disk_gb=shutil.disk_usage(existing).free / 1e9 if is_this_machine else None,
        **others,
    )
