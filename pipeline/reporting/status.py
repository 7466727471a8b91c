"""How far a run is, from its folder alone: no Ray, no driver, from any machine that sees the folder.

Promises: what is done is counted from the done-records, rates and the end estimate come from the log that the driver
keeps; nothing is written. A run that nobody works on any more cannot say so itself: the age of its last word is shown.
Leaves to others: what came out of a run (report.py), single documents (ledger.py).

    status = read_status(RunFolder.open("runs/ccnet"), now=time.time())
    status.state                    # "running"
    status.phases[2].left_s         # 840.0
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Literal

from rich.console import Console

from pipeline.phases import registry
from pipeline.phases.phase import sum_counters
from pipeline.reporting.tables import make_table
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters

RATE_WINDOW_S = 900.0
"""The rate is that of the last so many seconds: long enough for units of minutes, short enough to see workers leave."""

SILENT_AFTER_S = 600.0
"""A run without a word for so long is shown as silent: either its units are long, or its driver is gone."""

NUM_FAILURES_SHOWN = 5

RunState = Literal["running", "silent", "stopped", "finished"]
PhaseState = Literal["done", "running", "stopped", "waiting", "off"]


@dataclass(frozen=True)
class PhaseStatus:
    """One phase, as far as it is."""

    name: str
    state: PhaseState
    num_tasks: int | None  # None: known when the phases before it are done
    num_done: int
    rate_per_s: float | None = None  # pieces of work, lately
    left_s: float | None = None


@dataclass(frozen=True)
class Status:
    """A run, as far as it is."""

    run_dir: str
    state: RunState
    silent_s: float  # since the driver's last word
    why: str  # why it stopped, if it did
    phases: tuple[PhaseStatus, ...]
    failures: Mapping[str, str]  # "phase work" -> cause, of the latest start
    num_records: int  # read so far, broken ones too
    quarantine: Mapping[str, int]  # broken records so far, by cause


def read_status(run: RunFolder, *, now: float) -> Status:
    """How far the run is.

    Args:
        run: an open run; it may be worked on at this moment.
        now: seconds since the epoch, by the clock of this machine. The log has the driver's clock: what lies in the
            future of this one counts as now.
    """
    events = _of_latest_start(run.read_events())
    last: Mapping[str, Any] = events[-1] if events else {"time": now}
    silent_s = max(0.0, now - last["time"])
    state: RunState = "running" if silent_s < SILENT_AFTER_S else "silent"
    if last.get("event") == "RunEnded":
        state = "stopped" if last["why"] else "finished"
    phases = tuple(
        _phase_status(run, name, events, state, now) for name in registry.list_phase_names()
    )
    if all(phase.state in ("done", "off") for phase in phases):
        state = "finished"  # and its driver was killed in the moment before it could say so
    read = _counts_of_extract(run)
    return Status(
        run_dir=str(run.run_dir),
        state=state,
        silent_s=silent_s,
        why=last.get("why", ""),
        phases=phases,
        failures={f"{e['phase']} {e['task_id']}": e["failed"] for e in events if e.get("failed")},
        num_records=read.get("num_records", 0),
        quarantine={
            k.removeprefix("quarantined."): n
            for k, n in read.items()
            if k.startswith("quarantined.")
        },
    )


def _of_latest_start(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The events since the run was last started."""
    latest: list[Mapping[str, Any]] = []
    for event in events:
        if event["event"] == "RunStarted":
            latest = []
        latest.append(event)
    return latest


def _phase_status(
    run: RunFolder, name: str, events: Sequence[Mapping[str, Any]], state: RunState, now: float
) -> PhaseStatus:
    if run.recorded_config.get(name, {}) is None:
        return PhaseStatus(name, "off", 0, 0)
    mine = [event for event in events if event.get("phase") == name]
    started = next((event for event in mine if event["event"] == "PhaseStarted"), None)
    folder = run.folder(name)
    if folder.complete() and not (started and mine[-1]["event"] != "PhaseFinished"):
        num_tasks = folder.summary()["task_ids"]
        return PhaseStatus(name, "done", num_tasks, num_tasks)
    num_done = len(folder.done())
    if started is None:
        is_by_unit = registry.find_phase(name).task_kind == "splits"
        return PhaseStatus(name, "waiting", len(run.splits) if is_by_unit else None, num_done)
    num_tasks = started["num_tasks"]
    if state in ("stopped", "finished"):
        return PhaseStatus(name, "stopped", num_tasks, num_done)
    finished = [event for event in mine if event["event"] == "TaskFinished" and not event["failed"]]
    since = max(started["time"], now - RATE_WINDOW_S)
    rate = sum(event["time"] > since for event in finished) / max(1e-3, now - since)
    left_s = (num_tasks - num_done) / rate if rate else None
    return PhaseStatus(name, "running", num_tasks, num_done, rate, left_s)


def _counts_of_extract(run: RunFolder) -> Mapping[str, int]:
    """What was read so far, by the done-records where they are not summed up yet."""
    folder = run.folder("extract")
    if folder.complete():
        return Counters.from_json(folder.summary()["counters"]).counts
    return sum_counters(folder, folder.done()).counts


def to_json(status: Status) -> str:
    """The status for programs."""
    return json.dumps(asdict(status), indent=1, ensure_ascii=False) + "\n"


def print_status(status: Status, console: Console) -> None:
    """The status for people."""
    rows = [
        (
            phase.name,
            phase.state,
            ""
            if phase.state == "off"
            else f"{phase.num_done:,} of {phase.num_tasks:,}"
            if phase.num_tasks
            else "",
            "" if phase.rate_per_s is None else f"{phase.rate_per_s * 60:,.1f} a minute",
            "" if phase.left_s is None else _in_words(phase.left_s),
        )
        for phase in status.phases
    ]
    console.print(_headline(status), markup=False)
    console.print(make_table("", ("phase", "state", "done", "rate", "left"), rows))
    broken = sum(status.quarantine.values())
    causes = "".join(f", {n:,} {cause}" for cause, n in sorted(status.quarantine.items()))
    console.print(
        f"\nquarantined: {broken:,} of {status.num_records:,} records{causes}", markup=False
    )
    for task_id, cause in list(status.failures.items())[:NUM_FAILURES_SHOWN]:
        console.print(f"failed: {task_id}: {cause}", markup=False, style="red")
    if len(status.failures) > NUM_FAILURES_SHOWN:
        console.print(
            f"... and {len(status.failures) - NUM_FAILURES_SHOWN} more failed; all of them are in the log"
        )
    if status.state == "silent":
        console.print(
            "Nothing was heard of its driver for long: its units are long, or it is gone. If it is gone, start the "
            "same command again: what is done is not done again."
        )


def _headline(status: Status) -> str:
    if status.state == "stopped":
        return f"{status.run_dir}: stopped {_in_words(status.silent_s)} ago: {status.why.splitlines()[0]}"
    if status.state == "finished":
        return f"{status.run_dir}: finished {_in_words(status.silent_s)} ago"
    return f"{status.run_dir}: {status.state}, its driver's last word was {_in_words(status.silent_s)} ago"


def _in_words(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
