"""Attacks on several ranks (gloo, on the CPU): kills, NaN, full disks, other numbers of ranks."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from loader import TokenLoader
from storage.errors import StorageError
from tests.faults._small_disk import (
    PAGE_BYTES,
    enlarge_disk,
    find_missing_tmpfs,
    mount_disk,
)
from tests.faults.attack import Attack, get_shared_folder
from tests.training.conftest import (
    losses,
    make_settings,
    read_log,
    train_each,
    write_language,
)
from tests.training.rank_processes import MESSAGES, run_world, start, wait_for_end
from training import anomaly_guard
from training.checkpoint.checkpointer import load_weights
from training.checkpoint.marker import list_complete_checkpoints
from training.config import TrainConfig
from training.data.batches import MicroBatch, StepBatches
from training.errors import CheckpointFailed, TrainingStopped
from training.model.decoder import Decoder
from training.parallel.distributed import init_distributed, shutdown_distributed
from training.trainer import Trainer

STEPS = 6
STRATEGIES = ("zero1", "zero3", "ddp")

# A rank whose peer was killed ends at once; this is for a busy machine.
END_TIMEOUT_S = 300.0

# Changes in the folder of checkpoints by which two equal runs may differ.
MAX_EARLIER = 4

# Of several ranks that are left, one may wait in its training step for another one, whose
# checkpoint thread waits for the first, until their timeouts. torchrun ends them at once.
OTHERS_TIMEOUT_S = 5.0


@functools.cache
def get_language() -> Path:
    """Return the dataset that all runs read."""
    return write_language(get_shared_folder() / "language")


def make_run(run_dir: Path, **changes: Any) -> dict[str, Any]:
    """Return the settings of a run of six steps, which saves after every second one."""
    settings: dict[str, Any] = {
        "steps": STEPS,
        "checkpoint": {"every_steps": 2, "keep_last": 1},
        # Small, so that a step takes few milliseconds.
        "model": {"dim": 32, "num_layers": 1, "ffn_dim": 64},
    }
    return make_settings(run_dir, get_language(), **{**settings, **changes})


def read_weights(settings: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights of the newest checkpoint of a run."""
    config = TrainConfig.model_validate(settings)
    parameters = dict(Decoder(config.model, 256).named_parameters())
    folder = Path(config.run_dir) / "checkpoints"
    load_weights(list_complete_checkpoints(folder)[-1], parameters)
    return {name: parameter.detach() for name, parameter in parameters.items()}


def check_equal(settings: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare losses and weights of two runs bit by bit."""
    assert losses(settings["run_dir"]) == losses(expected["run_dir"])
    found, wanted = read_weights(settings), read_weights(expected)
    differing = [name for name in wanted if not torch.equal(found[name], wanted[name])]
    assert not differing, f"other weights: {differing}"


# ---- a rank that is killed while a checkpoint is saved ----

_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")


class SaveEvents:
    """Counts what this process changes in the folder of checkpoints, by an audit hook.

    Args:
        folder: the folder.
        killed_at: number of the event before which the process kills itself.
    """

    def __init__(self, folder: Path, killed_at: int | None) -> None:
        self._folder, self._killed_at = str(folder), killed_at
        self.num_events = 0
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not self._is_change(event, arguments):
            return
        if self.num_events == self._killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.num_events += 1

    def _is_change(self, event: str, arguments: tuple[Any, ...]) -> bool:
        path = arguments[0]
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        is_inside = os.fsdecode(path).startswith(self._folder)
        return is_inside and (event != "open" or bool(arguments[2] & os.O_ACCMODE))


def train_counted(settings: Mapping[str, Any]) -> None:
    """Train, and write the number of events of this rank to a file."""
    run_dir = Path(settings["run_dir"])
    events = SaveEvents(run_dir / "checkpoints", None)
    train_each([settings])
    (run_dir / f"events-{os.environ['RANK']}").write_text(str(events.num_events))


def train_killed(settings: Mapping[str, Any], rank: int, moment: int) -> None:
    """Train; one rank is killed at a moment of its saves."""
    if os.environ["RANK"] == str(rank):
        SaveEvents(Path(settings["run_dir"]) / "checkpoints", moment)
    train_each([settings])


@functools.cache
def get_undisturbed(strategy: str) -> tuple[dict[str, Any], tuple[tuple[int, int], ...]]:
    """Return the settings of an undisturbed run of two ranks, and (rank, moment) of its saves."""
    folder = get_shared_folder() / strategy
    settings = make_run(folder / "run", parallel={"strategy": strategy})
    run_world(2, train_counted, settings, folder=folder)
    points: list[tuple[int, int]] = []
    for rank in range(2):
        num_events = int((folder / "run" / f"events-{rank}").read_text())
        points += [(rank, moment) for moment in range(num_events)]
    random.Random(0).shuffle(points)
    return settings, tuple(points)


def kill_rank(seed: int, folder: Path) -> None:
    """Kill one of two ranks while a checkpoint is saved, and train again."""
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    expected, points = get_undisturbed(strategy)
    rank, moment = points[seed // len(STRATEGIES) % len(points)]
    codes = [0, 0]
    # A run can have a few changes fewer than the counted one: then the last one is not reached.
    for earlier in range(MAX_EARLIER):
        settings = {**expected, "run_dir": str(folder / f"run-{earlier}")}
        arguments = settings, rank, moment - earlier
        with start(2, train_killed, *arguments, folder=folder) as processes:
            for process in processes:
                process.join(END_TIMEOUT_S)
            codes = [process.exitcode for process in processes]
        if codes != [0, 0]:
            break
    assert codes[rank] == -signal.SIGKILL, f"rank {rank} ended with {codes[rank]}"
    assert codes[1 - rank] is not None, "the other rank hangs"
    assert codes[1 - rank] != 0, "the other rank has not noticed"
    (folder / MESSAGES).unlink()
    run_world(2, train_each, [settings], folder=folder)
    check_equal(settings, expected)


# ---- other numbers of ranks ----


class RecordedBatches:
    """The batches of a rank. They are recorded, and the rank can be killed before a step."""

    def __init__(self, batches: StepBatches, file: Path, killed_at: int | None) -> None:
        self._batches, self._killed_at = batches, killed_at
        self._file = file.open("w", encoding="utf-8")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def read_step(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of a step."""
        if step == self._killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        micro_batches = self._batches.read_step(step)
        rows: list[str] = []
        for micro_batch in micro_batches:
            rows += map(hash_row, micro_batch.input_ids)
        self._file.write(json.dumps({"step": step, "rows": rows}) + "\n")
        self._file.flush()
        return micro_batches


def hash_row(row: torch.Tensor) -> str:
    """Return a digest of the ids of a row."""
    return hashlib.sha256(row.cpu().numpy().tobytes()).hexdigest()[:16]


def train_recorded(settings: Mapping[str, Any], name: str, kill: Sequence[int]) -> None:
    """Train and record the rows.

    Args:
        settings: the run.
        name: begins the names of the files with the rows.
        kill: rank and step of a kill, or nothing.
    """
    config = TrainConfig.model_validate(settings)
    run_dir = Path(config.run_dir)
    context = init_distributed(config.parallel, timeout_s=600, dump_dir=run_dir / "hang")
    killed_at = kill[1] if kill and kill[0] == context.rank else None
    with ExitStack() as cleanup:
        trainer = Trainer(config, context, cleanup)
        file = run_dir / f"{name}-{context.rank}.rows"
        recorded = RecordedBatches(trainer.batches, file, killed_at)
        trainer.batches = recorded  # pyright: ignore[reportAttributeAccessIssue]
        trainer.run()
    shutdown_distributed()


def change_ranks(seed: int, folder: Path) -> None:
    """Train on three numbers of ranks; two of the runs are killed."""
    draws = random.Random(seed)
    run_dir = folder / "run"
    run_dir.mkdir()  # ranks write their rows to it; the trainer makes it on one rank only
    # 16 rows by 3 ranks of 2 rows leave a remainder.
    rows = {"global_batch_rows": 16, "micro_batch_rows": 2}
    for attempt in range(3):
        num_ranks = draws.randrange(1, 5)
        parallel = {"strategy": draws.choice(STRATEGIES)}
        settings = make_run(run_dir, data=rows, parallel=parallel)
        # The run continues after its newest checkpoint.
        saved = list_complete_checkpoints(run_dir / "checkpoints")
        first_step = int(saved[-1].name.rpartition("-")[2]) if saved else 0
        kill = (draws.randrange(num_ranks), draws.randrange(first_step, STEPS))
        if attempt == 2:
            run_world(num_ranks, train_recorded, settings, str(attempt), (), folder=folder)
            continue
        arguments = settings, str(attempt), kill
        with start(num_ranks, train_recorded, *arguments, folder=folder) as processes:
            killed = processes[kill[0]]
            killed.join(END_TIMEOUT_S)
            code = killed.exitcode
            wait_for_end(processes, OTHERS_TIMEOUT_S)
        assert code == -signal.SIGKILL, (folder / MESSAGES).read_text()[-2000:]
        (folder / MESSAGES).unlink()
    position = read_log(run_dir)[-1]["position"]
    assert position >= STEPS * 16
    found = Counter(list_effective_rows(run_dir))
    wanted = Counter(list_rows(position))
    assert found == wanted, f"lost: {wanted - found}; twice: {found - wanted}"


def list_effective_rows(run_dir: Path) -> list[str]:
    """Return the rows of a run, without those of steps that were repeated later."""
    by_step: dict[int, list[str]] = {}
    for attempt in range(3):
        lines: list[dict[str, Any]] = []
        for file in sorted(run_dir.glob(f"{attempt}-*.rows")):
            lines += [json.loads(line) for line in file.read_text().splitlines()]
        first = min((line["step"] for line in lines), default=STEPS)
        by_step = {step: rows for step, rows in by_step.items() if step < first}
        for line in lines:
            by_step.setdefault(line["step"], []).extend(line["rows"])
    rows: list[str] = []
    for step in sorted(by_step):
        rows += by_step[step]
    return rows


def list_rows(num_rows: int) -> list[str]:
    """Return the first rows of the dataset, in the order of one rank."""
    loader = TokenLoader(
        get_language(), seq_len=64, global_batch_rows=1, rank=0, world_size=1
    )
    return [hash_row(next(loader)["input_ids"][0]) for _ in range(num_rows)]


# ---- NaN ----


def train_poisoned(
    settings: Mapping[str, Any], rank: int, steps: Sequence[int], *, stops: bool
) -> None:
    """Train; the loss of one rank is not finite in some steps.

    Args:
        settings: the run.
        rank: the rank.
        steps: the steps.
        stops: whether the run must be stopped by the anomaly guard.
    """
    config = TrainConfig.model_validate(settings)
    dump_dir = Path(config.run_dir) / "hang"
    context = init_distributed(config.parallel, timeout_s=600, dump_dir=dump_dir)
    # These runs are shorter than the usual number. This process trains nothing else.
    anomaly_guard.MAX_CONSECUTIVE_SKIPS = 2
    with ExitStack() as cleanup:
        trainer = Trainer(config, context, cleanup)
        poison = math.nan if steps[0] % 2 else math.inf

        def change_loss(module: object, inputs: object, outputs: Any) -> Any:
            del module, inputs
            if trainer.step in steps and context.rank == rank % context.world_size:
                return outputs[0] * poison, *outputs[1:]
            return outputs

        trainer.model.register_forward_hook(change_loss)
        if stops:
            with pytest.raises(TrainingStopped, match=r"loss is (nan|inf)"):
                trainer.run()
        else:
            trainer.run()
    shutdown_distributed()


def poison_loss(seed: int, folder: Path) -> None:
    """Make the loss of a rank NaN or infinite in one step; on odd seeds in all later ones."""
    draws = random.Random(seed)
    first, rank, stops = draws.randrange(1, STEPS), draws.randrange(2), seed % 2 == 1
    if stops:
        first = min(first, STEPS - 2)
    steps = list(range(first, STEPS)) if stops else [first]
    parallel = {"strategy": STRATEGIES[seed % len(STRATEGIES)]}
    runs: list[dict[str, Any]] = []
    for num_ranks in (1, 2):
        run_dir = folder / str(num_ranks)
        settings = make_run(run_dir, parallel=parallel)
        work = functools.partial(train_poisoned, stops=stops)
        run_world(num_ranks, work, settings, rank, steps, folder=run_dir)
        runs.append(settings)
    alone, together = (read_log(settings["run_dir"]) for settings in runs)
    assert [line["bad_steps"] for line in together] == [line["bad_steps"] for line in alone]
    # The optimizer must skip the step on all ranks: later losses show the weights.
    for line, expected in zip(together, alone, strict=True):
        if line["step"] - 1 not in steps:
            assert line["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    if list_complete_checkpoints(folder / "2" / "checkpoints"):
        for name, weight in read_weights(runs[1]).items():
            assert bool(torch.isfinite(weight).all()), f"{name} is not finite"


# ---- full disk ----


@functools.cache
def get_run_alone() -> dict[str, Any]:
    """Return the settings of an undisturbed run of one rank."""
    folder = get_shared_folder() / "alone"
    settings = make_run(folder / "run")
    run_world(1, train_each, [settings], folder=folder)
    return settings


def train_on_full_disk(settings: Mapping[str, Any]) -> None:
    """Train; the message must name the path and the cause."""
    with pytest.raises((CheckpointFailed, StorageError)) as raised:
        train_each([settings])
    message = str(raised.value)
    assert "No space left on device" in message, message
    assert settings["run_dir"] in message, message


def fill_disk(seed: int, folder: Path) -> None:
    """Train on a disk that is too small by the seed, then on a larger one."""
    expected = get_run_alone()
    disk = folder / "disk"
    disk.mkdir()
    used = 0
    for path in Path(expected["run_dir"]).rglob("*"):
        if path.is_file():
            used += -(-path.stat().st_size // PAGE_BYTES) * PAGE_BYTES
    room = PAGE_BYTES + used * seed // NUM_DISKS // PAGE_BYTES * PAGE_BYTES
    settings = {**expected, "run_dir": str(disk / "run")}
    with mount_disk(disk, room):
        # With seed 0 the disk is full from the beginning.
        (disk / "other file").write_bytes(b"x")
        run_world(1, train_on_full_disk, settings, folder=folder)
        enlarge_disk(disk, 4 * used)
        run_world(1, train_each, [settings], folder=folder)
        check_equal(settings, expected)


NUM_DISKS = 20


ATTACKS = (
    Attack(
        name="training: rank killed while saving",
        promise="The other rank ends. The run continues to the bits of an undisturbed run.",
        num_tries=60,
        num_small_tries=1,
        attempt=kill_rank,
        timeout_s=600.0,
    ),
    Attack(
        name="training: other number of ranks",
        promise="Killed and continued on other ranks, a run reads every row once.",
        num_tries=30,
        num_small_tries=0,  # tests/training/test_trainer.py has a small form
        attempt=change_ranks,
        timeout_s=600.0,
    ),
    Attack(
        name="training: NaN in the loss",
        promise="All ranks skip the step, or stop together. Weights stay finite.",
        num_tries=20,
        num_small_tries=1,
        attempt=poison_loss,
        timeout_s=600.0,
    ),
    Attack(
        name="training: disk full, run",
        promise="A full disk ends the run with a message. With more space it continues to the same bits.",
        num_tries=NUM_DISKS,
        num_small_tries=1,
        attempt=fill_disk,
        find_obstacle=find_missing_tmpfs,
        timeout_s=600.0,
    ),
)
