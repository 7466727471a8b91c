"""Verifies checkpoints without loading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage import Store
from storage.errors import InvalidAddress
from training.checkpoint.block_digests import (
    BLOCK_BYTES,
    FileDigest,
    open_verified,
)
from training.checkpoint.marker import (
    MARKER,
    is_step_name,
    read_marker,
)
from training.checkpoint.object_store import open_checkpoint_store
from training.checkpoint.tensor_files import METADATA, load_metadata
from training.errors import CheckpointDamaged, IncompatibleConfig


@dataclass(frozen=True)
class Verified:
    """The result for one checkpoint.

    Attributes:
        name: path or address.
        num_bytes: size of its files.
        damage: the first damage of each file; empty if the checkpoint is whole.
    """

    name: str
    num_bytes: int
    damage: tuple[str, ...]


def verify_checkpoint(store: Store, *, rank: int = 0, world_size: int = 1) -> Verified:
    """Read files of a checkpoint, and compare them with their digests.

    Several ranks share the files. Each also reads complete.json.
    """
    try:
        files = read_marker(store).files
    except (CheckpointDamaged, IncompatibleConfig) as error:
        return Verified(str(store), 0, (str(error),))
    damage: list[str] = []
    num_bytes = 0
    for name in sorted(files)[rank::world_size]:
        num_bytes += files[name].file_bytes
        try:
            _verify_file(store, name, files[name])
        except CheckpointDamaged as error:
            damage.append(str(error))
    return Verified(str(store), num_bytes, tuple(damage))


def find_checkpoints(source: str) -> Sequence[Store]:
    """Return the complete checkpoints of a run_dir or of an address, the oldest first.

    Args:
        source: a run_dir, one checkpoint, or the address of `checkpoint.upload`.

    Raises:
        IncompatibleConfig: there are none, or the address cannot be used.
    """
    store = open_checkpoint_store(source)
    try:
        if store.exists(MARKER):
            return [store]
        # An address has the checkpoints themselves, a run_dir has a folder of them.
        found = [*_list_complete(store), *_list_complete(store.child("checkpoints"))]
    except InvalidAddress as error:
        raise IncompatibleConfig(str(error)) from error
    if not found:
        raise IncompatibleConfig(
            f"{source} has no complete checkpoint; give a run_dir, a checkpoint such as "
            f"runs/a/checkpoints/step-00000100, or the address of checkpoint.upload"
        )
    return found


def _list_complete(folder: Store) -> list[Store]:
    children = [folder.child(name) for name in folder.list_folders() if is_step_name(name)]
    return [child for child in children if child.exists(MARKER)]


def _verify_file(store: Store, name: str, expected: FileDigest) -> None:
    where = store.locate(name)
    with open_verified(lambda: store.open(name), where, expected) as file:
        while file.read(BLOCK_BYTES):
            pass
        if name == METADATA:
            file.seek(0)
            load_metadata(file, where)
