"""The loader in a loop, in one process: epochs that are interrupted at random and continued from a state.

    python -m benchmarks.soak.rows DATASET FOLDER --seed 0

It appends a line of JSON per epoch to FOLDER/rows.jsonl. In one epoch of ten, another process reads
and is killed; it continues from the state that it had saved. All epochs must have the same rows.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.result_file import REPOSITORY
from loader import TokenLoader

SEQ_LEN = 128
GLOBAL_BATCH_ROWS = 8

# The loop leaves the processor to the chain.
PAUSE_S = 0.005

# Steps between two interruptions, at most.
MAX_STEPS = 40

KILLS_PER_EPOCH = 2


def open_loader(dataset: Path) -> TokenLoader:
    """Return a loader of one epoch."""
    return TokenLoader(
        str(dataset),
        seq_len=SEQ_LEN,
        global_batch_rows=GLOBAL_BATCH_ROWS,
        rank=0,
        world_size=1,
        epochs=1,
        uneven="carry",
        tokens="stored",
    )


def read_epoch(
    dataset: Path, saved: dict[str, Any], max_steps: int, save: Callable[[], None]
) -> bool:
    """Read at most `max_steps` batches from the saved state on; return whether the epoch ended.

    Args:
        dataset: the folder of the manifest.
        saved: `state` and `digest`, updated after each batch. The digest covers all rows so far.
        max_steps: number of batches.
        save: called after each batch.
    """
    loader = open_loader(dataset)
    try:
        if saved["state"] is not None:
            loader.load_state_dict(saved["state"])
        for number, batch in enumerate(loader, start=1):
            rows = batch["tokens"].numpy().tobytes()
            saved["digest"] = hashlib.sha256(saved["digest"].encode() + rows).hexdigest()
            saved["state"] = loader.state_dict()
            save()
            if number >= max_steps:
                return False
            time.sleep(PAUSE_S)
        return True
    finally:
        loader.close()


def read_here(dataset: Path, choice: random.Random) -> str:
    """Read an epoch in this process, with a new loader after each interruption; return the digest."""
    saved: dict[str, Any] = {"state": None, "digest": ""}
    is_done = False
    while not is_done:
        max_steps = choice.randint(1, MAX_STEPS)
        is_done = read_epoch(dataset, saved, max_steps, _do_nothing)
    return saved["digest"]


def _do_nothing() -> None:
    """Save nothing: the state stays in memory."""


def read_killed(dataset: Path, folder: Path, choice: random.Random) -> str:
    """Read an epoch in processes that are killed, and in a last one; return the digest."""
    path = folder / "state.json"
    path.unlink(missing_ok=True)
    for number in range(KILLS_PER_EPOCH + 1):
        command = [sys.executable, "-m", "benchmarks.soak.rows", str(dataset), str(folder)]
        process = subprocess.Popen([*command, "--child"], cwd=REPOSITORY)
        if number < KILLS_PER_EPOCH:
            time.sleep(choice.uniform(1, 8))
            process.kill()
        process.wait()
    return json.loads(path.read_text())["digest"]


def read_as_child(dataset: Path, path: Path) -> None:
    """Read an epoch, and save the state to a file after each batch."""
    saved: dict[str, Any] = {"state": None, "digest": ""}
    if path.exists():
        saved = json.loads(path.read_text())

    def save() -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(saved))
        os.replace(new, path)

    read_epoch(dataset, saved, sys.maxsize, save)


def main() -> None:
    """Run until this process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        read_as_child(options.dataset, options.folder / "state.json")
        return
    choice = random.Random(options.seed)
    reference = ""
    with (options.folder / "rows.jsonl").open("a") as results:
        for number in itertools.count():
            started = time.monotonic()
            is_killed = number % 10 == 9
            if is_killed:
                digest = read_killed(options.dataset, options.folder, choice)
            else:
                digest = read_here(options.dataset, choice)
            reference = reference or digest
            found = {
                "attack": "SIGKILL" if is_killed else "new loader",
                "is_equal": digest == reference,
                "seconds": time.monotonic() - started,
            }
            results.write(json.dumps(found) + "\n")
            results.flush()


if __name__ == "__main__":
    main()
