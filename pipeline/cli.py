"""The command line: `python -m pipeline run|plan|status|report|explain|samples|...`.

The commands parse arguments and print. Each imports what it needs when it is called, because
`--help` must not load Ray, Arrow or numba.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipeline.commands.clean import clean
from pipeline.commands.export import export
from pipeline.commands.init import init, schema
from pipeline.commands.models import models_app
from pipeline.commands.retract import retract
from pipeline.commands.runs import Overrides, write_report
from pipeline.commands.runs import app as runs_app
from pipeline.commands.verify import verify
from pipeline.supervisor import keep_plan, read_kept_plan, report_exit, supervise
from pipeline.terminal import (
    DONE,
    TOO_MUCH_QUARANTINED,
    WRONG_USAGE,
    CommandGroup,
    answer,
    console,
    errors,
    fail,
    set_up_process,
    with_output_options,
)
from terminal_output import format_command, format_count

if TYPE_CHECKING:
    from pipeline.capacity.calibration import Calibration
    from pipeline.capacity.model import Cluster, RunEstimate
    from pipeline.config import RunConfig
    from pipeline.planning.plan import RunPlan
    from pipeline.reporting.report import Report
    from pipeline.runs.run_folder import RunFolder

HELP = """
Turn Common Crawl files into tokenized WebDataset shards: the CCNet chain on Ray Data.

Exit codes: 0 done; 1 failed, finished tasks are kept; 2 wrong config or usage; 3 done, but more
input could not be read than input.max_quarantined_share or input.max_lost_files_share allows;
4 runs that differ, with `diff --exit-code`.
"""

# The commands. `main` and the `corpusmill` program (console.py) add the options before
# them.
app = typer.Typer(help=HELP)

app.command()(with_output_options(init))
app.command()(with_output_options(schema))
app.add_typer(models_app, name="models")
app.add_typer(runs_app, name="")

ConfigFile = Annotated[
    str,
    typer.Argument(help="A YAML file, or the name of one in configs/.", metavar="CONFIG"),
]
RunDir = Annotated[
    str | None, typer.Option(help="Folder of the run, instead of the config's run_dir.")
]
EngineKind = Annotated[
    str | None,
    typer.Option(metavar="auto|ray|inline", help="Instead of the config's engine.kind."),
]
NumFiles = Annotated[
    int | None,
    typer.Option(min=1, help="Estimate for this many input files, without listing any."),
]
NumNodes = Annotated[int, typer.Option(min=1, help="Number of machines.")]
NumCores = Annotated[
    int | None, typer.Option(min=1, help="Cores per machine. Default: as this machine.")
]
MemoryGb = Annotated[
    float | None,
    typer.Option(help="Memory per machine in 10^9 bytes. Default: as this machine."),
]
ScratchGb = Annotated[
    float | None,
    typer.Option(min=0, help="Free local disk per machine in 10^9 bytes. Default: enough."),
]
HeadMemoryGb = Annotated[
    float | None,
    typer.Option(
        min=0, help="Memory of the driver's machine in 10^9 bytes. Default: as the others."
    ),
]
Price = Annotated[
    float | None,
    typer.Option(min=0, help="Price of a core for an hour, in any currency."),
]
CalibrationRates = Annotated[
    str | None,
    typer.Option(
        help="Rates: a finished run, or a .json file. Default: the shipped rates."
    ),
]
Preflight = Annotated[
    bool,
    typer.Option(
        "--preflight",
        help="Only fetch, make and open what the run needs, as `run` does before its first task.",
    ),
]


def main() -> NoReturn:
    """Run the command line. Every expected error becomes a message and an exit code."""
    set_up_process()
    try:
        make_program()()
    except SystemExit as end:
        report_exit(end.code if isinstance(end.code, int) else DONE)
        raise
    raise AssertionError("Typer ends the process")


def make_program() -> typer.Typer:
    """Return the program `python -m pipeline`."""
    program = typer.Typer(
        help=HELP,
        cls=CommandGroup,
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    program.callback()(_read_root_options)
    # without a name, its commands are commands of the program
    program.add_typer(app, name="")
    return program


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"corpusmill {metadata.version('corpusmill')}")
        raise typer.Exit


def _read_root_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Read the options before the command. Their callbacks do the work."""
    del version


# ------------------------------------------------------------------------------------------ run


@app.command()
@with_output_options
def run(
    config: ConfigFile,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    engine: EngineKind = None,
) -> None:
    """Run a config, from crawl files to shards.

    Tasks that are finished already are skipped.
    """
    supervise()
    started = time.monotonic()
    with postpone_garbage_collection():
        from pipeline.capacity.estimate import estimate_here
        from pipeline.execution.engine import run as run_plan
        from pipeline.reporting.progress import RunProgress
        from pipeline.reporting.prometheus import RunMetrics
        from pipeline.reporting.report import print_report
        from pipeline.runs.run_folder import RunFolder

        plan = read_kept_plan()
        if plan is None:
            plan = _make_plan(config, _load_config(config, overrides, run_dir, engine))
            keep_plan(plan)
        _check_plan(plan)
    metrics = RunMetrics(plan)
    expected = estimate_here(plan)
    planned_s = {each.name: 3600 * each.hours for each in expected.phases}
    with RunProgress(console, planned_s, expected.amounts["documents"]) as progress:
        for event in run_plan(plan, on_documents=progress.show_documents):
            progress.show(event)
            metrics.record(event)
    found = RunFolder.open(plan.run_dir)
    report = write_report(found)
    if not console.quiet:
        console.print()
        print_report(report, console)
        console.print()
    outcome = _Outcome(plan, found, report, progress.num_tasks, time.monotonic() - started)
    done = outcome.describe()
    shown = done.partition("\n")[0] if console.quiet else done
    answer(outcome.to_value, lambda: console.print(shown))
    if outcome.faults:
        fail("\n".join(outcome.faults), TOO_MUCH_QUARANTINED)


@contextlib.contextmanager
def postpone_garbage_collection() -> Generator[None]:
    """Disable the garbage collector in the block, and exclude the block's objects from it.

    Modules and models live as long as the process. Python examines them again and again
    while they are loaded, which takes 0.6 of the 4 CPU seconds of a small run.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _make_plan(config: str, settings: RunConfig) -> RunPlan:
    """Fetch and make what a run needs, and return its plan."""
    from pipeline.execution.engine import check_run_dir
    from pipeline.planning.plan import make_plan
    from pipeline.planning.prepare import describe_demo_models, prepare

    check_run_dir(settings)
    if note := describe_demo_models(settings):
        console.print(note)
    prepare(settings)
    plan = make_plan(settings)
    if not plan.splits:
        fail(f"{config}: the input has no files; check the section `input`", WRONG_USAGE)
    return plan


def _check_plan(plan: RunPlan) -> None:
    """Open the models of a run, and warn about a full disk."""
    from pipeline.execution.choose_engine import runs_in_this_process
    from pipeline.planning.preflight import check_models, find_shortage_of_disk

    check_models(plan, keeps_open=runs_in_this_process(plan))
    if shortage := find_shortage_of_disk(plan):
        errors.print(shortage, style="yellow")


@dataclass(frozen=True)
class _Outcome:
    """What a run has done.

    Attributes:
        num_tasks: tasks that it has finished; those that were finished before do not count.
    """

    plan: RunPlan
    found: RunFolder
    report: Report
    num_tasks: int
    seconds: float

    @property
    def faults(self) -> list[str]:
        """The limits on unreadable input that the run exceeds, and where the causes are."""
        from pipeline.reporting.report import list_exceeded_limits

        faults = list_exceeded_limits(self.report, self.plan.config.input)
        if faults:
            root = self.found.folder("extract").root
            faults.append(f"causes: {root}/*.quarantine.jsonl")
        return faults

    @property
    def dataset(self) -> str | None:
        """The manifest of the dataset; None: no document was kept."""
        from pipeline.execution.engine import DATASET_LINK

        if not self.report.num_tokens:
            return None
        run_dir = self.plan.run_dir
        # In a bucket, only our loader can follow the link.
        folder = self.found.dataset if run_dir.is_remote else run_dir.child(DATASET_LINK)
        return f"{folder}/manifest.json"

    def to_value(self) -> dict[str, object]:
        """Return the outcome with the report, for JSON."""
        return {
            "run_dir": str(self.plan.run_dir),
            "dataset": self.dataset,
            "num_tasks": self.num_tasks,
            "seconds": round(self.seconds, 1),
            "faults": self.faults,
            "report": self.report,
        }

    def describe(self) -> str:
        """Return what was done, where the dataset is, and the commands to look at it."""
        num = self.num_tasks
        done = f"{format_count(num, 'task')} done" if num else "nothing was left to do"
        done = f"{done}, in {self.seconds:.1f} s"
        if self.dataset is None:
            return f"{done}. The dataset is empty: no document was kept"
        run_dir, command = self.plan.run_dir, format_command("pipeline")
        explain = f"{command} explain {run_dir} URL"
        verify, report = f"{command} verify {run_dir}", f"{run_dir}/report.html"
        width = max(len(explain), len(report))
        return (
            f"{done}. The dataset: {self.dataset}\n"
            f"Next:  {explain:{width}}   show why a page is in the dataset or not\n"
            f"       {verify:{width}}   check every shard\n"
            f"       {report:{width}}   this summary as a page"
        )


# ----------------------------------------------------------------------------------------- plan


@app.command()
@with_output_options
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    engine: EngineKind = None,
    files: NumFiles = None,
    nodes: NumNodes = 1,
    cores: NumCores = None,
    memory_gb: MemoryGb = None,
    scratch_gb: ScratchGb = None,
    head_memory_gb: HeadMemoryGb = None,
    price_per_core_hour: Price = None,
    calibration: CalibrationRates = None,
    preflight: Preflight = False,
) -> None:
    """Show what `run` would do and what it would cost.

    Starts and downloads nothing, except with --preflight.
    """
    from pipeline.capacity.estimate import describe_cluster
    from pipeline.capacity.estimate_report import print_estimate, to_json

    settings = _load_config(config, overrides, run_dir, engine)
    if preflight:
        _check_only(config, settings)
        return
    cluster = describe_cluster(
        settings,
        nodes,
        cores,
        memory_gb,
        price_per_core_hour,
        scratch_gb=scratch_gb,
        head_memory_gb=head_memory_gb,
    )
    found = _estimate(settings, files, cluster, calibration)
    if found is not None:
        console.print()
        answer(to_json(found), lambda: print_estimate(found, console))


def _estimate(
    settings: RunConfig, files: int | None, cluster: Cluster, calibration: str | None
) -> RunEstimate | None:
    """Return the estimate of a run over this many files, or over its input, whose plan is shown; None: it has none."""
    from pipeline.capacity.estimate import estimate, estimate_plan, list_names
    from pipeline.planning.plan import find_previous_runs

    if files is None:
        planned = _show_plan(settings)
        if not planned.splits:
            return None
        rates = _read_rates(calibration, settings, list_names(planned))
        return estimate_plan(planned, cluster, rates)
    num_previous_splits = sum(len(run.splits) for run in find_previous_runs(settings))
    return estimate(
        settings,
        _read_rates(calibration, settings, ()),
        cluster,
        num_files=files,
        num_previous_splits=num_previous_splits,
    )


def _check_only(config: str, settings: RunConfig) -> None:
    """Fetch, make and open what a run needs, and answer that it can start."""
    planned = _make_plan(config, settings)
    _check_plan(planned)
    num_files = sum(len(split.files) for split in planned.splits)
    message = f"Ready to run: {num_files:,} input files, and every model opens."
    answer({"num_files": num_files}, lambda: console.print(message))


def _show_plan(settings: RunConfig) -> RunPlan:
    """Print the plan and return it."""
    from pipeline.planning.plan import make_plan
    from pipeline.planning.prepare import describe_demo_models, is_prepared
    from pipeline.reporting.plan_table import print_plan

    if not is_prepared(settings):
        console.print(
            "Some models or the sample crawl are missing on this machine; `run` makes them first. "
            "Unknown values are shown as —.\n"
        )
    planned = make_plan(settings)
    print_plan(planned, console)
    if note := describe_demo_models(settings):
        console.print(note)
    return planned


def _read_rates(
    calibration: str | None, settings: RunConfig, names: Sequence[str]
) -> Calibration:
    """Return the rates of a run or of a file. The shipped rates fill in what was not measured."""
    from pipeline.capacity.calibration import read_calibration, read_shipped
    from pipeline.capacity.fit import fit
    from pipeline.runs.run_folder import RunFolder

    shipped = read_shipped(has_html=settings.input.has_html(names))
    if calibration is None:
        return shipped
    if calibration.endswith(".json"):
        measured = read_calibration(Path(calibration))
    else:
        measured = fit([RunFolder.open(calibration)])
    return measured.filled_by(shipped)


# ---------------------------------------------------------------------------- checking a dataset


app.command()(with_output_options(verify))
app.command()(with_output_options(retract))


app.command()(with_output_options(export))
app.command()(with_output_options(clean))


@app.command(name="sample-crawl")
@with_output_options
def sample_crawl(
    out: Annotated[Path, typer.Argument(help="Folder to create.")],
    documents: Annotated[int, typer.Option(min=100, help="Number of pages.")] = 20_000,
    seed: Annotated[
        int, typer.Option(min=0, help="The same seed gives the same bytes.")
    ] = 1,
    format: Annotated[
        str, typer.Option("--format", metavar="wet|warc", help="Extracted text, or HTML.")
    ] = "wet",
) -> None:
    """Make a sample crawl from real texts.

    Also writes a table with the decision that each page must get.
    """
    from pipeline.sample_crawl.generator import generate

    if format not in ("wet", "warc"):
        fail(f"--format is {format!r}, expected wet or warc", WRONG_USAGE)
    crawl = generate(out, num_documents=documents, seed=seed, format=format)
    message = (
        f"{format_count(documents, 'page')} in {format_count(len(crawl.files), 'file')} "
        f"under {out}; "
        f"the expected decisions are in {crawl.truth}"
    )
    files = [str(file) for file in crawl.files]
    value = {"num_documents": documents, "files": files, "truth": str(crawl.truth)}
    answer(value, lambda: console.print(message))


def _load_config(
    config: str, overrides: list[str] | None, run_dir: str | None, engine: str | None
) -> RunConfig:
    from pipeline.config import load

    changes = list(overrides or [])
    if run_dir:
        changes.append(f"run_dir={run_dir}")
    if engine:
        changes.append(f"engine.kind={engine}")
    return load(config, changes)
