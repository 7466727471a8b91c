"""Saves and loads the checkpoints of a run."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.checkpoint.api import CheckpointException

from storage import open_store
from training.checkpoint.block_digests import FileDigest
from training.checkpoint.marker import (
    MARKER,
    Marker,
    format_step_name,
    is_step_name,
    list_complete_checkpoints,
    parse_step,
    read_marker,
    write_marker,
)
from training.checkpoint.stores import (
    download_newest,
    remove_checkpoint,
    upload_files,
    verify_checkpoint,
)
from training.checkpoint.tensor_files import (
    METADATA,
    TensorFiles,
    list_causes,
    save_tensors,
)
from training.config import CheckpointConfig
from training.errors import (
    CheckpointDamaged,
    CheckpointFailed,
    IncompatibleConfig,
    join_faults,
)
from training.parallel.agreement import RankGroup
from training.parallel.distributed import RankContext

log = logging.getLogger(__name__)

# A damaged checkpoint is renamed to this and its name. It is never loaded or removed.
DAMAGED_PREFIX = "damaged-"


@dataclass(frozen=True)
class TrainState:
    """The content of a checkpoint.

    Attributes:
        model: live parameters by name; this rank's shards (DTensor), or whole tensors.
        optimizer: live state tensors by name, likewise.
        progress: plain values for complete.json: step, loader state, counters.
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    progress: Mapping[str, Any]


class Checkpointer:
    """Saves and loads the checkpoints of one run. At most one is being written at a time."""

    def __init__(
        self, run_dir: Path, config: CheckpointConfig, context: RankContext
    ) -> None:
        self.folder = run_dir / "checkpoints"
        self._config, self._context = config, context
        self._ranks = RankGroup(context)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        self._on_cuda = context.device.type == "cuda"
        # It keeps its memory between checkpoints, because pinning takes seconds. DefaultStager,
        # the public class around it, can be used only once in torch 2.11.
        self._stager = StateDictStager(pin_memory=self._on_cuda, share_memory=False)

    # ---- saving ----

    def save(self, state: TrainState) -> None:
        """Copy the state to CPU memory and start to write it in a background thread.

        First waits for the previous checkpoint. Each rank writes its own shards.

        Raises:
            CheckpointFailed: the previous checkpoint could not be written.
        """
        self.wait()
        tensors = {
            **_add_prefix("model", state.model),
            **_add_prefix("optimizer", state.optimizer),
            **_get_random_state(self._context),
        }
        staged = self._stager.stage(tensors, non_blocking=self._on_cuda)
        if self._on_cuda:
            # The next optimizer step changes the tensors, so the copies must end before.
            torch.cuda.synchronize()
        progress = {"world_size": self._context.world_size, **state.progress}
        self._pending = self._thread.submit(self._write, staged, progress)

    def wait(self) -> None:
        """Wait until the pending checkpoint is complete.

        Raises:
            CheckpointFailed: it could not be written.
        """
        if self._pending is None:
            return
        # Cleared first: after a failure, close() must not raise the same error again.
        pending, self._pending = self._pending, None
        try:
            pending.result()
        except (Exception, CheckpointException) as error:
            # torch's CheckpointException derives from BaseException.
            raise CheckpointFailed(
                f"a checkpoint in {self.folder} could not be written: {list_causes(error)}. "
                f"{self._describe_newest()}. Make room or correct the address, and start again: "
                f"the run resumes from the newest"
            ) from error

    def close(self) -> None:
        """Wait for the pending checkpoint and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._stager.close()
            self._ranks.close()

    def _write(self, staged: dict[str, Any], progress: dict[str, Any]) -> None:
        """Write and upload a checkpoint; runs in the background thread.

        Order: shards of all ranks, then the index, then the marker, on disk and in the store.
        A crash at any point leaves a checkpoint without marker, which is ignored.
        """
        path = self.folder / format_step_name(progress["step"])
        try:
            self._write_files(path, staged, progress)
        except (Exception, CheckpointException):
            # All ranks have failed. Without its marker the folder is of no use.
            if self._context.is_first and not (path / MARKER).exists():
                shutil.rmtree(path, ignore_errors=True)
            raise

    def _write_files(
        self, path: Path, staged: dict[str, Any], progress: dict[str, Any]
    ) -> None:
        # Left by a run that was killed while it wrote, perhaps with other ranks.
        self._ranks.run_on_first(lambda: _remove_folder(path))
        # Each rank writes its files; the coordinator writes the index when all have finished.
        own_files = save_tensors(staged, path, self._ranks.process_group)
        upload = self._config.upload
        if upload is not None:
            own_shards = [path / name for name in sorted(own_files) if name != METADATA]
            # All shards must be uploaded before the marker.
            self._ranks.run_on_all(lambda: upload_files(own_shards, upload, path.name))
        files: dict[str, FileDigest] = {}
        for files_of_rank in self._ranks.run_on_all(lambda: own_files):
            files |= files_of_rank
        self._ranks.run_on_first(lambda: self._complete(path, Marker(progress, files)))

    def _complete(self, path: Path, marker: Marker) -> None:
        """Write the marker, and remove older checkpoints; runs on rank 0."""
        write_marker(path, marker)
        if self._config.upload:
            files = [path / METADATA, path / MARKER]
            upload_files(files, self._config.upload, path.name)
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove old and incomplete checkpoints, except those that the config keeps."""
        every = self._config.keep_every_steps
        complete = list_complete_checkpoints(self.folder)
        newest_step = parse_step(complete[-1])
        kept = {*complete[-self._config.keep_last :]}
        if every is not None:
            kept |= {path for path in complete if parse_step(path) % every == 0}
        for path in self.folder.iterdir():
            # Incomplete checkpoints are not in `kept`, so older ones are removed here too.
            if (
                not is_step_name(path.name)
                or path in kept
                or parse_step(path) >= newest_step
            ):
                continue
            _remove_folder(path)
            if self._config.upload:
                remove_checkpoint(self._config.upload, path.name)

    # ---- loading ----

    def find_newest(self) -> Path | None:
        """Return the newest complete checkpoint, or None; the same on every rank.

        If this disk has none, it is downloaded from `upload`. Only rank 0 looks, so that ranks
        cannot disagree about a folder that is just being removed.
        """
        return self._ranks.run_on_first(self._find_before)

    def restore(self, newest: Path, state: TrainState) -> dict[str, Any]:
        """Load the newest checkpoint into the live tensors of a state.

        If it is damaged and `on_damaged` is "previous", it is set aside, and the newest checkpoint
        without damage is loaded.

        Returns:
            The progress that was saved.

        Raises:
            IncompatibleConfig: the checkpoint is of another model or version.
            CheckpointDamaged: names the damage, and the newest checkpoint without any.
        """
        try:
            return self.load(newest, state)
        except CheckpointDamaged as error:
            log.info("%s; looking for an older checkpoint without damage", error)
            whole = self._find_whole(newest)
            if whole is None:
                raise CheckpointDamaged(
                    f"{error}. No older checkpoint is whole. Restore the file from a copy, or give "
                    f"the run another run_dir to start from its first step"
                ) from error
            if self._config.on_damaged == "stop":
                raise CheckpointDamaged(
                    f"{error}. The newest whole checkpoint is {whole}. Restore the file from a "
                    f"copy, or set checkpoint.on_damaged=previous to continue from {whole.name}"
                ) from error
        self._ranks.run_on_first(lambda: self._set_aside(newest, whole))
        return self.load(whole, state)

    def load(self, path: Path, state: TrainState) -> dict[str, Any]:
        """Load a checkpoint into the live tensors of a state.

        The random state is restored only on the same number of ranks.

        Returns:
            The progress that was saved.

        Raises:
            IncompatibleConfig: the checkpoint is of another model or version, or incomplete.
            CheckpointDamaged: a file is missing or differs from its digest, or holds something
                else than tensors. The tensors are undefined then.
            CheckpointFailed: a rank could not read it.
        """
        marker = self._ranks.run_on_first(lambda: read_marker(path))
        tensors = {
            **_add_prefix("model", state.model),
            **_add_prefix("optimizer", state.optimizer),
        }
        # Random states belong to ranks, so they have no meaning on another number of ranks.
        random_state: dict[str, Any] = {}
        if marker.progress["world_size"] == self._context.world_size:
            random_state = _get_random_state(self._context)
        # Ranks must agree on an error: the others would wait in the collectives of load().
        stored: list[TensorFiles] = []
        self._ranks.run_on_all(lambda: stored.append(_open_for(path, marker, tensors)))
        stored[0].load({**tensors, **random_state}, self._ranks.process_group)
        _set_random_state(random_state, self._context)
        return dict(marker.progress)

    def _find_before(self, step: int | None = None) -> Path | None:
        """Return the newest complete checkpoint of an earlier step, of any step by default."""
        for path in reversed(list_complete_checkpoints(self.folder)):
            if step is None or parse_step(path) < step:
                return path
        if not self._config.upload:
            return None
        return download_newest(self._config.upload, self.folder, before_step=step)

    def _find_whole(self, damaged: Path) -> Path | None:
        """Return the newest older checkpoint without damage. All ranks verify a share of it."""
        rank, world_size = self._context.rank, self._context.world_size
        step = parse_step(damaged)
        while True:
            found = self._ranks.run_on_first(lambda before=step: self._find_before(before))
            if found is None:
                return None
            store = open_store(found)
            results = self._ranks.run_on_all(
                lambda store=store: verify_checkpoint(
                    store, rank=rank, world_size=world_size
                )
            )
            if not any(result.damage for result in results):
                return found
            step = parse_step(found)

    def _set_aside(self, damaged: Path, whole: Path) -> None:
        """Rename the checkpoints after a whole one, so that they are not loaded again."""
        for path in list_complete_checkpoints(self.folder):
            if parse_step(whole) < parse_step(path) <= parse_step(damaged):
                aside = path.with_name(DAMAGED_PREFIX + path.name)
                _remove_folder(aside)
                path.rename(aside)
                log.warning("%s is damaged; it is now %s", path, aside)

    def _describe_newest(self) -> str:
        complete = list_complete_checkpoints(self.folder)
        if not complete:
            return "There is no complete checkpoint yet"
        return f"The newest complete checkpoint is {complete[-1]}"


def load_weights(path: Path, model: Mapping[str, Tensor]) -> None:
    """Load only the weights of a checkpoint into live tensors, in a single process.

    Raises:
        IncompatibleConfig, CheckpointDamaged, CheckpointFailed: as `Checkpointer.load`.
    """
    tensors = _add_prefix("model", model)
    stored = _open_for(path, read_marker(path), tensors)
    stored.load(tensors)


def _check_optimizer(path: Path, stored: Collection[str], tensors: Collection[str]) -> None:
    """Refuse a checkpoint of the other `optimizer.algorithm`.

    Args:
        path: of the checkpoint.
        stored: names of its tensors.
        tensors: names of the tensors to load; without an optimizer, nothing is checked.
    """
    if not any(name.startswith("optimizer.") for name in tensors):
        return
    found, wanted = _find_algorithm(stored), _find_algorithm(tensors)
    if found != wanted:
        raise IncompatibleConfig(
            f"{path} has the state of optimizer.algorithm {found}, but the config has {wanted}. "
            f"Set {found}, or give the run another run_dir"
        )


def _find_algorithm(names: Collection[str]) -> str:
    """Return the `optimizer.algorithm` that wrote tensors with these names."""
    has_momentum = any(name.endswith(".momentum_buffer") for name in names)
    return "muon" if has_momentum else "adamw"


def _open_for(path: Path, marker: Marker, tensors: Mapping[str, Tensor]) -> TensorFiles:
    """Open a checkpoint, and check that it has every tensor in the same shape.

    Raises:
        CheckpointDamaged: its index is damaged.
        IncompatibleConfig: with the first differences.
    """
    stored = TensorFiles(path, marker.files)
    _check_optimizer(path, stored.shapes, tensors)
    # Compare all names and shapes before any tensor is changed.
    faults: list[str] = []
    for name, tensor in tensors.items():
        stored_shape, shape = stored.shapes.get(name), tuple(tensor.shape)
        if stored_shape is None:
            faults.append(f"{name} is missing")
        elif stored_shape != shape:
            faults.append(
                f"{name} is {stored_shape} in the checkpoint, {shape} in the model"
            )
    if faults:
        raise IncompatibleConfig(
            f"{path} is a checkpoint of another model: {join_faults(faults)}. Give the run "
            f"another run_dir, or the model the settings of the checkpoint"
        )
    return stored


def _remove_folder(path: Path) -> None:
    """Remove a checkpoint, its marker first, so that a part of it never counts as complete."""
    if path.exists():
        (path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(path)


def _add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {f"{prefix}.{name}": tensor.detach() for name, tensor in tensors.items()}


def _get_random_state(context: RankContext) -> dict[str, Any]:
    """Return the random states of this rank, under names that contain the rank."""
    state = {f"random.{context.rank}.cpu": torch.get_rng_state()}
    if context.device.type == "cuda":
        state[f"random.{context.rank}.cuda"] = torch.cuda.get_rng_state(context.device)
    return state


def _set_random_state(state: Mapping[str, Any], context: RankContext) -> None:
    if state:
        torch.set_rng_state(state[f"random.{context.rank}.cpu"])
    if f"random.{context.rank}.cuda" in state:
        torch.cuda.set_rng_state(state[f"random.{context.rank}.cuda"], context.device)
