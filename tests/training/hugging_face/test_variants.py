"""Normalized queries and keys, and one matrix for embedding and output, as in transformers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.training.conftest import losses, make_config, make_settings, train_all
from tests.training.hugging_face.model_folders import (
    TINY,
    alone,
    logits,
    read_checkpoint,
    read_folder,
    tokens,
)
from training.checkpoint.marker import list_complete_checkpoints
from training.config import ModelConfig
from training.errors import IncompatibleConfig
from training.hugging_face.config_json import read_model_settings
from training.hugging_face.export import export_checkpoint
from training.hugging_face.weights import load_weights_into
from training.model.attention import AttentionMask
from training.model.decoder import Decoder
from training.model.size import count_flops_per_token, count_parameters
from training.trainer import train

CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}

VARIANTS = [(True, False), (True, True), (False, True)]

MODES: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "ddp": {"parallel": {"strategy": "ddp"}},
        "zero1": {"parallel": {"strategy": "zero1"}},
        "zero2": {"parallel": {"strategy": "zero2"}},
        "tensor": {"parallel": {"tensor": 2}},
        "offload": {"parallel": {"strategy": "zero3", "offload": "parameters"}},
    },
    4: {
        "tensor-shard": {"parallel": {"strategy": "zero3", "tensor": 2}},
        "context-shard": {"parallel": {"strategy": "zero3", "context": 2}},
    },
}


def write_model(folder: Path, *, qk_norm: bool, is_tied: bool) -> Any:
    """Save a Llama or Qwen3 with random weights by transformers, and return it."""
    with warnings.catch_warnings(action="ignore"):
        from transformers import (
            LlamaConfig,
            LlamaForCausalLM,
            Qwen3Config,
            Qwen3ForCausalLM,
        )
    config_class: Any = Qwen3Config if qk_norm else LlamaConfig
    model_class: Any = Qwen3ForCausalLM if qk_norm else LlamaForCausalLM
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    config = config_class(
        **TINY, head_dim=16, tie_word_embeddings=is_tied, rope_parameters=rope
    )
    model = model_class(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):  # 1 would not show whether it is applied
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    return model


def read_variant(folder: Path, *, is_tied: bool) -> Decoder:
    """Return our model of a folder."""
    alone()
    settings = {**read_model_settings(folder), "tie_embeddings": is_tied}
    model = Decoder(ModelConfig.model_validate(settings), settings["vocab_size"])
    load_weights_into(folder, model)
    return model


@pytest.mark.parametrize(("qk_norm", "is_tied"), VARIANTS)
def test_logits_and_gradients_are_those_of_transformers(
    qk_norm: bool, is_tied: bool, tmp_path: Path
) -> None:
    """In fp32, for every parameter; a shared matrix has the gradients of both uses."""
    theirs = write_model(tmp_path, qk_norm=qk_norm, is_tied=is_tied)
    ours = read_variant(tmp_path, is_tied=is_tied)
    ids = tokens()
    labels = ids.roll(-1, 1)
    total, _ = ours(ids, labels, AttentionMask())
    total.backward()
    expected = theirs(ids).logits
    torch.testing.assert_close(logits(ours, ids), expected.detach(), **CLOSE)
    cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum").backward()
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for name, parameter in theirs.named_parameters():
        gradient = found.pop(name.removeprefix("model."))
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-4)
    assert found == {}
    assert sum(p.numel() for p in ours.parameters()) == count_parameters(ours.config, 300)


@pytest.mark.parametrize(("qk_norm", "is_tied"), VARIANTS)
def test_exports_have_the_logits_of_the_checkpoint(
    qk_norm: bool, is_tied: bool, language: Path, tmp_path: Path
) -> None:
    """It is read as Qwen3 or Llama; importing it again changes no logit."""
    model = {"qk_norm": qk_norm, "tie_embeddings": is_tied, "init_std": 0.1}
    config = make_config(tmp_path / "run", language, steps=2, model=model)
    train(config, alone())
    export_checkpoint(tmp_path / "run", tmp_path / "out", dtype="fp32")
    content = json.loads((tmp_path / "out" / "config.json").read_text())
    assert content["model_type"] == ("qwen3" if qk_norm else "llama")
    assert content["tie_word_embeddings"] == is_tied
    with warnings.catch_warnings(action="ignore"):
        from transformers import AutoModelForCausalLM

        their_class: Any = AutoModelForCausalLM
    their_model = their_class.from_pretrained(tmp_path / "out", dtype=torch.float32)
    ids = tokens() % 250
    expected = logits(
        read_checkpoint(list_complete_checkpoints(tmp_path / "run" / "checkpoints")[-1]),
        ids,
    )
    torch.testing.assert_close(their_model(ids).logits.detach(), expected, **CLOSE)
    again = read_variant(tmp_path / "out", is_tied=is_tied)
    assert torch.equal(logits(again, ids), expected)


def test_two_matrices_do_not_fit_a_shared_one(tmp_path: Path) -> None:
    """A folder with two matrices is refused; a shared matrix can become two."""
    write_model(tmp_path / "two", qk_norm=False, is_tied=False)
    with pytest.raises(IncompatibleConfig, match="the folder has two matrices"):
        read_variant(tmp_path / "two", is_tied=True)
    write_model(tmp_path / "one", qk_norm=False, is_tied=True)
    found = dict(read_folder(tmp_path / "one").named_parameters())
    assert torch.equal(found["lm_head.weight"], found["embed_tokens.weight"])


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.heavy)])
def test_every_distribution_has_the_losses_of_one_process(
    num_ranks: int, language: Path, tmp_path: Path
) -> None:
    """With both variants in fp32 within 1e-5, also after one process has resumed the last run."""
    changes: dict[str, Any] = {
        "model": {"qk_norm": True, "tie_embeddings": True, "init_std": 0.1},
        "data": {"micro_batch_rows": 3},
        "optimizer": {"schedule": "constant", "learning_rate": 3e-3},
    }
    runs = [
        make_settings(tmp_path / name, language, **changes, **mode)
        for name, mode in MODES[num_ranks].items()
    ]
    runs.append({**runs[-1], "run_dir": str(tmp_path / "resumed"), "steps": 2})
    train_all(num_ranks, runs, tmp_path)
    for name in ("reference", "resumed"):
        config = make_config(
            tmp_path / name, language, **changes, parallel={"strategy": "ddp"}
        )
        train(config, alone())
    expected = losses(tmp_path / "reference")
    assert expected[-1] < expected[0] - 0.1
    for name in (*MODES[num_ranks], "resumed"):
        assert losses(tmp_path / name) == pytest.approx(expected, rel=1e-5), name


def test_flops_of_a_shared_matrix_are_those_of_the_output() -> None:
    """Sharing saves parameters, but no product."""
    settings = {"dim": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
    apart, shared = (
        ModelConfig.model_validate({**settings, "tie_embeddings": tied})
        for tied in (False, True)
    )
    assert count_parameters(apart, 256) - count_parameters(shared, 256) == 256 * 64
    flops = [count_flops_per_token(config, 256, 32) for config in (apart, shared)]
    assert flops[0] == flops[1]
