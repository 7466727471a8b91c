"""The engine on Ray Data: one dataset per phase, which maps groups of tasks to their results.

Ray schedules and places the tasks, and shows them in its metrics and dashboard. Documents never pass through Ray's
object store: a task reads and writes files, and only its small result comes back.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pipeline.capacity.resources import (
    Amounts,
    count_slots,
    find_unmet,
    list_requests,
    make_request,
)
from pipeline.capacity.task_groups import divide_tasks
from pipeline.config import RunConfig
from pipeline.errors import EngineLost, RunAborted
from pipeline.execution.inline import Engine
from pipeline.execution.on_ray.dispatch import map_groups
from pipeline.execution.on_ray.failures import (
    CHECK_S,
    describe_failure,
    find_log_folder,
    iterate_in_thread,
    list_ray_processes,
    name_processes,
)
from pipeline.execution.on_ray.worker import report_group
from pipeline.execution.task import TaskResult
from pipeline.phases.phase import Phase, SplitPhase
from pipeline.processes import Process
from storage.local import private_umask, read_umask

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

# Documents of running tasks that are reported per second: each report takes 0.3 ms of the
# process that dispatches the tasks.
REPORTS_PER_S = 1000

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
        num_slots = count_slots(make_request(self.config, phase.name), _list_machines())
        left = set(task_ids)
        while left:  # a second time if the process that dispatches died with results
            remaining = [task_id for task_id in task_ids if task_id in left]
            for text in self._map(
                phase, divide_tasks(phase, remaining, num_slots), num_slots
            ):
                report = json.loads(text)
                if isinstance(report, dict):
                    result = TaskResult.from_json(text)
                    if result.task_id in left:
                        left.remove(result.task_id)
                        yield result
                elif self.on_documents is not None and report[0] in left:
                    self.on_documents(*report)

    def _map(
        self, phase: Phase, groups: Sequence[Sequence[str]], num_slots: int
    ) -> Iterator[str]:
        """Map the groups of tasks to what they report, as soon as it arrives; see `report_group`."""
        pause_s = max(CHECK_S, min(len(groups), num_slots) / REPORTS_PER_S)
        run_group = partial(report_group, phase, self.config, read_umask(), pause_s)
        options = make_request(self.config, phase.name).remote_args()
        lists = map_groups(name_operator(phase), groups, run_group, options)
        try:
            for reports in iterate_in_thread(lists, self._check_processes):
                yield from reports
        except Exception as error:
            self._check_processes()
            if (failure := describe_failure(error)) is None:
                raise
            self._is_lost = True
            raise EngineLost(f"{failure} in phase {phase.name}") from error

    def _check_processes(self) -> Sequence[Any]:
        """Return no rows, or raise EngineLost if a process of the local Ray has died.

        Ray itself would wait, or abort this process.
        """
        dead = [process for process in self._processes if not process.is_running()]
        if dead and not self._is_lost:
            self._is_lost = True
            raise EngineLost(
                f"Ray's {name_processes(dead)} died, the logs are in {find_log_folder()}"
            )
        return []

    def start(self) -> None:
        """Join the cluster, or start a local Ray.

        Raises:
            RunAborted: Ray cannot be started, or the metrics port is in use.
        """
        if self._is_started:
            return
        self._import_ray()
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
        self._is_started = True

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
        if self._is_started:
            self._is_started = False
            is_interrupted = exc[0] is not None and not isinstance(exc[1], Exception)
            self._stop(is_interrupted=is_interrupted)

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
