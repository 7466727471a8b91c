"""Training: resume after kill, SIGTERM and on other ranks; bad steps; schedules."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader import TokenLoader
from loader.packed.pack import pack_dataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.state import ResumeMismatch
from loader.storage import ReadSettings
from tests.loader.test_cli import run_cli
from tests.training.conftest import (
    init_parameters,
    losses,
    make_config,
    make_settings,
    read_log,
    train_all,
    train_each,
    train_here,
    write_language,
    write_shards,
)
from tests.training.rank_processes import MESSAGES, start
from training.checkpoint.checkpointer import load_weights
from training.checkpoint.marker import MARKER, list_complete_checkpoints
from training.config import OptimizerConfig, TrainConfig
from training.errors import CheckpointFailed, IncompatibleConfig, TrainingStopped
from training.model.decoder import Decoder
from training.parallel.optimizer import compute_learning_rate
from training.trainer import stop_on_signals

STEPS = 6


def read_weights(run_dir: Path, config: TrainConfig) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights of the newest checkpoint."""
    model = Decoder(config.model, 256)
    load_weights(
        list_complete_checkpoints(run_dir / "checkpoints")[-1],
        dict(model.named_parameters()),
    )
    return {
        name: parameter.detach().numpy() for name, parameter in model.named_parameters()
    }


def settings(strategy: str) -> dict[str, Any]:
    """Return the settings of the runs that are compared."""
    return {
        "steps": STEPS,
        "parallel": {"strategy": strategy},
        "checkpoint": {"every_steps": 2, "keep_last": 100},
    }


# An attack kills runs of zero1.
@pytest.mark.parametrize(
    "strategy", [pytest.param("zero1", marks=pytest.mark.heavy), "zero3"]
)
def test_a_killed_run_resumes_with_identical_bits(
    language: Path, tmp_path: Path, strategy: str
) -> None:
    """After kill -9 of both ranks, losses and weights equal those of an uninterrupted run."""
    run, whole = (
        make_settings(tmp_path / name, language, **settings(strategy))
        for name in ("run", "whole")
    )
    # leaving it kills them, with SIGKILL
    with start(2, train_each, [run], folder=tmp_path) as processes:
        while not list_complete_checkpoints(tmp_path / "run" / "checkpoints"):
            assert processes[0].is_alive()
            time.sleep(0.01)
    assert list_complete_checkpoints(tmp_path / "run" / "checkpoints"), "killed too early"
    train_all(2, [run, whole], tmp_path)
    config = TrainConfig.model_validate(run)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    found, expected = (read_weights(tmp_path / name, config) for name in ("run", "whole"))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_run_resumes_on_other_ranks_and_strategies(
    language: Path, tmp_path: Path
) -> None:
    """2 ranks of zero1, 1 of ddp, 3 of zero3 and 4 of tensor x shard read the same rows per step."""
    settings_by_world: list[tuple[int, int, dict[str, Any]]] = [
        (2, 2, {"strategy": "zero1"}),
        (1, 3, {"strategy": "ddp", "offload": "optimizer"}),
        (3, 5, {"strategy": "zero3"}),
        (4, STEPS, {"strategy": "zero3", "tensor": 2}),
    ]
    run_dir = tmp_path / "run"
    for world_size, steps, parallel in settings_by_world:
        changes = {**settings("zero3"), "steps": steps, "parallel": parallel}
        # the schedule must not depend on where this part of the run ends
        optimizer = {"schedule": "constant"}
        train_all(
            world_size,
            [make_settings(run_dir, language, **changes, optimizer=optimizer)],
            tmp_path,
        )
    whole = make_settings(
        tmp_path / "whole",
        language,
        **settings("zero3"),
        optimizer={"schedule": "constant"},
    )
    train_all(1, [whole], tmp_path)
    assert losses(run_dir) == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    assert [line["position"] for line in read_log(run_dir)] == [
        12 * step for step in range(1, STEPS + 1)
    ]


def test_ranks_that_do_not_divide_the_batch_skip_no_row(
    language: Path, tmp_path: Path
) -> None:
    """With 16 rows per step, 3 ranks of 4 rows read 24, 12, 12, 24, ... rows."""
    run = make_settings(
        tmp_path / "run",
        language,
        steps=5,
        data={"global_batch_rows": 16, "micro_batch_rows": 4},
        parallel={},
    )
    train_all(3, [run], tmp_path)
    assert [line["position"] for line in read_log(tmp_path / "run")] == [24, 36, 48, 72, 84]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_a_checkpoint_and_exits(
    number: signal.Signals, language: Path, tmp_path: Path
) -> None:
    """SIGTERM or Ctrl-C to one rank makes both save after the current step."""
    run = make_settings(tmp_path / "run", language, steps=100_000)
    log = tmp_path / "run" / "log.jsonl"
    with start(2, train_each, [run], folder=tmp_path) as processes:
        while not (log.exists() and log.read_text().count("\n") >= 3):
            assert processes[0].is_alive()
            time.sleep(0.01)
        pid = processes[1].pid
        assert pid is not None
        os.kill(pid, number)
        for process in processes:
            process.join(600)
        assert [process.exitcode for process in processes] == [0, 0], (
            tmp_path / MESSAGES
        ).read_text()
    (saved,) = list_complete_checkpoints(tmp_path / "run" / "checkpoints")
    assert (
        json.loads((saved / MARKER).read_text())["step"]
        == read_log(tmp_path / "run")[-1]["step"]
    )


def test_a_second_ctrl_c_ends_at_once() -> None:
    """The copy of the first one that torchrun sends at once does not count."""
    event = threading.Event()
    with stop_on_signals(event):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert event.is_set()
    with stop_on_signals(event, repeat_s=0):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_incomplete_checkpoint_is_ignored(language: Path, tmp_path: Path) -> None:
    """Without its marker, the previous checkpoint is used, with the same result."""
    config = make_config(
        tmp_path / "run", language, steps=4, checkpoint={"every_steps": 2, "keep_last": 9}
    )
    train_here(config)
    expected = losses(tmp_path / "run")
    newest = list_complete_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    (newest / MARKER).unlink()
    assert train_here(config).step == 4
    assert losses(tmp_path / "run") == expected
    assert [line["step"] for line in read_log(tmp_path / "run")] == [1, 2, 3, 4, 3, 4]


def test_old_checkpoints_are_removed(language: Path, tmp_path: Path) -> None:
    """The last two stay, and those at multiples of four."""
    settings = {"every_steps": 1, "keep_last": 2, "keep_every_steps": 4}
    train_here(make_config(tmp_path / "run", language, steps=7, checkpoint=settings))
    found = [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())]
    assert found == ["step-00000004", "step-00000006", "step-00000007"]


def test_a_checkpoint_of_another_model_is_refused(language: Path, tmp_path: Path) -> None:
    """The error names the parameters and shows both shapes."""
    train_here(make_config(tmp_path / "run", language, steps=1))
    with pytest.raises(
        IncompatibleConfig,
        match=r"(?s)gate_proj.weight is \(128, 64\) in the checkpoint, \(160, 64\) in the model.*another run_dir",
    ):
        train_here(make_config(tmp_path / "run", language, steps=2, model={"ffn_dim": 160}))


def test_a_checkpoint_of_other_data_is_refused(language: Path, tmp_path: Path) -> None:
    """The loader's error says what differs."""
    train_here(make_config(tmp_path / "run", language, steps=1))
    other = write_language(tmp_path / "other", seed=1)
    with pytest.raises(ResumeMismatch, match=r"sources is .* in the state, .* here"):
        train_here(make_config(tmp_path / "run", other, steps=2))


def test_smaller_steps_than_before_are_refused(language: Path, tmp_path: Path) -> None:
    """The rows of the next step were read already; the error has both values."""
    train_here(make_config(tmp_path / "run", language, steps=2))
    smaller = {"global_batch_rows": 4}
    with pytest.raises(
        IncompatibleConfig,
        match=r"global_batch_rows is 4, so step 3 ends at row 12, but 24",
    ):
        train_here(make_config(tmp_path / "run", language, steps=4, data=smaller))


def test_rows_are_those_of_the_loader(language: Path, tmp_path: Path) -> None:
    """The first loss equals that of the rows of a loader with the same settings."""
    import torch
    from torch.nn.functional import cross_entropy

    from training.model.attention import AttentionMask, make_document_mask

    config = make_config(tmp_path / "run", language, steps=1)
    train_here(config)
    model = Decoder(config.model, 256)
    init_parameters(model, config.model, config.seed)
    loader = TokenLoader(
        language,
        seq_len=64,
        global_batch_rows=12,
        rank=0,
        world_size=1,
        documents=["document_ids"],
    )
    batch = next(loader)
    with torch.no_grad():
        logits = model(batch["input_ids"], None, make_document_mask(batch["document_ids"]))
    assert isinstance(logits, torch.Tensor)
    expected = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    assert losses(tmp_path / "run")[0] == pytest.approx(float(expected), rel=1e-5)
    assert AttentionMask().allowed is None


def test_packed_rows_train_and_resume(language: Path, tmp_path: Path) -> None:
    """A run that stops and continues has the losses of one that does not."""
    packing = tmp_path / "language.rows"
    columns = read_manifest_columns(language, ReadSettings())
    pack_dataset(columns, seq_len=64, settings=ReadSettings(), out=packing)
    data = {"packing": str(packing)}
    train_here(make_config(tmp_path / "whole", language, steps=4, data=data))
    for steps in (2, 4):
        train_here(make_config(tmp_path / "parts", language, steps=steps, data=data))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    plain = make_config(tmp_path / "parts", language, steps=5)
    with pytest.raises(ResumeMismatch, match="packings is"):
        train_here(plain)


def test_a_dataset_is_added_between_two_runs(language: Path, tmp_path: Path) -> None:
    """The first run reads one dataset, and the second adds another one from step 2 on."""
    other = write_language(tmp_path / "other", seed=1)
    data = {
        "mixture": {
            "old": {"manifest": str(language)},
            "new": {"manifest": str(other), "weight": 0},
        },
        "mixture_schedule": {2: {"old": 1, "new": 1}},
    }
    train_here(make_config(tmp_path / "whole", None, steps=4, data=data))
    train_here(make_config(tmp_path / "parts", language, steps=2))
    train_here(make_config(tmp_path / "parts", None, steps=4, data=data))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_a_failed_checkpoint_ends_the_run(language: Path, tmp_path: Path) -> None:
    """A file in place of the folder stands for any write error."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("not a folder")
    with pytest.raises(
        CheckpointFailed,
        match=r"could not be written: rank 0: .*Not a directory.*resumes from the newest",
    ):
        train_here(
            make_config(tmp_path / "run", language, steps=2, checkpoint={"every_steps": 1})
        )


# ---------------------------------------------------------------------------------------------------------- bad steps


def test_bad_steps_are_skipped_and_counted(language: Path, tmp_path: Path) -> None:
    """Steps with non-finite losses are skipped, until too many follow one another."""
    optimizer = {"learning_rate": 1e30, "warmup_steps": 0, "max_grad_norm": 1e30}
    with pytest.raises(
        TrainingStopped, match=r"bad steps in a row: 10 .*lower optimizer.learning_rate"
    ):
        train_here(
            make_config(
                tmp_path / "run",
                language,
                steps=20,
                optimizer=optimizer,
            )
        )
    assert [line["bad_steps"] for line in read_log(tmp_path / "run")][-2:] == [8, 9]


# ----------------------------------------------------------------------------------------------------------- schedules


@given(
    schedule=st.sampled_from(["cosine", "wsd", "linear", "constant"]),
    steps=st.integers(1, 300),
    warmup_steps=st.integers(0, 50),
    min_lr_share=st.floats(0, 1),
    decay_share=st.floats(0, 1),
)
def test_learning_rates_rise_then_fall(
    schedule: Any, steps: int, warmup_steps: int, min_lr_share: float, decay_share: float
) -> None:
    """The rate rises during warm-up, then never rises again, and stays above the minimum."""
    config = OptimizerConfig(
        schedule=schedule,
        warmup_steps=warmup_steps,
        min_lr_share=min_lr_share,
        decay_share=decay_share,
    )
    rates = [
        compute_learning_rate(step, steps, config) / config.learning_rate
        for step in range(steps)
    ]
    up, down = rates[:warmup_steps], rates[warmup_steps:]
    assert up == sorted(up)
    assert all(rate <= 1 + 1e-9 for rate in rates)
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(down))
    assert all(rate >= min_lr_share - 1e-9 for rate in down)
    assert not down or down[0] == pytest.approx(1.0)


def test_schedules_have_these_values() -> None:
    """Golden values half-way and at the end of 100 steps."""
    settings = {
        "learning_rate": 1.0,
        "warmup_steps": 10,
        "min_lr_share": 0.1,
        "decay_share": 0.2,
    }
    expected = {
        "cosine": (0.55, 0.1),
        "linear": (0.55, 0.1),
        "wsd": (1.0, 0.145),
        "constant": (1.0, 1.0),
    }
    for schedule, (half, end) in expected.items():
        config = OptimizerConfig.model_validate({**settings, "schedule": schedule})
        assert compute_learning_rate(55, 100, config) == pytest.approx(half)
        assert compute_learning_rate(99, 100, config) == pytest.approx(end, abs=0.011)


def test_a_batch_smaller_than_one_micro_batch_per_rank_is_refused(
    language: Path, tmp_path: Path
) -> None:
    """The error names both keys."""
    with pytest.raises(
        IncompatibleConfig,
        match=r"global_batch_rows is 12, but 1 \(data-parallel ranks\) x 13 .*= 13 rows",
    ):
        train_here(make_config(tmp_path, language, data={"micro_batch_rows": 13}))
    shutil.rmtree(tmp_path)


def test_which_finds_the_document_of_a_loss_spike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`loader which` counts steps as the trainer's log does.

    One document has other tokens than all others, so one step has another loss: nothing is learned.
    """
    num_docs, odd = 65, 40
    tokens = np.full((num_docs, 16), 5)
    tokens[odd] = np.arange(100, 116)
    tokens[:, -1] = 0
    lengths = np.full(num_docs, 16)
    dataset = write_shards(tmp_path / "dataset", [(tokens.ravel(), lengths)])
    order = {"seq_len": 16, "global_batch_rows": 4, "seed": 3}
    changes: dict[str, Any] = {
        "steps": (num_docs - 1) // 4,
        "data": {**order, "micro_batch_rows": 4},
        "optimizer": {"learning_rate": 1e-12, "warmup_steps": 0},
    }
    train_here(make_config(tmp_path / "run", dataset, **changes))
    logged = losses(tmp_path / "run")
    differences = np.abs(np.array(logged) - np.median(logged))
    # The row before has the first token of the document as its last label.
    assert 1 <= np.count_nonzero(differences > 1e-4) <= 2
    step = int(np.argmax(differences)) + 1
    options = [f"--{name.replace('_', '-')}={value}" for name, value in order.items()]
    capsys.readouterr()
    assert run_cli("which", dataset, *options, "--doc-id", str(odd)) == 0
    assert f"step {step}," in capsys.readouterr().out
    assert run_cli("which", dataset, *options, "--step", str(step)) == 0
    assert f"document {odd}," in capsys.readouterr().out
