"""The command line: `python -m pipeline run|plan|status|report|explain|recut|verify|export|models|sample-crawl`.

Parses and prints, decides nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

DONE, FAILED, WRONG_USAGE, TOO_MUCH_QUARANTINED, TERMINATED = 0, 1, 2, 3, 128 + signal.SIGTERM

EXIT_CODES = """
Exit codes: 0 done; 1 failed, what is done stays done; 2 wrong config or usage; 3 done, but more input was
quarantined than input.max_quarantined_share allows.
"""

app = typer.Typer(
    name="pipeline",
    help="Common Crawl to tokenized WebDataset shards: the CCNet chain on Ray Data." + EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(
    help="Models and texts: what there is, fetching it, training your own.", no_args_is_help=True
)
train_app = typer.Typer(help="Train models from your own texts.", no_args_is_help=True)
app.add_typer(models_app, name="models")
models_app.add_typer(train_app, name="train")

Config = Annotated[
    str, typer.Argument(help="A YAML file, or the name of one in configs/.", metavar="CONFIG")
]
RunAddress = Annotated[
    str,
    typer.Argument(help="Folder of a run; s3://bucket/folder for one in a bucket.", metavar="RUN"),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key, e.g. select.language.min_score=0.65."
    ),
]
RunDir = Annotated[
    str | None, typer.Option(help="Folder of the run, instead of the config's run_dir.")
]
Engine = Annotated[
    str | None, typer.Option(metavar="ray|inline", help="Instead of the config's engine.kind.")
]

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


@app.command()
def run(
    config: Config,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    engine: Engine = None,
) -> None:
    """Run a config from crawl to shards; what is done already is not done again."""
    from pipeline.execution.engine import check
    from pipeline.execution.engine import run as run_plan
    from pipeline.planning.plan import make_plan
    from pipeline.planning.prepare import prepare
    from pipeline.reporting.progress import RunProgress
    from pipeline.reporting.prometheus import RunMetrics

    started = time.monotonic()
    settings = _load(config, overrides, run_dir, engine)
    check(settings)
    prepare(settings, _say)
    plan = make_plan(settings)
    if not plan.splits:
        _fail(f"{config}: the input has no files", WRONG_USAGE)
    metrics = RunMetrics(plan)
    with RunProgress(console) as progress:
        for event in run_plan(plan):
            progress.show(event)
            metrics.note(event)
    verb = (
        "nothing was left to do"
        if progress.num_tasks == 0
        else f"{progress.num_tasks} pieces of work done"
    )
    _close(plan, f"{verb}, in {time.monotonic() - started:.1f} s")


def _close(plan: Any, what_was_done: str) -> None:
    """Write the report of a run that has ended and print it, with where to look next; exit if too much was broken."""
    from pipeline.execution.engine import DATASET_LINK
    from pipeline.reporting import report
    from pipeline.runs.phase_folder import write_atomically
    from pipeline.runs.run_folder import RunFolder

    found = RunFolder.open(plan.run_dir)
    account = report.make_report(found)
    write_atomically(plan.run_dir / "report.html", report.to_html(account).encode())
    write_atomically(plan.run_dir / "report.json", report.to_json(account).encode())
    console.print()
    report.print_report(account, console)
    # in a bucket the link is for our loader alone
    dataset = plan.run_dir / DATASET_LINK if isinstance(plan.run_dir, Path) else found.dataset
    console.print(f"\n{what_was_done}. The dataset: {dataset}/manifest.json", markup=False)
    console.print(
        f"Next:  python -m pipeline explain {plan.run_dir} URL    why a page is, or is not, in the dataset\n"
        f"       python -m pipeline verify {plan.run_dir}         rehash and recount every shard\n"
        f"       {plan.run_dir}/report.html                       this summary as a page",
        markup=False,
    )
    if account.quarantined_share > (allowed := plan.config.input.max_quarantined_share):
        _fail(
            f"{account.quarantined_share:.2%} of the records are quarantined, input.max_quarantined_share allows "
            f"{allowed:.2%}; see {found.folder('extract').root}/*.quarantine.jsonl",
            TOO_MUCH_QUARANTINED,
        )


@app.command()
def plan(
    config: Config,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    engine: Engine = None,
    files: Annotated[
        int | None,
        typer.Option(
            min=1, help="What so many files would take: as if the input had them; lists nothing."
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Of each machine; default: as this one.")
    ] = None,
    memory_gb: Annotated[
        float | None, typer.Option(help="Of each machine (10^9 bytes); default: as this one.")
    ] = None,
    price_per_core_hour: Annotated[
        float | None, typer.Option(min=0, help="In whatever money.")
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Rates: a finished run, or a .json file; default: those that are shipped."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what it will take as JSON.")
    ] = False,
) -> None:
    """Show what `run` would do, what is done already, and what it will take. Starts nothing, fetches nothing."""
    from pipeline.capacity import estimate as cost
    from pipeline.capacity import estimate_report as cost_report
    from pipeline.planning.plan import make_plan
    from pipeline.planning.prepare import is_prepared
    from pipeline.reporting import report
    from pipeline.runs.run_folder import RunFolder

    settings = _load(config, overrides, run_dir, engine)
    rates = shipped = cost.read_calibration()
    if calibration is not None:
        is_file = calibration.endswith(".json")
        own = (
            cost.read_calibration(Path(calibration))
            if is_file
            else cost.fit([RunFolder.open(calibration)])
        )
        rates = own.filled_by(shipped)
    input_bytes: float | None = None
    if files is None:
        if not is_prepared(settings) and not as_json:
            console.print(
                "Some models or the sample crawl are not here yet: `run` makes them first. "
                "What is unknown is shown as —.\n"
            )
        planned = make_plan(settings)
        if not as_json:
            report.print_plan(planned, console)
        files = sum(len(split.files) for split in planned.splits)
        input_bytes = float(sum(split.num_bytes for split in planned.splits))
        if not files:
            return
    is_snapshot = settings.input.common_crawl is not None
    cluster = cost.this_machine(settings, nodes, cores, memory_gb, price_per_core_hour)
    found = cost.estimate(
        settings, rates, cluster, num_files=files, input_bytes=None if is_snapshot else input_bytes
    )
    if as_json:
        sys.stdout.write(cost_report.to_json(found))
        return
    console.print()
    cost_report.print_cost(found, console)


@app.command(name="report")
def report_(
    run: RunAddress, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show the summary of a run again, and write its page anew."""
    from pipeline.reporting import report
    from pipeline.runs.phase_folder import write_atomically
    from pipeline.runs.run_folder import RunFolder

    found = RunFolder.open(run)
    account = report.make_report(found)
    if as_json:
        sys.stdout.write(report.to_json(account))
        return
    write_atomically(found.run_dir / "report.html", report.to_html(account).encode())
    report.print_report(account, console)
    console.print(f"\nAs a page: {run}/report.html")


@app.command()
def status(
    run: RunAddress, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show how far a run is, with rates and an end estimate, from its folder alone: from any machine, without Ray."""
    from pipeline.reporting import status as watching
    from pipeline.runs.run_folder import RunFolder

    found = watching.read_status(RunFolder.open(run), now=time.time())
    if as_json:
        sys.stdout.write(watching.to_json(found))
        return
    watching.print_status(found, console)


@app.command()
def explain(
    run: RunAddress, document: Annotated[str, typer.Argument(help="A URL or a doc_id.")]
) -> None:
    """Tell a document's whole story: where it stood, what was taken from it, its scores, why it was kept or dropped."""
    from pipeline.reporting.explain import explain as explain_document
    from pipeline.runs.run_folder import RunFolder

    for trace in explain_document(RunFolder.open(run), document):
        for line in trace.lines:
            console.print(line, markup=False)
        console.print()


@app.command()
def preview(
    run: RunAddress,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what other thresholds of `select` would keep and drop, from stored scores, in seconds. Writes nothing."""
    from pipeline.reporting import preview as previewing
    from pipeline.runs.run_folder import RunFolder

    if not overrides:
        _fail(
            "nothing to recut: name a threshold, such as --set select.language.min_score=0.65",
            WRONG_USAGE,
        )
    found = previewing.preview(RunFolder.open(run), overrides)
    if as_json:
        sys.stdout.write(previewing.to_json(found))
        return
    previewing.print_preview(found, console)


@app.command()
def verify(
    dataset: Annotated[
        str,
        typer.Argument(help="Folder of a run, or of a dataset (with manifest.json); s3://... too."),
    ],
) -> None:
    """Rehash and recount a finished dataset, and read it as the world will: with plain webdataset.

    Exit code 1 and one line per fault if something is wrong.
    """
    from webdataset.compat import WebDataset
    from webdataset.gopen import gopen_schemes

    from pipeline.runs.phase_folder import parse_location
    from pipeline.runs.run_folder import RunFolder
    from shardwriter import verify as verify_dataset
    from shardwriter.format import MANIFEST_FILE, Manifest

    folder = parse_location(dataset)
    if not (folder / MANIFEST_FILE).exists():
        folder = RunFolder.open(dataset).dataset
    findings = verify_dataset(folder)
    for finding in findings:
        console.print(str(finding), markup=False)
    if findings:
        _fail(f"{folder}: {len(findings)} faults", FAILED)
    manifest = Manifest.loads((folder / MANIFEST_FILE).read_bytes(), str(folder / MANIFEST_FILE))
    shards = [str(folder / shard.file) for shard in manifest.shards]
    gopen_schemes["s3"] = lambda url, mode, _: parse_location(url).open(mode)
    num_samples = (
        sum(1 for _ in WebDataset(shards, shardshuffle=False, empty_check=False)) if shards else 0
    )
    if num_samples != manifest.totals.num_samples:
        _fail(
            f"{folder}: webdataset reads {num_samples:,} samples, the manifest has {manifest.totals.num_samples:,}",
            FAILED,
        )
    console.print(f"{folder}: every shard, index and count is as the manifest says")
    console.print(
        f"webdataset reads {num_samples:,} samples from {len(shards)} shards", markup=False
    )


@app.command()
def export(run: RunAddress, out: Annotated[Path, typer.Argument(help="Folder to make.")]) -> None:
    """Write the kept documents as CCNet does: JSON lines, one gzip file per language and bucket."""
    from pipeline.reporting.export import export_ccnet
    from pipeline.runs.run_folder import RunFolder

    written = export_ccnet(RunFolder.open(run), out)
    for name, num_docs in sorted(written.items()):
        console.print(f"{num_docs:>10,}  {out / name}", markup=False)


@app.command(name="sample-crawl")
def sample_crawl(
    out: Annotated[Path, typer.Argument(help="Folder to make.")],
    documents: Annotated[int, typer.Option(min=100, help="Pages.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same bytes.")] = 1,
    format: Annotated[
        str, typer.Option("--format", metavar="wet|warc", help="Extracted text, or HTML.")
    ] = "wet",
) -> None:
    """Make a crawl from real texts, with a truth table that says what must happen to each page."""
    from pipeline.sample_crawl.generator import generate

    if format not in ("wet", "warc"):
        _fail(f"--format is {format!r}, wanted wet or warc", WRONG_USAGE)
    crawl = generate(out, num_documents=documents, seed=seed, format=format, say=_say)
    console.print(
        f"{documents:,} pages in {len(crawl.files)} files under {out}; the truth is in {crawl.truth}"
    )


@models_app.command("list")
def models_list() -> None:
    """List the registry: what there is, where it comes from, under which licence, and what is cached here."""
    from rich.table import Table

    from pipeline.models import registry as assets

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("name", "here", "licence", "what it is"):
        table.add_column(column)
    for asset in assets.REGISTRY.values():
        table.add_row(asset.name, assets.status(asset.name), asset.licence, asset.description)
    console.print(table)
    console.print(f"\nThe cache is {assets.cache_folder()}; $CORPUSMILL_CACHE names another place.")


@models_app.command("fetch")
def models_fetch(
    names: Annotated[list[str], typer.Argument(help="Names of the registry.")],
) -> None:
    """Fetch, or make, models into the cache, so that later runs need no network."""
    from pipeline.models import registry as assets

    for name in names:
        console.print(f"{name}: {assets.resolve(name, say=_say)}", markup=False)


Texts = Annotated[
    list[Path],
    typer.Option(help="Text files, one document a line (.xz and .gz too); repeat the option."),
]


@train_app.command("lm")
def train_lm(
    lang: Annotated[str, typer.Option(help="Language code, as language identification gives it.")],
    text: Texts,
    out: Annotated[
        Path, typer.Option(help="Folder to make; name it in annotate.perplexity.models.")
    ],
    vocab_size: Annotated[
        int | None,
        typer.Option(help="Pieces; default: by the size of the text, at most CCNet's 65,536."),
    ] = None,
) -> None:
    """Train CCNet's language model: SentencePiece pieces and a KenLM 5-gram over them, with percentile cutoffs."""
    from pipeline.models import training as model_training

    record = model_training.train_lm(
        model_training.read_texts(text), lang, out, vocab_size=vocab_size, say=_say
    )
    head, middle = (record["cutoffs"][percent] for percent in ("30", "60"))
    console.print(f"{out}: on held-out texts head ends at {head}, middle at {middle}", markup=False)
    console.print(f"use it as  annotate.perplexity.models.{lang}: {out}", markup=False)


@train_app.command("reference")
def train_reference(
    positive: Annotated[
        list[Path], typer.Option(help="Texts that are references, one a line; repeat the option.")
    ],
    negative: Annotated[
        list[Path], typer.Option(help="Texts of random pages, one a line; repeat the option.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder to make; name it in annotate.reference.models.")
    ],
) -> None:
    """Train LLaMA's is-reference classifier (fastText) and print how well it does on texts it has not seen."""
    from pipeline.models import training as model_training

    record = model_training.train_reference(
        model_training.read_texts(positive), model_training.read_texts(negative), out, say=_say
    )
    figures = ", ".join(f"{name} {record[name]:.3f}" for name in ("precision", "recall", "roc_auc"))
    console.print(f"{out}: on held-out texts: {figures}", markup=False)


def main() -> NoReturn:
    """Run the command line; every expected fault becomes a message and an exit code, not a traceback."""
    from config_files.reader import ConfigError
    from pipeline.execution.engine import RunAborted
    from pipeline.models.kenlm_build import TrainingFailed
    from pipeline.models.registry import AssetError
    from pipeline.runs.run_folder import RunNotFound
    from storage.object_store import StorageError

    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(standalone_mode=True)
    except ConfigError as error:
        _fail("\n".join(error.faults), WRONG_USAGE)
    except RunNotFound as error:
        _fail(str(error), WRONG_USAGE)
    except (AssetError, RunAborted, StorageError, TrainingFailed) as error:
        _fail(str(error), FAILED)
    except OSError as error:
        _fail(f"{type(error).__name__}: {error}", FAILED)
    except KeyboardInterrupt:
        _fail("interrupted; what is done stays done, run the same command again to go on", 130)
    raise AssertionError("typer ends the process")


def _terminate(*_: object) -> NoReturn:
    """End as by an exception, so that what is open is closed: `ray job stop`, a pod that is taken away, `kill`.

    It speaks at once, past Python's buffers, since who stops a process may not wait for its end.
    """
    os.write(
        2, b"stopped by SIGTERM; what is done stays done, run the same command again to go on\n"
    )
    raise SystemExit(TERMINATED)


def _load(config: str, overrides: list[str] | None, run_dir: str | None, engine: str | None) -> Any:
    from pipeline.config import load

    extra = [f"run_dir={run_dir}"] if run_dir else []
    extra += [f"engine.kind={engine}"] if engine else []
    return load(config, [*(overrides or []), *extra])


def _say(message: str) -> None:
    console.print(message, markup=False)


def _fail(message: str, code: int) -> NoReturn:
    errors.print(message, markup=False, style="red")
    raise SystemExit(code)
