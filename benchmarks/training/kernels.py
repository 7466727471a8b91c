"""Time and memory of single kernels of the trainer, and of the ones that could replace them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import (
    SDPBackend,
    activate_flash_attention_impl,
    restore_flash_attention_impl,
    sdpa_kernel,
)

from benchmarks.training.apart import describe_error
from benchmarks.training.cases import Case
from benchmarks.training.entrants import synchronize
from training.model.attention import AttentionMask, attend, make_block_mask
from training.model.loss import chunked_cross_entropy
from training.planning.gpus import GIB

CHUNK_TOKENS = 4096

# The vocabulary of Llama 3, beside that of the suite's model.
LARGE_VOCABULARY = 128_256

# Mean tokens of a document, for attention within documents.
DOCUMENT_TOKENS = 1000
# Query heads that share a key head.
GROUP = 4

# Runs forward and backward once; the forms of attention return output and gradients.
Form = Callable[[], Any]


def choose_device() -> tuple[torch.device, torch.dtype]:
    """Return the GPU and bf16, or the CPU and fp32."""
    if torch.cuda.is_available():
        return torch.device("cuda"), torch.bfloat16
    return torch.device("cpu"), torch.float32


def measure_losses(case: Case) -> dict[str, Any]:
    """Measure forms of the loss on the tokens of a micro-batch, at one or two vocabularies."""
    torch.manual_seed(0)
    device, dtype = choose_device()
    found: dict[str, Any] = {}
    vocabularies = [case.size.vocab_size]
    if device.type == "cuda":
        vocabularies.append(LARGE_VOCABULARY)
    for vocab_size in vocabularies:
        forms = make_losses(case, vocab_size, device, dtype)
        for name, form in forms.items():
            found[f"{name}, vocabulary {vocab_size}"] = _time(form, case.size.steps)
    return found


def measure_attention(case: Case) -> dict[str, Any]:
    """Measure kernels of attention on the tokens of a micro-batch, at both lengths and two widths of heads."""
    torch.manual_seed(0)
    device, dtype = choose_device()
    found: dict[str, Any] = {}
    size, dim = case.size, case.size.shape["dim"]
    usual = dim // size.shape["num_heads"]
    for seq_len in size.seq_lens:
        for head_dim in (usual, 2 * usual):
            num_rows = size.micro_batch_tokens // seq_len
            heads = make_heads(
                (num_rows, seq_len, dim // head_dim, head_dim), device, dtype
            )
            for name, form in make_attention(*heads, compiles=size.compile).items():
                found[f"{name}, {seq_len}, head {head_dim}"] = _time(form, size.steps)
    return found


def _time(form: Form, num_steps: int) -> dict[str, Any]:
    """Return the mean time of a call and its memory, or the error."""
    try:
        form()  # compiles
        synchronize()
        held = 0
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        began = time.perf_counter()
        for _ in range(num_steps):
            form()
        synchronize()
        found = {"ms": (time.perf_counter() - began) / num_steps * 1000}
        if torch.cuda.is_available():
            found["peak_gib"] = (torch.cuda.max_memory_allocated() - held) / GIB
    except Exception as error:  # noqa: BLE001 - other forms can still be measured
        return {"error": describe_error(error)}
    return found


def make_losses(
    case: Case, vocab_size: int, device: torch.device, dtype: torch.dtype
) -> dict[str, Form]:
    """Return forward and backward of each form of the loss that is installed."""
    num_tokens, dim = case.size.micro_batch_tokens, case.size.shape["dim"]
    settings: dict[str, Any] = {"device": device, "dtype": dtype}
    hidden = torch.randn(num_tokens, dim, **settings).requires_grad_()
    weight = (torch.randn(vocab_size, dim, **settings) * 0.02).requires_grad_()
    labels = torch.randint(0, vocab_size, (num_tokens,), device=device)

    def differentiate(compute: Callable[[], Tensor]) -> Form:
        return lambda: torch.autograd.grad(compute(), (hidden, weight))

    def compute_ours(*, is_compiled: bool) -> Tensor:
        total, _ = chunked_cross_entropy(
            hidden, weight, labels, chunk_tokens=CHUNK_TOKENS, is_compiled=is_compiled
        )
        return total

    forms = {"eager": differentiate(lambda: compute_ours(is_compiled=False))}
    if case.size.compile:
        forms["compiled"] = differentiate(lambda: compute_ours(is_compiled=True))
    fused: Any = getattr(torch.nn.functional, "linear_cross_entropy", None)
    if fused is not None:  # torch 2.13
        in_chunks: Any = torch.nn.LinearCrossEntropyOptions()
        forms["torch"] = differentiate(
            lambda: fused(hidden, weight, labels, reduction="sum", options=in_chunks)
        )
    try:
        from liger_kernel.transformers import (  # pyright: ignore[reportMissingImports]
            LigerFusedLinearCrossEntropyLoss,
        )
    except ImportError:
        return forms
    liger: Any = LigerFusedLinearCrossEntropyLoss(reduction="sum")
    forms["liger"] = differentiate(lambda: liger(weight, hidden, labels))
    return forms


def make_heads(
    sizes: tuple[int, int, int, int], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value of rows x tokens x heads x width."""
    num_rows, seq_len, num_heads, head_dim = sizes
    query, key, value = (
        torch.randn(num_rows, seq_len, heads, head_dim, device=device, dtype=dtype)
        for heads in (num_heads, max(1, num_heads // GROUP), max(1, num_heads // GROUP))
    )
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


def make_cu_seqlens(query: Tensor) -> Tensor:
    """Return the starts of documents, (S + 1,) int32, for query heads (B, T, H, C)."""
    num_rows, seq_len = query.shape[:2]
    num_tokens = num_rows * seq_len
    # Starts of documents, and of rows
    starts = {*range(0, num_tokens, DOCUMENT_TOKENS), *range(0, num_tokens, seq_len)}
    bounds = torch.tensor(sorted({*starts, num_tokens}), dtype=torch.int32)
    return bounds.to(query.device)


def number_documents(query: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the number of the document of each token, (B, T)."""
    num_rows, seq_len = query.shape[:2]
    tokens = torch.arange(num_rows * seq_len, device=query.device)
    return torch.bucketize(tokens, cu_seqlens, right=True).view(num_rows, seq_len)


def make_attention(
    query: Tensor, key: Tensor, value: Tensor, *, compiles: bool
) -> dict[str, Form]:
    """Return forward and backward of each kernel, over whole rows or within documents."""
    cu_seqlens = make_cu_seqlens(query)
    packed = AttentionMask(cu_seqlens=cu_seqlens)

    def differentiate(compute: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        attended = compute()
        # Not all ones: the gradient of the keys would be 0.
        weights = torch.linspace(-1, 1, attended.shape[-1], device=attended.device)
        weights = weights.to(attended.dtype).expand_as(attended)
        grads = torch.autograd.grad(attended, (query, key, value), weights)
        return attended.detach(), *grads

    def run_sdpa(backend: SDPBackend) -> tuple[Tensor, ...]:
        with sdpa_kernel(backend):
            return differentiate(lambda: attend(query, key, value, AttentionMask()))

    def run_flash3(mask: AttentionMask) -> tuple[Tensor, ...]:
        activate_flash_attention_impl("FA3")
        try:
            return differentiate(lambda: attend(query, key, value, mask))
        finally:
            restore_flash_attention_impl()

    forms: dict[str, Form] = {
        "flash": lambda: run_sdpa(SDPBackend.FLASH_ATTENTION),
        "cudnn": lambda: run_sdpa(SDPBackend.CUDNN_ATTENTION),
        "flash3": lambda: run_flash3(AttentionMask()),
        "documents, varlen": lambda: differentiate(
            lambda: attend(query, key, value, packed)
        ),
        "documents, varlen flash3": lambda: run_flash3(packed),
    }
    if compiles:
        forms["documents, flex"] = _make_flex(query, key, value, cu_seqlens, differentiate)
    return forms


def _make_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    differentiate: Callable[[Callable[[], Tensor]], tuple[Tensor, ...]],
) -> Form:
    """Return forward and backward of flex attention, whose mask is made in each call."""
    documents = number_documents(query, cu_seqlens)

    def run() -> tuple[Tensor, ...]:
        mask = make_block_mask(documents)
        return differentiate(lambda: attend(query, key, value, mask))

    return run
