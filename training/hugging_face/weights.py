"""Loads weights in the format of Hugging Face into a decoder. Each rank reads only its shard.

The folder has config.json and *.safetensors. Our parameters have the names of transformers'
LlamaForCausalLM without the prefix "model.", so names and values are copied unchanged. Tied
embeddings become two matrices, which are equal at first and then trained separately, unless
`model.tie_embeddings` is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.tensor import DTensor

from terminal_output import format_command
from training.errors import IncompatibleConfig, join_faults
from training.hugging_face.config_json import (
    CONFIG_FILE,
    INDEX_FILE,
    read_description,
    read_json,
)
from training.model.decoder import Decoder
from training.model.lora import is_adapter

_HEAD = "lm_head.weight"
# Stored in old folders; the values follow from the config.
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"

# Quantized weights also need scales, which are not read.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def load_weights_into(folder: Path, model: Decoder) -> None:
    """Load the weights of a folder into the parameters, in place. Adapters are left unchanged.

    Args:
        folder: config.json and *.safetensors.
        model: its parameters may be sharded (DTensor).

    Raises:
        IncompatibleConfig: the folder holds another model, or is damaged.
    """
    description = read_description(folder)
    faults = [*description.faults, *_find_differences(description.settings, model)]
    if model.config.tie_embeddings and not description.is_tied:
        faults.append(
            "model.tie_embeddings is true in the config, but the folder has two matrices"
        )
    if faults:
        raise IncompatibleConfig(
            f"{folder / CONFIG_FILE} does not fit the config: {'; '.join(faults)}. Use the "
            f"folder's values (`{format_command('training')} import {folder}` prints them)"
        )
    wanted: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if not is_adapter(name):
            # detach() shares memory with the parameter, so loading into it changes the model.
            wanted[to_hugging_face_name(name)] = parameter.detach()
    tied: dict[str, Tensor] = {}
    if description.is_tied:
        head = wanted.pop(_HEAD, None)
        if head is not None:
            tied = {to_hugging_face_name("embed_tokens.weight"): head}
    reader = _open_reader(folder, wanted)
    # Two calls, because the tied matrix is read twice under the same name.
    for tensors in (wanted, tied):
        if tensors:
            load_tensors({**tensors}, storage_reader=reader)
            _check_values(folder, tensors)


def to_hugging_face_name(name: str) -> str:
    """Return transformers' name of one of our parameters."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def _find_differences(settings: Mapping[str, Any], model: Decoder) -> Iterable[str]:
    """Yield a message for each setting in which the model differs from the folder."""
    ours = model.config.model_dump()
    num_rows, dim = model.embed_tokens.weight.shape
    for key, theirs in settings.items():
        if key == "vocab_size" and num_rows != theirs:
            yield (
                f"model.vocab_size is {ours[key]!r} in the config, which makes "
                f"embed_tokens.weight {(num_rows, dim)}, and {theirs} in the folder, where it is "
                f"{(theirs, settings['dim'])}"
            )
        if key != "vocab_size" and ours[key] != theirs:
            yield f"model.{key} is {ours[key]!r} in the config, {theirs!r} in the folder"


def _open_reader(folder: Path, wanted: Mapping[str, Tensor]) -> HuggingFaceStorageReader:
    """Open a folder after checking that it holds exactly the wanted tensors.

    Raises:
        IncompatibleConfig: files are missing or damaged, or tensors differ.
    """
    index = folder / INDEX_FILE
    files: set[str] = set()
    if index.exists():
        files = {str(name) for name in read_json(index)["weight_map"].values()}
    if missing := sorted(name for name in files if not (folder / name).is_file()):
        raise IncompatibleConfig(
            f"{index} names files that are missing: {', '.join(missing)}; download them"
        )
    if not any(folder.glob("*.safetensors")):
        raise IncompatibleConfig(
            f"{folder} has no *.safetensors; convert other forms, such as pytorch_model.bin, "
            f"with transformers' from_pretrained and save_pretrained"
        )
    reader = HuggingFaceStorageReader(str(folder))
    try:
        stored = reader.read_metadata().state_dict_metadata
    except Exception as error:  # safetensors raises its own error class
        raise IncompatibleConfig(
            f"a file of {folder} cannot be read: {error}; download it again"
        ) from error
    shapes = {name: tuple(getattr(entry, "size", ())) for name, entry in stored.items()}
    faults = list(_compare_tensors(shapes, wanted))
    for name in sorted(wanted.keys() & stored.keys()):
        properties = getattr(stored[name], "properties", None)
        dtype = getattr(properties, "dtype", None)
        if dtype not in _DTYPES:
            faults.append(f"{name} has {dtype}, wanted float32, bfloat16 or float16")
    if faults:
        raise IncompatibleConfig(
            f"the weights in {folder} differ from its {CONFIG_FILE}: {join_faults(faults)}; "
            f"download the folder again (without lm_head.weight, tie_word_embeddings must be true)"
        )
    return reader


def _check_values(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check what this rank has loaded.

    Raises:
        IncompatibleConfig: a value is NaN or infinite.
    """
    for name, tensor in tensors.items():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if not torch.isfinite(local).all():
            raise IncompatibleConfig(
                f"{name} in {folder} has values that are NaN or infinite; download the folder again"
            )


def _compare_tensors(
    shapes: Mapping[str, tuple[int, ...]], wanted: Mapping[str, Tensor]
) -> Iterable[str]:
    """Yield a message for each tensor that is missing, of another shape or unknown."""
    for name in wanted:
        if name not in shapes:
            yield f"{name} is missing"
    for name, tensor in wanted.items():
        if name in shapes and shapes[name] != tuple(tensor.shape):
            yield f"{name} is {shapes[name]} in the folder, {tuple(tensor.shape)} in the model"
    # With tied weights, a folder may still store the head.
    known = {*wanted, _HEAD}
    for name in sorted(shapes):
        if name not in known and not name.endswith(_IGNORED_SUFFIX):
            yield f"{name} is unknown"
