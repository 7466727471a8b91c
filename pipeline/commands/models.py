"""The commands `models list`, `models fetch` and `models train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.terminal import answer, console, with_output_options
from terminal_output import format_count

models_app = typer.Typer(
    help="List and fetch models and texts, and train your own.", no_args_is_help=True
)
train_app = typer.Typer(help="Train models from your own texts.", no_args_is_help=True)
models_app.add_typer(train_app, name="train")

OutputFolder = Annotated[
    Path, typer.Option(help="Folder to create. Name it in annotate.perplexity.models.")
]


@models_app.command("list")
@with_output_options
def list_models() -> None:
    """List the models and texts, with licences.

    Also shows which of them are in the cache of this machine.
    """
    from pipeline.models import registry
    from pipeline.reporting.tables import Table, print_tables

    rows = [
        (asset.name, registry.status(asset.name), asset.licence, asset.description)
        for asset in registry.REGISTRY.values()
    ]
    columns = ("name", "here", "licence", "description")
    models = [dict(zip(columns, row, strict=True)) for row in rows]
    cache = registry.cache_folder()

    def show() -> None:
        print_tables([Table("", columns, rows)], console)
        console.print(
            f"\nThe cache is {cache}; set $CORPUSMILL_CACHE to use another folder."
        )

    answer({"cache": str(cache), "models": models}, show)


@models_app.command("fetch")
@with_output_options
def fetch_models(
    names: Annotated[list[str], typer.Argument(help="Names from `models list`.")],
) -> None:
    """Fetch or build models into the cache.

    Later runs then need no network.
    """
    from pipeline.models import registry

    paths: dict[str, str] = {}
    for name in names:
        paths[name] = str(registry.resolve(name))
        console.print(f"{name}: {paths[name]}")
    answer(paths, lambda: None)


@train_app.command("lm")
@with_output_options
def train_lm(
    lang: Annotated[
        str, typer.Option(help="Language code, as language identification gives it.")
    ],
    text: Annotated[
        list[Path],
        typer.Option(
            help="Text files, one document per line (.xz and .gz too). Repeatable."
        ),
    ],
    out: OutputFolder,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Number of pieces. Default: by the size of the text, at most CCNet's 65,536."
        ),
    ] = None,
) -> None:
    """Train a language model as CCNet does.

    Trains SentencePiece, a KenLM 5-gram over its pieces, and percentile cutoffs.
    """
    from pipeline.models import lm_training
    from pipeline.models.corpus import read_texts

    record = lm_training.train_lm(read_texts(text), lang, out, vocab_size)
    head, middle = (record["cutoffs"][percent] for percent in ("30", "60"))
    message = (
        f"{out}: on held-out texts head ends at {head}, middle at {middle}\n"
        f"Next: set annotate.perplexity.models.{lang}: {out}"
    )
    answer(record, lambda: console.print(message))


@train_app.command("reference")
@with_output_options
def train_reference(
    positive: Annotated[
        list[Path],
        typer.Option(
            help="Texts of reference pages, one per line. Repeatable.", exists=True
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder to create. Name it in annotate.classifiers.")
    ],
    negative: Annotated[
        list[Path] | None,
        typer.Option(help="Texts of random pages, one per line. Repeatable.", exists=True),
    ] = None,
    crawl: Annotated[
        list[Path] | None,
        typer.Option(
            help="WARC files. Text that is not main content becomes negative. Repeatable.",
            exists=True,
        ),
    ] = None,
) -> None:
    """Train a reference classifier as LLaMA does, or with text outside of main content as negatives.

    Trains a fastText model, and evaluates it on pages of held-out domains of the crawl. Without
    --crawl, its figures say only how well it tells the two sources apart.
    """
    from pipeline.models import classifier_training
    from pipeline.models.corpus import read_crawl, read_texts

    if not negative and not crawl:
        raise typer.BadParameter("give --crawl (WARC files), --negative (texts), or both")
    texts = (read_texts(positive), read_texts(negative or []))
    pages = read_crawl(crawl or [])
    record = classifier_training.train_reference(*texts, out, crawl=pages)
    answer(record, lambda: _print_reference(record, out, has_crawl=bool(crawl)))


def _print_reference(record: Mapping[str, Any], out: Path, *, has_crawl: bool) -> None:
    """Print the figures of a classifier."""
    if on_crawl := record.get("crawl"):
        console.print(
            f"{out}: on {format_count(on_crawl['num_held_out_pages'], 'page')} of "
            f"{format_count(on_crawl['num_held_out_domains'], 'held-out domain')}, "
            f"main content against the rest of their text: {_format_figures(on_crawl)}"
        )
    console.print(
        f"{out}: on held-out texts of the training sources: {_format_figures(record)}"
    )
    if not has_crawl:
        console.print(
            "These figures say how well the model tells the sources apart, not good pages from "
            "bad ones. Give --crawl to evaluate it on pages."
        )


def _format_figures(record: Mapping[str, Any]) -> str:
    names = ("precision", "recall", "roc_auc")
    return ", ".join(f"{name} {record[name]:.3f}" for name in names)


@train_app.command("quality")
@with_output_options
def train_quality(
    labels: Annotated[
        Path,
        typer.Option(
            help='JSON lines: {"url": ..., "label": true} or {"doc_id": ..., "label": false}.'
        ),
    ],
    run: Annotated[str, typer.Option(help="The run that has scored these documents.")],
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
) -> None:
    """Fit a logistic model of the stored scores to labelled documents of a run.

    Prints its cross-validated figures and a calibration table.
    """
    from pipeline.quality_training import fit_quality, read_labels
    from pipeline.runs.done_records import to_json
    from pipeline.runs.run_folder import RunFolder
    from storage.local import put_file

    fitted = fit_quality(RunFolder.open(run), read_labels(labels))
    out.parent.mkdir(parents=True, exist_ok=True)
    put_file(out, to_json(fitted))
    answer(fitted, lambda: _print_quality(fitted, out))


def _print_quality(fitted: Mapping[str, Any], out: Path) -> None:
    """Print the figures of a fitted quality score."""
    figures = fitted["cross_validation"]
    console.print(
        f"{out}: {fitted['num_documents']:,} labelled documents ({fitted['num_good']:,} good), "
        f"{fitted['num_not_found']:,} labels without a document; cross-validated: roc_auc "
        f"{figures['roc_auc']:.3f}, average_precision {figures['average_precision']:.3f}"
    )
    if num_documents := figures["num_without_domain"]:
        console.print(
            f"{num_documents:,} documents have no URL, so no domain keeps similar ones in one fold: "
            "if copies or parts of one work are among them, the figures are too good."
        )
    console.print("probability, documents, mean probability, good documents:")
    for row in fitted["calibration"]:
        console.print(
            f"  {row['from']:.1f} to {row['to']:.1f}  {row['num_documents']:6,}  "
            f"{row['mean_score']:.3f}  {row['good_share']:.3f}"
        )
    console.print(f"Next: set select.score to the object `score` of {out}")
