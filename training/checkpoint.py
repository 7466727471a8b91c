"""Checkpoints: sharded, written beside the training, whole or not there, loadable on another number of ranks.

Promises: `save` returns once the state has been copied to CPU memory; files are written by each rank, then copied to
the address `upload`, while training goes on. A checkpoint counts when `complete.json` is in it, which is written last,
on disk and at the address: one that was cut short is never taken for whole. Tensors are kept under the names of
parameters, so that what one strategy saved any other loads. `load` restores weights, optimizer, random numbers, step
and the loader's position.
Leaves to others: when to save (trainer.py), Hugging Face's form (hugging_face.py).

    run_dir/checkpoints/step-00000100/__0_0.distcp ... .metadata      torch.distributed.checkpoint
                                     /complete.json                   step, rows, loader's state, counts: readable
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

from training.config import CheckpointConfig
from training.parallel.distributed import IncompatibleConfig, Ranks

MARKER = "complete.json"
CHECKPOINT_VERSION = 1
_NAME = re.compile(r"step-(\d{8})")


class CheckpointFailed(RuntimeError):
    """An earlier checkpoint could not be written or copied; training ends, since it would go on without any."""


@dataclass(frozen=True)
class State:
    """What a checkpoint holds.

    model, optimizer: live tensors by name, this rank's part of each (DTensor) or whole ones.
    progress:         plain values: step, loader's state, counts.
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    progress: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one run; one is written at a time."""

    def __init__(self, run_dir: Path, config: CheckpointConfig, ranks: Ranks) -> None:
        self.folder = run_dir / "checkpoints"
        self._config, self._ranks = config, ranks
        # of its own: background threads must not mix their collectives with those of the step
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)  # every rank is in it
        self._group = group
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        on_cuda = ranks.device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=on_cuda,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=on_cuda,
            )
        )

    def save(self, state: State) -> None:
        """Copy the state to CPU memory and leave the rest to a thread; waits for the checkpoint before this one.

        Raises:
            CheckpointFailed: the one before could not be written.
        """
        self.wait()
        tensors = {
            **_prefixed("model", state.model),
            **_prefixed("optimizer", state.optimizer),
            **_random_state(self._ranks),
        }
        staged = self._stager.stage(tensors)
        assert isinstance(staged, dict)
        progress = {
            "version": CHECKPOINT_VERSION,
            "world_size": self._ranks.world_size,
            **state.progress,
        }
        self._writing = self._thread.submit(self._write, staged, progress)

    def wait(self) -> None:
        """Until the checkpoint that is being written is whole; raises CheckpointFailed."""
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except (Exception, CheckpointException) as error:  # torch's is none of Exception's
            causes = (
                error.failures
                if isinstance(error, CheckpointException)
                else {self._ranks.rank: (error, None)}
            )
            found = "; ".join(f"rank {rank}: {cause[0]}" for rank, cause in causes.items())
            raise CheckpointFailed(
                f"a checkpoint in {self.folder} could not be written: {found}; those with {MARKER} in them are whole. "
                f"Make room or mend the address, and start again: the run goes on from the newest"
            ) from error

    def close(self) -> None:
        """Wait for the last one and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._stager.close()

    def newest(self) -> Path | None:
        """Folder of the newest whole checkpoint of the run; brought here from `upload` where this disk has none.

        Every rank gets the same answer: the first one looks.
        """
        found: list[Any] = [None]
        if self._ranks.is_first:
            whole = whole_checkpoints(self.folder)
            if not whole and self._config.upload:
                whole = _fetch_newest(self._config.upload, self.folder)
            found = [str(whole[-1]) if whole else None]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return Path(found[0]) if found[0] else None

    def load(self, path: Path, state: State) -> dict[str, Any]:
        """Read a checkpoint into the live tensors of a state; its progress.

        Raises:
            IncompatibleConfig: it is of another model or version, or not whole.
        """
        progress = read_progress(path)
        tensors = {**_prefixed("model", state.model), **_prefixed("optimizer", state.optimizer)}
        refuse_other_model(path, tensors)
        is_same_world = progress["world_size"] == self._ranks.world_size
        random = _random_state(self._ranks) if is_same_world else {}
        load_tensors({**tensors, **random}, checkpoint_id=path, process_group=self._group)
        _set_random_state(random, self._ranks)
        return progress

    def _write(self, staged: dict[str, Any], progress: dict[str, Any]) -> None:
        path = self.folder / step_name(progress["step"])
        if (
            self._ranks.is_first and path.exists()
        ):  # of a run that was killed while writing it, perhaps on other ranks
            shutil.rmtree(path)
        dist.barrier(self._group)
        save_tensors(staged, checkpoint_id=path, process_group=self._group)
        if self._config.upload:
            mine = sorted(path.glob(f"__{self._ranks.rank}_*"))
            _upload(mine, self._config.upload, path.name)
            dist.barrier(self._group)  # all parts are there before it is called whole
        if self._ranks.is_first:
            marker = path / MARKER
            partial = marker.with_suffix(".partial")
            partial.write_text(json.dumps(progress, indent=1) + "\n", encoding="utf-8")
            os.replace(partial, marker)
            if self._config.upload:
                _upload([path / ".metadata", marker], self._config.upload, path.name)
            self._remove_old()

    def _remove_old(self) -> None:
        """Keep the last ones and those to be kept for ever; what is not whole and older than the newest goes too."""
        every = self._config.keep_every_steps
        whole = whole_checkpoints(self.folder)
        kept = {*whole[-self._config.keep_last :]}
        kept |= {path for path in whole if every is not None and step_of(path) % every == 0}
        for path in self.folder.iterdir():
            if (
                _NAME.fullmatch(path.name)
                and path not in kept
                and step_of(path) < step_of(whole[-1])
            ):
                (path / MARKER).unlink(missing_ok=True)  # first: from now on it is not whole
                shutil.rmtree(path)
                if self._config.upload:
                    _remove(self._config.upload, path.name)


def whole_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints with a marker, by step."""
    found = [
        path
        for path in folder.glob("step-*")
        if _NAME.fullmatch(path.name) and (path / MARKER).is_file()
    ]
    return sorted(found, key=step_of)


def step_name(step: int) -> str:
    """Name of a checkpoint's folder."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Steps that were done when it was saved."""
    matched = _NAME.fullmatch(path.name)
    assert matched is not None
    return int(matched[1])


def read_progress(path: Path) -> dict[str, Any]:
    """What complete.json says; raises IncompatibleConfig where it is missing or of another version."""
    try:
        progress = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise IncompatibleConfig(
            f"{path} has no {MARKER}: it is no checkpoint, or was cut short; take another"
        ) from error
    if progress.get("version") != CHECKPOINT_VERSION:
        raise IncompatibleConfig(
            f"{path / MARKER}: version is {progress.get('version')}, wanted {CHECKPOINT_VERSION}"
        )
    return progress


def refuse_other_model(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise IncompatibleConfig unless every tensor is in the checkpoint in this shape; all differences in one message."""
    stored = FileSystemReader(path).read_metadata().state_dict_metadata
    faults: list[str] = []
    for name, tensor in tensors.items():
        found = stored.get(name)
        if found is None:
            faults.append(f"{name} is missing")
        elif tuple(getattr(found, "size", ())) != tuple(tensor.shape):
            faults.append(
                f"{name} is {tuple(getattr(found, 'size', ()))} there, {tuple(tensor.shape)} here"
            )
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise IncompatibleConfig(
            f"{path} is a checkpoint of another model: {'; '.join(faults[:5])}{more}. Give the run another run_dir, "
            f"or the model the settings it was saved with"
        )


def load_weights(path: Path, model: Mapping[str, Tensor]) -> None:
    """Only the weights of a checkpoint, into live tensors; no other process is needed."""
    tensors = _prefixed("model", model)
    refuse_other_model(path, tensors)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*intent is to load in a single process")
        load_tensors(tensors, checkpoint_id=path, no_dist=True)


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {f"{prefix}.{name}": tensor.detach() for name, tensor in tensors.items()}


# ------------------------------------------------------------------------------------------------------ random numbers


def _random_state(ranks: Ranks) -> dict[str, Any]:
    state = {f"random.{ranks.rank}.cpu": torch.get_rng_state()}
    if ranks.device.type == "cuda":
        state[f"random.{ranks.rank}.cuda"] = torch.cuda.get_rng_state(ranks.device)
    return state


def _set_random_state(state: Mapping[str, Any], ranks: Ranks) -> None:
    if state:
        torch.set_rng_state(state[f"random.{ranks.rank}.cpu"])
    if f"random.{ranks.rank}.cuda" in state:
        torch.cuda.set_rng_state(state[f"random.{ranks.rank}.cuda"], ranks.device)


# ------------------------------------------------------------------------------------------------------ object storage


def _store(address: str) -> Any:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise IncompatibleConfig(
            f"checkpoint.upload is {address}: that takes obstore, pip install 'corpusmill[s3]'"
        ) from error
    is_plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return from_url(address, client_options={"allow_http": True}) if is_plain else from_url(address)


def _upload(files: list[Path], address: str, name: str) -> None:
    """In this order; each whole or not there (obstore completes a multipart upload only at its end)."""
    store = _store(address)
    for file in files:
        with file.open("rb") as source:
            store.put(f"{name}/{file.name}", source)


def _remove(address: str, name: str) -> None:
    store = _store(address)
    paths = [entry["path"] for part in store.list(name) for entry in part]
    store.delete(sorted(paths, key=lambda path: not path.endswith(MARKER)))  # the marker first


def _fetch_newest(address: str, folder: Path) -> list[Path]:
    """Bring the newest whole checkpoint at the address to this disk."""
    store = _store(address)
    paths = [entry["path"] for part in store.list() for entry in part]
    whole = sorted(path.rpartition("/")[0] for path in paths if path.endswith(f"/{MARKER}"))
    if not whole:
        return []
    name = whole[-1].rpartition("/")[2]
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(
        (path for path in paths if path.startswith(f"{whole[-1]}/")),
        key=lambda path: path.endswith(MARKER),
    ):
        with (target / path.rpartition("/")[2]).open("wb") as file:
            for chunk in store.get(path):
                file.write(chunk)
    return [target]
