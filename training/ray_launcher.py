"""Ray Train as the launcher: the ranks of a run are Ray's workers, and are started again when one of them dies.

Promises: each worker does what a process under torchrun does. When one is lost, Ray Train starts all of them again, at
most `max_failures` times, and they go on from the newest whole checkpoint in run_dir, bit for bit as if nothing had
been. What no repetition mends (config, dataset and machine do not go together, too many bad steps) is not repeated.
SIGTERM to this process saves and leaves. Relative paths of the config mean what they mean here: workers run elsewhere,
so that they get absolute ones.
Leaves to others: the cluster (RAY_ADDRESS; without it Ray is started here and ended with the run), the volume that
makes run_dir the same folder on all nodes, and checkpoints (checkpoint.py): Ray's store for them is not used.

    ended = launch(load("train-1b"), num_workers=16, max_failures=3)
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Read when Ray is imported. Its cleaner asks the dashboard every second, and a Ray started here has none; its watcher
# of nodes is complained of at every start.
os.environ.setdefault(
    "RAY_DEDUP_LOGS_SKIP_REGEX",
    "Failed to query Ray Train Controller actor state|class name: 'PreemptionWatcher'",
)

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.callback import UserCallback
from ray.train.v2.api.config import LoggingConfig
from ray.train.v2.api.exceptions import ControllerError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from training.config import TrainConfig

if TYPE_CHECKING:
    from training.trainer import TrainResult

PATH_KEYS = {"run_dir", "manifest", "instructions", "tokenizer", "initial_weights"}
LISTEN_EVERY_S = 1.0


def launch(config: TrainConfig, *, num_workers: int | None, max_failures: int) -> TrainResult:
    """Run a config on Ray Train's workers, to its end or until this process gets SIGTERM.

    Args:
        config: as for `train`.
        num_workers: None: one for each GPU of the cluster, or one where it has none.
        max_failures: how often all workers are started again after a loss; -1: as often as it takes.

    Raises:
        IncompatibleConfig, ResumeMismatch, TrainingStopped: as `train`.
        ray.train.TrainingFailedError: workers failed once more than allowed, for the reasons in it.
    """
    from training.parallel import distributed

    settings = with_absolute_paths(config.model_dump(mode="json"))
    Path(settings["run_dir"]).mkdir(parents=True, exist_ok=True)
    _start_ray(num_workers)
    try:
        num_gpus = int(ray.cluster_resources().get("GPU", 0))
        num_workers = num_workers or max(1, num_gpus)
        _say_what_is_missing(num_workers, num_gpus)
        nccl = distributed.flight_recorder(Path(settings["run_dir"]) / "hang") if num_gpus else {}
        with _leave_on_sigterm() as leaving:
            trainer = TorchTrainer(
                lambda settings: work(settings, leaving),
                train_loop_config=settings,
                torch_config=TorchConfig(
                    backend=distributed.backend(has_cuda=num_gpus > 0),
                    timeout_s=config.process.start_timeout_s,
                ),
                scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=num_gpus > 0),
                run_config=RunConfig(
                    name="ray",
                    storage_path=settings["run_dir"],
                    failure_config=FailureConfig(max_failures=max_failures),
                    callbacks=[_EndForGood()],
                    worker_runtime_env={"env_vars": nccl} if nccl else None,
                    logging_config=LoggingConfig("ERROR"),
                ),
            )
            ended: Any = trainer.fit().return_value  # the first worker's
            return ended
    except ControllerError as error:
        if isinstance(error.controller_failure, _Final):
            raise error.controller_failure.fault from None
        raise
    finally:
        ray.shutdown()


def with_absolute_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which each path on disk is absolute; addresses stay."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found[name] = with_absolute_paths(value)
        elif name in PATH_KEYS and isinstance(value, str) and "://" not in value:
            found[name] = os.path.abspath(value)
        else:
            found[name] = value
    return found


def work(settings: Mapping[str, Any], leaving: Any) -> TrainResult:
    """What a worker does: what a process under torchrun does, told to leave by the actor `leaving`.

    Ray joined the ranks before, and parts them afterwards.
    """
    from loader.state import ResumeMismatch
    from training.parallel import distributed
    from training.trainer import IncompatibleConfig, TrainingStopped, train

    config = TrainConfig.model_validate(settings)
    told = threading.Event()
    try:
        _refuse_missing(config.run_dir)
        dump_dir = Path(config.run_dir) / "hang"
        here = distributed.join(
            config.parallel, timeout_s=config.process.start_timeout_s, dump_dir=dump_dir
        )
        if here.is_first:
            threading.Thread(target=_listen, args=(leaving, told), daemon=True).start()
        return train(config, here, told)
    except (IncompatibleConfig, ResumeMismatch, TrainingStopped) as error:
        raise _Final(error) from None


def _refuse_missing(run_dir: str) -> None:
    """The driver made it, so it is missing where it is another disk's."""
    from training.parallel.distributed import IncompatibleConfig

    if not Path(run_dir).is_dir():
        raise IncompatibleConfig(
            f"run_dir is {run_dir}, which is not there on {socket.gethostname()}: all ranks write their part of a "
            f"checkpoint to it, so it must lie on a volume that every node mounts under this path"
        )


class _Final(Exception):
    """What would only happen again, on its way to the driver."""

    def __init__(self, fault: Exception) -> None:
        super().__init__(fault)
        self.fault = fault


class _EndForGood(UserCallback):
    """What a callback raises ends the run where an error of a worker would start it again."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:  # noqa: ARG002
        for error in worker_exceptions.values():
            if isinstance(error, _Final):
                raise error


# --------------------------------------------------------------------------------------------------- told to leave


@contextmanager
def _leave_on_sigterm() -> Generator[Any]:
    """An event on this node that SIGTERM to this process sets: an actor.

    Workers ask it, since they train in a thread of a process whose signals are Ray's.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    leaving: Any = (
        ray.remote(threading.Event).options(num_cpus=0, scheduling_strategy=here).remote()
    )
    # In a thread: a handler runs in the middle of whatever Ray is doing.
    tell = threading.Thread(target=leaving.set.remote, daemon=True)
    before = signal.signal(signal.SIGTERM, lambda *_: None if tell.ident else tell.start())
    try:
        yield leaving
    finally:
        signal.signal(signal.SIGTERM, before)


def _listen(leaving: Any, told: threading.Event) -> None:
    while not ray.get(leaving.is_set.remote()):
        time.sleep(LISTEN_EVERY_S)
    told.set()


# ------------------------------------------------------------------------------------------------------------- Ray


def _start_ray(num_workers: int | None) -> None:
    """Join the cluster that RAY_ADDRESS names, or start Ray here; workers' lines come to this terminal."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault(
        "RAY_TRAIN_ENABLE_PRINT_PATCH", "0"
    )  # it would print each line of workers twice
    if "RAY_ADDRESS" in os.environ:
        ray.init(logging_level=logging.ERROR)
        return
    os.umask(0o077)  # Ray's session folder and token are for this user only
    ray.init(
        num_cpus=num_workers or os.cpu_count(),
        include_dashboard=False,
        object_store_memory=100 * 2**20,  # only settings pass through it
        logging_level=logging.ERROR,
    )


def _say_what_is_missing(num_workers: int, num_gpus: int) -> None:
    """Ray waits without a word until the cluster has grown."""
    kind, there = (
        ("GPU", num_gpus) if num_gpus else ("CPU", int(ray.cluster_resources().get("CPU", 0)))
    )
    if there < num_workers:
        print(
            f"waiting for {num_workers} {kind}s, one for each worker; the cluster has {there}",
            file=sys.stderr,
        )
