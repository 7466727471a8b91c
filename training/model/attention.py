"""Causal attention, optionally restricted to the document of each token.

Shapes: B rows, T tokens, H query heads, K key/value heads, C head width, S documents.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import activate_flash_attention_impl
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils import _pytree as pytree

from training.errors import IncompatibleConfig

# torch 2.11 has no such argument. Heads of keys and values are then repeated in memory.
_VARLEN_HAS_GQA = "enable_gqa" in inspect.signature(varlen_attn).parameters


@dataclass(frozen=True)
class AttentionMask:
    """Limits attention to documents; with both fields None it is causal over the whole row.

    At most one field is set.

    Attributes:
        allowed: (B, 1, T, T) bool; true where the query token may attend to the key token.
        cu_seqlens: (S + 1,) int32; start of each document in the B concatenated rows, then B * T.
    """

    allowed: Tensor | None = None
    cu_seqlens: Tensor | None = None


# torch.compile and fully_shard only find the tensors of registered containers.
pytree.register_dataclass(AttentionMask)


def make_document_mask(document_ids_BT: Tensor) -> AttentionMask:
    """Return a boolean mask that is causal and block-diagonal by document.

    It takes T * T bytes per row. Use it for short rows and on CPU; on CUDA use `cu_seqlens`.

    Args:
        document_ids_BT: integers that differ between the documents of a row.
    """
    seq_len = document_ids_BT.shape[1]
    # (T, T), true on and below the diagonal: a token sees itself and earlier tokens.
    causal = torch.ones(
        seq_len, seq_len, dtype=torch.bool, device=document_ids_BT.device
    ).tril()
    # (B, T, T), true for query and key tokens of one document
    same_document = document_ids_BT[:, :, None] == document_ids_BT[:, None, :]
    return AttentionMask(allowed=(same_document & causal)[:, None])


def select_kernel(name: str, device: torch.device) -> None:
    """Let this process use one kernel for attention, and no other.

    Args:
        name: "flash", "flash3" or "cudnn"; "auto" leaves torch's choice.
        device: of the model.

    Raises:
        IncompatibleConfig: there is no GPU, or FlashAttention 3 is not installed.
    """
    if name == "auto":
        return
    if device.type != "cuda":
        raise IncompatibleConfig(
            f"precision.attention is {name}, but the model is on the {device.type}; set it to auto"
        )
    if name == "flash3":
        try:
            activate_flash_attention_impl("FA3")
        except (ImportError, RuntimeError, ValueError) as error:
            raise IncompatibleConfig(
                f"precision.attention is flash3, which needs the package flash_attn_interface of "
                f"FlashAttention 3 ({error}); install it, or set auto"
            ) from error
    # The others are switched off: torch would otherwise fall back to them in silence.
    torch.backends.cuda.enable_flash_sdp(name != "cudnn")
    torch.backends.cuda.enable_cudnn_sdp(name == "cudnn")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


def attend(
    query_BTHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, mask: AttentionMask
) -> Tensor:
    """Return the attention output, (B, T, H, C). H / K query heads share one key head."""
    if mask.cu_seqlens is not None:
        return _attend_packed(query_BTHC, key_BTKC, value_BTKC, mask.cu_seqlens)
    # scaled_dot_product_attention expects (B, heads, T, C).
    query = query_BTHC.transpose(1, 2)
    key = key_BTKC.transpose(1, 2)
    value = value_BTKC.transpose(1, 2)
    attended = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask.allowed,
        # The kernel refuses both a mask and is_causal. The mask is causal already.
        is_causal=mask.allowed is None,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended.transpose(1, 2)


def _attend_packed(
    query_BTHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, cu_seqlens: Tensor
) -> Tensor:
    """Attend within documents with the variable-length flash kernel (CUDA, bf16)."""
    num_rows, seq_len, num_heads = query_BTHC.shape[:3]
    query = query_BTHC.flatten(0, 1)  # (B * T, H, C)
    key = key_BTKC.flatten(0, 1)
    value = value_BTKC.flatten(0, 1)
    options: dict[str, Any] = {}
    num_queries_per_key = num_heads // key.shape[1]
    if num_queries_per_key > 1 and _VARLEN_HAS_GQA:
        options["enable_gqa"] = True
    elif num_queries_per_key > 1:
        # Query heads i * (H / K) .. share key head i, as in scaled_dot_product_attention.
        key = key.repeat_interleave(num_queries_per_key, dim=1)
        value = value.repeat_interleave(num_queries_per_key, dim=1)
    # The kernel needs the length of the longest document. The row length is an upper bound. The
    # true maximum changes in every step, and torch.compile would compile again for each value.
    attended = varlen_attn(
        query,
        key,
        value,
        cu_seqlens,
        cu_seqlens,
        seq_len,
        seq_len,
        window_size=(-1, 0),  # causal
        **options,
    )
    assert isinstance(attended, Tensor)
    return attended.unflatten(0, (num_rows, seq_len))
