"""The crash matrix: each phase x each moment x driver, worker, raylet x local disk, object store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipeline.execution.engine import run
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import make_plan
from tests.faults.attack import Attack, find_nothing
from tests.faults.runs.kill_points import (
    PHASE_MOMENTS,
    RUN_MOMENTS,
    TASK_MOMENTS,
    KillPoint,
    set_kill_point,
)
from tests.faults.runs.small_run import (
    PHASES,
    RAY_START_ATTEMPTS,
    check_outputs,
    find_missing_seaweed,
    get_ray,
    get_reference_run,
    get_seaweed,
    make_config,
    make_run_dir,
    run_to_end,
    start_driver,
    wait_for,
)
from tests.loader.faults import FaultProxy

PROMISE = "A killed run continues to the bytes of an undisturbed run."
DRIVER_POINTS = (
    *itertools.product(PHASES, PHASE_MOMENTS),
    *(("", moment) for moment in RUN_MOMENTS),
)
# Each phase once, with another moment each: a killed Ray must be started again.
RAY_POINTS = tuple(zip(PHASES, itertools.cycle(TASK_MOMENTS), strict=False))

# Ray starts another worker in each phase. On a busy machine that takes half a minute.
WORKERS_TIMEOUT_S = 60.0 * len(PHASES)

KILLED = (-signal.SIGKILL, -signal.SIGXFSZ)


def make_point(
    folder: Path,
    phases: tuple[str, ...],
    moment: str,
    victim: str = "self",
    signal_number: int = signal.SIGKILL,
) -> KillPoint:
    """Return a kill point whose markers are in a new folder."""
    markers = folder / "markers"
    markers.mkdir()
    half_bytes: dict[str, int] = {}
    for phase in PHASES:
        sizes = [
            output["bytes"]
            for record in _read_records(phase)
            for output in record["outputs"].values()
        ]
        half_bytes[phase] = max(sizes) // 2
    return KillPoint(
        phases, moment, markers, half_bytes, victim, signal_number=signal_number
    )


def _read_records(phase: str) -> list[dict]:
    folder = get_reference_run().folder(phase)
    return list(folder.records(sorted(folder.list_done())))


def run_killed(plan: RunPlan, point: KillPoint) -> None:
    """Run until the point is reached. Runs in a driver process."""
    list(run(set_kill_point(plan, point)))


def resume(run_dir: str, messages: Path) -> None:
    """Run again without disturbance, and compare all files."""
    plan = make_plan(make_config(run_dir))
    code = wait_for(start_driver(run_to_end, plan, messages=messages))
    assert code == 0, f"the second run ended with {code}: {messages.read_text()[-2000:]}"
    check_outputs(run_dir)


def kill_driver(storage: str, seed: int, folder: Path) -> None:
    """Kill a driver without Ray at one point, and run again."""
    phase, moment = DRIVER_POINTS[seed]
    run_dir, messages = make_run_dir(storage, folder), folder / "messages"
    point, plan = make_point(folder, (phase,), moment), make_plan(make_config(run_dir))
    code = wait_for(start_driver(run_killed, plan, point, messages=messages))
    assert code in KILLED, f"not killed ({code}): {messages.read_text()[-2000:]}"
    resume(run_dir, messages)


def kill_workers(storage: str, seed: int, folder: Path) -> int:
    """Kill a worker of Ray at one moment of every phase of a run, which must still succeed."""
    run_dir, messages = make_run_dir(storage, folder), folder / "messages"
    point = make_point(folder, PHASES, TASK_MOMENTS[seed])
    plan = make_plan(make_config(run_dir, engine={"kind": "ray"}))
    environment = get_ray().environment
    driver = start_driver(
        run_killed, plan, point, messages=messages, environment=environment
    )
    code = wait_for(driver, WORKERS_TIMEOUT_S)
    assert code == 0, f"the run ended with {code}: {messages.read_text()[-2000:]}"
    killed = {path.name for path in point.markers.iterdir()}
    assert killed == set(PHASES), f"not killed in {set(PHASES) - killed}"
    check_outputs(run_dir)
    return len(PHASES)


def kill_with_ray(victim: str, storage: str, seed: int, folder: Path) -> None:
    """Kill the driver or the raylet when a worker of a local Ray reaches a point; run again."""
    phase, moment = RAY_POINTS[seed]
    run_dir, messages = make_run_dir(storage, folder), folder / "messages"
    point = make_point(folder, (phase,), moment, victim)
    plan = make_plan(make_config(run_dir, engine={"kind": "ray"}))
    for _ in range(RAY_START_ATTEMPTS):
        code = wait_for(start_driver(run_killed, plan, point, messages=messages))
        assert code != 0, "the run ended with 0, although its process was killed"
        # Otherwise Ray gave up its start, as it does on a busy machine.
        if (point.markers / phase).exists():
            break
    assert (point.markers / phase).exists(), messages.read_text()[-2000:]
    resume(run_dir, messages)


class KillingProxy(FaultProxy):
    """Forwards requests to an S3 server, and kills a driver in the middle of an upload.

    Attributes:
        pid: The driver.
        was_used: Whether it was killed.
    """

    def __init__(self, port: int, phase: str) -> None:
        super().__init__(port)
        self._phase = phase.encode()
        self.pid: int | None = None
        self.was_used = False

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                if self.pid is not None and self._is_output(data):
                    # The server gets the head of the request and at most half of the content.
                    target.write(data[: len(data) // 2])
                    await target.drain()
                    os.kill(self.pid, signal.SIGKILL)
                    self.was_used = True
                    target.transport.abort()
                    return
                target.write(data)
                await target.drain()

    def _is_output(self, data: bytes) -> bool:
        line = data.partition(b"\r\n")[0]
        is_record = re.search(rb"/done/|/\.|/phase\.json", line) is not None
        return line.startswith(b"PUT ") and b"/%b-" % self._phase in line and not is_record


def kill_in_upload(seed: int, folder: Path) -> None:
    """Kill a driver while the server receives an output, and run again."""
    run_dir, messages = make_run_dir("object store", folder), folder / "messages"
    proxy = KillingProxy(get_seaweed().port, PHASES[seed])
    environment = {"AWS_ENDPOINT_URL": proxy.url}
    plan = make_plan(make_config(run_dir))
    try:
        driver = start_driver(run_to_end, plan, messages=messages, environment=environment)
        proxy.pid = driver.pid
        code = wait_for(driver)
    finally:
        proxy.close()
    assert proxy.was_used, "no upload was seen"
    assert code in KILLED, f"not killed ({code}): {messages.read_text()[-2000:]}"
    resume(run_dir, messages)


def _make_attacks(storage: str, find_obstacle: Callable[[], str | None]) -> list[Attack]:
    def make(
        victim: str,
        num_tries: int,
        num_small: int,
        attempt: Callable[[int, Path], int | None],
    ) -> Attack:
        name = f"crash: {victim}, {storage}"
        return Attack(
            name, PROMISE, num_tries, num_small, attempt, find_obstacle, timeout_s=900.0
        )

    on_ray = len(RAY_POINTS)
    return [
        make("driver", len(DRIVER_POINTS), 2, partial(kill_driver, storage)),
        make("worker of Ray", len(TASK_MOMENTS), 0, partial(kill_workers, storage)),
        make("driver on Ray", on_ray, 0, partial(kill_with_ray, "driver", storage)),
        make("raylet", on_ray, 0, partial(kill_with_ray, "raylet", storage)),
    ]


ATTACKS = (
    *_make_attacks("local disk", find_nothing),
    *_make_attacks("object store", find_missing_seaweed),
    Attack(
        "crash: driver in mid-upload, object store",
        PROMISE,
        len(PHASES),
        0,
        kill_in_upload,
        find_missing_seaweed,
        timeout_s=600.0,
    ),
)
