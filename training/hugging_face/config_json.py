"""Translates between `ModelConfig` and config.json of LlamaForCausalLM or Qwen3ForCausalLM."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from training.config import ModelConfig
from training.errors import IncompatibleConfig

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"

# Key of ModelConfig -> key of config.json.
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

# Values of missing keys: the defaults of transformers' LlamaConfig, versions 4 and 5.
_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class ModelDescription:
    """The content of a config.json.

    Attributes:
        settings: keys of ModelConfig.
        is_tied: whether the head shares the matrix of the embedding.
        faults: what is missing, or what our decoder does not support.
    """

    settings: dict[str, Any]
    is_tied: bool
    faults: list[str] = field(default_factory=list[str])


# Key -> types of the values that are used before all settings are checked.
_KINDS: dict[str, tuple[type, ...]] = {
    "hidden_size": (int, float),
    "num_attention_heads": (int, float),
    "head_dim": (int, float),
    "tie_word_embeddings": (bool,),
    "rope_scaling": (dict,),
    "rope_parameters": (dict,),
}


def read_description(folder: Path) -> ModelDescription:
    """Read the config.json of a folder.

    Raises:
        IncompatibleConfig: the file is missing, is not a JSON object, or a value has another type.
    """
    content = read_json(folder / CONFIG_FILE)
    # null means the default too.
    config = _DEFAULTS | {key: value for key, value in content.items() if value is not None}
    for key, kind in _KINDS.items():
        if key in config and type(config[key]) not in kind:
            wanted = " or ".join(each.__name__ for each in kind)
            raise IncompatibleConfig(
                f"{folder / CONFIG_FILE}: {key} is {config[key]!r:.80}, expected {wanted}; "
                f"download it again"
            )
    # Models without grouped heads leave the key out.
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    # transformers 4 writes rope_scaling and rope_theta, version 5 rope_parameters.
    rope = {**(config.get("rope_scaling") or config.get("rope_parameters") or {})}
    # Older folders call it `type`.
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    scaling: dict[str, Any] | None = None
    if rope_type == "llama3":
        rope.setdefault(
            "original_max_position_embeddings", config.get("max_position_embeddings")
        )
        scaling = {key: rope.get(their_key) for key, their_key in _ROPE_KEYS.items()}
    settings: dict[str, Any] = {
        key: config.get(their_key) for key, their_key in _KEYS.items()
    }
    settings["rope_theta"] = rope.get("rope_theta") or config["rope_theta"]
    settings["rope_scaling"] = scaling
    settings["qk_norm"] = config.get("model_type") == "qwen3"
    faults = list(_find_unsupported(config, rope_type))
    for key, their_key in _KEYS.items():
        if settings[key] is None:
            faults.append(f"{their_key} is missing")
    if not faults:
        try:
            checked = ModelConfig.model_validate(settings).model_dump()
            settings = {name: checked[name] for name in settings}
        except ValidationError as error:
            for fault in error.errors():
                key = ".".join(map(str, fault["loc"])) or "heads"
                faults.append(f"{key}: {fault['msg']}")
    return ModelDescription(settings, bool(config["tie_word_embeddings"]), faults)


def read_model_settings(folder: Path) -> dict[str, Any]:
    """Return the `model:` section of a config that starts from the weights of a folder.

    Raises:
        IncompatibleConfig: the folder holds a model that our decoder does not support.
    """
    description = read_description(folder)
    if description.faults:
        raise IncompatibleConfig(
            f"{folder / CONFIG_FILE}: this trainer does not support the model: "
            f"{'; '.join(description.faults)}"
        )
    return {**description.settings, "initial_weights": str(folder)}


def _find_unsupported(config: Mapping[str, Any], rope_type: str) -> Iterable[str]:
    """Yield a message for each setting that the decoder does not implement."""
    if config.get("model_type") not in ("llama", "qwen3"):
        yield f"model_type is {config.get('model_type')!r}, expected 'llama' or 'qwen3'"
    if config.get("use_sliding_window"):
        yield "use_sliding_window is true, expected false"
    if config["hidden_act"] != "silu":
        yield f"hidden_act is {config['hidden_act']!r}, expected 'silu'"
    for key in ("attention_bias", "mlp_bias"):
        if config[key]:
            yield f"{key} is true, expected false"
    if rope_type not in ("default", "llama3"):
        yield f"rope_type is {rope_type!r}, expected 'default' or 'llama3'"
    if config.get("quantization_config"):
        yield "quantization_config is set; use the weights from before the quantization"
    dim, num_heads = config.get("hidden_size"), config.get("num_attention_heads")
    head_dim = config.get("head_dim")
    if (
        head_dim is not None
        and dim is not None
        and num_heads
        and head_dim * num_heads != dim
    ):
        expected = dim / num_heads
        yield f"head_dim is {head_dim}, expected hidden_size / num_attention_heads = {expected:g}"


def make_config_json(
    config: ModelConfig,
    *,
    seq_len: int,
    torch_dtype: str,
    bos_token_id: int | None,
    eos_token_id: int | None,
) -> dict[str, Any]:
    """Return the content of config.json, in keys that transformers 4 and 5 both read.

    Args:
        config: the model.
        seq_len: row length of the run.
        torch_dtype: of the exported weights, such as "bfloat16".
        bos_token_id: token that begins a text, if there is one.
        eos_token_id: token that ends a text, if there is one.
    """
    settings = config.model_dump()
    return {
        # Qwen3 is Llama with normalized queries and keys.
        "architectures": ["Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM"],
        "model_type": "qwen3" if config.qk_norm else "llama",
        **{their_key: settings[key] for key, their_key in _KEYS.items()},
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _find_context_length(config, seq_len),
        "rope_theta": config.rope_theta,
        "rope_scaling": _make_rope_scaling(config),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": config.init_std,
        "torch_dtype": torch_dtype,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
    }


def _make_rope_scaling(config: ModelConfig) -> dict[str, Any] | None:
    if config.rope_scaling is None:
        return None
    values = config.rope_scaling.model_dump()
    scaling: dict[str, Any] = {"rope_type": "llama3"}
    for key, their_key in _ROPE_KEYS.items():
        scaling[their_key] = values[key]
    return scaling


def _find_context_length(config: ModelConfig, seq_len: int) -> int:
    """Return the maximum of `seq_len`, the scaled context and the imported model's context."""
    longest = seq_len
    if config.rope_scaling is not None:
        scaled = int(config.rope_scaling.factor * config.rope_scaling.original_seq_len)
        longest = max(longest, scaled)
    if config.initial_weights is not None:
        path = Path(config.initial_weights) / CONFIG_FILE
        if path.is_file():
            longest = max(longest, read_json(path).get("max_position_embeddings", 0))
    return longest


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        IncompatibleConfig: the file is missing, damaged or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise IncompatibleConfig(
            f"{path} is missing; give a folder as `hf download` makes it, with {CONFIG_FILE} and "
            f"*.safetensors"
        ) from error
    except (OSError, ValueError) as error:
        raise IncompatibleConfig(
            f"{path} cannot be read: {error}; download it again"
        ) from error
    if not isinstance(value, dict):
        raise IncompatibleConfig(
            f"{path}: found {type(value).__name__}, expected an object; download it again"
        )
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object, indented."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
