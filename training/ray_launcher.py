"""Runs training on the workers of Ray Train, which restarts them all when one dies.

Each worker does what a process under torchrun does. After a failure the workers resume from the
newest complete checkpoint in run_dir, which must be on a volume that all nodes mount. Ray's own
checkpoint storage is not used.

    result = launch(load_config("train-1b"), num_workers=16, max_failures=3)
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Ray reads this when it is imported. The first message comes every second from a cleanup task
# that needs the dashboard, which a local Ray does not have. The second comes at every start.
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

from storage.local import private_umask, read_umask
from training.config import TrainConfig
from training.errors import CheckpointDamaged, IncompatibleConfig, TrainingStopped

if TYPE_CHECKING:
    from training.trainer import TrainResult

log = logging.getLogger(__name__)

# Config keys whose values are paths or addresses.
PATH_KEYS = {"run_dir", "manifest", "instructions", "tokenizer", "initial_weights"}

STOP_POLL_S = 1.0


def launch(
    config: TrainConfig, *, num_workers: int | None, max_failures: int
) -> TrainResult:
    """Train on Ray workers, to the end or until this process receives SIGTERM.

    Args:
        config: the run. Relative paths are resolved here, because workers run elsewhere.
        num_workers: None starts one per GPU of the cluster, or one if there are no GPUs.
        max_failures: how often all workers are restarted after a failure; -1 is unlimited.

    Raises:
        CheckpointDamaged, IncompatibleConfig, ResumeMismatch, TrainingStopped: as `train`; these
            are not retried.
        ray.train.TrainingFailedError: the workers failed more than max_failures times.
    """
    # Plain values can be sent to any worker, which validates them again.
    settings = make_paths_absolute(config.model_dump(mode="json"))
    run_dir = Path(settings["run_dir"])
    run_dir.mkdir(parents=True, exist_ok=True)
    _start_ray(num_workers)
    try:
        num_gpus = int(ray.cluster_resources().get("GPU", 0))
        num_workers = num_workers or max(1, num_gpus)
        _warn_if_cluster_is_too_small(num_workers, num_gpus)
        run_config = _make_run_config(run_dir, num_gpus, max_failures)
        with _forward_sigterm() as stop_actor:
            trainer = _make_trainer(
                config, settings, stop_actor, num_workers, num_gpus, run_config
            )
            result: Any = trainer.fit().return_value  # of the worker with rank 0
            return result
    except ControllerError as error:
        if isinstance(error.controller_failure, _FinalError):
            # Show the error of the trainer, not the three layers of Ray around it.
            raise error.controller_failure.cause from None
        raise
    finally:
        ray.shutdown()


def _make_run_config(run_dir: Path, num_gpus: int, max_failures: int) -> RunConfig:
    from training.parallel.distributed import flight_recorder_env

    # NCCL reads these variables when the process group is created, before our code runs.
    worker_env = flight_recorder_env(run_dir / "hang") if num_gpus else {}
    return RunConfig(
        name="ray",
        storage_path=str(run_dir),
        failure_config=FailureConfig(max_failures=max_failures),
        callbacks=[_StopOnFinalError()],
        worker_runtime_env={"env_vars": worker_env} if worker_env else None,
        logging_config=LoggingConfig("ERROR"),
    )


def _make_trainer(
    config: TrainConfig,
    settings: dict[str, Any],
    stop_actor: Any,
    num_workers: int,
    num_gpus: int,
    run_config: RunConfig,
) -> TorchTrainer:
    from training.parallel.distributed import select_backend

    umask = read_umask()

    def work(settings: dict[str, Any]) -> TrainResult:
        os.umask(umask)  # workers inherit the umask with which Ray was started
        return run_worker(settings, stop_actor)

    return TorchTrainer(
        work,
        train_loop_config=settings,
        torch_config=TorchConfig(
            backend=select_backend(has_cuda=num_gpus > 0),
            timeout_s=config.advanced.start_timeout_s,
        ),
        scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=num_gpus > 0),
        run_config=run_config,
    )


def make_paths_absolute(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with absolute paths; addresses such as s3://... are unchanged."""
    resolved: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            resolved[name] = make_paths_absolute(value)
        elif name in PATH_KEYS and isinstance(value, str) and "://" not in value:
            resolved[name] = os.path.abspath(value)
        else:
            resolved[name] = value
    return resolved


def run_worker(settings: Mapping[str, Any], stop_actor: Any) -> TrainResult:
    """Train in a Ray worker. Ray creates and destroys the process group around this call.

    Args:
        settings: a TrainConfig as plain values.
        stop_actor: actor of a threading.Event that requests a stop.
    """
    from loader.state import ResumeMismatch
    from training.observability.console import LOGGERS, configure_logging
    from training.parallel.distributed import init_distributed
    from training.trainer import train

    config = TrainConfig.model_validate(settings)
    stop_requested = threading.Event()
    try:
        _check_run_dir_is_shared(config.run_dir)
        context = init_distributed(
            config.parallel,
            timeout_s=config.advanced.start_timeout_s,
            dump_dir=Path(config.run_dir) / "hang",
        )
        configure_logging(is_first_rank=context.is_first)
        _ignore_in_root_handlers(LOGGERS)
        if context.is_first:
            # One rank is enough: all ranks agree on a stop in every step.
            polling = threading.Thread(
                target=_poll_stop, args=(stop_actor, stop_requested), daemon=True
            )
            polling.start()
        return train(config, context, stop_requested)
    except (
        CheckpointDamaged,
        IncompatibleConfig,
        ResumeMismatch,
        TrainingStopped,
    ) as error:
        # Wrapped, so that the callback on the driver does not restart the workers.
        raise _FinalError(error) from None


def _ignore_in_root_handlers(loggers: Sequence[str]) -> None:
    """Let the root logger's terminal handlers ignore these loggers.

    Ray Train gives a worker such a handler. It would print each line of a run a second time.
    """
    for handler in logging.getLogger().handlers:
        is_terminal = isinstance(handler, logging.StreamHandler)
        if is_terminal and not isinstance(handler, logging.FileHandler):
            handler.addFilter(lambda record: record.name.split(".")[0] not in loggers)


def _check_run_dir_is_shared(run_dir: str) -> None:
    """Check that this node sees run_dir. The driver has created it.

    Raises:
        IncompatibleConfig: it is missing, so it is on a disk of another node.
    """
    if not Path(run_dir).is_dir():
        raise IncompatibleConfig(
            f"run_dir is {run_dir}, which does not exist on {socket.gethostname()}. All ranks "
            f"write their shards of a checkpoint to it, so it must be on a volume that every node "
            f"mounts under this path"
        )


class _FinalError(Exception):
    """Carries an error to the driver. Workers are not restarted, because the error would repeat."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class _StopOnFinalError(UserCallback):
    """Ends the run on a final error.

    Ray restarts the workers after an error of a worker, but not after an error of a callback.
    """

    def after_exception(
        self,
        run_context: Any,  # noqa: ARG002 - part of Ray's interface
        worker_exceptions: dict[int, Exception],
    ) -> None:
        for error in worker_exceptions.values():
            if isinstance(error, _FinalError):
                raise error


# ---- stopping ----


@contextmanager
def _forward_sigterm() -> Generator[Any]:
    """Yield an actor with a threading.Event that SIGTERM to this process sets.

    Workers poll it. They cannot handle signals themselves, because they train in a thread of a
    process whose signals Ray handles.
    """
    this_node = NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    event_actor = ray.remote(threading.Event)
    # On this node and without a CPU: it must start on a full cluster, and live as long as the
    # driver.
    options = event_actor.options(num_cpus=0, scheduling_strategy=this_node)
    stop_actor: Any = options.remote()
    # The handler only starts a thread: it may interrupt Ray anywhere, and a call to Ray from
    # inside Ray could deadlock.
    request_stop = threading.Thread(target=stop_actor.set.remote, daemon=True)

    def handle_sigterm(*_: object) -> None:
        if request_stop.ident is None:
            request_stop.start()

    # Restored afterwards: a notebook or test continues in this process.
    previous = signal.signal(signal.SIGTERM, handle_sigterm)
    try:
        yield stop_actor
    finally:
        signal.signal(signal.SIGTERM, previous)


def _poll_stop(stop_actor: Any, stop_requested: threading.Event) -> None:
    while not ray.get(stop_actor.is_set.remote()):
        time.sleep(STOP_POLL_S)
    stop_requested.set()


# ---- Ray ----


def _start_ray(num_workers: int | None) -> None:
    """Join the cluster of RAY_ADDRESS, or start a local Ray; print the workers' lines here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # With the patch, Ray Train prints each line of a worker twice.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    if "RAY_ADDRESS" in os.environ:
        ray.init(logging_level=logging.ERROR)
        return
    with private_umask():  # only this user may read Ray's session folder and token
        ray.init(
            num_cpus=num_workers or os.cpu_count(),
            include_dashboard=False,
            object_store_memory=100 * 2**20,  # only settings go through it
            logging_level=logging.ERROR,
        )


def _warn_if_cluster_is_too_small(num_workers: int, num_gpus: int) -> None:
    """Log what is missing. Ray waits silently until the cluster has grown."""
    kind, available = "GPU", num_gpus
    if not num_gpus:
        kind, available = "CPU", int(ray.cluster_resources().get("CPU", 0))
    if available < num_workers:
        log.warning(
            "waiting for %d %ss, one per worker; the cluster has %d",
            num_workers,
            kind,
            available,
        )
