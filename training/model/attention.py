"""Attention, and which tokens may see which.

Promises: `attend` is causal; with document ids or lengths, tokens see their own document only. It computes with torch's
flash kernels for whole rows and, given lengths, for documents (varlen_attn: CUDA, bf16), and else with a boolean mask.
Leaves to others: where documents start (the loader).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Mask:
    """All None: tokens see what is before them in the row. Else within documents.

    allowed:    (B, 1, T, T) bool, true where the first token may see the second
    cu_seqlens: (S + 1,) int32, where documents start in the B rows laid end to end, and the end
    """

    allowed: Tensor | None = None
    cu_seqlens: Tensor | None = None


pytree.register_dataclass(Mask)  # so that torch.compile and fully_shard see its tensors


def document_mask(document_ids_BT: Tensor) -> Mask:
    """Of (B, T) ids that differ between documents: T * T bytes per row, so for short rows and processors only."""
    seq_len = document_ids_BT.shape[1]
    causal = torch.ones(seq_len, seq_len, dtype=torch.bool, device=document_ids_BT.device).tril()
    same = document_ids_BT[:, :, None] == document_ids_BT[:, None, :]
    return Mask(allowed=(same & causal)[:, None])


def attend(query_BTHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, mask: Mask) -> Tensor:
    """(B, T, H, C), each token's weighted values; heads of keys are shared by H / K query heads."""
    if mask.cu_seqlens is not None:
        return _attend_packed(query_BTHC, key_BTKC, value_BTKC, mask.cu_seqlens)
    query, key, value = (heads.transpose(1, 2) for heads in (query_BTHC, key_BTKC, value_BTKC))
    is_grouped = query.shape[1] != key.shape[1]
    attended = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask.allowed,
        is_causal=mask.allowed is None,
        enable_gqa=is_grouped,
    )
    return attended.transpose(1, 2)


def _attend_packed(
    query_BTHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, cu_seqlens: Tensor
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    rows, seq_len = query_BTHC.shape[:2]
    query, key, value = (heads.flatten(0, 1) for heads in (query_BTHC, key_BTKC, value_BTKC))
    # The row is the longest that a document can be: its true length would be another number each step, and would have
    # torch.compile begin again.
    attended = varlen_attn(
        query, key, value, cu_seqlens, cu_seqlens, seq_len, seq_len, window_size=(-1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    assert isinstance(attended, Tensor)
    return attended.unflatten(0, (rows, seq_len))
