"""The second process that kills a process which works on one document for too long."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from pipeline.execution.watchdog import TOO_SLOW_SIGNAL, get_watchdog
from pipeline.runs.slow_documents import SlowDocuments, read_notes
from storage import StorageSettings, open_store
from tests.pipeline.runs.waiting import wait_for
from tests.processes import run_python

# With a limit of one second.
PROGRAM = """
import sys, time
from pipeline.execution import watchdog
from pipeline.processes import list_descendants
from tests.pipeline.execution.spinning import spin
request = sys.argv[1].encode()

def work(cpu_s):
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass

assert watchdog.get_watchdog(1) is None
watchdog.enable()
assert watchdog.get_watchdog(None) is None
dog = watchdog.get_watchdog(1)
assert watchdog.get_watchdog(1) is dog
{body}
print("done")
"""


def run_program(body: str, phase: Path) -> subprocess.CompletedProcess[str]:
    """Run these lines; notes are written into the folder."""
    request = {
        "phase": str(phase),
        "storage": asdict(StorageSettings()),
        "task_id": "a",
        "note": {"step": "read", "limit_s": 1},
    }
    return run_python("-c", PROGRAM.format(body=body), json.dumps(request))


@pytest.mark.parametrize("call", ["spin()", "work(3600)"], ids=["native", "python"])
def test_an_endless_call_is_killed_and_noted(call: str, tmp_path: Path) -> None:
    """Also a native call that holds the GIL and in which no handler of Python runs."""
    done = run_program(f"with dog.watch(request, 7, 9): {call}", tmp_path)
    assert done.returncode == -TOO_SLOW_SIGNAL
    notes = read_notes(open_store(str(tmp_path)), "a", 1)
    assert notes == [SlowDocuments("read", 7, 9, 1)]


def test_short_steps_and_work_between_steps_go_on(tmp_path: Path) -> None:
    """The limit is one of each step: together they may take longer, and waiting costs no CPU time."""
    body = (
        "for i in range(2):\n    with dog.watch(request, i, i): work(0.6)\n"
        "work(1.2)\n"
        "with dog.watch(request, 9, 9): time.sleep(1.2)"
    )
    done = run_program(body, tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert read_notes(open_store(str(tmp_path)), "a", 1) == []


def test_a_process_whose_note_cannot_be_written_is_not_repeated(tmp_path: Path) -> None:
    """It ends with SIGKILL: its task would come to the same document again and again."""
    (tmp_path / "too_slow").touch()
    done = run_program("with dog.watch(request, 7, 9): spin()", tmp_path)
    assert done.returncode == -signal.SIGKILL


def test_the_second_process_ends_with_the_first(tmp_path: Path) -> None:
    """Also if the first one is killed, or starts another one with another limit."""
    body = (
        "first = list_descendants()[0]\n"
        "other = watchdog.get_watchdog(2)\n"
        "assert other is not dog and not first.is_running()\n"
        "print(list_descendants()[0].pid, flush=True)\n"
        "import os; os.kill(os.getpid(), 9)"
    )
    done = run_program(body, tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # It has closed stdout, which it shared with the first one, shortly before its end.
    wait_for(lambda: has_ended(int(done.stdout)))


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; perhaps nobody has waited for it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def test_a_process_that_nobody_starts_again_has_no_watchdog() -> None:
    """Such as a notebook: it must not be killed."""
    assert get_watchdog(1) is None
