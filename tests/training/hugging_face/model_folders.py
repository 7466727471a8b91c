"""Small models and tokenizers in Hugging Face's format, and helpers that read ours."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.checkpoint.checkpointer import load_weights
from training.checkpoint.marker import read_progress
from training.config import LoraConfig, ModelConfig, ParallelConfig
from training.hugging_face.config_json import read_model_settings
from training.hugging_face.weights import load_weights_into
from training.model import lora
from training.model.attention import AttentionMask
from training.model.decoder import Decoder
from training.parallel import distributed

VOCAB_SIZE = 300
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>")
SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
TINY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.1,  # so that logits differ by more than rounding
}


def llama_of_transformers() -> tuple[Any, Any]:
    """Return LlamaConfig and LlamaForCausalLM; their imports emit warnings of other libraries."""
    with warnings.catch_warnings(action="ignore"):
        from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaConfig, LlamaForCausalLM


def write_llama(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **changes: Any,
) -> Any:
    """Save a model with random weights by transformers."""
    llama_config, llama_for_causal_lm = llama_of_transformers()
    torch.manual_seed(0)
    rope = changes.pop("rope_parameters", {"rope_type": "default", "rope_theta": 10_000.0})
    config = llama_config(**{**TINY, "rope_parameters": rope, **changes})
    model = llama_for_causal_lm(config).to(dtype).eval()
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def change_config(folder: Path, **changes: Any) -> None:
    """Change values of a config.json; None removes a key."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(
        json.dumps({key: value for key, value in config.items() if value is not None})
    )


def write_tokenizer(
    path: Path, special: tuple[str, ...] = SPECIAL, *, starts_with: str | None = None
) -> Path:
    """Write a byte-level tokenizer with merges for the words of the templates."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 10,
        initial_alphabet=alphabet,
        special_tokens=list(special),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["user assistant system Below is an instruction Write a response"] * 9, trainer
    )
    if starts_with is not None:
        template: Any = processors.TemplateProcessing(
            single=f"{starts_with} $A",
            special_tokens=[(starts_with, tokenizer.token_to_id(starts_with))],
        )
        tokenizer.post_processor = template
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


def alone() -> distributed.RankContext:
    """Return the context of a single rank."""
    return distributed.init_distributed(ParallelConfig(), timeout_s=600, dump_dir=Path())


def read_folder(folder: Path, adapters: LoraConfig | None = None) -> Decoder:
    """Return our model with the folder's weights; adapters are filled with ones."""
    alone()
    settings = read_model_settings(folder)
    model = Decoder(ModelConfig.model_validate(settings), settings["vocab_size"])
    if adapters is not None:
        lora.add_adapters(model, adapters)
        for name, parameter in model.named_parameters():
            if lora.is_adapter(name):
                parameter.data.fill_(1.0)
    load_weights_into(folder, model)
    return model


def read_checkpoint(path: Path) -> Decoder:
    """Return our model of a checkpoint, with its adapters."""
    progress = read_progress(path)
    model = Decoder(
        ModelConfig.model_validate(progress["model"]), progress["model"]["vocab_size"]
    )
    if progress["lora"]:
        lora.add_adapters(model, LoraConfig.model_validate(progress["lora"]))
    load_weights(path, dict(model.named_parameters()))
    return model


def tokens(num_rows: int = 3, seq_len: int = 48) -> Tensor:
    """Return random ids."""
    return torch.randint(
        0, 250, (num_rows, seq_len), generator=torch.Generator().manual_seed(1)
    )


def logits(model: Decoder, ids: Tensor) -> Tensor:
    """Return the logits of our model."""
    with torch.no_grad():
        found = model(ids, None, AttentionMask())
    assert isinstance(found, Tensor)
    return found


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder."""
    from safetensors.torch import load_file

    return {
        name: tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }
