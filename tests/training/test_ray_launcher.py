"""Ray Train's workers compute the same as ranks under torchrun, also after one is killed."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.processes import list_descendants
from tests.conftest import REPOSITORY
from tests.shared_ray import SharedRay
from tests.training.conftest import losses, make_settings, train_all
from training.checkpoint.marker import list_complete_checkpoints, parse_step

STEPS = 20
# Neither Ray's private 077 nor the usual 022.
UMASK = 0o027
CHANGES: dict[str, Any] = {
    "steps": STEPS,
    "checkpoint": {"every_steps": 5},
    "optimizer": {"schedule": "constant"},
}


@pytest.fixture(scope="module")
def plain(language: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on two plain processes."""
    folder = tmp_path_factory.mktemp("plain")
    train_all(2, [make_settings(folder / "run", language, **CHANGES)], folder)
    return folder / "run"


def start(
    folder: Path, settings: Mapping[str, Any], *arguments: str
) -> subprocess.Popen[str]:
    """Start the command in a folder, on the shared Ray if the test uses it, or on a new one.

    The command has the umask UMASK.
    """
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(settings)))
    environment = {**os.environ}
    if "RAY_ADDRESS" not in environment:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    for name in ("RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    environment |= {  # fewer processes
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "RAY_TRAIN_METRICS_ENABLED": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "training", "run", "config.yaml", "--launcher", "ray", *arguments],
        cwd=folder, env={**environment, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, umask=UMASK,
    )  # fmt: skip


def wait_for_exit(driver: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and the output."""
    try:
        output = driver.communicate(timeout=500)[0]
    finally:
        driver.kill()
    return driver.returncode, output


def read_modes(run_dir: Path) -> set[int]:
    """Return the permissions of the files and folders of a run, without those of Ray."""
    paths = [path for path in run_dir.rglob("*") if not path.is_symlink()]
    ours = [path for path in paths if path.relative_to(run_dir).parts[0] != "ray"]
    return {path.stat().st_mode & 0o777 for path in ours}


def find_worker_pids(ray: SharedRay) -> list[int]:
    """Return the process ids of the ranks."""
    found = list_descendants(ray.pid)
    return [process.pid for process in found if process.name.startswith("ray::RayTrain")]


def wait_until(is_true: Any, driver: subprocess.Popen[str]) -> None:
    """Wait for a condition while the command runs; the limit is that of the test."""
    while not is_true():
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.05)


@pytest.mark.ray
def test_a_killed_worker_is_replaced_and_sigterm_saves(
    language: Path, plain: Path, shared_ray: SharedRay, tmp_path: Path
) -> None:
    """After kill -9 of a worker, losses are bit-identical to plain processes; SIGTERM then saves, with exit code 4."""
    run_dir = tmp_path / "run"
    settings = {
        **make_settings(run_dir, language, **{**CHANGES, "steps": 100_000}),
        "run_dir": "run",
    }
    driver = start(tmp_path, settings, "--workers", "2")
    wait_until(lambda: list_complete_checkpoints(run_dir / "checkpoints"), driver)
    os.kill(find_worker_pids(shared_ray)[-1], signal.SIGKILL)
    wait_until(lambda: len(losses(run_dir)) > STEPS, driver)
    driver.terminate()
    code, output = wait_for_exit(driver)
    assert code == 4, output
    assert "resuming from" in output
    summary = f"{len(losses(run_dir))} of 100,000 steps"
    assert output.count(summary) == 1, "a line is missing, or came twice"
    found = losses(run_dir)
    assert found[:STEPS] == losses(plain)
    assert read_modes(run_dir) == {0o750, 0o640}
    assert parse_step(list_complete_checkpoints(run_dir / "checkpoints")[-1]) == len(found)


@pytest.mark.ray
@pytest.mark.heavy  # each launcher ends with the exit codes of the same function
def test_an_incompatible_config_is_reported_once(language: Path, tmp_path: Path) -> None:
    """Exit code 2 and the usual message; the workers of a Ray that it starts itself are not restarted."""
    settings = make_settings(tmp_path / "run", language, parallel={"tensor": 2})
    code, output = wait_for_exit(start(tmp_path, settings, "--workers", "1"))
    assert code == 2, output
    assert (
        "parallel.tensor is 2, which does not divide 1 rank; start a multiple of it\n"
        in output
    )
    assert output.count("Error in training function") == 1  # Ray's word for each attempt


def test_workers_get_absolute_paths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Relative paths become absolute; addresses are unchanged."""
    from training.ray_launcher import make_paths_absolute

    monkeypatch.chdir(tmp_path)
    given = {
        "run_dir": "runs/a",
        "steps": 3,
        "data": {"manifest": "s3://bucket/a", "tokenizer": "/t.json"},
    }
    wanted = {"run_dir": f"{tmp_path}/runs/a", "steps": 3, "data": given["data"]}
    assert make_paths_absolute(given) == wanted
    mixture = {"data": {"mixture": {"web": {"manifest": "web", "weight": 1.0}}}}
    assert (
        make_paths_absolute(mixture)["data"]["mixture"]["web"]["manifest"]
        == f"{tmp_path}/web"
    )


def test_a_run_dir_on_another_disk_is_refused(tmp_path: Path) -> None:
    """The error names the machine that does not see the folder."""
    from training.errors import IncompatibleConfig
    from training.ray_launcher import _check_run_dir_is_shared

    _check_run_dir_is_shared(str(tmp_path))
    with pytest.raises(
        IncompatibleConfig,
        match=r"run_dir is .*does not exist on .*on a volume that every node mounts",
    ):
        _check_run_dir_is_shared(str(tmp_path / "elsewhere"))
