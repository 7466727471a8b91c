"""The command `verify`: checks a dataset, or every file of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.terminal import FAILED, WRONG_USAGE, answer, console, fail
from terminal_output import format_count

if TYPE_CHECKING:
    from pipeline.reporting.verify_run import RunDamage
    from pipeline.runs.run_folder import RunFolder
    from shardwriter.verification.findings import Finding
    from storage import Store

DatasetAddress = Annotated[
    str,
    typer.Argument(
        help="Folder of a run, or of a dataset with manifest.json; s3://... too."
    ),
]


def verify(
    dataset: DatasetAddress,
    deep: Annotated[
        bool, typer.Option("--deep", help="Check the files of all phases of a run too.")
    ] = False,
) -> None:
    """Check every shard of a finished dataset.

    Hashes and counts every shard, and reads it with plain webdataset.

    Prints one line per fault and ends with exit code 1 if there is one. In the folder of a run,
    the next `run` of its config makes damaged files again.
    """
    from pipeline.runs.run_folder import RunFolder
    from shardwriter.format import MANIFEST_FILE
    from storage import open_store

    folder = open_store(dataset)
    run = None if folder.exists(MANIFEST_FILE) else RunFolder.open(dataset)
    if run is None and deep:
        fail(f"{folder} is a dataset; --deep needs the folder of its run", WRONG_USAGE)
    if run is not None:
        folder = run.dataset
    faults, damaged = _find_faults(folder, run, deep)
    lines = [*map(str, faults), *(damage.describe() for damage in damaged)]
    is_intact = not lines
    if is_intact and deep:
        lines.append(f"{dataset}: every file of every phase is as its task wrote it")
    if is_intact:
        lines += _check_samples(folder)
    value = {"dataset": str(folder), "faults": faults, "damaged": damaged}
    answer(value, lambda: console.print("\n".join(lines)))
    if run is not None and damaged:
        _note_damage(run, damaged)
    if not is_intact:
        fail(f"{dataset}: {format_count(len(lines), 'fault')}; see the lines above", FAILED)


def _find_faults(
    folder: Store, run: RunFolder | None, deep: bool
) -> tuple[list[Finding], list[RunDamage]]:
    """Return the faults of a dataset, and the damaged files of its run."""
    from pipeline.reporting.verify_run import find_damage, find_shard_damage
    from pipeline.retraction.apply import find_unretracted
    from shardwriter.verification.dataset import verify_folder

    faults = verify_folder(folder)
    if run is None:
        return faults, []
    damaged = list(find_damage(run)) if deep else []
    damaged += find_shard_damage(run, faults)
    # A damaged dataset or run cannot be searched for retracted documents.
    return faults or find_unretracted(run), damaged


def _note_damage(run: RunFolder, damaged: Sequence[RunDamage]) -> None:
    """Let the next run make the damaged files again."""
    from pipeline.reporting.verify_run import note_damage

    try:
        note_damage(run, damaged)
    except OSError as error:
        console.print(f"the damage cannot be noted in {run.run_dir}: {error}")
    else:
        console.print("run the config of this run again: it makes the damaged files again")


def _check_samples(folder: Store) -> list[str]:
    """Count the samples of a dataset as other programs read them; return what was found."""
    from shardwriter.format import MANIFEST_FILE, Manifest

    manifest = Manifest.loads(
        folder.read_bytes(MANIFEST_FILE), folder.locate(MANIFEST_FILE)
    )
    num_samples = _count_samples(folder, [shard.file for shard in manifest.shards])
    if num_samples != manifest.totals.num_samples:
        message = (
            f"{folder}: webdataset reads {format_count(num_samples, 'sample')}, "
            f"the manifest has {manifest.totals.num_samples:,}"
        )
        fail(message, FAILED)
    samples = format_count(num_samples, "sample")
    shards = format_count(len(manifest.shards), "shard")
    return [
        f"{folder}: every shard, index and count is as the manifest says",
        *_describe_retractions(folder),
        f"webdataset reads {samples} from {shards}",
    ]


def _describe_retractions(folder: Store) -> list[str]:
    """Return how many documents are retracted, if there are requests."""
    from pipeline.retraction.apply import read_log

    entries = read_log(folder).entries
    if not entries:
        return []
    documents = format_count(sum(entry.num_docs for entry in entries), "document")
    tokens = format_count(sum(entry.num_tokens for entry in entries), "token")
    requests = format_count(len(entries), "request")
    return [f"{requests} retracted {documents} with {tokens}, which the loader masks"]


def _count_samples(folder: Store, shards: list[str]) -> int:
    """Count the samples with plain webdataset, as other programs would read them."""
    from webdataset.compat import WebDataset
    from webdataset.gopen import gopen_schemes

    if not shards:
        return 0
    # webdataset opens an address with a mode and a buffer size; all shards are in this folder.
    gopen_schemes["s3"] = lambda url, *_: folder.open(url.rpartition("/")[2])
    addresses = [folder.locate(shard) for shard in shards]
    return sum(1 for _ in WebDataset(addresses, shardshuffle=False, empty_check=False))
