"""Resume with real processes: two gloo ranks, one of them killed, then three ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from loader import TokenLoader
from tests.conftest import REPOSITORY
from tests.loader.conftest import Dataset

ORDER = {
    "seq_len": 32,
    "global_batch_rows": 12,
    "interleave_depth": 4,
    "window_rows": 16,
    "seed": 9,
    "epochs": 1,
    "drop_last": True,
}

RANK = """
import json, os, sys, time
from pathlib import Path
import torch.distributed as dist
from loader import TokenLoader

given = json.loads(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + given["meeting"], rank=given["rank"], world_size=given["ranks"])
loader = TokenLoader(given["folder"], **given["order"])        # rank and world size are torch.distributed's
checkpoint = Path(given["checkpoint"])
if checkpoint.exists():
    loader.load_state_dict(json.loads(checkpoint.read_text()))
with open(given["log_path"], "a") as log_path:
    for batch in loader:
        print(json.dumps([loader.state.position, batch["input_ids"].tolist()]), file=log_path, flush=True)
        dist.barrier()
        if given["rank"] == 0:
            checkpoint.with_suffix(".part").write_text(json.dumps(loader.state_dict()))
            checkpoint.with_suffix(".part").replace(checkpoint)
        time.sleep(given["pause_s"])
dist.destroy_process_group()
"""


def start_ranks(
    dataset: Dataset, folder: Path, ranks: int, pause_s: float
) -> list[subprocess.Popen[bytes]]:
    """Start all ranks of one run."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")
    }
    given: dict[str, Any] = {
        "folder": str(dataset.folder),
        "order": ORDER,
        "ranks": ranks,
        "pause_s": pause_s,
    }
    given |= {
        "meeting": str(folder / f"meeting-{ranks}"),
        "checkpoint": str(folder / "checkpoint.json"),
    }
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, json.dumps({**given, "rank": rank, "log_path": str(log_path(folder, ranks, rank))})],
            cwd=REPOSITORY, env={**environment, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def log_path(folder: Path, ranks: int, rank: int) -> Path:
    """Return the file to which a rank writes its rows."""
    return folder / f"log_path-{ranks}-{rank}"


def read_steps(folder: Path, ranks: int) -> dict[int, list[list[int]]]:
    """Return the rows of each step over all ranks, by the position after it.

    The last line of a killed rank may be incomplete and is skipped.
    """
    found: dict[int, list[list[int]]] = {}
    for rank in range(ranks):
        for line in log_path(folder, ranks, rank).read_text().splitlines():
            if line.endswith("]]]"):
                position, rows = json.loads(line)
                found.setdefault(position, []).extend(rows)
    return found


def test_three_ranks_continue_after_one_of_two_was_killed(
    larger: Dataset, tmp_path: Path
) -> None:
    """After SIGKILL, three ranks continue from the last checkpoint: each row comes once."""
    alone = TokenLoader(larger.folder, rank=0, world_size=1, **ORDER)
    expected: dict[int, list[list[int]]] = {}
    for batch in alone:
        expected[alone.state.position] = batch["input_ids"].tolist()
    first = start_ranks(larger, tmp_path, ranks=2, pause_s=0.05)
    while not (
        all(log_path(tmp_path, 2, rank).exists() for rank in range(2))
        and len(read_steps(tmp_path, 2)) >= 6
    ):
        assert first[0].poll() is None, first[0].stderr and first[0].stderr.read().decode()
        time.sleep(0.02)
    os.kill(first[1].pid, signal.SIGKILL)
    for process in first:
        process.kill()
        process.communicate()
    saved = json.loads((tmp_path / "checkpoint.json").read_text())
    assert 0 < saved["position"] < alone.state.position
    for process in start_ranks(larger, tmp_path, ranks=3, pause_s=0.0):
        _, error = process.communicate()
        assert process.returncode == 0, error.decode()
    before = {
        position: rows
        for position, rows in read_steps(tmp_path, 2).items()
        if position <= saved["position"]
    }
    after = read_steps(tmp_path, 3)
    assert min(after) > saved["position"]
    assert before | after == expected
