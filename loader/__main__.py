"""The command line of the loader: look at a dataset, prove its order, time it, export it.

    python -m loader inspect MANIFEST [--tokenizer tokenizer.json] [--documents 3]
    python -m loader check MANIFEST --seq-len 2048 --worlds 1 2 5 8 [--read]
    python -m loader bench MANIFEST --seq-len 2048 [--seconds 10]
    python -m loader export megatron|mds|parquet MANIFEST OUT

MANIFEST is a path or address of a manifest or of its folder. Exit codes: 0 all is well, 1 a check failed or the dataset
is broken, 2 the command was not understood.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from loader.export import Document, documents, export_mds, export_megatron, export_parquet
from loader.loader import TokenLoader
from loader.manifest_columns import Catalogue, read_catalogue
from loader.order import Ints
from loader.rank_batches import Deal
from loader.reader import Reader
from loader.storage import ReadFailed, ReadSettings
from loader.stream import RowStream, open_stream
from shardwriter.format import FormatError

SHOWN_TOKENS = 60


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and do it; gives the exit code."""
    args = _parser().parse_args(arguments)
    try:
        return args.act(args)
    except (FormatError, ReadFailed, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loader",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, act: Any, about: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=about, description=about)
        made.set_defaults(act=act)
        return made

    inspect = verb("inspect", _inspect, "show the dataset: counts, languages, some documents")
    inspect.add_argument("manifest")
    inspect.add_argument(
        "--tokenizer", type=Path, help="the tokenizer.json that made it, to show text"
    )
    inspect.add_argument("--documents", type=int, default=3)
    check = verb(
        "check", _check, "prove that each row of an epoch comes exactly once over the ranks"
    )
    check.add_argument("manifest")
    check.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 3, 8])
    check.add_argument(
        "--global-batch-rows", type=int, default=0, help="64 rows, or one per rank if that is more"
    )
    check.add_argument("--epoch", type=int, default=0)
    check.add_argument("--read", action="store_true", help="also read every row, with checksums")
    bench = verb("bench", _bench, "time the loader on this machine")
    bench.add_argument("manifest")
    bench.add_argument("--seconds", type=float, default=5.0)
    bench.add_argument("--global-batch-rows", type=int, default=8)
    for made in (check, bench):
        made.add_argument("--seq-len", type=int, default=2048)
        made.add_argument("--seed", type=int, default=0)
    export = verb("export", _export, "copy the documents into another format")
    export.add_argument("format", choices=sorted(_EXPORTERS))
    export.add_argument("manifest")
    export.add_argument("out", type=Path, help="a folder; for megatron the path without .bin")
    return parser


# ------------------------------------------------------------------------------------------------------------- inspect


def _inspect(args: argparse.Namespace) -> int:
    catalogue = read_catalogue(args.manifest, ReadSettings())
    totals, tokenizer = catalogue.totals, catalogue.tokenizer
    print(f"dataset    {catalogue.address}\ndigest     {catalogue.digest}")
    print(
        f"tokenizer  {tokenizer.name}, {tokenizer.vocab_size:,} ids, {tokenizer.token_dtype.name}"
    )
    print(
        f"shards     {totals['num_shards']:,}, {totals['shard_bytes']:,} bytes, {totals['num_samples']:,} samples"
    )
    print(f"documents  {totals['num_docs']:,}\ntokens     {totals['num_tokens']:,}")
    if len(catalogue.num_tokens):
        low, middle, high = (
            np.percentile(catalogue.num_tokens, [0, 50, 100]).astype(np.int64).tolist()
        )
        print(f"           {low:,} / {middle:,} / {high:,} per shard (least, median, most)")
    for title, labels in (("language", totals["languages"]), ("bucket", totals["buckets"])):
        for label, count in sorted(labels.items(), key=lambda item: -item[1]["num_tokens"]):
            share = count["num_tokens"] / max(1, totals["num_tokens"])
            counted = f"{count['num_docs']:>14,} documents {count['num_tokens']:>18,} tokens"
            print(f"{title:10} {label:10} {counted} {share:7.2%}")
    decode = _decoder(args.tokenizer, catalogue)
    for document in _some_documents(catalogue, args.documents):
        shown = document.tokens[:SHOWN_TOKENS]
        more = (
            f" ... ({len(document.tokens):,} tokens)" if len(document.tokens) > len(shown) else ""
        )
        print(f"\ndocument {document.doc_id}\n  {decode(shown)}{more}")
    return 0


def _decoder(tokenizer: Path | None, catalogue: Catalogue) -> Any:
    if tokenizer is None:
        return lambda tokens: " ".join(map(str, tokens.tolist()))
    from tokenizers import Tokenizer

    found = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    if found != catalogue.tokenizer.sha256:
        wanted = f"{catalogue.tokenizer.sha256} of {catalogue.tokenizer.name!r}"
        raise FormatError(
            str(tokenizer), f"sha256 {found}", wanted, "give the tokenizer that made the dataset"
        )
    made = Tokenizer.from_file(str(tokenizer))
    return lambda tokens: made.decode(tokens.tolist())


def _some_documents(catalogue: Catalogue, num: int) -> list[Document]:
    """The first documents of shards that lie evenly over the dataset."""
    filled = np.flatnonzero(catalogue.num_docs)
    if not len(filled) or num < 1:
        return []
    reader = Reader(catalogue, seq_len=1, settings=ReadSettings())
    chosen = filled[np.linspace(0, len(filled) - 1, num=min(num, len(filled))).astype(np.int64)]
    return [next(documents(reader, shard)) for shard in chosen.tolist()]


# --------------------------------------------------------------------------------------------------------------- check


def _check(args: argparse.Namespace) -> int:
    stream = open_stream(
        args.manifest, seq_len=args.seq_len, seed=args.seed, settings=ReadSettings()
    )
    order = stream.orders[0]
    print(
        f"{order.num_rows:,} rows of {args.seq_len} tokens, {order.lanes} lanes, epoch {args.epoch}: ",
        end="",
    )
    print(f"{order.epoch_rows:,} positions, {order.num_rows - order.epoch_rows} rows left over")
    failed = False
    for world_size in args.worlds:
        batch = max(args.global_batch_rows or 64, world_size)
        counts, per_rank, left = _count_rows(stream, world_size, batch, args.epoch)
        twice, never = (
            int((counts > 1).sum()),
            int((counts == 0).sum()) - (order.num_rows - order.epoch_rows) - left,
        )
        is_fine = twice == 0 and never == 0 and len(set(per_rank)) == 1
        failed |= not is_fine
        print(
            f"{world_size:5} ranks, {batch} rows a step: {per_rank[0]:,} rows on every rank, {left} in no step, "
            f"{twice} twice, {never} never: {'exact' if is_fine else 'NOT EXACT'}"
        )
    if args.read:
        failed |= not _read_all(stream)
    return int(failed)


def _count_rows(
    stream: RowStream, world_size: int, batch: int, epoch: int
) -> tuple[Ints, list[int], int]:
    """(rows,) how often each row of the dataset comes; rows per rank; rows that no step takes."""
    order = stream.orders[0]
    firsts = np.cumsum(order.shard_rows) - order.shard_rows
    counts = np.zeros(order.num_rows, np.int64)
    per_rank: list[int] = []
    first, left = epoch * order.epoch_rows, 0
    for rank in range(world_size):
        deal = Deal(batch, rank, world_size, "carry", first + order.epoch_rows)
        taken: list[Ints] = []
        at = first, 0
        while step := deal.step(*at):
            taken.append(step.positions)
            at = step.position, step.carried_rows
        _, shards, rows = stream.locate(np.concatenate(taken))
        np.add.at(counts, firsts[shards] + rows, 1)
        per_rank.append(len(rows))
        left = deal.rows_left(at[0])
    return counts, per_rank, left


def _read_all(stream: RowStream) -> bool:
    settings = ReadSettings(on_corrupt="skip_and_count")
    reader = Reader(stream.catalogues[0], seq_len=stream.seq_len, settings=settings)
    damaged = 0
    for shard, num_rows in enumerate(stream.orders[0].shard_rows.tolist()):
        for first in range(0, num_rows, 256):
            rows = np.arange(first, min(first + 256, num_rows))
            out = np.empty((len(rows), stream.seq_len + 1), reader.token_dtype)
            damaged += int((~reader.read(np.full(len(rows), shard), rows, out)).sum())
    print(f"read every row: {damaged} damaged, in {reader.counters['damaged_samples']} samples")
    return damaged == 0


# --------------------------------------------------------------------------------------------------------------- bench


def _bench(args: argparse.Namespace) -> int:
    TokenLoader(
        args.manifest, seq_len=args.seq_len, global_batch_rows=1
    ).close()  # imports torch, which is not timed
    for tokens in ("int64", "stored"):
        began = time.perf_counter()
        loader = TokenLoader(
            args.manifest, seq_len=args.seq_len, global_batch_rows=args.global_batch_rows, seed=args.seed,
            rank=0, world_size=1, tokens=tokens,
        )  # fmt: skip
        next(loader)
        first_s = time.perf_counter() - began
        until = time.perf_counter() + args.seconds
        while time.perf_counter() < until:
            next(loader)
        stats = loader.stats()
        print(
            f"{tokens:7} first batch after {first_s * 1e3:.1f} ms, then {stats['tokens_per_s'] / 1e6:,.1f} M tokens/s, "
            f"{stats['wait_share']:.0%} of it waiting, {stats['epochs']['']:.2f} epochs, {stats['retries']} retries"
        )
        loader.close()
    return 0


# -------------------------------------------------------------------------------------------------------------- export

_EXPORTERS = {"megatron": export_megatron, "mds": export_mds, "parquet": export_parquet}


def _export(args: argparse.Namespace) -> int:
    catalogue = read_catalogue(args.manifest, ReadSettings())
    num_docs = _EXPORTERS[args.format](
        Reader(catalogue, seq_len=1, settings=ReadSettings()), args.out
    )
    print(f"{num_docs:,} documents, {int(catalogue.num_tokens.sum()):,} tokens: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
