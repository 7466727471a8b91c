"""Checks of kernels: attention, the compiled loss, and Muon's products."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.training import kernels
from benchmarks.training.checks.check import (
    Check,
    NotAvailable,
    expect,
    generate_code,
    measure_error,
)
from training.model import attention
from training.model.attention import AttentionMask, attend, make_document_mask
from training.parallel.muon import Muon

# Of output and gradients, relative to fp32. bf16 rounds by up to 2**-9 = 0.2 %.
MAX_ERROR = 0.02

# Heads of one row. The fp32 reference computes all T * T scores of each.
NUM_HEADS = 8


def _compare_attention(spec: Mapping[str, Any], name: str, head_dims: list[int]) -> str:
    """Compare a form of attention with fp32 at each length and width of heads."""
    worst = 0.0
    shape = spec["shape"]
    usual = shape["dim"] // shape["num_heads"]
    for seq_len in spec["seq_lens"]:
        for factor in head_dims:
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
            torch.manual_seed(0)
            sizes = (1, seq_len, NUM_HEADS, factor * usual)
            heads = kernels.make_heads(sizes, device, dtype)
            forms = kernels.make_attention(*heads, compiles=True)
            try:
                found = forms[name]()
            except (ImportError, ValueError) as error:
                if "flash3" not in name:
                    raise
                raise NotAvailable(f"no FlashAttention 3: {error}") from error
            expected = _compute_reference(*heads, is_packed="documents" in name)
            for one, other in zip(found, expected, strict=True):
                error = measure_error(one, other)
                expect(error < MAX_ERROR, f"error {error:.2g} at {seq_len}, {sizes[3]}")
                worst = max(worst, error)
    return f"largest error {worst:.1e}"


def _compute_reference(
    query: Tensor, key: Tensor, value: Tensor, *, is_packed: bool
) -> tuple[Tensor, ...]:
    """Return output and gradients in fp32, with all scores in memory."""
    mask = AttentionMask()
    if is_packed:
        documents = kernels.number_documents(query, kernels.make_cu_seqlens(query))
        mask = make_document_mask(documents)
    heads = [tensor.detach().float().requires_grad_() for tensor in (query, key, value)]
    with sdpa_kernel(SDPBackend.MATH):
        attended = attend(heads[0], heads[1], heads[2], mask)
    weights = torch.linspace(-1, 1, attended.shape[-1], device=attended.device)
    grads = torch.autograd.grad(attended, heads, weights.expand_as(attended))
    return attended.detach(), *grads


def _check_repeated_heads(spec: Mapping[str, Any]) -> str:
    """Compare the variable-length kernel without `enable_gqa`, as with torch 2.11."""
    before = attention._VARLEN_HAS_GQA  # noqa: SLF001
    attention._VARLEN_HAS_GQA = False  # noqa: SLF001
    try:
        return _compare_attention(spec, "documents, varlen", [1, 2])
    finally:
        attention._VARLEN_HAS_GQA = before  # noqa: SLF001


def _check_shared_heads(spec: Mapping[str, Any]) -> str:
    """Compare the variable-length kernel with `enable_gqa`."""
    if not attention._VARLEN_HAS_GQA:  # noqa: SLF001
        raise NotAvailable(f"torch {torch.__version__} has no enable_gqa there")
    return _compare_attention(spec, "documents, varlen", [1, 2])


def _check_loss(spec: Mapping[str, Any]) -> str:
    """Compare gradients of the compiled loss with those of the eager one."""
    is_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if is_cuda else "cpu")
    dtype = torch.bfloat16 if is_cuda else torch.float32
    torch.manual_seed(0)
    forms = kernels.make_losses(
        {**spec, "compile": True}, spec["vocab_size"], device, dtype
    )
    worst = 0.0
    with generate_code():
        found = forms["compiled"]()
    for one, other in zip(found, forms["eager"](), strict=True):
        error = measure_error(one, other)
        expect(error < MAX_ERROR / 4, f"error {error:.2g} of a gradient")
        worst = max(worst, error)
    return f"largest error {worst:.1e}"


def _check_muon(_: Mapping[str, Any]) -> str:
    """Compare ten steps in bf16 with those of torch.optim.Muon."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(5)
    draw = functools.partial(torch.randn, generator=generator, device=device)
    ours = [torch.nn.Parameter(draw(shape)) for shape in ((96, 32), (32, 96), (64, 64))]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    settings: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    muon = Muon(ours, compute_dtype=torch.bfloat16, **settings)
    for matrix in ours:
        muon.state[matrix] = {"momentum_buffer": torch.zeros_like(matrix)}
    reference = torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(10):
        for matrix, copy in zip(ours, theirs, strict=True):
            matrix.grad = draw(matrix.shape)
            copy.grad = matrix.grad.clone()
        muon.step()
        reference.step()
    worst = max(measure_error(one, other) for one, other in zip(ours, theirs, strict=True))
    expect(worst < 1e-2, f"parameters differ by {worst:.2g}")
    return f"parameters differ by {worst:.1e}"


def _make_attention_check(
    name: str, form: str, head_dims: tuple[int, ...] = (1, 2), *, needs_cuda: bool = True
) -> Check:
    run = functools.partial(_compare_attention, name=form, head_dims=list(head_dims))
    return Check(name, run, needs_cuda)


CHECKS = (
    _make_attention_check("attention flash", "flash", needs_cuda=False),
    _make_attention_check("attention cudnn", "cudnn"),
    _make_attention_check("attention flash3", "flash3"),
    Check("varlen, repeated heads", _check_repeated_heads),
    Check("varlen, enable_gqa", _check_shared_heads),
    _make_attention_check("varlen flash3", "documents, varlen flash3"),
    # One width: each takes ten seconds to compile.
    _make_attention_check("attention flex", "documents, flex", (1,)),
    Check("compiled loss", _check_loss, needs_cuda=False),
    Check("Muon", _check_muon, needs_cuda=False),
)
