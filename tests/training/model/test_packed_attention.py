"""Attention by cu_seqlens, through torch's varlen_attn.

torch has its kernel for CUDA only. These tests register one for the CPU, with the same operator
interface, so that everything between the model and the kernel runs on every version of torch.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Generator
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from training.errors import IncompatibleConfig
from training.model import attention
from training.model.attention import (
    AttentionMask,
    attend,
    make_document_mask,
    select_kernel,
)

NUM_ROWS, SEQ_LEN = 2, 16


def attend_each(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, enable_gqa: bool
) -> Tensor:
    """Return the attention of documents one by one; (tokens, heads, width)."""
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError("query and key have other numbers of heads")
    attended: list[Tensor] = []
    for start, stop in itertools.pairwise(starts.tolist()):
        document = [heads[start:stop].transpose(0, 1) for heads in (query, key, value)]
        out = scaled_dot_product_attention(*document, is_causal=True, enable_gqa=enable_gqa)
        attended.append(out.transpose(0, 1))
    return torch.cat(attended)


def run_kernel(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Stand for the CUDA kernel: output, log-sum-exp, random state."""
    # cu_seq_k, max_q, max_k, is_causal, scale, window_size, and enable_gqa in later versions
    assert others[3:6] == (True, None, [-1, 0])
    enable_gqa = len(others) > 6 and bool(others[6])
    out = attend_each(query, key, value, starts, enable_gqa)
    return out.contiguous(), query.new_empty(0), torch.empty(2, dtype=torch.uint64)


def run_backward_kernel(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value. Autograd does not work inside of operators."""
    starts = others[2]  # after out and lse
    num_heads, num_kv_heads, width = query.shape[1], key.shape[1], query.shape[2]
    grads: list[Tensor] = [torch.zeros_like(heads) for heads in (query, key, value)]
    for start, stop in itertools.pairwise(starts.tolist()):
        for head in range(num_heads):
            kv_head = head * num_kv_heads // num_heads
            at, kv_at = (slice(start, stop), head), (slice(start, stop), kv_head)
            causal = torch.ones(stop - start, stop - start, dtype=torch.bool).tril()
            scores = query[at] @ key[kv_at].T / width**0.5
            weights = scores.masked_fill(~causal, -torch.inf).softmax(-1)
            grad_weights = grad_out[at] @ value[kv_at].T
            mean = (grad_weights * weights).sum(-1, keepdim=True)
            grad_scores = weights * (grad_weights - mean) / width**0.5
            grads[0][at] += grad_scores @ key[kv_at]
            grads[1][kv_at] += grad_scores.T @ query[at]
            grads[2][kv_at] += weights.T @ grad_out[at]
    return grads[0], grads[1], grads[2]


@pytest.fixture(scope="module", autouse=True)
def cpu_kernel() -> Generator[None]:
    """Register the kernels, until the tests of this module end."""
    library = torch.library.Library("torch_attn", "FRAGMENT")
    torch.library.register_kernel(
        "torch_attn::_varlen_attn", "cpu", run_kernel, lib=library
    )
    torch.library.register_kernel(
        "torch_attn::_varlen_attn_backward", "cpu", run_backward_kernel, lib=library
    )
    yield
    library._destroy()


@given(
    cuts=st.sets(st.integers(1, NUM_ROWS * SEQ_LEN - 1), max_size=6),
    num_kv_heads=st.sampled_from([1, 2, 3, 6]),
    has_gqa=st.booleans(),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_packed_documents_equal_a_mask(
    cuts: set[int], num_kv_heads: int, has_gqa: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and gradients are those of fp32 attention with a mask, with shared heads or repeated."""
    is_supported = attention._VARLEN_HAS_GQA
    monkeypatch.setattr(attention, "_VARLEN_HAS_GQA", is_supported and has_gqa)
    shape = (NUM_ROWS, SEQ_LEN)
    query = torch.randn(*shape, 6, 4, requires_grad=True)
    key, value = (
        torch.randn(*shape, num_kv_heads, 4, requires_grad=True) for _ in range(2)
    )
    # Each row begins a document.
    bounds = sorted({*cuts, *range(0, NUM_ROWS * SEQ_LEN + 1, SEQ_LEN)})
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
    found = attend(query, key, value, AttentionMask(cu_seqlens=cu_seqlens))
    tokens = torch.arange(NUM_ROWS * SEQ_LEN)
    document_ids = torch.bucketize(tokens, cu_seqlens, right=True).view(shape)
    expected = attend(query, key, value, make_document_mask(document_ids))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, (query, key, value), grad),
        torch.autograd.grad(expected, (query, key, value), grad),
        rtol=1e-4,
        atol=1e-5,
    )
    monkeypatch.undo()


def test_a_model_of_packed_rows_compiles() -> None:
    """Under torch.compile the call of the kernel stays in the graph."""
    cu_seqlens = torch.tensor([0, 5, 16], dtype=torch.int32)
    query = torch.randn(1, SEQ_LEN, 4, 4)
    key, value = torch.randn(1, SEQ_LEN, 2, 4), torch.randn(1, SEQ_LEN, 2, 4)
    mask = AttentionMask(cu_seqlens=cu_seqlens)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(query, key, value, mask), attend(query, key, value, mask)
    )


@pytest.mark.parametrize("name", ["flash", "flash3", "cudnn"])
def test_kernels_of_gpus_are_refused_elsewhere(name: str) -> None:
    """The error names the key, and torch's own choice stays."""
    before = torch.backends.cuda.math_sdp_enabled()
    with pytest.raises(IncompatibleConfig, match=rf"precision\.attention is {name}.* auto"):
        select_kernel(name, torch.device("cpu"))
    select_kernel("auto", torch.device("cpu"))
    assert torch.backends.cuda.math_sdp_enabled() == before


def test_one_kernel_is_left_on_a_gpu() -> None:
    """A kernel that cannot run is an error of torch, not another kernel."""
    switches = ("flash", "cudnn", "mem_efficient", "math")
    read = {name: getattr(torch.backends.cuda, f"{name}_sdp_enabled") for name in switches}
    before = {name: is_enabled() for name, is_enabled in read.items()}
    try:
        for name in ("flash", "cudnn"):
            select_kernel(name, torch.device("cuda"))
            assert [each for each in switches if read[each]()] == [name]
        with pytest.raises(IncompatibleConfig, match="flash_attn_interface"):
            select_kernel("flash3", torch.device("cuda"))
    finally:
        for name, is_enabled in before.items():
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(is_enabled)


def test_another_package_of_that_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flash_attn_interface without the kernels is named, and the key to change."""
    name = "flash_attn_interface"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(
        IncompatibleConfig, match=r"precision\.attention is flash3.*does not expose FA3"
    ):
        select_kernel("flash3", torch.device("cuda"))
