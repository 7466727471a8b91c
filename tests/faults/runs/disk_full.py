"""The disk is full at one write of the pipeline after another."""

from __future__ import annotations

import functools
from pathlib import Path

from pipeline.terminal import FAILED
from tests.faults._small_disk import (
    PAGE_BYTES,
    enlarge_disk,
    find_missing_tmpfs,
    mount_disk,
)
from tests.faults.attack import Attack
from tests.faults.runs.small_run import (
    PHASES,
    check_outputs,
    get_reference_run,
    make_config,
    run_command,
    start_driver,
    wait_for,
    write_config,
)

# The disk gets full where a phase has written these shares of its bytes.
SHARES = (0.0, 0.3, 0.6, 0.95)


@functools.cache
def measure_phases() -> tuple[int, ...]:
    """Return the bytes on the disk after each phase, in whole pages; the first is before all."""
    run = get_reference_run()
    total = PAGE_BYTES * 4  # run.json, log.jsonl, .lock and a folder
    totals = [total]
    for phase in PHASES:
        folder = run.folder(phase).root.get_local_path()
        assert folder is not None
        for path in folder.rglob("*"):
            if path.is_file():
                total += -(-path.stat().st_size // PAGE_BYTES) * PAGE_BYTES
        totals.append(total)
    return tuple(totals)


def fill_disk(seed: int, folder: Path) -> None:
    """Run on a disk that is too small by the seed, then on a larger one."""
    phase, share = divmod(seed, len(SHARES))
    before, after = measure_phases()[phase : phase + 2]
    disk_bytes = int(before + SHARES[share] * (after - before)) // PAGE_BYTES * PAGE_BYTES
    disk, messages = folder / "disk", folder / "messages"
    disk.mkdir()
    config = write_config(make_config(disk / "run"), folder / "config.yaml")
    with mount_disk(disk, disk_bytes):
        driver = start_driver(run_command, "run", str(config), messages=messages)
        check_message(wait_for(driver), messages, disk / "run")
        enlarge_disk(disk, 4 * measure_phases()[-1])
        driver = start_driver(run_command, "run", str(config), messages=messages)
        code = wait_for(driver)
        assert code == 0, (
            f"the second run ended with {code}: {messages.read_text()[-2000:]}"
        )
        check_outputs(disk / "run")


def check_message(code: int, messages: Path, run_dir: Path) -> None:
    """Require a message with a path of the run folder and the cause, and no traceback."""
    text = messages.read_text()
    assert code == FAILED, f"exit code {code}: {text[-2000:]}"
    assert "Traceback" not in text, text[-3000:]
    assert "No space left on device" in text, text[-2000:]
    assert str(run_dir) in text, f"no path in the message: {text[-2000:]}"


ATTACKS = (
    Attack(
        "disk full: pipeline",
        "A full disk ends the run with exit code 1 and a message that names the path. With more "
        "space the run continues to the same bytes.",
        len(PHASES) * len(SHARES),
        2,
        fill_disk,
        find_missing_tmpfs,
        timeout_s=600.0,
    ),
)
