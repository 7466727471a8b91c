"""Exports a checkpoint in the format of Hugging Face, with adapters merged.

One process without a GPU is enough; it needs the memory of one file. The output folder appears
complete or not at all.

    export_checkpoint(Path("runs/chat"), Path("chat-hf"), dtype="bf16")
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from training.checkpoint.checkpointer import load_weights
from training.checkpoint.marker import (
    MARKER,
    list_complete_checkpoints,
    read_progress,
)
from training.config import LoraConfig, ModelConfig
from training.data.tokenizer import open_tokenizer
from training.errors import IncompatibleConfig
from training.hugging_face.config_json import (
    CONFIG_FILE,
    INDEX_FILE,
    make_config_json,
    write_json,
)
from training.hugging_face.weights import to_hugging_face_name
from training.model.decoder import Decoder
from training.model.lora import add_adapters, is_adapter, merge_adapters

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

# Bytes of weights in one file, as in transformers' save_pretrained.
SHARD_BYTES = 5 * 10**9

# Tokens that usually end a document, the most common first; for runs that do not record it.
DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>")


def export_checkpoint(
    source: Path,
    out: Path,
    *,
    tokenizer: Path | None = None,
    dtype: Literal["bf16", "fp32"] = "bf16",
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write a checkpoint as a folder that LlamaForCausalLM or Qwen3ForCausalLM reads.

    Args:
        source: a checkpoint, or a run_dir, whose newest checkpoint is taken.
        out: the folder to create.
        tokenizer: tokenizer.json to copy into it; None: data.tokenizer of the run, if it is set.
        dtype: dtype of the weights.
        shard_bytes: maximum weights per file. A larger matrix gets a separate file.

    Returns:
        The checkpoint that was exported.

    Raises:
        IncompatibleConfig: there is no complete checkpoint, `out` exists, or the tokenizer
            belongs to another model.
    """
    path = _find_checkpoint(source)
    progress = read_progress(path)
    config = ModelConfig.model_validate(progress["model"])
    adapters = LoraConfig.model_validate(progress["lora"]) if progress["lora"] else None
    if out.exists():
        raise IncompatibleConfig(f"{out} exists already; give another folder, or remove it")
    tokens = _open_tokenizer(tokenizer, progress, config)
    # Write aside and rename at the end.
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by an export that was killed
    partial.mkdir(parents=True)
    _write_configs(partial, config, progress["rows"]["seq_len"], DTYPES[dtype], tokens)
    _write_weights(path, partial, config, adapters, DTYPES[dtype], shard_bytes)
    # A crash before this line leaves only the .partial folder, which the next export removes.
    os.replace(partial, out)
    return path


def _open_tokenizer(
    path: Path | None, progress: Mapping[str, Any], config: ModelConfig
) -> _ExportedTokenizer | None:
    """Open the given tokenizer, or that of the run; return None if there is neither."""
    if path is None and progress.get("tokenizer"):
        path = Path(progress["tokenizer"])
    return None if path is None else _ExportedTokenizer(path, progress["rows"], config)


def _write_configs(
    folder: Path,
    config: ModelConfig,
    seq_len: int,
    dtype: torch.dtype,
    tokens: _ExportedTokenizer | None,
) -> None:
    """Write config.json and the files of the tokenizer."""
    bos_token_id = eos_token_id = None
    if tokens is not None:
        tokens.write(folder)
        bos_token_id = tokens.find_id(tokens.start)
        eos_token_id = tokens.find_id(tokens.end)
    config_json = make_config_json(
        config,
        seq_len=seq_len,
        torch_dtype=str(dtype).removeprefix("torch."),
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
    )
    write_json(folder / CONFIG_FILE, config_json)


def _find_checkpoint(source: Path) -> Path:
    if (source / MARKER).is_file():
        return source
    complete = list_complete_checkpoints(source / "checkpoints")
    if not complete:
        raise IncompatibleConfig(
            f"{source} is neither a checkpoint (it has no {MARKER}) nor a run_dir with "
            f"a complete one in {source / 'checkpoints'}; give a run_dir, or a folder such as "
            f"{source / 'checkpoints/step-00000100'}"
        )
    return complete[-1]


def _write_weights(
    path: Path,
    folder: Path,
    config: ModelConfig,
    adapters: LoraConfig | None,
    dtype: torch.dtype,
    shard_bytes: int,
) -> None:
    """Write the *.safetensors files, one in memory at a time, and an index for several."""
    from safetensors.torch import save_file

    shapes = _list_shapes(config, adapters)
    num_bytes: dict[str, int] = {}
    for name, shape in shapes.items():
        if not is_adapter(name):
            num_bytes[name] = shape.numel() * dtype.itemsize
    files = _split_by_bytes(num_bytes, shard_bytes)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(files, start=1):
        file_name = "model.safetensors"
        if len(files) > 1:
            file_name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        weights = _load_weights(path, names, shapes, adapters)
        exported = {to_hugging_face_name(name): w.to(dtype) for name, w in weights.items()}
        # transformers refuses files without this metadata.
        save_file(exported, folder / file_name, metadata={"format": "pt"})
        # safetensors writes files that only their owner can read.
        shutil.copymode(folder / CONFIG_FILE, folder / file_name)
        for name in names:
            weight_map[to_hugging_face_name(name)] = file_name
    if len(files) > 1:
        metadata = {"total_size": sum(num_bytes.values())}
        write_json(folder / INDEX_FILE, {"metadata": metadata, "weight_map": weight_map})


def _list_shapes(config: ModelConfig, adapters: LoraConfig | None) -> dict[str, torch.Size]:
    """Return the shape of each parameter, adapters included."""
    assert config.vocab_size is not None
    # Meta tensors have shapes, but no memory.
    with torch.device("meta"):
        model = Decoder(config, config.vocab_size)
        if adapters is not None:
            add_adapters(model, adapters)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def _load_weights(
    path: Path,
    names: list[str],
    shapes: Mapping[str, torch.Size],
    adapters: LoraConfig | None,
) -> Mapping[str, Tensor]:
    """Load some parameters of a checkpoint, with their adapters merged into them."""
    # Only the adapters of these parameters are needed, so memory holds one file at a time.
    layers = {name.removesuffix("weight") for name in names}
    adapter_names: list[str] = []
    for name in filter(is_adapter, shapes):
        layer = name.rpartition(".")[0]
        if f"{layer}." in layers:
            adapter_names.append(name)
    weights = {name: torch.empty(shapes[name]) for name in (*names, *adapter_names)}
    load_weights(path, weights)
    return weights if adapters is None else merge_adapters(weights, adapters)


def _split_by_bytes(num_bytes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Split names, in their order, into groups of at most max_bytes; larger ones stay alone."""
    groups: list[list[str]] = []
    room = 0
    for name, size in num_bytes.items():
        if size > room or not groups:
            groups.append([])
            room = max_bytes
        groups[-1].append(name)
        room -= size
    return groups


class _ExportedTokenizer:
    """The tokenizer of a run, with its start and end tokens."""

    def __init__(self, path: Path, rows: Mapping[str, Any], config: ModelConfig) -> None:
        try:
            opened = open_tokenizer(str(path))
        except IncompatibleConfig as error:
            raise IncompatibleConfig(
                f"{path} cannot be read as a tokenizer ({error}); give --tokenizer"
            ) from error
        self._path, self._tokenizer = opened.path, opened.tokenizer
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        assert config.vocab_size is not None
        if (highest := max(vocabulary.values(), default=0)) >= config.vocab_size:
            raise IncompatibleConfig(
                f"{path} has ids up to {highest}, but the vocabulary of the model is "
                f"{config.vocab_size}; give --tokenizer with the tokenizer of the run"
            )
        # The state of instruction data records these tokens; that of the loader does not.
        self.start: str | None = rows.get("start_token")
        self.end: str | None = rows.get("end_token")
        if not self.end:
            self.end = next((end for end in DOCUMENT_ENDS if end in vocabulary), None)
        self._chat_template: str | None = rows.get("chat_template")

    def find_id(self, token: str | None) -> int | None:
        """Return the id of a token, or None."""
        return None if token is None else self._tokenizer.token_to_id(token)

    def write(self, folder: Path) -> None:
        """Write tokenizer.json, and tokenizer_config.json for AutoTokenizer."""
        if self._path.is_file():
            shutil.copyfile(self._path, folder / "tokenizer.json")
        else:
            # GPT-2's two files in a folder.
            self._tokenizer.save(str(folder / "tokenizer.json"))
        tokenizer_config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
        }
        optional = {
            "bos_token": self.start,
            "eos_token": self.end,
            "chat_template": self._chat_template,
        }
        tokenizer_config |= {
            key: value for key, value in optional.items() if value is not None
        }
        write_json(folder / "tokenizer_config.json", tokenizer_config)
