"""Measure the rates of this machine that `python -m pipeline plan` uses for its cost estimate.

    python -m benchmarks.runs.calibrate --save                        fit two runs of the demo; minutes
    python -m benchmarks.runs.calibrate --runs runs/a runs/b          fit finished runs of one config, such as fineweb.yaml
    python -m benchmarks.runs.calibrate --runs runs/a --check runs/c  also compare predictions with other runs

Input splits of two sizes separate the cost of a task from the cost of its contents. The runs use the in-process
engine, because other work on the machine disturbs the CPU time of a single process least. Hash partitions run again,
because the first one in a process includes loading. `--out` writes a file for `plan --calibration`; the shipped ones are
pipeline/capacity/calibration.json, and calibration-warc.json of fineweb.yaml with `extract.url` over real pages.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.demo_chain import BYTES_PER_DOCUMENT, load_demo_config
from benchmarks.frame import finish, make_parser, print_table
from benchmarks.result_file import describe_machine, read_commit
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

Figures = dict[str, float]

FIGURE_NAMES: tuple[str, ...] = ("tasks", "files", "bytes", "cpu_s", "peak_mb")


@dataclass(frozen=True)
class Comparison:
    """Predicted and measured figures of one phase, or of a whole run."""

    phase: str
    predicted: Figures
    measured: Figures


def measure(num_docs: Sequence[int], folder: Path, num_files: int) -> list[RunFolder]:
    """Run the demo once per size, each in a new process: its first task shows the cost of starting."""
    run_dirs = [folder / str(count) for count in num_docs]
    for count, run_dir in zip(num_docs, run_dirs, strict=True):
        with ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn")
        ) as pool:
            pool.submit(_run, count, run_dir, num_files).result()
    return [RunFolder.open(run_dir) for run_dir in run_dirs]


def _run(num_docs: int, run_dir: Path, num_files: int) -> None:
    megabytes = num_docs * BYTES_PER_DOCUMENT / 1e6
    config = load_demo_config(megabytes, run_dir, "engine.kind=inline", num_files=num_files)
    for _ in run(make_plan(config)):
        pass
    run_partitions_again(RunFolder.open(run_dir))


def run_partitions_again(run_folder: RunFolder) -> None:
    """Run the tasks of all hash partitions twice more, and add them to the event log. The outputs do not change."""
    plan = load_plan(run_folder)
    with open_log(run_folder.run_dir) as add:
        for phase_class in registry.list_enabled(plan.config):
            if phase_class.task_kind != "partitions":
                continue
            phase = phase_class(plan)
            for task_id in [*phase.task_ids()] * 2:
                result = run_task(phase, task_id, run_folder.config.engine)
                values = dict(vars(result))
                del values["damage"]  # it has a separate event
                event = TaskFinished(phase.name, **values)
                add({"event": "TaskFinished", **asdict(event)})


def calibrate(runs: Sequence[RunFolder], source: str) -> Calibration:
    """Return the rates fitted to the runs, with machine, commit and date."""
    machine = describe_machine()
    return fit(
        runs,
        source=source,
        machine=f"{machine['cpu']}, {machine['num_cpus']} cores, {machine['memory_gb']} GB",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=read_commit() or "",
    )


def compare(calibration: Calibration, run_folder: RunFolder) -> list[Comparison]:
    """Return predicted and measured figures per phase of a run that was not used for the calibration."""
    measured = measure_tasks(run_folder)
    comparisons: list[Comparison] = []
    for phase in predict(calibration, run_folder).phases:
        if not phase.num_tasks or phase.name not in measured:
            continue
        predicted = {
            "tasks": phase.num_tasks,
            "files": phase.num_files,
            "bytes": round(phase.bytes_written),
            "cpu_s": round(phase.cpu_hours * 3600, 2),
            "peak_mb": round(phase.memory_mb, 1),
        }
        comparisons.append(Comparison(phase.name, predicted, measured[phase.name]))
    return comparisons


def predict(calibration: Calibration, run_folder: RunFolder) -> Any:
    """Return the cost estimate for the input files of a finished run."""
    config = run_folder.config
    one_file = config.input.model_copy(update={"files_per_split": 1})
    config = config.model_copy(update={"input": one_file})
    extract = run_folder.folder("extract")
    input_bytes = 0
    for split in run_folder.splits:
        input_bytes += extract.record(split.key)["counters"]["counts"]["file_bytes"]
    cluster = Cluster(nodes=1, cores=1, memory_gb=64)
    num_files = len(run_folder.splits)
    return estimate(
        config, calibration, cluster, num_files=num_files, input_bytes=float(input_bytes)
    )


def measure_tasks(run_folder: RunFolder) -> dict[str, Figures]:
    """Return the figures of each phase from the event log and the done-records."""
    figures: dict[str, Figures] = {}
    seen: set[tuple[str, str]] = set()
    for event in run_folder.read_events():
        if event["event"] != "TaskFinished" or (event["phase"], event["task_id"]) in seen:
            continue
        seen.add((event["phase"], event["task_id"]))
        record = run_folder.folder(event["phase"]).record(event["task_id"])
        outputs = record["outputs"].values()
        phase = figures.setdefault(event["phase"], dict.fromkeys(FIGURE_NAMES, 0))
        phase["tasks"] += 1
        phase["files"] += len(outputs) + 1  # and the done-record
        phase["bytes"] += sum(output["bytes"] for output in outputs)
        phase["cpu_s"] += sum(event["cpu_seconds"].values())
        phase["peak_mb"] = max(phase["peak_mb"], event["peak_mb"])
    for phase in figures.values():
        phase["cpu_s"] = round(phase["cpu_s"], 2)
    return figures


def print_comparisons(num_docs: int, comparisons: Sequence[Comparison]) -> None:
    """Print predicted and measured figures, one line per phase and one for the run."""
    names = tuple(comparisons[0].predicted)
    print(f"{num_docs:,} documents: predicted / measured")
    predicted = add_up([row.predicted for row in comparisons])
    measured = add_up([row.measured for row in comparisons])
    rows: list[tuple[str, ...]] = []
    for row in [*comparisons, Comparison("total", predicted, measured)]:
        cells = [_format_pair(row.predicted[name], row.measured[name]) for name in names]
        rows.append((row.phase, *cells))
    print_table(("phase", *names), rows)


def _format_pair(predicted: float, measured: float) -> str:
    if not measured:
        return ""
    return f"{predicted:,.0f} / {measured:,.0f} ({predicted / measured - 1:+.0%})"


def add_up(phases: Sequence[Figures]) -> Figures:
    """Return the sum of every figure over the phases; of the peak memory, the maximum."""
    total: Figures = {}
    for name in phases[0]:
        values = [phase[name] for phase in phases]
        total[name] = max(values) if name == "peak_mb" else sum(values)
    return total


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--documents",
        type=int,
        nargs="+",
        default=[20_000, 1_000],
        help="sizes of the runs",
    )
    parser.add_argument("--files", type=int, default=8, help="input files of each run")
    parser.add_argument(
        "--runs", type=Path, nargs="*", default=[], help="fit these finished runs"
    )
    parser.add_argument(
        "--check", type=Path, nargs="*", default=[], help="finished runs to compare with"
    )
    parser.add_argument("--source", help="what --runs have run, in words")
    parser.add_argument("--out", type=Path, help="write the calibration to this file")
    return parser.parse_args()


def main() -> None:
    """Fit the calibration, compare it with other runs, and write it with `--out` or `--save`."""
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="corpusmill-") as folder:
        runs = [RunFolder.open(path) for path in args.runs]
        runs = runs or measure(args.documents, Path(folder), args.files)
        sizes = dict.fromkeys(f"{_count_docs(run_folder):,}" for run_folder in runs)
        chain = args.source or "the demo's chain over the sample crawl"
        source = f"{chain} ({', '.join(sizes)} documents)"
        calibration = calibrate(runs, source)
    if args.out:
        text = calibration.model_dump_json(indent=1)
        # A line of the file for each line of the model.
        text = re.sub(r'\{\s+("fixed": \S+)\s+("rate": \S+)\s+\}', r"{\1 \2}", text)
        args.out.write_text(text + "\n", encoding="utf-8")
    result: dict[str, Any] = {"calibration": calibration.model_dump(), "checks": {}}
    for path in args.check:
        run_folder = RunFolder.open(path)
        comparisons = compare(calibration, run_folder)
        num_docs = _count_docs(run_folder)
        print_comparisons(num_docs, comparisons)
        result["checks"][str(num_docs)] = [asdict(row) for row in comparisons]
    finish(args, "calibrate", result)


def _count_docs(run_folder: RunFolder) -> int:
    extract = run_folder.folder("extract")
    records = [extract.record(split.key) for split in run_folder.splits]
    return sum(record["counters"]["counts"]["documents"] for record in records)


if __name__ == "__main__":
    main()
