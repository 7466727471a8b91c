"""The command `retract`: takes documents out of the dataset of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.terminal import WRONG_USAGE, RunAddress, answer, console, fail
from terminal_output import format_count

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.retraction import Retraction
    from pipeline.retraction.rewrite import Rewritten

_MAX_SHOWN = 10


Urls = Annotated[Path | None, typer.Option(metavar="FILE", help="URLs, one per line.")]
Domains = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Domains with all subdomains, one per line."),
]
Reason = Annotated[str, typer.Option(help="Why, for the record.")]
RequestedBy = Annotated[str, typer.Option(help="Who asked for it, for the record.")]
IsRewrite = Annotated[
    bool,
    typer.Option(
        "--rewrite",
        help="Also remove the tokens, texts and URLs of all retracted documents from the "
        "shards and the run. Without --urls and --domains: of earlier requests.",
    ),
]
IsDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be retracted.")
]


def retract(
    run: RunAddress,
    urls: Urls = None,
    domains: Domains = None,
    reason: Reason = "",
    requested_by: RequestedBy = "",
    is_rewrite: IsRewrite = False,
    is_dry_run: IsDryRun = False,
) -> None:
    """Take documents out of a finished dataset.

    The dataset is not made again. The loader masks their tokens from then on, in the same order of
    rows: saved states stay valid. Later runs in the folder keep the request in force. See
    docs/retraction.md.
    """
    from pipeline.retraction import retract as retract_documents
    from pipeline.retraction.request import read_request
    from pipeline.runs.run_folder import RunFolder

    if is_rewrite and urls is None and domains is None and not is_dry_run:
        rewritten = _rewrite(run)
        message = _describe_rewritten(rewritten)
        answer({"rewritten": rewritten}, lambda: console.print(message))
        return
    if not reason.strip():
        fail("retract: give the reason for the record, with --reason TEXT", WRONG_USAGE)
    result = retract_documents(
        RunFolder.open(run),
        read_request(urls, domains),
        reason=reason.strip(),
        requested_by=requested_by.strip(),
        is_dry_run=is_dry_run,
    )
    lines = _format_result(result, run, is_dry_run)
    value = _to_json(result)
    if is_rewrite and not is_dry_run:
        rewritten = _rewrite(run)
        value["rewritten"] = rewritten
        lines.append(_describe_rewritten(rewritten))
    answer(value, lambda: console.print("\n".join(lines)))


def _rewrite(run: str) -> Rewritten:
    """Remove the retracted documents from the shards and the files of a run."""
    from pipeline.retraction.rewrite import rewrite
    from pipeline.runs.run_folder import RunFolder

    return rewrite(RunFolder.open(run))


def _describe_rewritten(rewritten: Rewritten) -> str:
    return (
        f"rewritten without the tokens, texts and URLs of retracted documents: "
        f"{format_count(len(rewritten.shards), 'shard')} and "
        f"{format_count(rewritten.num_files, 'other file')} of the run"
    )


def _to_json(result: Retraction) -> dict[str, Any]:
    found = result.found
    return {
        "record": json.loads(result.record.dumps()),
        "is_new": result.is_new,
        "num_docs": result.num_docs,
        "num_tokens": result.num_tokens,
        "digest_before": result.digest_before,
        "digest_after": result.digest_after,
        "unmatched": result.list_unmatched(),
        "documents": found.named.to_pylist(),
        "kept_copies": found.kept_copies.to_pylist(),
        "removed_copies": found.removed_copies.to_pylist(),
    }


def _format_result(result: Retraction, run: str, is_dry_run: bool) -> list[str]:
    lines = [
        f"the request names {format_count(result.found.named.num_rows, 'document')} of {run}"
    ]
    for decision, num_docs in sorted(result.count_decisions().items()):
        lines.append(f"{num_docs:>12,}  {decision}")
    lines += _list_some(
        "named in the request, but not read by this run", result.list_unmatched()
    )
    lines += _list_documents(
        "kept in place of a copy that the request names: similar text STAYS in the dataset. "
        "To retract it too, add these URLs",
        result.found.kept_copies,
    )
    lines += _list_documents(
        "dropped as copies of these documents: not in the dataset, but similar text is on "
        "these pages",
        result.found.removed_copies,
    )
    if is_dry_run:
        return [*lines, "dry run: nothing was written"]
    if result.digest_after is None:
        lines.append(
            "the run has no dataset yet: the request is applied when the run is finished"
        )
    else:
        lines.append(
            f"retracted: {format_count(result.num_docs, 'document')} with "
            f"{format_count(result.num_tokens, 'token')}, which the loader masks"
        )
        lines.append(f"digest before {result.digest_before}")
        lines.append(f"digest after  {result.digest_after}")
    if not result.is_new:
        lines.append(f"the same request was recorded at {result.record.recorded_at}")
    lines.append(f"record: {run}/retractions/{result.record.file}")
    return lines


def _list_documents(title: str, documents: pa.Table) -> list[str]:
    return _list_some(title, [url or "-" for url in documents.column("url").to_pylist()])


def _list_some(title: str, entries: list[str]) -> list[str]:
    """Return a title with the number of entries, and the first entries."""
    if not entries:
        return []
    shown = [f"    {entry}" for entry in entries[:_MAX_SHOWN]]
    if len(entries) > _MAX_SHOWN:
        shown.append(f"    ... and {len(entries) - _MAX_SHOWN:,} more; --json lists all")
    return [f"{len(entries):,} {title}:", *shown]
