"""The command line: `python -m pipeline run|plan|status|report|explain|samples|...`.

The commands parse arguments and print. Each imports what it needs when it is called, because
`--help` must not load Ray, Arrow or numba.
"""

from __future__ import annotations

import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from pipeline.cli_models import models_app
from pipeline.cli_verify import verify
from pipeline.supervisor import report_exit, supervise
from pipeline.terminal import (
    DONE,
    TOO_MUCH_QUARANTINED,
    WRONG_USAGE,
    CommandGroup,
    console,
    errors,
    fail,
    set_up_process,
)

if TYPE_CHECKING:
    from pipeline.capacity.calibration import Calibration
    from pipeline.config import RunConfig
    from pipeline.planning.plan import RunPlan
    from pipeline.reporting.report import Report
    from pipeline.runs.run_folder import RunFolder

HELP = """
Turn Common Crawl files into tokenized WebDataset shards: the CCNet chain on Ray Data.

Exit codes: 0 done; 1 failed, finished tasks are kept; 2 wrong config or usage; 3 done, but more
input could not be read than input.max_quarantined_share or input.max_lost_files_share allows.
"""

# The commands. `main` and the `corpusmill` program (console.py) add the options before
# them.
app = typer.Typer(help=HELP)

app.add_typer(models_app, name="models")

ConfigFile = Annotated[
    str,
    typer.Argument(help="A YAML file, or the name of one in configs/.", metavar="CONFIG"),
]
RunAddress = Annotated[
    str,
    typer.Argument(
        help="Folder of a run, or s3://bucket/folder for a run in a bucket.", metavar="RUN"
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. select.language.min_score=0.65.",
    ),
]
RunDir = Annotated[
    str | None, typer.Option(help="Folder of the run, instead of the config's run_dir.")
]
EngineKind = Annotated[
    str | None,
    typer.Option(metavar="auto|ray|inline", help="Instead of the config's engine.kind."),
]
Preflight = Annotated[
    bool,
    typer.Option(
        "--preflight",
        help="Only fetch, make and open what the run needs, as `run` does before its first task.",
    ),
]
ScoreRanges = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        metavar="COLUMN=LOW:HIGH",
        help="Range of a stored score, e.g. perplexity=:300. Repeatable.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
def run(
    config: ConfigFile,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    engine: EngineKind = None,
    is_quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Print only warnings, errors and where the dataset is."
        ),
    ] = False,
) -> None:
    """Run a config, from crawl files to shards.

    Tasks that are finished already are skipped.
    """
    supervise()
    from pipeline.execution.engine import run as run_plan
    from pipeline.reporting.progress import RunProgress
    from pipeline.reporting.prometheus import RunMetrics
    from pipeline.reporting.report import print_report
    from pipeline.runs.run_folder import RunFolder

    started = time.monotonic()
    console.quiet = is_quiet
    plan = _prepare_run(config, _load_config(config, overrides, run_dir, engine))
    metrics = RunMetrics(plan)
    with RunProgress(console) as progress:
        for event in run_plan(plan, on_documents=progress.show_documents):
            progress.show(event)
            metrics.record(event)
    num_tasks = progress.num_tasks
    done = f"{num_tasks} tasks done" if num_tasks else "nothing was left to do"
    found = RunFolder.open(plan.run_dir)
    report = _write_report(found)
    console.print()
    print_report(report, console)
    console.print()
    console.quiet = False
    _print_outcome(plan, found, report, f"{done}, in {time.monotonic() - started:.1f} s")


def _prepare_run(config: str, settings: RunConfig) -> RunPlan:
    """Fetch, make and open what a run needs, and return its plan."""
    from pipeline.execution.engine import check
    from pipeline.planning.plan import make_plan
    from pipeline.planning.preflight import check_models, find_shortage_of_disk
    from pipeline.planning.prepare import describe_demo_models, prepare

    check(settings)
    if note := describe_demo_models(settings):
        console.print(note)
    prepare(settings)
    plan = make_plan(settings)
    if not plan.splits:
        fail(f"{config}: the input has no files; check the section `input`", WRONG_USAGE)
    check_models(plan)
    if shortage := find_shortage_of_disk(plan):
        errors.print(shortage, style="yellow")
    return plan


def _print_outcome(
    plan: RunPlan, found: RunFolder, report: Report, what_was_done: str
) -> None:
    """Print where the dataset of a finished run is, and the next commands.

    Exits with a code if too much input could not be read.
    """
    from pipeline.reporting.report import list_exceeded_limits

    if report.num_tokens:
        outcome = _describe_dataset(plan, found)
    else:
        outcome = "The dataset is empty: no document was kept"
    console.print(f"{what_was_done}. {outcome}")
    faults = list_exceeded_limits(report, plan.config.input)
    if faults:
        faults.append(f"causes: {found.folder('extract').root}/*.quarantine.jsonl")
        fail("\n".join(faults), TOO_MUCH_QUARANTINED)


def _describe_dataset(plan: RunPlan, run: RunFolder) -> str:
    """Return where the dataset is, and the commands to look at it."""
    from pipeline.execution.engine import DATASET_LINK

    # In a bucket, only our loader can follow the link.
    dataset = run.dataset if plan.run_dir.is_remote else plan.run_dir.child(DATASET_LINK)
    return (
        f"The dataset: {dataset}/manifest.json\n"
        f"Next:  python -m pipeline explain {plan.run_dir} URL   "
        f"show why a page is in the dataset or not\n"
        f"       python -m pipeline verify {plan.run_dir}        check every shard\n"
        f"       {plan.run_dir}/report.html                      this summary as a page"
    )


def _write_report(run: RunFolder) -> Report:
    """Write the report of a run into its folder, and return it."""
    from pipeline.reporting.report import make_report, to_html, to_json

    report = make_report(run)
    run.run_dir.put("report.html", to_html(report).encode())
    run.run_dir.put("report.json", to_json(report).encode())
    return report


# ----------------------------------------------------------------------------------------- plan


@app.command()
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    engine: EngineKind = None,
    files: Annotated[
        int | None,
        typer.Option(
            min=1, help="Estimate for this many input files, without listing any."
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of machines.")] = 1,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores per machine. Default: as this machine.")
    ] = None,
    memory_gb: Annotated[
        float | None,
        typer.Option(help="Memory per machine in 10^9 bytes. Default: as this machine."),
    ] = None,
    price_per_core_hour: Annotated[
        float | None,
        typer.Option(min=0, help="Price of a core for an hour, in any currency."),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Rates: a finished run, or a .json file. Default: the shipped rates."
        ),
    ] = None,
    preflight: Preflight = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the estimate as JSON.")
    ] = False,
) -> None:
    """Show what `run` would do and what it would cost.

    Starts and downloads nothing, except with --preflight.
    """
    from pipeline.capacity.estimate import describe_cluster, estimate
    from pipeline.capacity.estimate_report import print_estimate, to_json

    settings = _load_config(config, overrides, run_dir, engine)
    if preflight:
        planned = _prepare_run(config, settings)
        num_files = sum(len(split.files) for split in planned.splits)
        console.print(f"Ready to run: {num_files:,} input files, and every model opens.")
        return
    rates = _read_rates(calibration)
    input_bytes: float | None = None
    if files is None:
        files, input_bytes = _show_plan(settings, is_quiet=as_json)
        if not files:
            return
    if settings.input.common_crawl is not None:
        input_bytes = (
            None  # the sizes of the files of a snapshot are known to the server only
        )
    cluster = describe_cluster(settings, nodes, cores, memory_gb, price_per_core_hour)
    found = estimate(settings, rates, cluster, num_files=files, input_bytes=input_bytes)
    if as_json:
        sys.stdout.write(to_json(found))
        return
    console.print()
    print_estimate(found, console)


def _show_plan(settings: RunConfig, *, is_quiet: bool) -> tuple[int, float]:
    """Print the plan and return the number of input files and their bytes."""
    from pipeline.planning.plan import make_plan
    from pipeline.planning.prepare import describe_demo_models, is_prepared
    from pipeline.reporting.plan_table import print_plan

    if not is_prepared(settings) and not is_quiet:
        console.print(
            "Some models or the sample crawl are missing on this machine; `run` makes them first. "
            "Unknown values are shown as —.\n"
        )
    planned = make_plan(settings)
    if not is_quiet:
        print_plan(planned, console)
        if note := describe_demo_models(settings):
            console.print(note)
    num_files = sum(len(split.files) for split in planned.splits)
    return num_files, float(sum(split.num_bytes for split in planned.splits))


def _read_rates(calibration: str | None) -> Calibration:
    """Return the rates of a run or of a file. The shipped rates fill in what was not measured."""
    from pipeline.capacity.calibration import read_calibration
    from pipeline.capacity.fit import fit
    from pipeline.runs.run_folder import RunFolder

    shipped = read_calibration()
    if calibration is None:
        return shipped
    if calibration.endswith(".json"):
        measured = read_calibration(Path(calibration))
    else:
        measured = fit([RunFolder.open(calibration)])
    return measured.filled_by(shipped)


# ------------------------------------------------------------------------------ looking at a run


@app.command(name="report")
def show_report(run: RunAddress, as_json: AsJson = False) -> None:
    """Print the summary of a run again.

    Also writes its report.html and report.json again.
    """
    from pipeline.reporting.report import make_report, print_report, to_json
    from pipeline.runs.run_folder import RunFolder

    found = RunFolder.open(run)
    report = make_report(found)
    if as_json:
        sys.stdout.write(to_json(report))
        return
    print_report(_write_report(found), console)
    console.print(f"\nAs a page: {run}/report.html")


@app.command()
def status(run: RunAddress, as_json: AsJson = False) -> None:
    """Show the progress of a run.

    Reads only the run folder, so any machine can run it, without Ray.
    """
    from pipeline.reporting.status import print_status, read_status, to_json
    from pipeline.runs.run_folder import RunFolder

    found = read_status(RunFolder.open(run), now=time.time())
    if as_json:
        sys.stdout.write(to_json(found))
        return
    print_status(found, console)


@app.command()
def explain(
    run: RunAddress,
    document: Annotated[str, typer.Argument(help="A URL or a doc_id.")],
    as_json: AsJson = False,
) -> None:
    """Show why a document was kept or dropped.

    Prints where it was read, its scores, every rule with its limit, and where it is stored.
    """
    from pipeline.reporting.explain import explain as trace_document
    from pipeline.reporting.explain import format_trace, to_json
    from pipeline.runs.run_folder import RunFolder

    traces = trace_document(RunFolder.open(run), document)
    if as_json:
        sys.stdout.write(to_json(traces))
        return
    for trace in traces:
        for line in format_trace(trace):
            console.print(line)
        console.print()


@app.command()
def samples(
    run: RunAddress,
    decision: Annotated[
        str | None,
        typer.Option("--decision", "--reason", help="kept, or a drop reason."),
    ] = None,
    language: Annotated[str | None, typer.Option(help="Code of a language.")] = None,
    domain: Annotated[str | None, typer.Option(help="Host of the URL.")] = None,
    scores: ScoreRanges = None,
    num_samples: Annotated[
        int, typer.Option("-n", "--num-samples", min=1, help="Number of documents.")
    ] = 10,
    seed: Annotated[
        int, typer.Option(min=0, help="The same seed draws the same documents.")
    ] = 0,
    chars: Annotated[
        int, typer.Option(min=0, help="Print the first characters of a text; 0: all.")
    ] = 600,
    before: Annotated[
        bool,
        typer.Option("--before", help="Print the text before duplicate lines are removed."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per document, with both texts."),
    ] = False,
) -> None:
    """Print random documents with a decision, language, domain or score.

    Prints the text of each. `explain` shows more about one of them.
    """
    from pipeline.reporting import samples as sampling
    from pipeline.runs.run_folder import RunFolder

    wanted = sampling.Filter(
        decision, language, domain, sampling.parse_scores(scores or [])
    )
    found = sampling.draw_samples(RunFolder.open(run), wanted, num_samples, seed)
    for sample in found:
        if as_json:
            sys.stdout.write(sampling.to_json(sample))
        else:
            console.print("\n".join(sampling.format_sample(sample, chars, before)), "\n")


@app.command()
def preview(run: RunAddress, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show what other thresholds of `select` would keep.

    Uses the stored scores. Takes seconds and writes nothing.
    """
    from pipeline.reporting.preview import preview as preview_run
    from pipeline.reporting.preview import print_preview, to_json
    from pipeline.runs.run_folder import RunFolder

    if not overrides:
        fail(
            "nothing to preview: name a threshold, such as --set select.language.min_score=0.65",
            WRONG_USAGE,
        )
    found = preview_run(RunFolder.open(run), overrides)
    if as_json:
        sys.stdout.write(to_json(found))
        return
    print_preview(found, console)


@app.command()
def browse(
    run: RunAddress,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.")
    ] = 0,
) -> None:
    """Show documents, scores and limits on a local web page.

    Prints its address, which holds a secret. Reads the run only, and serves until Ctrl-C.
    """
    from pipeline.reporting.browse import build_index, serve
    from pipeline.runs.run_folder import RunFolder

    with build_index(RunFolder.open(run)) as index:
        console.print(f"{index.num_docs:,} documents of {run}; Ctrl-C ends the server.")
        serve(index, port, console.print)


# ---------------------------------------------------------------------------- checking a dataset


app.command()(verify)


@app.command()
def export(
    run: RunAddress, out: Annotated[Path, typer.Argument(help="Folder to create.")]
) -> None:
    """Write the kept documents in CCNet's format.

    Writes one gzip file of JSON lines per language and bucket.
    """
    from pipeline.reporting.export import export_ccnet
    from pipeline.runs.run_folder import RunFolder

    written = export_ccnet(RunFolder.open(run), out)
    for name, num_docs in sorted(written.items()):
        console.print(f"{num_docs:>10,}  {out / name}")


@app.command(name="sample-crawl")
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
        f"{documents:,} pages in {len(crawl.files)} files under {out}; "
        f"the expected decisions are in {crawl.truth}"
    )
    console.print(message)


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
