"""Loss, attention and activation offload equal plain torch computations."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as torch_cross_entropy

from training.model import loss
from training.model.attention import AttentionMask, attend, make_document_mask
from training.model.loss import IGNORED_LABEL, chunked_cross_entropy
from training.parallel.activation_offload import ActivationOffload


def whole_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return the losses computed from all logits at once."""
    return torch_cross_entropy(
        hidden @ weight.T, labels, ignore_index=IGNORED_LABEL, reduction="none"
    )


@given(
    num_tokens=st.integers(1, 40),
    chunk_tokens=st.integers(1, 50),
    z_loss=st.sampled_from([0.0, 1e-4, 0.1]),
    vocab_size=st.integers(2, 30),
    ignored_share=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 9),
)
@settings(max_examples=60)
def test_the_chunked_loss_equals_torch_cross_entropy(
    num_tokens: int,
    chunk_tokens: int,
    vocab_size: int,
    ignored_share: float,
    z_loss: float,
    seed: int,
) -> None:
    """Losses per token, their sum and both gradients are equal for every chunk size.

    The gradients, not the losses, contain the z-loss.
    """
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(
        num_tokens, 5, generator=random, dtype=torch.float32
    ).requires_grad_()
    weight = torch.randn(
        vocab_size, 5, generator=random, dtype=torch.float32
    ).requires_grad_()
    labels = torch.randint(0, vocab_size, (num_tokens,), generator=random)
    labels[torch.rand(num_tokens, generator=random) < ignored_share] = IGNORED_LABEL
    total, losses = chunked_cross_entropy(
        hidden, weight, labels, chunk_tokens=chunk_tokens, z_loss=z_loss
    )
    found = torch.autograd.grad(3 * total, (hidden, weight))
    expected = whole_loss(hidden, weight, labels)
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total, expected.sum(), rtol=1e-5, atol=1e-5)
    log_z = (hidden @ weight.T).logsumexp(1) * (labels != IGNORED_LABEL)
    objective = expected.sum() + z_loss * log_z.square().sum()
    torch.testing.assert_close(
        found,
        torch.autograd.grad(3 * objective, (hidden, weight)),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.heavy)]
)
def test_the_compiled_loss_equals_the_eager_one(
    backend: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and gradients are equal, also for a last chunk of another size."""
    compiled = torch.compile(loss._chunk_loss, backend=backend)
    monkeypatch.setattr(loss, "_compile_chunk_loss", lambda: compiled)
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 8, generator=random).to(dtype).requires_grad_()
    weight = torch.randn(40, 8, generator=random).to(dtype).requires_grad_()
    labels = torch.randint(0, 40, (23,), generator=random)
    labels[::5] = IGNORED_LABEL
    found: list[tuple[Tensor, ...]] = []
    for is_compiled in (False, True):
        total, losses = chunked_cross_entropy(
            hidden, weight, labels, chunk_tokens=9, z_loss=0.1, is_compiled=is_compiled
        )
        grads = torch.autograd.grad(total, (hidden, weight))
        found.append((total.detach(), losses, *grads))
    # Also in bf16: both forms compute in fp32, and round the gradient of a logit once.
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_large_logits_do_not_overflow() -> None:
    """Logits of 10,000 give finite losses."""
    hidden, weight = torch.full((2, 1), 1e4), torch.tensor([[1.0], [-1.0], [0.5]])
    total, losses = chunked_cross_entropy(
        hidden, weight, torch.tensor([0, 1]), chunk_tokens=1
    )
    assert losses.tolist() == [0.0, 2e4]
    assert total.item() == 2e4


def test_frozen_weights_get_no_gradient() -> None:
    """A frozen weight has no gradient, the hidden states have one."""
    hidden, weight = torch.randn(4, 3, requires_grad=True), torch.randn(7, 3)
    total, _ = chunked_cross_entropy(
        hidden, weight, torch.tensor([1, 2, 3, 4]), chunk_tokens=2
    )
    total.backward()
    assert hidden.grad is not None
    assert weight.grad is None


@given(
    cuts=st.sets(st.integers(1, 15), max_size=5), num_kv_heads=st.sampled_from([1, 2, 4])
)
@settings(max_examples=30)
def test_documents_in_a_row_see_only_themselves(cuts: set[int], num_kv_heads: int) -> None:
    """A document in a packed row has the output of the document alone."""
    query = torch.randn(1, 16, 4, 8)
    key, value = (torch.randn(1, 16, num_kv_heads, 8) for _ in range(2))
    bounds = [0, *sorted(cuts), 16]
    ids = torch.bucketize(
        torch.arange(16), torch.tensor(sorted(cuts), dtype=torch.int64), right=True
    )
    together = attend(query, key, value, make_document_mask(ids[None]))
    for start, stop in itertools.pairwise(bounds):
        alone = attend(
            query[:, start:stop], key[:, start:stop], value[:, start:stop], AttentionMask()
        )
        torch.testing.assert_close(together[:, start:stop], alone, rtol=1e-5, atol=1e-5)


def test_attention_is_causal() -> None:
    """Changing the last token does not change earlier outputs."""
    query, key, value = (torch.randn(2, 6, 2, 4) for _ in range(3))
    before = attend(query, key, value, AttentionMask())
    for heads in (query, key, value):
        heads[:, -1] = 9.0
    after = attend(query, key, value, AttentionMask())
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


@pytest.mark.parametrize("num_forwards", [1, 2])
def test_offloaded_activations_give_the_same_bits(num_forwards: int) -> None:
    """Gradients are bit-identical, also with two forwards before their backwards."""

    def gradients(offload: ActivationOffload | None) -> list[Tensor]:
        torch.manual_seed(0)
        blocks = [
            nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3)
        ]
        computes = [
            offload.wrap(block, is_last=block is blocks[-1]) if offload else block
            for block in blocks
        ]
        outs: list[Tensor] = []
        for _ in range(num_forwards):
            out = torch.randn(4, 8)
            for compute in computes:
                out = compute(out)
            outs.append(out)
        for out in outs:
            out.square().sum().backward()
        return [
            p.grad for block in blocks for p in block.parameters() if p.grad is not None
        ]

    plain = gradients(None)
    offloaded = gradients(ActivationOffload(torch.device("cpu"), min_bytes=1))
    assert len(plain) == 12
    assert all(
        torch.equal(first, second) for first, second in zip(plain, offloaded, strict=True)
    )


def test_offloaded_activations_are_copies() -> None:
    """Saved activations have other memory than the originals; weights are not copied."""
    offload, made = (
        ActivationOffload(torch.device("cpu"), min_bytes=1),
        torch.randn(4, 4, requires_grad=True),
    )
    weight = nn.Parameter(torch.randn(4, 4))
    product = offload.wrap(torch.matmul, is_last=False)(made, weight)
    saved_left, saved_right = product.grad_fn._saved_self, product.grad_fn._saved_mat2
    assert torch.equal(saved_left, made)
    assert saved_left.data_ptr() != made.data_ptr()
    assert saved_right.data_ptr() == weight.data_ptr()
