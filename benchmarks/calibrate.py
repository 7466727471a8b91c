"""What does each stage take, on this machine? The rates that `python -m pipeline plan` reckons with.

    python -m benchmarks.calibrate --save                        two runs of the demo's chain, fitted; minutes
    python -m benchmarks.calibrate --runs runs/a runs/b          fitted from finished runs of one config
    python -m benchmarks.calibrate --runs runs/a --check runs/c  and held against others: predicted, measured

Units of two sizes tell what a piece of work costs from what is in it. The in-process engine is used: CPU seconds are
then one process's, and the machine's other work disturbs them least. A partition of hashes is done twice, since the
first in a process pays for loading. `--out` writes the file for `plan --calibration`; the one that is shipped is
pipeline/calibration.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.demo_chain import BYTES_PER_DOCUMENT, demo_config
from benchmarks.result_file import commit, machine, save
from pipeline.capacity.calibration import Calibration
from pipeline.capacity.estimate import estimate
from pipeline.capacity.fit import fit
from pipeline.capacity.model import Cluster
from pipeline.execution.engine import TaskFinished, run
from pipeline.execution.task import run_task
from pipeline.phases import registry
from pipeline.planning.plan import make_plan
from pipeline.planning.recorded_plan import load_plan
from pipeline.runs.event_log import open_log
from pipeline.runs.run_folder import RunFolder

NUM_FILES = 8


def measure(documents: Sequence[int], folder: Path) -> list[RunFolder]:
    """A run of the demo's chain of each size, each in a process of its own: its first work tells what starting is."""
    run_dirs = [folder / str(count) for count in documents]
    for count, run_dir in zip(documents, run_dirs, strict=True):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
            alone.submit(_run, count, run_dir).result()
    return [RunFolder.open(run_dir) for run_dir in run_dirs]


def _run(documents: int, run_dir: Path) -> None:
    megabytes = documents * BYTES_PER_DOCUMENT / 1e6
    for _ in run(
        make_plan(demo_config(megabytes, run_dir, "engine.kind=inline", num_files=NUM_FILES))
    ):
        pass
    do_partitions_again(RunFolder.open(run_dir))


def do_partitions_again(found: RunFolder) -> None:
    """Once more what each process did first, into the same log; the outputs stay as they are, byte for byte."""
    plan = load_plan(found)
    with open_log(found.run_dir) as add:
        for phase_class in registry.PHASES:
            if not phase_class.cost.is_hash_partitioned:
                continue
            phase = phase_class(plan)
            for task_id in [*phase.task_ids()] * 2:
                result = run_task(phase, task_id, found.config.engine)
                event = TaskFinished(phase.name, **vars(result))
                add({"event": "TaskFinished", **asdict(event)})


def calibrate(runs: Sequence[RunFolder], source: str) -> Calibration:
    """Fitted, with machine, commit and date."""
    here = machine()
    about = f"{here['cpu']}, {here['num_cpus']} cores, {here['memory_gb']} GB"
    where = {
        "machine": about,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit() or "",
    }
    return fit(runs, source=source, **where)


def check(calibration: Calibration, found: RunFolder) -> list[dict[str, Any]]:
    """Predicted and measured, phase by phase, of a run that the calibration has not seen."""
    config = found.config
    config = config.model_copy(
        update={"input": config.input.model_copy(update={"files_per_split": 1})}
    )
    files = [
        found.folder("extract").record(split.key)["counters"]["counts"]["file_bytes"]
        for split in found.splits
    ]
    cost = estimate(
        config, calibration, Cluster(1, 1, 64), num_files=len(files), input_bytes=float(sum(files))
    )
    cpu_s: defaultdict[str, float] = defaultdict(float)
    peak_mb: defaultdict[str, float] = defaultdict(float)
    seen: set[tuple[str, str]] = set()
    for event in found.read_events():
        if (
            event["event"] == "TaskFinished"
            and (key := (event["phase"], event["task_id"])) not in seen
        ):
            seen.add(key)
            cpu_s[event["phase"]] += sum(event["cpu_seconds"].values())
            peak_mb[event["phase"]] = max(peak_mb[event["phase"]], event["peak_mb"])
    rows: list[dict[str, Any]] = []
    for phase in cost.phases:
        if not phase.num_tasks:
            continue
        folder = found.folder(phase.name)
        task_ids = [task_id for name, task_id in seen if name == phase.name]
        records = [folder.record(task_id)["outputs"].values() for task_id in task_ids]
        measured = {
            "tasks": len(task_ids),
            "files": sum(len(outputs) + 1 for outputs in records),
            "bytes": sum(output["bytes"] for outputs in records for output in outputs),
            "cpu_s": round(cpu_s[phase.name], 2),
            "peak_mb": peak_mb[phase.name],
        }
        predicted = {
            "tasks": phase.num_tasks,
            "files": phase.num_files,
            "bytes": round(phase.bytes_written),
            "cpu_s": round(phase.cpu_hours * 3600, 2),
            "peak_mb": round(phase.memory_mb, 1),
        }
        rows.append({"phase": phase.name, "predicted": predicted, "measured": measured})
    return rows


def print_check(documents: int, rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Predicted / measured of each figure."""
    names = tuple(rows[0]["predicted"])
    table = Table("phase", *names, title=f"{documents:,} documents: predicted / measured", box=None)
    for row in [
        *rows,
        {"phase": "total", **{side: _sum(rows, side) for side in ("predicted", "measured")}},
    ]:
        pairs = [(row["predicted"][name], row["measured"][name]) for name in names]
        table.add_row(
            row["phase"],
            *(f"{a:,.0f} / {b:,.0f} ({a / b - 1:+.0%})" if b else "" for a, b in pairs),
        )
    console.print(table)


def _sum(rows: Sequence[dict[str, Any]], side: str) -> dict[str, float]:
    return {
        name: (max if name == "peak_mb" else sum)(row[side][name] for row in rows)
        for name in rows[0]["predicted"]
    }


def main() -> None:
    """Read the command line, run, print, and save where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--documents", type=int, nargs="+", default=[20_000, 1_000], help="of the runs to be made"
    )
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="finished runs instead")
    parser.add_argument(
        "--check", type=Path, nargs="*", default=[], help="finished runs to hold it against"
    )
    parser.add_argument("--out", type=Path, help="where to write the calibration")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    console = Console(width=140, highlight=False)
    with tempfile.TemporaryDirectory(prefix="corpusmill-") as folder:
        runs = [RunFolder.open(path) for path in args.runs] or measure(args.documents, Path(folder))
        sizes = ", ".join(f"{n:,}" for n in dict.fromkeys(_num_documents(one) for one in runs))
        calibration = calibrate(runs, f"the demo's chain over the sample crawl ({sizes} documents)")
    if args.out:
        args.out.write_text(calibration.model_dump_json(indent=1) + "\n", encoding="utf-8")
    result: dict[str, Any] = {
        "load": os.getloadavg()[0],
        "calibration": calibration.model_dump(),
        "checks": {},
    }
    for path in args.check:
        found = RunFolder.open(path)
        rows = check(calibration, found)
        print_check(_num_documents(found), rows, console)
        result["checks"][str(_num_documents(found))] = rows
    if args.save:
        console.print(str(save("calibrate", result)))


def _num_documents(found: RunFolder) -> int:
    return sum(
        found.folder("extract").record(split.key)["counters"]["counts"]["documents"]
        for split in found.splits
    )


if __name__ == "__main__":
    main()
