"""Adapters start without effect, are the only trained parameters, and can be merged."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.training.conftest import init_parameters
from tests.training.hugging_face.model_folders import logits, tokens
from training.config import LoraConfig, ModelConfig
from training.errors import IncompatibleConfig
from training.model import lora
from training.model.attention import AttentionMask
from training.model.decoder import Decoder

CONFIG = ModelConfig(
    dim=64, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=128, init_std=0.1
)
ADAPTERS = LoraConfig(rank=4, alpha=6.0, targets=("q_proj", "v_proj", "down_proj"))


def plain() -> Decoder:
    """Return a model without adapters."""
    model = Decoder(CONFIG, 256)
    init_parameters(model, CONFIG, 0)
    return model


def adapted(*, b_too: bool = False) -> Decoder:
    """Return the model with initial adapters; `b_too` fills B as if it were trained."""
    model = plain()
    lora.add_adapters(model, ADAPTERS)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if lora.is_adapter(name):
                lora.init_adapter(name, parameter, 0)
                if b_too and name.endswith(lora.B):
                    parameter.normal_(
                        std=0.1, generator=torch.Generator().manual_seed(len(name))
                    )
    return model


def test_an_untrained_adapter_changes_nothing() -> None:
    """Names, weights and logits are bit-identical."""
    before, after = plain(), adapted()
    weights = dict(after.named_parameters())
    assert all(
        torch.equal(parameter, weights[name])
        for name, parameter in before.named_parameters()
    )
    assert torch.equal(logits(before, tokens()), logits(after, tokens()))


def test_only_adapters_are_trained() -> None:
    """All adapters get gradients and nothing else does; those of A are 0 while B is 0."""
    model = adapted()
    loss, _ = model(tokens(), tokens(), AttentionMask())
    loss.backward()
    with_gradient = {
        name: p.grad for name, p in model.named_parameters() if p.grad is not None
    }
    assert set(with_gradient) == {
        name for name, p in model.named_parameters() if p.requires_grad
    }
    assert set(with_gradient) == {
        f"layers.{layer}.{target}.{matrix}"
        for layer in range(2)
        for target in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
        for matrix in (lora.A, lora.B)
    }
    assert all(
        bool(gradient.any()) == name.endswith(lora.B)
        for name, gradient in with_gradient.items()
    )


def test_merged_weights_give_the_logits_of_the_adapters() -> None:
    """W + alpha / rank * B A has the logits of the adapted model, up to rounding."""
    trained = adapted(b_too=True)
    merged = lora.merge_adapters(
        {name: p.detach() for name, p in trained.named_parameters()}, ADAPTERS
    )
    model = plain()
    before = logits(model, tokens())
    model.load_state_dict(merged)
    after = logits(model, tokens())
    torch.testing.assert_close(after, logits(trained, tokens()), rtol=1e-4, atol=1e-4)
    assert float((after - before).abs().max()) > 0.1


def test_merging_leaves_other_weights_unchanged() -> None:
    """Weights without an adapter keep dtype and bits; merged ones are fp32."""
    weights = {
        name: p.detach().bfloat16() for name, p in adapted(b_too=True).named_parameters()
    }
    merged = lora.merge_adapters(weights, ADAPTERS)
    assert set(merged) == {name for name in weights if not lora.is_adapter(name)}
    assert torch.equal(merged["lm_head.weight"], weights["lm_head.weight"])
    assert merged["layers.0.self_attn.q_proj.weight"].dtype == torch.float32
    assert merged["layers.0.self_attn.k_proj.weight"].dtype == torch.bfloat16


def test_initial_adapters_depend_on_name_and_seed() -> None:
    """B is 0, and A has the standard deviation of nn.Linear's default."""
    drawn: dict[tuple[str, int], Any] = {}
    for name, seed in [("a.lora_a", 0), ("a.lora_a", 1), ("b.lora_a", 0), ("a.lora_b", 0)]:
        first, second = torch.empty(64, 300), torch.empty(64, 300)
        lora.init_adapter(name, first, seed)
        lora.init_adapter(name, second, seed)
        assert torch.equal(first, second)
        drawn[name, seed] = first
    assert not drawn["a.lora_b", 0].any()
    assert float(drawn["a.lora_a", 0].std()) == pytest.approx(
        1 / math.sqrt(3 * 300), rel=0.05
    )
    assert not torch.equal(drawn["a.lora_a", 0], drawn["a.lora_a", 1])
    assert not torch.equal(drawn["a.lora_a", 0], drawn["b.lora_a", 0])


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (
            ("q_proj", "query"),
            r"\['query'\], which no block has; use some of \['down_proj', 'gate_proj', 'k_proj'",
        ),
        (("lm_head",), "which no block has"),
        ((), "nothing would be trained"),
    ],
)
def test_unknown_targets_are_refused(targets: tuple[str, ...], said: str) -> None:
    """A misspelt layer name is an error."""
    with pytest.raises(IncompatibleConfig, match=said):
        lora.add_adapters(plain(), LoraConfig(targets=targets))
