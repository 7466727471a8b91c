"""A small synthetic language for training tests, and helpers that run real ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from shardwriter import Documents, build_manifest, write_shard
from shardwriter.format import MANIFEST_FILE, TokenizerEntry, index_file, shard_file
from tests.training.rank_processes import run_world
from training.anomaly_guard import AnomalyGuard
from training.config import ModelConfig, TrainConfig
from training.model.decoder import Decoder, init_parameter

if TYPE_CHECKING:
    from training.trainer import TrainResult

VOCAB_SIZE = 250

SETTINGS: dict[str, Any] = {
    "steps": 4,
    "model": {
        "dim": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "ffn_dim": 128,
    },
    "data": {"seq_len": 64, "global_batch_rows": 12, "micro_batch_rows": 1},
    "precision": {"compute": "fp32"},
    "optimizer": {"warmup_steps": 2, "learning_rate": 1e-2},
    "checkpoint": {"every_steps": 100},
    "observability": {"every_steps": 1, "tensorboard": False},
    "advanced": {"start_timeout_s": 600, "step_timeout_s": 600},
}


def write_language(folder: Path, *, seed: int = 0, num_shards: int = 3) -> Path:
    """Write a dataset in which 90 % of the tokens are 3 * previous + 1, modulo the vocabulary."""
    rng = np.random.default_rng(seed)
    shards: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for _ in range(num_shards):
        lengths = rng.integers(10, 150, 120)
        tokens = rng.integers(1, VOCAB_SIZE, int(lengths.sum()))
        for place in np.flatnonzero(rng.random(len(tokens)) < 0.9).tolist():
            tokens[place] = (tokens[place - 1] * 3 + 1) % VOCAB_SIZE
        tokens[np.cumsum(lengths) - 1] = 0
        shards.append((tokens, lengths))
    return write_shards(folder, shards)


def write_shards(folder: Path, shards: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Path:
    """Write shards of the given tokens and lengths of documents."""
    folder.mkdir(parents=True)
    tokenizer = TokenizerEntry("tiny", "ab" * 32, vocab_size=VOCAB_SIZE, end_of_document=0)
    entries = []
    for shard, (tokens, lengths) in enumerate(shards):
        documents = Documents(
            tokens.astype(np.uint16), lengths, np.arange(len(lengths), dtype=np.uint64)
        )
        with (
            (folder / shard_file(shard)).open("wb") as tar,
            (folder / index_file(shard)).open("wb") as index,
        ):
            entries.append(
                write_shard(
                    tar, index, shard=shard, tokenizer=tokenizer, documents=documents
                )
            )
    (folder / MANIFEST_FILE).write_bytes(
        build_manifest(entries, tokenizer=tokenizer, fingerprint="f00d").dumps()
    )
    return folder


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Compute on one thread, as the ranks of tests do: threads that wait for a core spin."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of about 28,000 tokens."""
    return write_language(tmp_path_factory.mktemp("language") / "dataset")


def make_settings(run_dir: Path, manifest: Path | None, **changes: Any) -> dict[str, Any]:
    """Return the settings of a run; changed sections are merged into the defaults."""
    settings = {**SETTINGS, "run_dir": str(run_dir)}
    if manifest is not None:
        settings["data"] = {**settings["data"], "manifest": str(manifest)}
    for name, change in changes.items():
        settings[name] = (
            {**settings.get(name, {}), **change} if isinstance(change, Mapping) else change
        )
    return settings


def make_config(run_dir: Path, manifest: Path | None, **changes: Any) -> TrainConfig:
    """Return the config of `make_settings`."""
    return TrainConfig.model_validate(make_settings(run_dir, manifest, **changes))


def init_parameters(model: Decoder, config: ModelConfig, seed: int) -> None:
    """Fill all parameters of a model, in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            init_parameter(name, parameter, config, seed)


def decide(guard: AnomalyGuard, loss: float, norm: float, step: int) -> bool:
    """Give a step to a guard and count its decision; return whether the step is bad."""
    figures = (torch.tensor(value, dtype=torch.float64) for value in (loss, norm))
    is_bad = bool(guard.find_bad(*figures))
    guard.count(loss, norm, is_bad=is_bad, step=step)
    return is_bad


def train_here(config: TrainConfig) -> TrainResult:
    """Train in this process, as one rank, from the newest checkpoint."""
    from training.parallel import distributed
    from training.trainer import train

    timeout_s, dump_dir = config.advanced.start_timeout_s, Path(config.run_dir) / "hang"
    return train(
        config,
        distributed.init_distributed(
            config.parallel, timeout_s=timeout_s, dump_dir=dump_dir
        ),
    )


def train_each(runs: Sequence[Mapping[str, Any]]) -> None:
    """Train several runs one after another, as one rank."""
    from training.parallel import distributed

    for settings in runs:
        train_here(TrainConfig.model_validate(settings))
    distributed.shutdown_distributed()


def train_all(
    num_ranks: int, runs: Sequence[Mapping[str, Any]], folder: Path, timeout_s: float = 600
) -> None:
    """Train several runs on new rank processes."""
    run_world(num_ranks, train_each, runs, folder=folder, timeout_s=timeout_s)


def read_log(run_dir: Path | str) -> list[dict[str, Any]]:
    """Return the lines of log.jsonl, without a last line that is still being written."""
    with (Path(run_dir) / "log.jsonl").open(encoding="utf-8") as log:
        return [json.loads(line) for line in log if line.endswith("\n")]


def losses(run_dir: Path | str) -> list[float]:
    """Return the last logged loss of each step."""
    by_step = {line["step"]: line["loss"] for line in read_log(run_dir) if "loss" in line}
    return [by_step[step] for step in sorted(by_step)]
