"""Sharded checkpoints, written in the background and loadable on any number of ranks.

Tensors are stored under the names of parameters, so a checkpoint of one strategy can be loaded
by any other. A checkpoint is complete once `complete.json` is in it; this file is written last.

    run_dir/checkpoints/step-00000100/__0_0.distcp ... .metadata    torch.distributed.checkpoint
                                     /complete.json                 step, loader state, counters
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from training.checkpoint_store import (
    MARKER,
    download_newest,
    remove_checkpoint,
    upload_files,
)
from training.config import CheckpointConfig
from training.errors import CheckpointFailed, IncompatibleConfig
from training.parallel.distributed import RankContext

CHECKPOINT_VERSION = 1
MAX_SHOWN_FAULTS = 5
_NAME = re.compile(r"step-(\d{8})")


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
        # A separate group, because the background thread's collectives must not interleave with
        # those of the training step. gloo, because they are collectives on CPU tensors.
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)  # all ranks are members
        self._group = group
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        on_cuda = context.device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=on_cuda,
                use_shared_memory=False,
                # The next optimizer step changes the tensors, so the copy must end before save()
                # returns.
                use_async_staging=False,
                use_non_blocking_copy=on_cuda,
            )
        )

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
        staged = self._stager.stage(tensors)
        assert isinstance(staged, dict)
        progress = {
            "version": CHECKPOINT_VERSION,
            "world_size": self._context.world_size,
            **state.progress,
        }
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
            if isinstance(error, CheckpointException):
                causes = {rank: cause[0] for rank, cause in error.failures.items()}
            else:
                causes = {self._context.rank: error}
            message = "; ".join(f"rank {rank}: {cause}" for rank, cause in causes.items())
            raise CheckpointFailed(
                f"a checkpoint in {self.folder} could not be written: {message}. Checkpoints with "
                f"{MARKER} in them are complete. Make room or correct the address, and start "
                f"again: the run resumes from the newest"
            ) from error

    def close(self) -> None:
        """Wait for the pending checkpoint and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._stager.close()

    def find_newest(self) -> Path | None:
        """Return the newest complete checkpoint, or None; the same on every rank.

        If this disk has none, it is downloaded from `upload`. Only rank 0 looks, so that ranks
        cannot disagree about a folder that is just being removed.
        """
        # broadcast_object_list fills the list of the other ranks in place.
        found: list[Any] = [None]
        if self._context.is_first:
            newest = (list_complete_checkpoints(self.folder) or [None])[-1]
            if newest is None and self._config.upload:
                newest = download_newest(self._config.upload, self.folder)
            found = [str(newest) if newest else None]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return Path(found[0]) if found[0] else None

    def load(self, path: Path, state: TrainState) -> dict[str, Any]:
        """Load a checkpoint into the live tensors of a state.

        The random state is restored only on the same number of ranks.

        Returns:
            The progress that was saved.

        Raises:
            IncompatibleConfig: the checkpoint is of another model or version, or incomplete.
        """
        progress = read_progress(path)
        tensors = {
            **_add_prefix("model", state.model),
            **_add_prefix("optimizer", state.optimizer),
        }
        check_same_model(path, tensors)
        # Random states belong to ranks, so they have no meaning on another number of ranks.
        random_state: dict[str, Any] = {}
        if progress["world_size"] == self._context.world_size:
            random_state = _get_random_state(self._context)
        load_tensors(
            {**tensors, **random_state}, checkpoint_id=path, process_group=self._group
        )
        _set_random_state(random_state, self._context)
        return progress

    def _write(self, staged: dict[str, Any], progress: dict[str, Any]) -> None:
        """Write and upload a checkpoint; runs in the background thread.

        Order: shards of all ranks, then the metadata, then the marker, on disk and in the store.
        A crash at any point leaves a checkpoint without marker, which is ignored.
        """
        path = self.folder / format_step_name(progress["step"])
        if self._context.is_first and path.exists():
            # Left by a run that was killed while it wrote, perhaps with other ranks.
            shutil.rmtree(path)
        dist.barrier(self._group)
        # Each rank writes its files; the coordinator writes .metadata when all ranks have finished.
        save_tensors(staged, checkpoint_id=path, process_group=self._group)
        if self._config.upload:
            # The files of this rank are named __<rank>_<number>.distcp.
            own_files = sorted(path.glob(f"__{self._context.rank}_*"))
            upload_files(own_files, self._config.upload, path.name)
            dist.barrier(self._group)  # all shards must be uploaded before the marker
        if self._context.is_first:
            marker = path / MARKER
            partial = marker.with_suffix(".partial")
            partial.write_text(json.dumps(progress, indent=1) + "\n", encoding="utf-8")
            # The rename is atomic: a marker that exists is a complete JSON file.
            os.replace(partial, marker)
            if self._config.upload:
                upload_files([path / ".metadata", marker], self._config.upload, path.name)
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
                not _NAME.fullmatch(path.name)
                or path in kept
                or parse_step(path) >= newest_step
            ):
                continue
            # The marker goes first: a removal that is cut short leaves no complete checkpoint.
            (path / MARKER).unlink(missing_ok=True)
            shutil.rmtree(path)
            if self._config.upload:
                remove_checkpoint(self._config.upload, path.name)


def list_complete_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints with a marker, ordered by step."""
    marked = [marker.parent for marker in folder.glob(f"step-*/{MARKER}")]
    return sorted((path for path in marked if _NAME.fullmatch(path.name)), key=parse_step)


def format_step_name(step: int) -> str:
    """Return the folder name of a checkpoint."""
    return f"step-{step:08d}"


def parse_step(path: Path) -> int:
    """Return the number of finished steps in the folder name of a checkpoint."""
    matched = _NAME.fullmatch(path.name)
    assert matched is not None
    return int(matched[1])


def read_progress(path: Path) -> dict[str, Any]:
    """Read complete.json of a checkpoint.

    Raises:
        IncompatibleConfig: it is missing, or of another version.
    """
    try:
        progress = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise IncompatibleConfig(
            f"{path} has no {MARKER}, so it is not a complete checkpoint; use another one"
        ) from error
    if progress.get("version") != CHECKPOINT_VERSION:
        raise IncompatibleConfig(
            f"{path / MARKER}: version is {progress.get('version')}, expected {CHECKPOINT_VERSION}"
        )
    return progress


def check_same_model(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check that a checkpoint has every tensor in the same shape.

    Raises:
        IncompatibleConfig: with the first differences.
    """
    # Compare all names and shapes before any tensor is changed.
    stored = FileSystemReader(path).read_metadata().state_dict_metadata
    faults: list[str] = []
    for name, tensor in tensors.items():
        entry = stored.get(name)
        stored_shape, shape = tuple(getattr(entry, "size", ())), tuple(tensor.shape)
        if entry is None:
            faults.append(f"{name} is missing")
        elif stored_shape != shape:
            faults.append(
                f"{name} is {stored_shape} in the checkpoint, {shape} in the model"
            )
    if faults:
        num_more = len(faults) - MAX_SHOWN_FAULTS
        more = f" and {num_more} more" if num_more > 0 else ""
        raise IncompatibleConfig(
            f"{path} is a checkpoint of another model: {'; '.join(faults[:MAX_SHOWN_FAULTS])}"
            f"{more}. Give the run another run_dir, or the model the settings of the checkpoint"
        )


def load_weights(path: Path, model: Mapping[str, Tensor]) -> None:
    """Load only the weights of a checkpoint into live tensors, in a single process."""
    tensors = _add_prefix("model", model)
    check_same_model(path, tensors)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*intent is to load in a single process")
        load_tensors(tensors, checkpoint_id=path, no_dist=True)


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
