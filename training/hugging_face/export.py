"""Weights in and out of Hugging Face's form: config.json beside *.safetensors, as LlamaForCausalLM has them.

Promises: names and values move unchanged (`model.py` has transformers' names, without their "model."); every rank reads
its own part of each matrix only. A folder that is another model than the config is refused with all differences at
once. An export needs one process, no GPU and the memory of one of its files, has adapters merged into the matrices, and
is there whole or not at all.
Leaves to others: which run and when (trainer.py, __main__.py), adapters (lora.py).

Tied embeddings become two matrices here, equal at first and trained apart; an export has both.

    load_into(Path("Llama-3.2-1B"), decoder)                          # what `model.initial_weights` does
    model_settings(Path("Llama-3.2-1B"))                              # {"dim": 2048, ..., "vocab_size": 128256}
    export(Path("runs/chat"), Path("chat-hf"), tokenizer=None, dtype="bf16")
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors

from training import checkpoint
from training.config import LoraConfig, ModelConfig
from training.model import lora
from training.model.decoder import Decoder
from training.parallel.distributed import IncompatibleConfig

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SHARD_BYTES = 5 * 10**9
"""Bytes of weights in one file of an export, as transformers cuts them."""

DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>")
"""What usually ends a document, the likeliest first; for runs that do not say it themselves."""

_KEYS = {
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "ffn_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "norm_eps": "rms_norm_eps",
}
_ROPE_KEYS = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_seq_len": "original_max_position_embeddings",
}
# what transformers takes where the key is missing (LlamaConfig, 4.x and 5.x)
_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
_UNUSED = ".rotary_emb.inv_freq"  # old folders store these; they follow from the config


# ------------------------------------------------------------------------------------------------------------------- in


def load_into(folder: Path, model: Decoder) -> None:
    """Fill the parameters, whole or cut over ranks, from a folder; adapters stay as they are.

    Raises:
        IncompatibleConfig: the folder holds another model, or is damaged.
    """
    described = _describe(folder)
    faults = [*described.faults, *_differences(described.settings, model)]
    if faults:
        raise IncompatibleConfig(
            f"{folder / CONFIG} does not fit the config: {'; '.join(faults)}. Set these keys as they are there "
            f"(`python -m training import {folder}` prints them)"
        )
    head = "lm_head.weight"
    wanted = {
        _their_name(n): p.detach() for n, p in model.named_parameters() if not lora.is_adapter(n)
    }
    tied = {_their_name("embed_tokens.weight"): wanted.pop(head)} if described.is_tied else {}
    reader = _reader(folder, wanted)
    for tensors in (wanted, tied):
        if tensors:
            load_tensors({**tensors}, storage_reader=reader)


def _differences(there: Mapping[str, Any], model: Decoder) -> Iterable[str]:
    """Settings that the model was built with and that are other ones there."""
    here = model.config.model_dump()
    num_rows, dim = model.embed_tokens.weight.shape
    for key, wanted in there.items():
        if key != "vocab_size" and here[key] != wanted:
            yield f"model.{key} is {here[key]!r} in the config, {wanted!r} there"
        if key == "vocab_size" and num_rows != wanted:
            yield (
                f"model.vocab_size is {here[key]!r} in the config, which makes embed_tokens.weight {(num_rows, dim)}, "
                f"and {wanted} there, where it is {(wanted, there['dim'])}"
            )


def model_settings(folder: Path) -> dict[str, Any]:
    """The `model:` section of a config that starts from a folder.

    Raises:
        IncompatibleConfig: it holds what our decoder does not compute.
    """
    described = _describe(folder)
    if described.faults:
        raise IncompatibleConfig(
            f"{folder / CONFIG} is no model for this trainer: {'; '.join(described.faults)}"
        )
    return {**described.settings, "initial_weights": str(folder)}


@dataclass(frozen=True)
class _Described:
    """What config.json says. settings: of ModelConfig; faults: what the decoder cannot do, or is not known."""

    settings: dict[str, Any]
    is_tied: bool
    faults: list[str] = field(default_factory=list[str])


def _describe(folder: Path) -> _Described:
    found = _DEFAULTS | {
        key: value for key, value in _read_json(folder / CONFIG).items() if value is not None
    }
    found.setdefault("num_key_value_heads", found.get("num_attention_heads"))
    rope = {
        **(found.get("rope_scaling") or found.get("rope_parameters") or {})
    }  # in transformers' order
    theta = rope.get("rope_theta") or found["rope_theta"]
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type == "llama3":
        rope.setdefault("original_max_position_embeddings", found.get("max_position_embeddings"))
    settings: dict[str, Any] = {ours: found.get(theirs) for ours, theirs in _KEYS.items()}
    scaling = (
        {ours: rope.get(theirs) for ours, theirs in _ROPE_KEYS.items()}
        if rope_type == "llama3"
        else None
    )
    settings |= {"rope_theta": theta, "rope_scaling": scaling}
    faults = list(_foreign(found, rope_type))
    faults += [f"{theirs} is missing" for ours, theirs in _KEYS.items() if settings[ours] is None]
    if not faults:
        try:
            checked = ModelConfig.model_validate(settings).model_dump()
            settings = {name: checked[name] for name in settings}
        except ValidationError as error:
            faults += [
                f"{'.'.join(map(str, e['loc'])) or 'heads'}: {e['msg']}" for e in error.errors()
            ]
    return _Described(settings, bool(found["tie_word_embeddings"]), faults)


def _foreign(found: Mapping[str, Any], rope_type: str) -> Iterable[str]:
    """What is asked for that the decoder does not compute."""
    if found.get("model_type") != "llama":
        yield f"model_type is {found.get('model_type')!r}, wanted 'llama'"
    if found["hidden_act"] != "silu":
        yield f"hidden_act is {found['hidden_act']!r}, wanted 'silu'"
    for key in ("attention_bias", "mlp_bias"):
        if found[key]:
            yield f"{key} is true, wanted false"
    if rope_type not in ("default", "llama3"):
        yield f"rope_type is {rope_type!r}, wanted 'default' or 'llama3'"
    if found.get("quantization_config"):
        yield "quantization_config is given; take the weights before they were quantised"
    dim, heads, head_dim = (
        found.get(key) for key in ("hidden_size", "num_attention_heads", "head_dim")
    )
    if head_dim is not None and dim is not None and heads and head_dim * heads != dim:
        yield f"head_dim is {head_dim}, wanted hidden_size / num_attention_heads = {dim / heads:g}"


def _reader(folder: Path, wanted: Mapping[str, Tensor]) -> HuggingFaceStorageReader:
    """Of a folder that has been found to hold these tensors, in these shapes, and no others."""
    index = folder / INDEX
    files = (
        {str(name) for name in _read_json(index)["weight_map"].values()}
        if index.exists()
        else set[str]()
    )
    if missing := sorted(name for name in files if not (folder / name).is_file()):
        raise IncompatibleConfig(
            f"{index} names files that are not there: {', '.join(missing)}; fetch them"
        )
    if not any(folder.glob("*.safetensors")):
        raise IncompatibleConfig(
            f"{folder} has no *.safetensors; weights in another form, such as pytorch_model.bin, become that by "
            f"transformers' from_pretrained and save_pretrained"
        )
    reader = HuggingFaceStorageReader(str(folder))
    try:
        stored = reader.read_metadata().state_dict_metadata
    except Exception as error:  # safetensors has its own
        raise IncompatibleConfig(
            f"a file of {folder} cannot be read: {error}; fetch it again"
        ) from error
    shapes = {name: tuple(getattr(entry, "size", ())) for name, entry in stored.items()}
    faults = [f"{name} is missing" for name in wanted if name not in shapes]
    faults += [
        f"{name} is {shapes[name]} there, {tuple(tensor.shape)} here"
        for name, tensor in wanted.items()
        if name in shapes and shapes[name] != tuple(tensor.shape)
    ]
    known = {*wanted, "lm_head.weight"}
    faults += [
        f"{name} is unknown"
        for name in sorted(shapes)
        if name not in known and not name.endswith(_UNUSED)
    ]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise IncompatibleConfig(
            f"the weights in {folder} are not those that its {CONFIG} speaks of: {'; '.join(faults[:5])}{more}; fetch "
            f"the folder again (without lm_head.weight, tie_word_embeddings has to be true)"
        )
    return reader


def _their_name(name: str) -> str:
    return name if name.startswith("lm_head.") else f"model.{name}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise IncompatibleConfig(
            f"{path} is missing; wanted is a folder as `hf download` makes it, with {CONFIG} and *.safetensors"
        ) from error
    except (OSError, ValueError) as error:
        raise IncompatibleConfig(f"{path} cannot be read: {error}; fetch it again") from error
    if not isinstance(value, dict):
        raise IncompatibleConfig(
            f"{path}: found {type(value).__name__}, wanted an object; fetch it again"
        )
    return value


# ------------------------------------------------------------------------------------------------------------------ out


def export(
    source: Path,
    out: Path,
    *,
    tokenizer: Path | None = None,
    dtype: Literal["bf16", "fp32"] = "bf16",
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write a checkpoint in Hugging Face's form; the checkpoint that was written.

    Args:
        source: a checkpoint, or a run_dir, of which the newest is taken.
        out: a folder that is made.
        tokenizer: tokenizer.json to lay beside the weights; None takes the run's data.tokenizer, if it has one.
        dtype: of the weights.
        shard_bytes: weights in one file, at most (a matrix that is larger has its own).

    Raises:
        IncompatibleConfig: there is no whole checkpoint, `out` is there already, or the tokenizer is of another model.
    """
    path = _checkpoint(source)
    progress = checkpoint.read_progress(path)
    config = ModelConfig.model_validate(progress["model"])
    adapters = LoraConfig.model_validate(progress["lora"]) if progress["lora"] else None
    if out.exists():
        raise IncompatibleConfig(f"{out} is there already; give another folder, or remove it")
    tokenizer = tokenizer or (Path(progress["tokenizer"]) if progress.get("tokenizer") else None)
    tokens = _Tokens(tokenizer, progress["rows"], config) if tokenizer is not None else None
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    partial.mkdir(parents=True)
    _write_weights(path, partial, config, adapters, DTYPES[dtype], shard_bytes)
    if tokens is not None:
        tokens.write(partial)
    description = _their_config(config, progress["rows"]["seq_len"], DTYPES[dtype], tokens)
    _write_json(partial / CONFIG, description)
    os.replace(partial, out)
    return path


def _checkpoint(source: Path) -> Path:
    if (source / checkpoint.MARKER).is_file():
        return source
    whole = checkpoint.whole_checkpoints(source / "checkpoints")
    if not whole:
        raise IncompatibleConfig(
            f"{source} is no checkpoint (it has no {checkpoint.MARKER}) and no run_dir with a whole one in "
            f"{source / 'checkpoints'}; give a run_dir, or a folder such as {source / 'checkpoints/step-00000100'}"
        )
    return whole[-1]


def _write_weights(
    path: Path,
    folder: Path,
    config: ModelConfig,
    adapters: LoraConfig | None,
    dtype: torch.dtype,
    shard_bytes: int,
) -> None:
    """The files, one of them in memory at a time; with an index where there are several."""
    from safetensors.torch import save_file

    assert config.vocab_size is not None
    with torch.device("meta"):
        model = Decoder(config, config.vocab_size)
        if adapters is not None:
            lora.add_adapters(model, adapters)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    num_bytes = {
        n: shape.numel() * dtype.itemsize for n, shape in shapes.items() if not lora.is_adapter(n)
    }
    files = _cut(num_bytes, shard_bytes)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(files, start=1):
        file = (
            "model.safetensors"
            if len(files) == 1
            else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        )
        layers = {name.removesuffix("weight") for name in names}
        beside = [
            name
            for name in shapes
            if lora.is_adapter(name) and f"{name.rpartition('.')[0]}." in layers
        ]
        weights: Mapping[str, Tensor] = {
            name: torch.empty(shapes[name]) for name in (*names, *beside)
        }
        checkpoint.load_weights(path, weights)
        if adapters is not None:
            weights = lora.merge(weights, adapters)
        save_file(
            {_their_name(n): w.to(dtype) for n, w in weights.items()},
            folder / file,
            metadata={"format": "pt"},
        )
        weight_map |= {_their_name(name): file for name in names}
    if len(files) > 1:
        _write_json(
            folder / INDEX,
            {"metadata": {"total_size": sum(num_bytes.values())}, "weight_map": weight_map},
        )


def _cut(num_bytes: Mapping[str, int], shard_bytes: int) -> list[list[str]]:
    """Names in their order, in groups of so many bytes at most; what is larger stands alone."""
    groups: list[list[str]] = []
    left = 0
    for name, wanted in num_bytes.items():
        if wanted > left or not groups:
            groups.append([])
            left = shard_bytes
        groups[-1].append(name)
        left -= wanted
    return groups


def _their_config(
    config: ModelConfig, seq_len: int, dtype: torch.dtype, tokens: _Tokens | None
) -> dict[str, Any]:
    """config.json, in the keys that transformers 4 and 5 and whoever else reads Llama understand."""
    longest, scaling = seq_len, None
    if config.rope_scaling is not None:
        stretched = config.rope_scaling.model_dump()
        scaling = {
            "rope_type": "llama3",
            **{theirs: stretched[ours] for ours, theirs in _ROPE_KEYS.items()},
        }
        longest = max(
            longest, int(config.rope_scaling.factor * config.rope_scaling.original_seq_len)
        )
    if config.initial_weights is not None and (Path(config.initial_weights) / CONFIG).is_file():
        longest = max(
            longest,
            _read_json(Path(config.initial_weights) / CONFIG).get("max_position_embeddings", 0),
        )
    settings = config.model_dump()
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{theirs: settings[ours] for ours, theirs in _KEYS.items()},
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": longest,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": config.init_std,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": tokens.id_of(tokens.start) if tokens else None,
        "eos_token_id": tokens.id_of(tokens.end) if tokens else None,
    }


class _Tokens:
    """The tokenizer that goes with a run, and what it says of starts and ends."""

    def __init__(self, path: Path, rows: Mapping[str, Any], config: ModelConfig) -> None:
        import tokenizers

        self._path = path
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise IncompatibleConfig(
                f"{path} cannot be read as a tokenizer.json: {error}; give --tokenizer"
            ) from error
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        assert config.vocab_size is not None
        if (highest := max(vocabulary.values(), default=0)) >= config.vocab_size:
            raise IncompatibleConfig(
                f"{path} has ids up to {highest}, the model a vocabulary of {config.vocab_size}; give --tokenizer with "
                f"the one that the run was trained with"
            )
        # instructions.py says in its state what its rows began and ended with; the loader's state does not
        self.start: str | None = rows.get("start_token")
        self.end: str | None = rows.get("end_token") or next(
            (e for e in DOCUMENT_ENDS if e in vocabulary), None
        )
        self._chat_template: str | None = rows.get("chat_template")

    def id_of(self, token: str | None) -> int | None:
        """Of a token, where there is one."""
        return None if token is None else self._tokenizer.token_to_id(token)

    def write(self, folder: Path) -> None:
        """tokenizer.json as it is, and what AutoTokenizer needs beside it."""
        shutil.copyfile(self._path, folder / "tokenizer.json")
        said = {
            "bos_token": self.start,
            "eos_token": self.end,
            "chat_template": self._chat_template,
        }
        about = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
        }
        _write_json(
            folder / "tokenizer_config.json",
            {**about, **{k: v for k, v in said.items() if v is not None}},
        )


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
