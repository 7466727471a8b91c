"""The loader finds its rank in workers of Ray Train."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from loader import TokenLoader
from tests.conftest import REPOSITORY
from tests.loader.conftest import Dataset
from tests.processes import run_python

ORDER = {
    "seq_len": 32,
    "global_batch_rows": 8,
    "interleave_depth": 4,
    "window_rows": 16,
    "epochs": 1,
    "drop_last": True,
}

DRIVER = """
import json, os, sys

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

given = json.loads(sys.argv[1])

def train(config):
    from pathlib import Path
    from loader import TokenLoader

    loader = TokenLoader(config["folder"], **config["order"])    # rank and world size are Ray Train's
    seen = {"world_size": loader.world_size, "steps": [batch["input_ids"].tolist() for batch in loader]}
    Path(config["out"], f"rank-{loader.rank}.json").write_text(json.dumps(seen))

ray.init(logging_level="ERROR")
DataParallelTrainer(
    train,
    train_loop_config=given,
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    run_config=RunConfig(storage_path=given["out"]),
).fit()
"""


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_two_ray_train_workers_share_each_step(larger: Dataset, tmp_path: Path) -> None:
    """They are ranks 0 and 1 of 2, and together read the rows of each step of one rank."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Fewer processes, and the end of the workers is noticed at once instead of every 2 s.
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "RAY_TRAIN_METRICS_ENABLED": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    }
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    given = {"folder": str(larger.folder), "order": ORDER, "out": str(tmp_path)}
    done = run_python("-c", DRIVER, json.dumps(given), env=environment)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [seen["world_size"] for seen in ranks] == [2, 2]
    alone = TokenLoader(larger.folder, rank=0, world_size=1, **ORDER)
    expected = [batch["input_ids"].tolist() for batch in alone]
    assert [
        first + second
        for first, second in zip(*(seen["steps"] for seen in ranks), strict=True)
    ] == expected
    rows = [tuple(row) for step in expected for row in step]
    assert len(set(rows)) == len(rows)
