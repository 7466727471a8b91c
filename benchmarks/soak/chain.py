"""The chain in a loop, in one process: whole runs, and runs that were killed and are continued here.

    python -m benchmarks.soak.chain FOLDER --seed 0

It appends a line of JSON per run to FOLDER/chain.jsonl. The first run gives the digests that all
others must have; its dataset stays in FOLDER/reference.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.result_file import REPOSITORY
from pipeline.config import RunConfig, load
from pipeline.execution.engine import run
from pipeline.planning.plan import make_plan
from pipeline.planning.prepare import prepare
from pipeline.processes import list_descendants
from pipeline.runs.run_folder import RunFolder

NUM_FILES = 3
DOCUMENTS_PER_FILE = 100

# What is killed while a run on Ray works: the start of the program's name.
RAY_VICTIMS = ("raylet", "gcs_server", "ray::FlatMap", "ray::Dashboard")

# A run on Ray that ends later is a failure.
RAY_DEADLINE_S = 300

Attack = Callable[[Path], dict[str, Any]]


@dataclass
class Soak:
    """The loop: settings, the seeded choice of attacks, and the digests that every run must have."""

    folder: Path
    choice: random.Random
    with_ray: bool
    reference: Mapping[str, str]
    whole_run_s: float

    def run_once(self, number: int) -> dict[str, Any]:
        """Start a run that an attack may end, finish it in this process, and compare the bytes."""
        run_dir = self.folder / "runs" / str(number)
        attacks: list[Attack] = [self.run_whole, self.kill_run, self.terminate_run]
        if self.with_ray:
            attacks.append(self.kill_ray)
        started = time.monotonic()
        found = self.choice.choice(attacks)(run_dir)
        list(run(make_plan(make_config(run_dir))))
        is_equal = compute_digests(run_dir) == self.reference
        shutil.rmtree(run_dir)
        return {**found, "is_equal": is_equal, "seconds": time.monotonic() - started}

    def run_whole(self, _: Path) -> dict[str, Any]:
        """Leave the whole run to this process."""
        return {"attack": "none"}

    def kill_run(self, run_dir: Path) -> dict[str, Any]:
        """Start a run and send SIGKILL to its processes after a random time."""
        return self._stop_run(run_dir, signal.SIGKILL)

    def terminate_run(self, run_dir: Path) -> dict[str, Any]:
        """Start a run and send SIGTERM after a random time."""
        return self._stop_run(run_dir, signal.SIGTERM)

    def _stop_run(self, run_dir: Path, number: signal.Signals) -> dict[str, Any]:
        process = start_run(run_dir, "--engine", "inline")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.choice.uniform(0.2, 1.0) * self.whole_run_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        return {"attack": number.name, **read_end(process)}

    def kill_ray(self, run_dir: Path) -> dict[str, Any]:
        """Start a run on a local Ray, and kill one of Ray's processes when tasks are done."""
        victim = self.choice.choice(RAY_VICTIMS)
        num_done = self.choice.randint(0, 2 * NUM_FILES)
        process = start_run(run_dir, "--engine", "ray", "--set", "engine.workers=2")
        deadline = time.monotonic() + RAY_DEADLINE_S
        is_killed = False
        while process.poll() is None and time.monotonic() < deadline:
            if not is_killed and count_finished(run_dir) >= num_done:
                is_killed = kill_first(process.pid, victim)
            time.sleep(0.1)
        if process.poll() is None:
            process.kill()
        return {"attack": f"kill {victim}", "is_killed": is_killed, **read_end(process)}


def start_run(run_dir: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start `python -m pipeline run` on the config of the soak."""
    settings = [word for setting in list_settings(run_dir) for word in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run", "ccnet", *settings, *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def read_end(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end of a run, and return its exit code and lines on stderr."""
    _, stderr = process.communicate()
    return {"exit_code": process.returncode, "stderr": stderr.splitlines()}


def kill_first(root: int, name: str) -> bool:
    """Send SIGKILL to a descendant whose name starts so; return whether there was one."""
    for process in list_descendants(root):
        if process.name.startswith(name):
            process.kill()
            return True
    return False


def count_finished(run_dir: Path) -> int:
    """Return the number of finished tasks in the event log; -1 before it exists."""
    log = run_dir / "log.jsonl"
    return log.read_text().count('"TaskFinished"') if log.exists() else -1


def list_settings(run_dir: Path) -> list[str]:
    """Return the settings that make ccnet.yaml a run of some seconds."""
    return [
        f"input.sample_crawl.documents={NUM_FILES * DOCUMENTS_PER_FILE}",
        f"input.sample_crawl.documents_per_file={DOCUMENTS_PER_FILE}",
        "input.max_quarantined_share=0.1",
        "engine.memory_mb=1000",
        "write_shards.shard_tokens=50000",
        f"run_dir={run_dir}",
    ]


def make_config(run_dir: Path) -> RunConfig:
    """Return the config of a run in this process."""
    config = load("ccnet", [*list_settings(run_dir), "engine.kind=inline"])
    prepare(config)
    return config


def compute_digests(run_dir: Path) -> dict[str, str]:
    """Return the SHA-256 of every file that a run promises to make the same again."""
    digests: dict[str, str] = {}
    for name in RunFolder.open(run_dir).folders.values():
        for path in sorted((run_dir / name).rglob("*")):
            if path.is_file():
                content = hashlib.sha256(path.read_bytes())
                digests[str(path.relative_to(run_dir))] = content.hexdigest()
    return digests


def main() -> None:
    """Run until this process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-ray", action="store_true")
    options = parser.parse_args()
    reference = options.folder / "reference"
    list(run(make_plan(make_config(reference))))
    started = time.monotonic()
    list(run(make_plan(make_config(options.folder / "runs" / "first"))))
    soak = Soak(
        options.folder,
        random.Random(options.seed),
        not options.no_ray,
        compute_digests(reference),
        time.monotonic() - started,
    )
    with (options.folder / "chain.jsonl").open("a") as results:
        for number in itertools.count():
            results.write(json.dumps(soak.run_once(number)) + "\n")
            results.flush()


if __name__ == "__main__":
    main()
