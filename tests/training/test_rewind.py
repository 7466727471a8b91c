"""A run with `on_bad_step: rewind` returns to its newest checkpoint and leaves out the rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import (
    decide,
    losses,
    make_settings,
    read_log,
    train_all,
    train_each,
)
from training.anomaly_guard import AnomalyGuard
from training.checkpoint.marker import (
    Marker,
    list_complete_checkpoints,
    read_marker,
    write_marker,
)
from training.config import AnomalyGuardConfig
from training.errors import TrainingStopped

STEPS, ROWS = 8, 4
# With these settings the gradient norms of the first steps are 1.06, 1.25, 1.02, 1.40, 1.10: only
# that of the fourth step exceeds the running mean by a quarter.
BAD_STEP, REWOUND_TO = 4, 2
GUARD = {"on_bad_step": "rewind", "spike_factor": 1.25}


def make_run(run_dir: Path, language: Path, **changes: Any) -> dict[str, Any]:
    """Return a run with a checkpoint after every second step."""
    return make_settings(
        run_dir,
        language,
        steps=STEPS,
        data={"seed": 3, "global_batch_rows": ROWS},
        optimizer={"learning_rate": 1e-4, "warmup_steps": 0, "schedule": "constant"},
        checkpoint={"every_steps": 2, "keep_last": 9},
        **changes,
    )


def move_rows(run_dir: Path, num_steps: int) -> None:
    """Let the checkpoint of the second step continue with later rows, and remove the others."""
    first, *later = list_complete_checkpoints(run_dir / "checkpoints")
    for path in later:
        shutil.rmtree(path)
    marker = read_marker(first)
    rows = {**marker.progress["rows"]}
    rows["position"] += num_steps * ROWS
    progress = {**marker.progress, "rows": rows, "skipped_steps": num_steps}
    write_marker(first, Marker(progress, marker.files))


def check_rewound(
    folder: Path,
    language: Path,
    train: Callable[[dict[str, Any]], None],
    **changes: Any,
) -> None:
    """Compare a rewound run with one that read the later rows from the start."""
    rewound = make_run(folder / "rewound", language, anomaly_guard=GUARD, **changes)
    train(rewound)
    moved = make_run(folder / "moved", language, **changes)
    train(moved)
    move_rows(folder / "moved", BAD_STEP - REWOUND_TO)
    train(moved)
    assert losses(folder / "rewound") == losses(folder / "moved")
    (rewind,) = [line for line in read_log(folder / "rewound") if "rewind/loss" in line]
    assert rewind["step"] == REWOUND_TO
    assert rewind["rewind/bad_step"] == BAD_STEP
    assert rewind["rewind/position"] == BAD_STEP * ROWS
    last = read_log(folder / "rewound")[-1]
    assert (last["bad_steps"], last["position"]) == (1, (STEPS + 2) * ROWS)


def train_here(run: dict[str, Any]) -> None:
    """Train in this process, as a single rank."""
    train_each([run])


def test_a_rewound_run_is_one_that_never_read_the_rows(
    language: Path, tmp_path: Path
) -> None:
    """Losses are bit-identical to those of the checkpoint with the rows after the bad step."""
    check_rewound(tmp_path, language, train_here)


@pytest.mark.heavy
@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
def test_two_ranks_rewind_together(language: Path, tmp_path: Path, strategy: str) -> None:
    """Sharded state is restored too."""

    def train_on_two(run: dict[str, Any]) -> None:
        train_all(2, [run], tmp_path)

    check_rewound(tmp_path, language, train_on_two, parallel={"strategy": strategy})


def test_a_run_that_is_killed_after_a_rewind_repeats_it(
    language: Path, tmp_path: Path
) -> None:
    """From the checkpoint before the bad step, the losses are those of the uninterrupted run."""
    run = make_run(tmp_path / "run", language, anomaly_guard=GUARD)
    train_here(run)
    expected = losses(tmp_path / "run")
    for path in list_complete_checkpoints(tmp_path / "run" / "checkpoints")[1:]:
        shutil.rmtree(path)
    train_here(run)
    assert losses(tmp_path / "run") == expected
    rewinds = [line for line in read_log(tmp_path / "run") if "rewind/loss" in line]
    assert len(rewinds) == 2


def test_a_rewound_run_resumes_after_its_next_checkpoint(
    language: Path, tmp_path: Path
) -> None:
    """The number of skipped steps is part of the checkpoint."""
    run = make_run(tmp_path / "run", language, anomaly_guard=GUARD)
    train_here(run)
    expected = losses(tmp_path / "run")
    shutil.rmtree(list_complete_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    train_here(run)
    assert losses(tmp_path / "run") == expected
    assert read_log(tmp_path / "run")[-1]["position"] == (STEPS + 2) * ROWS


def test_without_a_checkpoint_a_bad_step_is_skipped(language: Path, tmp_path: Path) -> None:
    """The run goes on with the next rows, and counts the step."""
    run = make_run(tmp_path / "run", language, anomaly_guard=GUARD)
    train_here({**run, "checkpoint": {"every_steps": 100}})
    last = read_log(tmp_path / "run")[-1]
    assert (last["bad_steps"], last["position"]) == (1, STEPS * ROWS)


def test_too_many_rewinds_end_the_run() -> None:
    """Rewinds to another checkpoint are counted anew, also after a resume."""
    config = AnomalyGuardConfig(on_bad_step="rewind")
    guard = AnomalyGuard(config, torch.device("cpu"))
    saved = guard.state_dict()
    for step in (10, 10, 20, 20, 20):
        assert decide(guard, float("nan"), 1.0, step + 3)
        assert guard.wants_rewind
        guard.rewind(saved, step)
        assert not guard.wants_rewind
    resumed = AnomalyGuard(config, torch.device("cpu"))
    resumed.load_state_dict(guard.state_dict())
    assert resumed.num_bad == 5
    with pytest.raises(TrainingStopped, match="returned 3 times to step 20"):
        resumed.rewind(saved, 20)
