"""The progress of a run, read from its folder alone: without Ray, on any machine with access.

status = read_status(RunFolder.open("runs/ccnet"), now=time.time())
status.state                    # "running"
status.phases[2].left_s         # 840.0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.phases import registry
from pipeline.phases.extract import Extract
from pipeline.reporting.report.summary import take_family, take_largest
from pipeline.reporting.tables import Table, format_duration, format_rate, print_tables
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.run_lock import identify_machine
from stages.counters import Counters
from storage.local import is_alive
from terminal_output.console import SafeConsole

# The rate is measured over this time. It must hold several tasks of minutes each, and still
# show soon that workers have left.
RATE_WINDOW_S = 900.0

# A run without an event for this long is shown as silent: its tasks are slow, or its driver
# died.
SILENT_AFTER_S = 600.0

NUM_FAILURES_SHOWN = 5

_DRIVER_DIED = "its driver died without a message (was it killed?)"

Event = Mapping[str, Any]
RunState = Literal["running", "silent", "stopped", "finished"]
PhaseState = Literal["done", "running", "stopped", "waiting", "off"]


@dataclass(frozen=True)
class PhaseStatus:
    """The progress of one phase.

    Attributes:
        num_tasks: None until the phases before it are done, if it depends on them.
        rate_per_s: recently finished tasks per second.
        left_s: estimated seconds until the phase is done.
    """

    name: str
    state: PhaseState
    num_tasks: int | None
    num_done: int
    rate_per_s: float | None = None
    left_s: float | None = None


@dataclass(frozen=True)
class Status:
    """The progress of a run.

    Attributes:
        silent_s: seconds since the last event.
        why: why the run stopped, else "".
        failures: "phase task_id" -> cause, since the latest start.
        num_records: records read so far, including broken ones.
        quarantine: cause -> broken records so far.
        lost_files: name of an input file that gave no record -> number of files of that name.
    """

    run_dir: str
    state: RunState
    silent_s: float
    why: str
    phases: tuple[PhaseStatus, ...]
    failures: Mapping[str, str]
    num_records: int
    quarantine: Mapping[str, int]
    lost_files: Mapping[str, int]


def read_status(run: RunFolder, *, now: float) -> Status:
    """Read the progress of a run, which may be running.

    Args:
        run: the run.
        now: seconds since the epoch, by the clock of this machine. Events have the time of the
            driver's clock. An event that is later than `now` counts as just happened.
    """
    events = _take_latest_start(run.read_events())
    last: Event = events[-1] if events else {"time": now}
    silent_s = max(0.0, now - last["time"])
    state: RunState = "running" if silent_s < SILENT_AFTER_S else "silent"
    why = ""
    if last.get("event") == "RunEnded":
        why = last["why"]
        state = "stopped" if why else "finished"
    elif _is_dead(events):
        state, why = "stopped", f"{_DRIVER_DIED}; run the same command again to continue"
    phases = [
        _read_phase(run, name, events, state, now) for name in registry.list_phase_names()
    ]
    if all(phase.state in ("done", "off") for phase in phases):
        state = "finished"  # also if the driver was killed before it could log the end
    counts = _read_extract_counts(run)
    return Status(
        run_dir=str(run.run_dir),
        state=state,
        silent_s=silent_s,
        why=why,
        phases=tuple(phases),
        failures=_list_failures(events),
        num_records=counts.get("num_records", 0),
        quarantine=take_family(counts, "quarantined."),
        lost_files=take_family(counts, "lost_file."),
    )


def _take_latest_start(events: Iterable[Event]) -> list[Event]:
    """Return the events since the run was last started."""
    latest: list[Event] = []
    for event in events:
        if event["event"] == "RunStarted":
            latest = []
        latest.append(event)
    return latest


def _is_dead(events: Sequence[Event]) -> bool:
    """Return whether the driver that wrote the events was a process of this machine, and has died."""
    if not events or events[0].get("machine") != identify_machine():
        return False
    return not is_alive(events[0]["pid"])


def _list_failures(events: Iterable[Event]) -> dict[str, str]:
    failures: dict[str, str] = {}
    for event in events:
        if event["event"] == "TaskFinished" and event["failed"]:
            failures[f"{event['phase']} {event['task_id']}"] = event["failed"]
    return failures


def _read_phase(
    run: RunFolder, name: str, events: Sequence[Event], state: RunState, now: float
) -> PhaseStatus:
    if name not in run.stage_versions:
        return PhaseStatus(name, "off", 0, 0)
    of_phase = [event for event in events if event.get("phase") == name]
    started = next((event for event in of_phase if event["event"] == "PhaseStarted"), None)
    is_running = started is not None and of_phase[-1]["event"] != "PhaseFinished"
    folder = run.folder(name)
    if folder.is_complete() and not is_running:
        num_tasks = folder.summary()["task_ids"]
        return PhaseStatus(name, "done", num_tasks, num_tasks)
    num_done = len(folder.list_done())
    if started is None:
        has_task_per_split = registry.find_phase(name).task_kind == "splits"
        num_planned = len(run.splits) if has_task_per_split else None
        return PhaseStatus(name, "waiting", num_planned, num_done)
    num_tasks = started["num_tasks"]
    if state in ("stopped", "finished"):
        return PhaseStatus(name, "stopped", num_tasks, num_done)
    rate = _measure_rate(of_phase, started["time"], now)
    left_s = (num_tasks - num_done) / rate if rate else None
    return PhaseStatus(name, "running", num_tasks, num_done, rate, left_s)


def _measure_rate(of_phase: Iterable[Event], started: float, now: float) -> float:
    """Return the tasks finished per second in the last RATE_WINDOW_S seconds."""
    since = max(started, now - RATE_WINDOW_S)
    num_finished = 0
    for event in of_phase:
        is_finished = event["event"] == "TaskFinished" and not event["failed"]
        num_finished += is_finished and event["time"] > since
    return num_finished / max(1e-3, now - since)


def _read_extract_counts(run: RunFolder) -> Mapping[str, int]:
    """Return the counters of extract, from its done-records until its summary is written."""
    folder = run.folder(Extract.name)
    if folder.is_complete():
        return Counters.from_json(folder.summary()["counters"]).counts
    records = folder.intact_records(folder.list_done())
    return Counters.sum(Counters.from_json(record["counters"]) for record in records).counts


# ------------------------------------------------------------------------------------ terminal


def print_status(status: Status, console: SafeConsole) -> None:
    """Print a table of the phases, the quarantine and the failures."""
    console.print(_describe_state(status))
    rows = [_make_row(phase) for phase in status.phases]
    print_tables([Table("", ("phase", "state", "done", "rate", "left"), rows)], console)
    console.print(f"\n{_describe_quarantine(status)}")
    if status.lost_files:
        names = [name for name, _ in take_largest(status.lost_files)]
        console.print(f"files without a readable record: {', '.join(names)}")
    for task, cause in list(status.failures.items())[:NUM_FAILURES_SHOWN]:
        console.print(f"failed: {task}: {cause}", style="red")
    num_more = len(status.failures) - NUM_FAILURES_SHOWN
    if num_more > 0:
        console.print(f"... and {num_more} more failures; the log has all of them")
    if status.state == "silent":
        console.print(
            "No driver heartbeat: tasks are slow or the driver died. If it died, run the same "
            "command again: finished tasks are skipped."
        )


def _make_row(phase: PhaseStatus) -> tuple[str, ...]:
    done = rate = left = ""
    if phase.state != "off" and phase.num_tasks:
        done = f"{phase.num_done:,} of {phase.num_tasks:,}"
    if phase.rate_per_s is not None:
        rate = format_rate(phase.rate_per_s, 1.0, "tasks")
    if phase.left_s is not None:
        left = format_duration(phase.left_s)
    return phase.name, phase.state, done, rate, left


def _describe_quarantine(status: Status) -> str:
    num_broken = sum(status.quarantine.values())
    text = f"quarantined: {num_broken:,} of {status.num_records:,} records"
    for cause, number in sorted(status.quarantine.items()):
        text += f", {number:,} {cause}"
    return text


def _describe_state(status: Status) -> str:
    age = format_duration(status.silent_s)
    if status.state == "stopped":
        return f"{status.run_dir}: stopped {age} ago: {status.why.splitlines()[0]}"
    if status.state == "finished":
        return f"{status.run_dir}: finished {age} ago"
    return f"{status.run_dir}: {status.state}, the last event of its driver was {age} ago"
