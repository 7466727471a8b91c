"""The command line of the loader: inspect, pack, check, measure and export a dataset."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from loader.export import export_megatron, export_parquet
from loader.inspection import describe_counts, open_decoder, sample_documents
from loader.lookup import DocumentFinder
from loader.order.rank_batches import RankBatches
from loader.order_check import OrderCheck, check_order, check_rows
from loader.packed.best_fit import DEFAULT_WINDOW_TOKENS
from loader.packed.index_file import PackingCounts
from loader.packed.pack import pack_dataset
from loader.reading.dataset import Dataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.row_stream import RowStream, open_row_stream
from loader.storage import ReadFailed, ReadSettings
from loader.token_loader import TokenLoader
from shardwriter.format import FormatError, shard_file
from terminal_output import escape_output, format_count

DONE, FAILED, WRONG_USAGE = 0, 1, 2

MAX_SHOWN_TOKENS = 60
DEFAULT_CHECKED_BATCH_ROWS = 64

app = typer.Typer(
    name="loader",
    help=(
        "Inspect, pack, check, measure and export a dataset of token shards.\n\n"
        "Exit codes: 0 done; 1 a check failed, or the dataset cannot be read; 2 wrong usage."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ManifestArgument = Annotated[
    str,
    typer.Argument(
        metavar="MANIFEST",
        help="Path or address (https, s3, gs, az) of a dataset's manifest or of its folder.",
    ),
]
SeqLen = Annotated[int, typer.Option(min=1, help="Tokens per row.")]
Packed = Annotated[
    bool,
    typer.Option(
        "--packed", help="Packed rows, by the file that `pack` wrote beside the manifest."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the row order.")]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of the exit codes.

    Args:
        arguments: None for those of the process.
    """
    escape_output()
    _configure_logging()
    # Typer shows the name of the script by default, which is __main__.py here.
    is_module = Path(sys.argv[0]).name == "__main__.py"
    try:
        app(args=arguments, prog_name="python -m loader" if is_module else None)
    except ModuleNotFoundError:
        raise  # pipeline/console.py names the extra to install
    except (FormatError, ReadFailed, ValueError, ImportError) as error:
        typer.echo(str(error), err=True)
        sys.exit(FAILED)
    sys.exit(DONE)


def _configure_logging() -> None:
    """Print INFO messages of our packages on stderr."""
    for name in ("loader", "storage"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        if not logger.handlers:
            logger.addHandler(logging.StreamHandler())


@app.command()
def inspect(
    manifest: ManifestArgument,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="The tokenizer.json of the dataset; documents are then shown as text."
        ),
    ] = None,
    documents: Annotated[int, typer.Option(min=0, help="Number of documents to show.")] = 3,
) -> None:
    """Show counts, languages and some documents."""
    columns = read_manifest_columns(manifest, ReadSettings())
    for line in describe_counts(columns):
        typer.echo(line)
    decode = open_decoder(tokenizer, columns)
    for document in sample_documents(columns, documents):
        shown = decode(document.tokens[:MAX_SHOWN_TOKENS])
        if len(document.tokens) > MAX_SHOWN_TOKENS:
            shown += f" ... ({len(document.tokens):,} tokens)"
        typer.echo(f"\ndocument {document.doc_id}\n  {shown}")


@app.command()
def pack(
    manifest: ManifestArgument,
    seq_len: SeqLen = 2048,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Path or address of the file. Default: beside the manifest.",
        ),
    ] = None,
    window_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="Documents of about this many tokens are packed together."
        ),
    ] = DEFAULT_WINDOW_TOKENS,
) -> None:
    """Pack documents into rows without cutting them.

    Only a document that is longer than a row is cut. The shards stay as they are: the file has
    the places of the documents in the rows.
    """
    settings = ReadSettings()
    columns = read_manifest_columns(manifest, settings)
    file, counts = pack_dataset(
        columns, seq_len=seq_len, settings=settings, out=out, window_tokens=window_tokens
    )
    _print_packing(counts, seq_len)
    typer.echo(file)


def _print_packing(counts: PackingCounts, seq_len: int) -> None:
    """Print what a packing did to the documents, beside plain rows."""
    docs, tokens = max(1, counts.num_docs), max(1, counts.num_tokens)
    num_places = counts.num_rows * (seq_len + 1)
    padding = counts.count_padding(seq_len)
    typer.echo(
        f"{format_count(counts.num_rows, 'row')} of {format_count(seq_len, 'token')}, from "
        f"{format_count(counts.num_docs, 'document')} of "
        f"{format_count(counts.num_tokens, 'token')}; no token is left out"
    )
    typer.echo(
        f"documents cut                  {counts.num_cut_docs:>12,} {counts.num_cut_docs / docs:7.2%}"
        f"   plain rows {counts.plain_num_cut_docs:>12,} {counts.plain_num_cut_docs / docs:7.2%}"
    )
    typer.echo(
        f"tokens without their beginning {counts.num_cut_tokens:>12,} "
        f"{counts.num_cut_tokens / tokens:7.2%}"
        f"   plain rows {counts.plain_num_cut_tokens:>12,} "
        f"{counts.plain_num_cut_tokens / tokens:7.2%}"
    )
    typer.echo(
        f"padding                        {padding:>12,} {padding / max(1, num_places):7.2%}"
    )


@app.command()
def check(
    manifest: ManifestArgument,
    seq_len: SeqLen = 2048,
    world_sizes: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of ranks to check.")
    ] = "1,2,3,8",
    global_batch_rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows of a step. Default: 64, or one per rank if that is more."
        ),
    ] = None,
    epoch: Annotated[int, typer.Option(min=0, help="Epoch to check.")] = 0,
    seed: Seed = 0,
    read: Annotated[
        bool, typer.Option("--read", help="Also read every row and compare checksums.")
    ] = False,
    packed: Packed = False,
) -> None:
    """Check that the ranks read each row exactly once."""
    stream = open_row_stream(
        manifest,
        seq_len=seq_len,
        seed=seed,
        settings=ReadSettings(),
        packing=packed or None,
    )
    order = stream.sources[0].order
    num_left_over = order.num_rows - order.epoch_rows
    typer.echo(
        f"{format_count(order.num_rows, 'row')} of {format_count(seq_len, 'token')}, "
        f"interleave depth {order.interleave_depth}, epoch {epoch}: "
        f"{format_count(order.epoch_rows, 'position')}, "
        f"{format_count(num_left_over, 'row')} left over"
    )
    has_failed = False
    for world_size in _parse_world_sizes(world_sizes):
        batch_rows = max(global_batch_rows or DEFAULT_CHECKED_BATCH_ROWS, world_size)
        found = check_order(stream, world_size, batch_rows, epoch)
        has_failed |= not found.is_exact
        _print_order_check(found, world_size, batch_rows)
    if read:
        has_failed |= _has_damaged_rows(stream)
    if has_failed:
        raise typer.Exit(FAILED)


def _has_damaged_rows(stream: RowStream) -> bool:
    """Read every row and print the number of damaged ones."""
    damage = check_rows(stream)
    typer.echo(
        f"read every row: {format_count(damage.num_damaged_rows, 'damaged row')}, "
        f"in {format_count(damage.num_damaged_samples, 'sample')}"
    )
    return damage.num_damaged_rows > 0


def _print_order_check(found: OrderCheck, world_size: int, batch_rows: int) -> None:
    typer.echo(
        f"{format_count(world_size, 'rank'):>11}, {format_count(batch_rows, 'row')} a step: "
        f"{format_count(found.rows_per_rank[0], 'row')} on every rank, "
        f"{found.num_without_step} in no step, "
        f"{found.num_repeated} repeated, {found.num_missing} missing: "
        f"{'exact' if found.is_exact else 'NOT EXACT'}"
    )


def _parse_world_sizes(text: str) -> list[int]:
    try:
        world_sizes = [int(part) for part in text.split(",")]
    except ValueError:
        world_sizes = []
    if not world_sizes or min(world_sizes) < 1:
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers of at least 1, such as 1,2,8"
        )
    return world_sizes


@app.command()
def which(
    manifest: ManifestArgument,
    seq_len: SeqLen = 2048,
    global_batch_rows: Annotated[
        int, typer.Option(min=1, help="Rows of a step, over all ranks.")
    ] = 8,
    seed: Seed = 0,
    step: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="List the documents of this step. The first step is 1, as in the log of a trainer.",
        ),
    ] = None,
    doc_id: Annotated[
        int | None, typer.Option(min=0, help="List the steps that read this document.")
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="With --doc-id: epochs to search.")
    ] = 1,
    world_size: Annotated[int, typer.Option(min=1, help="Number of ranks.")] = 1,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Only this rank. Default: all.")
    ] = None,
    packed: Packed = False,
) -> None:
    """List the documents of a step, or the steps of a document.

    The order of rows is arithmetic: no step before is computed, and no tokens are read.
    """
    if (step is None) == (doc_id is None):
        raise typer.BadParameter("give either --step or --doc-id")
    settings = ReadSettings()
    stream = open_row_stream(
        manifest, seq_len=seq_len, seed=seed, settings=settings, packing=packed or None
    )
    finder = DocumentFinder(stream, settings)
    ranks = range(world_size) if rank is None else [rank]
    if doc_id is not None and finder.is_retracted(0, doc_id):
        typer.echo(f"document {doc_id} is retracted: these steps read masked tokens")
    for number in ranks:
        batches = RankBatches(global_batch_rows, number, world_size)
        if step is not None:
            _print_step(finder, batches, step)
        else:
            assert doc_id is not None
            _print_document(finder, batches, doc_id, epochs)


def _print_step(finder: DocumentFinder, batches: RankBatches, step: int) -> None:
    """Print the documents of the rows that a rank reads in a step, counted from 1."""
    found = batches.make_step((step - 1) * batches.global_batch_rows)
    assert found is not None  # the stream is endless
    for part in finder.list_parts(found.positions):
        url = "" if part.metadata is None else part.metadata.get("url", "")
        last = part.first_token + part.num_tokens - 1
        typer.echo(
            f"rank {batches.rank}, row {part.position - found.first_position}: "
            f"document {part.doc_id}, tokens {part.first_token}..{last}, "
            f"{shard_file(part.shard)}{'  retracted' if part.is_retracted else ''}  {url}"
        )


def _print_document(
    finder: DocumentFinder, batches: RankBatches, doc_id: int, epochs: int
) -> None:
    """Print the steps in which a rank reads a document."""
    num_rows = batches.global_batch_rows // batches.world_size
    for epoch in range(epochs):
        for position in finder.list_positions(0, doc_id, epoch):
            step, row = divmod(position, batches.global_batch_rows)
            if row // num_rows == batches.rank:
                typer.echo(
                    f"epoch {epoch}, step {step + 1}, rank {batches.rank}, row {row % num_rows}"
                )


@app.command()
def bench(
    manifest: ManifestArgument,
    seq_len: SeqLen = 2048,
    global_batch_rows: Annotated[int, typer.Option(min=1, help="Rows of a step.")] = 8,
    seconds: Annotated[
        float, typer.Option(min=0, help="Time to measure each output.")
    ] = 5.0,
    seed: Seed = 0,
    packed: Packed = False,
) -> None:
    """Measure the speed of the loader on this machine."""
    # Import torch outside of the measured time.
    TokenLoader(
        manifest, seq_len=seq_len, global_batch_rows=1, rank=0, world_size=1
    ).close()
    for tokens in ("int64", "stored"):
        started = time.perf_counter()
        # The clock starts before the manifest is read: a user waits for that too.
        loader = TokenLoader(
            manifest,
            seq_len=seq_len,
            global_batch_rows=global_batch_rows,
            seed=seed,
            rank=0,
            world_size=1,
            tokens=tokens,
            packing=packed or None,
        )
        next(loader)
        first_batch_ms = (time.perf_counter() - started) * 1e3
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop:
            next(loader)
        stats = loader.stats()
        loader.close()
        typer.echo(
            f"{tokens:7} first batch after {first_batch_ms:.1f} ms, "
            f"then {stats['tokens_per_s'] / 1e6:,.1f} M tokens/s, "
            f"{stats['wait_share']:.0%} of the time waiting, "
            f"{stats['epochs']['']:.2f} epochs, "
            f"{format_count(stats['retries'], 'retry', 'retries')}"
        )


class ExportFormat(Enum):
    """The formats of `export`."""

    megatron = "megatron"
    parquet = "parquet"


_EXPORTERS: dict[ExportFormat, Callable[[Dataset, Path], int]] = {
    ExportFormat.megatron: export_megatron,
    ExportFormat.parquet: export_parquet,
}


@app.command()
def export(
    format: Annotated[
        ExportFormat,
        typer.Argument(help="megatron, or parquet (Hugging Face)."),
    ],
    manifest: ManifestArgument,
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Folder; for megatron, the path without .bin."),
    ],
) -> None:
    """Copy the documents into another format."""
    columns = read_manifest_columns(manifest, ReadSettings())
    dataset = Dataset(columns, settings=ReadSettings())
    num_docs = _EXPORTERS[format](dataset, out)
    num_tokens = int(columns.num_tokens.sum())
    typer.echo(
        f"{format_count(num_docs, 'document')}, {format_count(num_tokens, 'token')}: {out}"
    )
