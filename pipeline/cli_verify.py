"""The command `verify`: checks a dataset, or every file of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.terminal import FAILED, WRONG_USAGE, console, fail

if TYPE_CHECKING:
    from pipeline.reporting.verify_run import RunDamage
    from pipeline.runs.run_folder import RunFolder
    from storage import Store


def verify(
    dataset: Annotated[
        str,
        typer.Argument(
            help="Folder of a run, or of a dataset with manifest.json; s3://... too."
        ),
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Check the files of all phases of a run too.")
    ] = False,
) -> None:
    """Check every shard of a finished dataset.

    Hashes and counts every shard, and reads it with plain webdataset.

    Prints one line per fault and ends with exit code 1 if there is one. In the folder of a run,
    the next `run` of its config makes damaged files again.
    """
    from pipeline.reporting.verify_run import find_damage, find_shard_damage
    from pipeline.runs.run_folder import RunFolder
    from shardwriter.format import MANIFEST_FILE
    from shardwriter.verification.dataset import verify_folder
    from storage import open_store

    folder = open_store(dataset)
    run = None if folder.exists(MANIFEST_FILE) else RunFolder.open(dataset)
    if run is None and deep:
        fail(f"{folder} is a dataset; --deep needs the folder of its run", WRONG_USAGE)
    found = [] if run is None or not deep else list(find_damage(run))
    if run is not None:
        folder = run.dataset
    faults = verify_folder(folder)
    for fault in faults:
        console.print(str(fault))
    if run is not None:
        found += find_shard_damage(run, faults)
        _print_run_damage(run, found)
    if faults or found:
        fail(f"{dataset}: {len(faults) + len(found)} faults; see the lines above", FAILED)
    if deep:
        console.print(f"{dataset}: every file of every phase is as its task wrote it")
    _check_samples(folder)


def _print_run_damage(run: RunFolder, found: Sequence[RunDamage]) -> None:
    """Name the damaged files of a run, and let its next run make them again."""
    from pipeline.reporting.verify_run import note_damage

    for damage in found:
        console.print(damage.describe())
    if not found:
        return
    try:
        note_damage(run, found)
    except OSError as error:
        console.print(f"the damage cannot be noted in {run.run_dir}: {error}")
    else:
        console.print("run the config of this run again: it makes the damaged files again")


def _check_samples(folder: Store) -> None:
    """Count the samples of a dataset as other programs read them."""
    from shardwriter.format import MANIFEST_FILE, Manifest

    manifest = Manifest.loads(
        folder.read_bytes(MANIFEST_FILE), folder.locate(MANIFEST_FILE)
    )
    num_samples = _count_samples(folder, [shard.file for shard in manifest.shards])
    if num_samples != manifest.totals.num_samples:
        message = (
            f"{folder}: webdataset reads {num_samples:,} samples, "
            f"the manifest has {manifest.totals.num_samples:,}"
        )
        fail(message, FAILED)
    console.print(f"{folder}: every shard, index and count is as the manifest says")
    console.print(
        f"webdataset reads {num_samples:,} samples from {len(manifest.shards)} shards"
    )


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
