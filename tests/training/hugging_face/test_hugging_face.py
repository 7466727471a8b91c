"""Import and export keep weights unchanged and give the logits of transformers."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from terminal_output import format_command
from tests.training.conftest import make_config, make_settings, train_all
from tests.training.hugging_face.model_folders import (
    SCALING,
    VOCAB_SIZE,
    alone,
    change_config,
    llama_of_transformers,
    logits,
    read_checkpoint,
    read_folder,
    read_weights,
    tokens,
    write_llama,
    write_tokenizer,
)
from training.cli import app
from training.config import LoraConfig, ModelConfig
from training.errors import IncompatibleConfig
from training.hugging_face.config_json import read_model_settings
from training.hugging_face.export import export_checkpoint
from training.hugging_face.weights import load_weights_into
from training.model.decoder import Decoder
from training.trainer import train

# fp32, logits of about 1: both sum products of 64 and 128 numbers, in their own order.
CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}

# Too little to change any weight that is not 0.
NO_CHANGE = {"learning_rate": 1e-30}

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500_000.0, **SCALING}


def their_logits(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of transformers for a folder."""
    _, llama_for_causal_lm = llama_of_transformers()
    model = llama_for_causal_lm.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(ids).logits


# ------------------------------------------------------------------------------------------------------------------- in


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_parameters": LLAMA3},
        {"num_key_value_heads": 4},
        {"tie_word_embeddings": True},
        {"max_shard_size": "60KB"},
        {"dtype": torch.bfloat16},
    ],
    ids=["grouped", "llama3", "ungrouped", "tied", "sharded", "bf16"],
)
def test_imported_weights_give_the_logits_of_transformers(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A model saved by transformers has the same logits in our decoder."""
    write_llama(tmp_path, **changes)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == ("max_shard_size" in changes)
    torch.testing.assert_close(
        logits(read_folder(tmp_path), tokens()), their_logits(tmp_path, tokens()), **CLOSE
    )


def test_configs_of_transformers_4_are_read_too(tmp_path: Path) -> None:
    """rope_theta and rope_scaling have the meaning of rope_parameters."""
    write_llama(tmp_path, rope_parameters=LLAMA3)
    new = read_model_settings(tmp_path)
    scaling = {"rope_type": "llama3", **SCALING}
    change_config(
        tmp_path, rope_parameters=None, rope_theta=500_000.0, rope_scaling=scaling
    )
    assert read_model_settings(tmp_path) == new
    assert new["rope_scaling"]["original_seq_len"] == 32
    assert new["rope_theta"] == 500_000.0
    change_config(tmp_path, rope_scaling=None, rope_theta=None)
    assert read_model_settings(tmp_path)["rope_theta"] == 10_000.0
    assert read_model_settings(tmp_path)["rope_scaling"] is None


def test_import_leaves_adapters_unchanged(tmp_path: Path) -> None:
    """Weights are loaded into the frozen matrices only."""
    write_llama(tmp_path)
    model = read_folder(tmp_path, LoraConfig(rank=2, targets=("q_proj",)))
    found = dict(model.named_parameters())
    assert torch.equal(
        found["layers.0.self_attn.q_proj.weight"],
        read_weights(tmp_path)["model.layers.0.self_attn.q_proj.weight"],
    )
    assert bool((found["layers.0.self_attn.q_proj.lora_a"] == 1).all())


def test_import_prints_a_section_that_fits(tmp_path: Path) -> None:
    """A config accepts the printed section, and the folder then fits the config."""
    write_llama(tmp_path, rope_parameters=LLAMA3)
    said = CliRunner().invoke(app, ["import", str(tmp_path)])
    assert said.exit_code == 0, said.output
    section = yaml.safe_load(said.output)["model"]
    assert section == {
        "dim": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 128, "vocab_size": VOCAB_SIZE,
        "norm_eps": 1e-5, "rope_theta": 500_000.0,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_seq_len": 32},
        "qk_norm": False, "initial_weights": str(tmp_path),
    }  # fmt: skip
    alone()
    load_weights_into(
        tmp_path, Decoder(ModelConfig.model_validate(section), section["vocab_size"])
    )


# ----------------------------------------------------------------------------------------------------------- the faults


def collect_faults(folder: Path, vocab_size: int = VOCAB_SIZE, **changes: Any) -> str:
    """Return the error of loading a folder into a model with changed settings."""
    alone()
    settings = {
        "dim": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "ffn_dim": 128,
        "rope_theta": 1e4,
    }
    config = ModelConfig.model_validate({**settings, **changes})
    with pytest.raises(IncompatibleConfig) as raised:
        load_weights_into(folder, Decoder(config, vocab_size))
    return str(raised.value)


def test_all_differences_are_reported_together(tmp_path: Path) -> None:
    """The error shows both values of each key, and the command that prints the right ones."""
    write_llama(tmp_path)
    said = collect_faults(
        tmp_path,
        num_layers=3,
        num_kv_heads=4,
        rope_theta=5e5,
        norm_eps=1e-6,
        rope_scaling={},
    )
    for part in (
        "model.num_layers is 3 in the config, 2 in the folder",
        "model.num_kv_heads is 4 in the config, 2 in the folder",
        "model.rope_theta is 500000.0 in the config, 10000.0 in the folder",
        "model.norm_eps is 1e-06 in the config, 1e-05 in the folder",
        "model.rope_scaling is {'factor': 8.0",
        f"`{format_command('training')} import {tmp_path}`",
    ):
        assert part in said


def test_a_padded_vocabulary_is_refused_with_both_shapes(tmp_path: Path) -> None:
    """vocab_size null is rounded up, but imported weights have an exact number of rows."""
    write_llama(tmp_path)
    said = collect_faults(tmp_path, vocab_size=384)
    assert (
        "model.vocab_size is None in the config, which makes embed_tokens.weight (384, 64), and 300 in the folder"
        in said
    )
    assert "(300, 64)" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "qwen2"}, "model_type is 'qwen2', expected 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"attention_bias": True}, "attention_bias is true, expected false"),
        ({"mlp_bias": True}, "mlp_bias is true, expected false"),
        (
            {"head_dim": 32},
            "head_dim is 32, expected hidden_size / num_attention_heads = 16",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn"}},
            "rope_type is 'yarn', expected 'default' or 'llama3'",
        ),
        (
            {"quantization_config": {"bits": 4}},
            "use the weights from before the quantization",
        ),
        ({"hidden_size": None}, "hidden_size is missing"),
        (
            {"num_attention_heads": 3, "head_dim": None},
            "dim 64 must be num_heads 3 times an even number",
        ),
    ],
)
def test_unsupported_models_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    """Loading and `import` refuse settings that the decoder does not implement."""
    write_llama(tmp_path)
    change_config(tmp_path, **changes)
    assert said in collect_faults(tmp_path)
    with pytest.raises(IncompatibleConfig, match="this trainer does not support the model"):
        read_model_settings(tmp_path)


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    """Missing and damaged files are named, with the remedy."""
    assert "give a folder as `hf download` makes it" in collect_faults(tmp_path / "nowhere")
    write_llama(tmp_path, max_shard_size="60KB")
    change_config(tmp_path, tie_word_embeddings=True)
    first, *_ = files = sorted(tmp_path.glob("*.safetensors"))
    content = first.read_bytes()
    first.write_bytes(content[:100])
    assert f"a file of {tmp_path} cannot be read" in collect_faults(tmp_path)
    first.unlink()
    assert f"names files that are missing: {first.name}" in collect_faults(tmp_path)
    first.write_bytes(content)
    (tmp_path / "config.json").write_text("[1]")
    assert "found list, expected an object" in collect_faults(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config.json cannot be read" in collect_faults(tmp_path)
    for path in [*files, tmp_path / "model.safetensors.index.json"]:
        path.unlink()
    write_llama(tmp_path / "other")
    (tmp_path / "other/config.json").rename(tmp_path / "config.json")
    assert "has no *.safetensors" in collect_faults(tmp_path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda t: t.to(torch.int8), "has torch.int8, wanted float32, bfloat16 or float16"),
        (lambda t: t.to(torch.float8_e4m3fn), "has torch.float8_e4m3fn, wanted"),
        (
            lambda t: torch.where(t == t.max(), math.nan, t),
            "values that are NaN or infinite",
        ),
        (
            lambda t: torch.where(t == t.max(), -math.inf, t),
            "values that are NaN or infinite",
        ),
    ],
    ids=["int8", "float8", "nan", "infinite"],
)
def test_weights_that_cannot_be_trained_are_refused(
    tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor], fault: str
) -> None:
    """Quantized weights would be read without their scales. The tensor is named."""
    write_llama(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    tensors = load_file(path)
    tensors["model.norm.weight"] = change(tensors["model.norm.weight"])
    save_file(tensors, path)
    said = collect_faults(tmp_path)
    assert "model.norm.weight" in said
    assert fault in said


def test_tensors_that_differ_from_the_config_are_reported(tmp_path: Path) -> None:
    """Missing, unknown and differently shaped tensors are refused."""
    write_llama(tmp_path / "small", num_hidden_layers=1)
    change_config(tmp_path / "small", num_hidden_layers=2)
    assert "model.layers.1.self_attn.q_proj.weight is missing" in collect_faults(
        tmp_path / "small"
    )
    write_llama(tmp_path / "large", num_hidden_layers=3)
    change_config(tmp_path / "large", num_hidden_layers=2)
    assert "model.layers.2.input_layernorm.weight is unknown; " in collect_faults(
        tmp_path / "large"
    )
    write_llama(tmp_path / "wide", intermediate_size=192)
    change_config(tmp_path / "wide", intermediate_size=128)
    said = collect_faults(tmp_path / "wide")
    assert (
        "model.layers.0.mlp.gate_proj.weight is (192, 64) in the folder, (128, 64) in the model"
        in said
    )
    assert " and 1 more" in said
    write_llama(tmp_path / "tied", tie_word_embeddings=True)
    change_config(tmp_path / "tied", tie_word_embeddings=False)
    assert "lm_head.weight is missing" in collect_faults(tmp_path / "tied")


# ------------------------------------------------------------------------------------------------------------------ out


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": {"rope_scaling": {"original_seq_len": 32}}},
        {
            "lora": {"rank": 4, "targets": ["q_proj", "down_proj"]},
            "optimizer": {"learning_rate": 1e-1},
        },
    ],
    ids=["grouped", "llama3", "adapters"],
)
def test_exports_give_the_same_logits_in_transformers(
    tmp_path: Path,
    language: Path,
    changes: dict[str, Any],
) -> None:
    """Adapters are merged, and one file or several give the same model."""
    config = make_config(tmp_path / "run", language, steps=2, **changes)
    train(config, alone())
    newest = tmp_path / "run/checkpoints/step-00000002"
    ours = logits(read_checkpoint(newest), tokens())
    assert export_checkpoint(tmp_path / "run", tmp_path / "one", dtype="fp32") == newest
    export_checkpoint(newest, tmp_path / "many", dtype="fp32", shard_bytes=60_000)
    modes = {path.stat().st_mode for path in (tmp_path / "many").iterdir()}
    assert len(modes) == 1, "files of weights have other permissions"
    assert [path.name for path in (tmp_path / "one").glob("*.safetensors")] == [
        "model.safetensors"
    ]
    files = list((tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 3
    assert all(
        path.stat().st_size < 70_000 or len(list_tensor_names(path)) == 1 for path in files
    )
    for folder in ("one", "many"):
        torch.testing.assert_close(their_logits(tmp_path / folder, tokens()), ours, **CLOSE)
    read_back = logits(read_folder(tmp_path / "many"), tokens())
    torch.testing.assert_close(read_back, ours, **CLOSE)


def list_tensor_names(path: Path) -> list[str]:
    """Return the names of the tensors in a file."""
    from safetensors.torch import load_file

    return list(load_file(path))


def test_the_export_command_writes_bf16_and_a_tokenizer(
    tmp_path: Path, language: Path
) -> None:
    """AutoTokenizer opens the exported tokenizer, and its end token matches config.json."""
    llama_of_transformers()
    from transformers import AutoConfig, AutoTokenizer

    config = make_config(
        tmp_path / "run", language, steps=1, model={"vocab_size": VOCAB_SIZE}
    )
    train(config, alone())
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    arguments = [
        "export",
        str(tmp_path / "run"),
        str(tmp_path / "out"),
        "--tokenizer",
        str(tokenizer),
    ]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    assert str(tmp_path / "run/checkpoints/step-00000001") in said.output
    assert f"from_pretrained('{tmp_path / 'out'}')" in said.output
    assert {w.dtype for w in read_weights(tmp_path / "out").values()} == {torch.bfloat16}
    found = AutoTokenizer.from_pretrained(tmp_path / "out")
    about = AutoConfig.from_pretrained(tmp_path / "out")
    assert found.eos_token == "<|endoftext|>"
    assert about.eos_token_id == found.eos_token_id == 2
    assert about.bos_token_id is None
    assert about.dtype == torch.bfloat16
    assert about.max_position_embeddings == 64
    assert found.decode(found("Hello, you!")["input_ids"]) == "Hello, you!"
    assert not list(tmp_path.glob("*.partial"))


def test_gpt2_files_become_a_tokenizer_json(tmp_path: Path, language: Path) -> None:
    """A tokenizer in a folder of two files is exported as the one file that others read."""
    from tokenizers import Tokenizer

    original = Tokenizer.from_file(str(write_tokenizer(tmp_path / "tokenizer.json")))
    model = json.loads(original.to_str())["model"]
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "encoder.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{' '.join(merge)}\n" for merge in model["merges"])
    (folder / "vocab.bpe").write_text(f"#version: 0.2\n{merges}")
    settings = {"data": {"tokenizer": str(folder)}, "model": {"vocab_size": 1024}}
    train(make_config(tmp_path / "run", language, steps=1, **settings), alone())
    export_checkpoint(tmp_path / "run", tmp_path / "out")
    exported = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    text = "Hello, you!"
    assert exported.decode(exported.encode(text).ids) == text


def test_impossible_exports_are_refused(tmp_path: Path, language: Path) -> None:
    """The error names the cause, and no partial folder remains."""
    with pytest.raises(IncompatibleConfig, match="is neither a checkpoint"):
        export_checkpoint(tmp_path / "nowhere", tmp_path / "out")
    run_dir = tmp_path / "run"
    train(
        make_config(
            run_dir, language, steps=1, data={"tokenizer": str(tmp_path / "gone.json")}
        ),
        alone(),
    )
    with pytest.raises(
        IncompatibleConfig, match=r"gone\.json cannot be read .* give --tokenizer"
    ):
        export_checkpoint(run_dir, tmp_path / "out")
    large = write_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(
        IncompatibleConfig,
        match=r"has ids up to 2\d\d, but the vocabulary of the model is 256",
    ):
        export_checkpoint(run_dir, tmp_path / "out", tokenizer=large)
    (tmp_path / "out").mkdir()
    with pytest.raises(IncompatibleConfig, match="exists already"):
        export_checkpoint(run_dir, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out",
        "run",
        "tokenizer.json",
    ]


# ------------------------------------------------------------------------------------------------------- there and back


def test_a_round_trip_changes_no_byte(tmp_path: Path, language: Path) -> None:
    """Import and export give bit-identical tensors, in fp32 and in bf16."""
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        folder = tmp_path / name
        write_llama(folder, dtype=dtype, tie_word_embeddings=dtype == torch.bfloat16)
        section = read_model_settings(folder)
        config = make_config(
            tmp_path / f"run-{name}", language, steps=1, model=section, optimizer=NO_CHANGE
        )
        train(config, alone())
        export_checkpoint(tmp_path / f"run-{name}", tmp_path / f"out-{name}", dtype=name)
        before, after = read_weights(folder), read_weights(tmp_path / f"out-{name}")
        before.setdefault("lm_head.weight", before["model.embed_tokens.weight"])
        assert before.keys() == after.keys()
        assert all(
            torch.equal(before[key].view(torch.uint8), after[key].view(torch.uint8))
            for key in before
        )
        assert (
            json.loads((tmp_path / f"out-{name}/config.json").read_text())[
                "max_position_embeddings"
            ]
            == 512
        )
        shutil.rmtree(folder)  # a resumed run does not read them
        assert train(config.model_copy(update={"steps": 2}), alone()).step == 2


def test_two_ranks_read_the_same_weights(tmp_path: Path, language: Path) -> None:
    """For every strategy, the shards of two ranks together equal the folder's weights."""
    write_llama(tmp_path / "folder", max_shard_size="60KB", tie_word_embeddings=True)
    modes: dict[str, dict[str, Any]] = {
        "zero2": {},
        "zero3": {"parallel": {"strategy": "zero3", "offload": "parameters"}},
        "tensor": {"parallel": {"tensor": 2}},
        "adapters": {"lora": {"rank": 2}},
    }
    section = read_model_settings(tmp_path / "folder")
    runs = [
        make_settings(
            tmp_path / mode,
            language,
            steps=1,
            model=section,
            optimizer=NO_CHANGE,
            **changes,
        )
        for mode, changes in modes.items()
    ]
    train_all(2, runs, tmp_path)
    before = read_weights(tmp_path / "folder")
    before["lm_head.weight"] = before["model.embed_tokens.weight"]
    for mode in modes:
        export_checkpoint(tmp_path / mode, tmp_path / f"{mode}-out", dtype="fp32")
        after = read_weights(tmp_path / f"{mode}-out")
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before), mode


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", "64"), ("rope_scaling", 5), ("tie_word_embeddings", "no")],
)
def test_a_config_json_of_other_types_is_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    """The text "no" would tie the embeddings."""
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(IncompatibleConfig, match=f"{key} is .*, expected"):
        read_model_settings(tmp_path)
