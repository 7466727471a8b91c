"""float8 replaces the layers that gain from it; asynchronous tensor parallelism is switched on."""

from __future__ import annotations

import pytest
import torch

from training.config import ModelConfig, ParallelConfig, PrecisionConfig
from training.errors import IncompatibleConfig
from training.model.decoder import Decoder
from training.parallel.parallelize import convert_to_float8

CPU = torch.device("cpu")


def convert(config: ModelConfig, **precision: object) -> set[str]:
    """Return the names of the layers that are converted in a model without memory."""
    pytest.importorskip("torchao")
    with torch.device("meta"):
        model = Decoder(config, 128)
    convert_to_float8(model, PrecisionConfig.model_validate(precision), CPU)
    found: set[str] = set()
    for name, module in model.named_modules():
        if type(module).__name__ == "Float8Linear":
            found.add(name.removeprefix("layers.0."))
    return found


def test_small_matrices_stay_in_bf16() -> None:
    """The keys and values of a 1 B model are too small for tensorwise scales."""
    config = ModelConfig(num_layers=1)
    large = {"self_attn.q_proj", "self_attn.o_proj"}
    large |= {f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    assert convert(config, float8="tensorwise") == large
    small = {"self_attn.k_proj", "self_attn.v_proj"}
    assert convert(config, float8="tensorwise", float8_layers="all") == large | small
    # Scales of rows cost more: only the widest matrices gain.
    assert convert(config, float8="rowwise") == {"mlp.gate_proj", "mlp.up_proj"}


def test_a_model_without_large_matrices_is_refused() -> None:
    """The error names the key that converts small matrices too."""
    config = ModelConfig(dim=64, num_layers=1, num_heads=4, num_kv_heads=2, ffn_dim=128)
    with pytest.raises(IncompatibleConfig, match=r"precision\.float8_layers to all"):
        convert(config, float8="tensorwise")


def test_tensor_parallel_products_are_pipelined_only_if_configured() -> None:
    """The compiler's switch is off until a config sets it."""
    import torch._inductor.config as inductor
    from torch._C._distributed_c10d import HashStore
    from torch.distributed.device_mesh import DeviceMesh

    from training.parallel.tensor_parallel import enable_async_tensor_parallel

    assert not inductor._micro_pipeline_tp
    assert not ParallelConfig(tensor=2).async_tensor
    if not torch.distributed.is_initialized():
        store = HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    with inductor.patch(_micro_pipeline_tp=False):
        enable_async_tensor_parallel(DeviceMesh("cpu", [0]))
        assert inductor._micro_pipeline_tp
    assert not inductor._micro_pipeline_tp
