"""The engine on Ray Data: one dataset per phase, one Ray task per task of the phase, or per group of tasks.

Ray schedules, places and retries the tasks, and shows them in its metrics and dashboard. Documents never pass through
Ray's object store: a task reads and writes files, and only its small result comes back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pipeline.capacity.estimate import estimate_task_seconds
from pipeline.capacity.resources import (
    Amounts,
    count_slots,
    find_unmet,
    list_requests,
    make_request,
)
from pipeline.capacity.task_groups import divide_tasks
from pipeline.config import EngineConfig, RunConfig
from pipeline.errors import EngineLost, RunAborted
from pipeline.execution import watchdog
from pipeline.execution.inline import Engine, run_group
from pipeline.execution.on_ray.early_start import StartThread, start_workers
from pipeline.execution.on_ray.failures import (
    describe_failure,
    find_log_folder,
    iterate_in_thread,
    list_ray_processes,
    name_processes,
)
from pipeline.execution.on_ray.task_reports import TaskReports
from pipeline.execution.task import TaskResult
from pipeline.phases.phase import Phase, SplitPhase
from pipeline.processes import Process
from storage.local import private_umask, read_umask
from terminal_output import escape_output

log = logging.getLogger(__name__)

# A local Ray with a metrics port stays up this long after the run. Its last values reach
# the port within 1 s, and configs/prometheus/ reads the port every 5 s.
METRICS_STAY_S = 6.0

# Of a local Ray. Only task ids and results pass through it; Ray's default is 30 % of the
# memory.
OBJECT_STORE_BYTES = 200 * 2**20

# While this is set to 0 when Ray is imported, a Ray that `ray.init` starts has the address
# 127.0.0.1, and all its processes listen there only (ray._private.services,
# get_node_ip_address). Otherwise they listen on every address of the machine.
LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
LOOPBACK = "127.0.0.1"

# Tasks that a cluster is expected to run at the same time, at least: it may grow while a phase runs.
CLUSTER_SLOTS = 250

# Of a local Ray. On a busy machine the first start may time out ("The current node timed
# out during startup").
START_ATTEMPTS = 2

# Of a local Ray without a metrics port. It has no dashboard either, so nothing reads metrics and
# task events. They take 7 of the 73 ms of CPU time that Ray takes per second while tasks run.
_WITHOUT_METRICS = {"enable_metrics_collection": False, "task_events_report_interval_ms": 0}


class RayEngine(Engine):
    """Runs tasks on the cluster of RAY_ADDRESS, or on a Ray of this machine that it starts."""

    _is_started = False
    _is_checked = False
    _is_lost = False
    _reports: TaskReports | None = None
    _thread: StartThread | None = None
    # The processes of a Ray that this process has started. All of them must live.
    _processes: Sequence[Process] = ()

    @property
    def _is_local(self) -> bool:
        return "RAY_ADDRESS" not in os.environ

    def run_tasks(self, phase: Phase, task_ids: Sequence[str]) -> Iterator[TaskResult]:
        """Run the tasks, as many at a time as the machines have room for."""
        if not task_ids:
            return
        self.start()
        self._check_resources(phase.plan.config)
        request = make_request(self.config, phase.name)
        num_slots = count_slots(request, _list_machines())
        if not self._is_local:
            num_slots = max(num_slots, CLUSTER_SLOTS)
        task_s = estimate_task_seconds(phase.plan, phase.name)
        yield from self.run_groups(phase, divide_tasks(phase, task_ids, num_slots, task_s))

    def run_groups(
        self, phase: Phase, groups: Sequence[Sequence[str]]
    ) -> Iterator[TaskResult]:
        """Run each group of tasks as one Ray task, and yield the results.

        They come when the group ends, or with `on_documents` when the task ends.
        """
        import ray.data

        rows = [{"task_ids": list(group)} for group in groups]
        # One block per group: Ray runs one Ray task per block.
        tasks = ray.data.from_items(rows, override_num_blocks=len(rows))
        if self.on_documents is not None and self._reports is None:
            self._reports = TaskReports()
        operator = _make_operator(phase, self.config, self._reports)
        request = make_request(self.config, phase.name)
        results = tasks.flat_map(operator, **request.remote_args())
        # Results are small. Reading ahead takes three more threads, and 3 ms of CPU time per group.
        batches: Any = results.iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=0
        )
        texts = (text for batch in batches for text in batch.column("result").to_pylist())
        running = {task_id for group in groups for task_id in group}
        try:
            for text in iterate_in_thread(texts, partial(self._check, phase.name, running)):
                result = TaskResult.from_json(text)
                if result.task_id in running:  # else it was reported before
                    running.discard(result.task_id)
                    yield result
        except Exception as error:
            self._check_processes()
            if (failure := describe_failure(error)) is None:
                raise
            self._is_lost = True
            raise EngineLost(f"{failure} in phase {phase.name}") from error

    def _check(self, phase: str, running: set[str]) -> Sequence[str]:
        """Check the processes, pass on documents of running tasks, and return reported results."""
        self._check_processes()
        if self._reports is None:
            return []
        numbers, results = self._reports.take(phase)
        for task_id, number in numbers.items():
            if task_id in running and self.on_documents is not None:
                self.on_documents(task_id, number)
        return results

    def _check_processes(self) -> None:
        """Raise EngineLost if a process of the local Ray has died. Ray itself would wait, or abort this process."""
        dead = [process for process in self._processes if not process.is_running()]
        if dead and not self._is_lost:
            self._is_lost = True
            raise EngineLost(
                f"Ray's {name_processes(dead)} died, the logs are in {find_log_folder()}"
            )

    def start(self) -> None:
        """Join the cluster, or start a local Ray.

        Raises:
            RunAborted: Ray cannot be started, or the metrics port is in use.
        """
        if self._is_started:
            return
        self._import_ray()
        if self._thread is None or not self._thread.wait():
            self._start_here()
        self._is_started = True

    def start_early(self) -> None:
        """Start Ray and its workers in a thread. `start` waits for it, and raises its error."""
        if self._thread is not None or self._is_started:
            return
        # Not in the thread: two threads that import the same package may see half of it.
        self._import_ray()
        self._thread = StartThread(self._start_in_thread)

    def _import_ray(self) -> None:
        # Ray reads these when it is imported.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if self._is_local:
            os.environ[LOOPBACK_SWITCH] = "0"
        from ray.data import DataContext

        for name in ("ray.data", "ray"):  # after the import, which sets its own level
            logging.getLogger(name).setLevel(logging.ERROR)
        DataContext.get_current().enable_progress_bars = False

    def _start_here(self) -> None:
        on_terminate = signal.getsignal(signal.SIGTERM)
        try:
            if self._is_local:
                self._start_local()
            else:
                self._join_cluster()
        finally:
            if (
                callable(on_terminate)
                and threading.current_thread() is threading.main_thread()
            ):
                signal.signal(signal.SIGTERM, on_terminate)  # Ray replaces the handler

    def _start_in_thread(self) -> None:
        self._start_here()
        if self._is_local:
            start_workers(self.config.workers or os.cpu_count() or 1)

    def _join_cluster(self) -> None:
        import ray

        ray.init(logging_level=logging.ERROR, log_to_driver=False)

    def _start_local(self) -> None:
        import ray

        settings: dict[str, Any] = {
            "num_cpus": self.config.workers or os.cpu_count(),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "logging_level": logging.ERROR,
            "log_to_driver": False,
            **_make_metrics_settings(self.config.metrics_port),
        }
        _start_with_retry(lambda: ray.init(**settings))
        self._processes = list_ray_processes()
        _warn_if_reachable()
        # A default that is meant for larger machines must not keep a small one from working.
        memory_mb = int(ray.cluster_resources()["memory"] / 2**20)
        limits = {"memory_mb": min(self.config.memory_mb, memory_mb)}
        self.config = self.config.model_copy(update=limits)

    def _check_resources(self, config: RunConfig) -> None:
        """Check once, before the first task: a task that fits no machine would wait forever, in silence."""
        if self._is_checked:
            return
        self._is_checked = True
        requests = list_requests(config.model_copy(update={"engine": self.config}))
        faults = find_unmet(requests, _list_machines())
        if not faults:
            return
        lines = [f"  {fault}" for fault in faults]
        if self._is_local:
            raise RunAborted(
                "\n".join(
                    [
                        "this machine cannot run these tasks, even with nothing else on it:",
                        *lines,
                        "lower engine.phases or engine.memory_mb; nothing was started",
                    ]
                )
            )
        # An autoscaler may start a larger machine. Ray has no public way to ask which ones it may start.
        log.warning(
            "no machine of the cluster that is up now can run these tasks; they wait until the "
            "autoscaler starts one:\n%s",
            "\n".join(lines),
        )

    def __exit__(self, *exc: object) -> None:
        thread, self._thread = self._thread, None
        is_interrupted = exc[0] is not None and not isinstance(exc[1], Exception)
        if (
            thread is not None and not self._is_started
        ):  # the run ends before its first task
            is_interrupted = True
            with contextlib.suppress(Exception):  # the cause of this end is reported
                self._is_started = thread.wait()
        if self._is_started:
            self._is_started = False
            self._stop(is_interrupted=is_interrupted)
        if thread is not None:
            thread.close()

    def _stop(self, *, is_interrupted: bool) -> None:
        if self._is_lost:
            for process in self._processes:
                process.kill()
            return  # `ray.shutdown` would wait for the dead
        import ray

        if self.config.metrics_port is not None and self._is_local and not is_interrupted:
            time.sleep(METRICS_STAY_S)
        ray.shutdown()


def _start_with_retry(start: Callable[[], object]) -> None:
    """Start a local Ray, whose session folder and token only this user can read.

    Raises:
        RunAborted: it did not start in START_ATTEMPTS attempts.
    """
    import ray

    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            with private_umask():
                start()
        except Exception as error:
            ray.shutdown()
            for process in list_ray_processes():  # Ray leaves them running
                process.kill()
            if attempt == START_ATTEMPTS:
                raise RunAborted(
                    f"Ray did not start on this machine in {attempt} attempts "
                    f"({type(error).__name__}: {error}); its logs are in "
                    f"{find_log_folder()}; `--engine inline` runs without Ray"
                ) from error
            log.warning("Ray did not start (%s); trying once more", error)
        else:
            return


def _warn_if_reachable() -> None:
    """Warn if other machines can reach the local Ray, because it was imported before the switch was set."""
    import ray

    address = ray.util.get_node_ip_address()
    if address != LOOPBACK:
        log.warning(
            "the local Ray listens on every address of this machine, because Ray was imported "
            "before the run; set %s=0 in the environment first",
            LOOPBACK_SWITCH,
        )


def _make_operator(
    phase: Phase, settings: EngineConfig, reports: TaskReports | None
) -> Callable[[dict[str, Any]], Any]:
    """Return the function that Ray Data maps over the groups, named after the phase and its stages."""
    umask = read_umask()

    def run_one(row: dict[str, Any]) -> list[dict[str, Any]]:
        os.umask(umask)  # workers inherit the umask with which Ray was started
        _log_to_stderr()
        watchdog.enable()  # Ray starts another worker and repeats the task
        task_ids = row["task_ids"]
        reporter = None if reports is None else reports.make_reporter(phase.name)
        on_documents = None if reporter is None else reporter.report_documents
        results: list[dict[str, Any]] = []
        for result in run_group(phase, task_ids, settings, on_documents):
            results.append({"result": result.to_json()})
            if reporter is not None and len(task_ids) > 1:
                reporter.report_result(result)
        return results

    run_one.__name__ = run_one.__qualname__ = name_operator(phase)
    return run_one


def _log_to_stderr() -> None:
    """Let a worker write our log lines, such as fetched models, to its log file, escaped."""
    escape_output()
    ours = logging.getLogger("pipeline")
    if not ours.handlers:
        ours.addHandler(logging.StreamHandler())
        ours.setLevel(logging.INFO)


def name_operator(phase: Phase) -> str:
    """Return `annotate[language > perplexity > classifiers]`; the phase's name if it has no stages."""
    if not isinstance(phase, SplitPhase):
        return phase.name
    stages = " > ".join(spec.stage.name for spec in phase.stage_specs())
    return f"{phase.name}[{stages}]"


def _make_metrics_settings(port: int | None) -> dict[str, Any]:
    """Return the settings with which a local Ray exports its metrics on a port.

    Raises:
        RunAborted: the port is in use. Ray itself would wait for half a minute, and not report why.
    """
    if port is None:
        return {"_system_config": _WITHOUT_METRICS}
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        raise RunAborted(
            f"engine.metrics_port is {port}, which cannot be opened: {error}; "
            f"set another port, or null"
        ) from error
    return {
        "_metrics_export_port": port,
        "_system_config": {"metrics_report_interval_ms": 1_000},
    }


def _list_machines() -> list[Amounts]:
    """Return the resources of each machine of the cluster that is up."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
