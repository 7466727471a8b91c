"""Causal attention, optionally restricted to the document of each token, and rotary positions.

Shapes: B rows, T tokens, H query heads, K key/value heads, C head width, S documents.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch._dynamo import maybe_mark_dynamic
from torch.nn.attention import activate_flash_attention_impl
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils import _pytree as pytree

from training.config import ModelConfig, PrecisionConfig, RopeScaling
from training.errors import IncompatibleConfig

# How the kernel gets the documents; see AttentionMask.
MaskForm = Literal["matrix", "cu_seqlens", "blocks"]

# Tokens of a side of flex attention's blocks: the default of its create_block_mask.
FLEX_BLOCK = 128

# torch 2.11 has no such argument. Heads of keys and values are then repeated in memory.
_VARLEN_HAS_GQA = "enable_gqa" in inspect.signature(varlen_attn).parameters


@dataclass(frozen=True)
class AttentionMask:
    """Limits attention to documents; with all fields None it is causal over the whole row.

    At most one field is set.

    Attributes:
        allowed: (B, 1, T, T) bool; true where the query token may attend to the key token.
        cu_seqlens: (S + 1,) int32; start of each document in the B concatenated rows, then B * T.
        blocks: of flex attention: the blocks of tokens to compute, and which tokens are allowed.
    """

    allowed: Tensor | None = None
    cu_seqlens: Tensor | None = None
    blocks: BlockMask | None = None


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


def make_block_mask(document_ids_BT: Tensor) -> AttentionMask:
    """Return the same mask for flex attention, which leaves out blocks that nobody may see.

    It takes (T / 128)**2 numbers per row. torch's create_block_mask gives the same, but computes
    all T * T elements first.

    Args:
        document_ids_BT: integers that increase from document to document of a row.
    """
    seq_len = document_ids_BT.shape[1]
    starts = torch.arange(0, seq_len, FLEX_BLOCK, device=document_ids_BT.device)
    ends = (starts + FLEX_BLOCK).clamp(max=seq_len)
    # (B, N) documents of the first and the last token of each block of a row
    first, last = document_ids_BT[:, starts], document_ids_BT[:, ends - 1]
    # (B, N, N) each, by blocks of queries and blocks of keys. Ids increase, so two blocks share a
    # document if the key block's last one is not before the query block's first one.
    shares_any = last[:, None, :] >= first[:, :, None]
    shares_all = first[:, None, :] == last[:, :, None]
    is_needed = shares_any & (starts <= starts[:, None])
    is_whole_block = (ends - starts == FLEX_BLOCK)[:, None]
    is_full = shares_all & (starts < starts[:, None]) & is_whole_block

    def is_visible(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same_document = document_ids_BT[row, query] == document_ids_BT[row, key]
        return (query >= key) & same_document

    blocks = BlockMask.from_kv_blocks(
        *_list_blocks(is_needed & ~is_full),
        *_list_blocks(is_full),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=is_visible,
        seq_lengths=(seq_len, seq_len),
    )
    return AttentionMask(blocks=blocks)


def _list_blocks(is_listed_BNN: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of key blocks of each query block, and their numbers in front."""
    # All heads have the same blocks.
    is_listed = is_listed_BNN[:, None].int()
    order = is_listed.argsort(dim=-1, descending=True, stable=True)
    return is_listed.sum(-1, dtype=torch.int32), order.int()


def select_mask_form(precision: PrecisionConfig, device: torch.device) -> MaskForm:
    """Return the form of document masks for the kernel of a model.

    The variable-length flash kernel takes cu_seqlens, but only for bf16 on CUDA.
    """
    if device.type != "cuda" or precision.compute != "bf16":
        return "matrix"
    return "blocks" if precision.attention == "flex" else "cu_seqlens"


def make_mask(documents: Mapping[str, Tensor], form: MaskForm) -> AttentionMask:
    """Return the mask for the documents of a batch; a causal one if it has no document fields.

    Args:
        documents: cu_seqlens, or else document_ids, as TokenLoader gives them.
        form: of the kernel.
    """
    if "cu_seqlens" in documents:
        # The number of documents varies between batches. Without the mark, torch.compile would
        # compile again for each number.
        maybe_mark_dynamic(documents["cu_seqlens"], 0)
        return AttentionMask(cu_seqlens=documents["cu_seqlens"])
    if "document_ids" in documents:
        make = make_block_mask if form == "blocks" else make_document_mask
        return make(documents["document_ids"])
    return AttentionMask()


def select_kernel(name: str, device: torch.device) -> None:
    """Let this process use one kernel for attention, and no other.

    Args:
        name: "flash", "flash3", "cudnn" or "flex"; "auto" leaves torch's choice.
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
    if name == "flex":
        return  # the form of the masks selects it
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
    if mask.blocks is not None:
        return _attend_blocks(query, key, value, mask.blocks).transpose(1, 2)
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


def _attend_blocks(query: Tensor, key: Tensor, value: Tensor, blocks: BlockMask) -> Tensor:
    """Attend within documents with flex attention; (B, heads, T, C)."""
    # Without a compiler it would compute all T * T scores. In a compiled block it is compiled too.
    compute: Any = flex_attention if torch.compiler.is_compiling() else _compile_flex()
    has_groups = query.shape[1] != key.shape[1]
    return compute(query, key, value, block_mask=blocks, enable_gqa=has_groups)


@functools.cache
def _compile_flex() -> Callable[..., Any]:
    """Return flex_attention, for which torch.compile makes a kernel."""
    return torch.compile(flex_attention)


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


# ---- rotary position embedding (Su et al. 2021, RoFormer), with Llama 3.1's frequency scaling ----


@dataclass(frozen=True)
class RopeTable:
    """Cosines and sines of the rotation angles of each position, (T, C) fp32 each.

    The two halves of a head are rotated against each other, as in transformers. The paper
    rotates neighbouring pairs instead; weights of one convention do not work with the other.
    """

    cos: Tensor
    sin: Tensor

    def rotate(self, heads_BTHC: Tensor) -> Tensor:
        """Rotate query or key heads by their positions; computed in fp32, same dtype returned."""
        # (B, T, H, C / 2) each. (first, second) is rotated to (first cos - second sin, second cos +
        # first sin).
        first, second = heads_BTHC.float().chunk(2, dim=-1)
        rotated = torch.cat([-second, first], dim=-1)
        cos, sin = self.cos[:, None, :], self.sin[:, None, :]  # (T, 1, C)
        return (heads_BTHC * cos + rotated * sin).to(heads_BTHC.dtype)


def make_rope_table(config: ModelConfig, seq_len: int, device: torch.device) -> RopeTable:
    """Return the table for positions 0 .. seq_len - 1."""
    dims = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
    frequencies = 1.0 / config.rope_theta ** (dims / config.head_dim)  # (C / 2,)
    if config.rope_scaling is not None:
        frequencies = _scale_frequencies(frequencies, config.rope_scaling)
    positions = torch.arange(seq_len, device=device, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    angles = torch.cat([angles, angles], dim=-1)  # (T, C)
    return RopeTable(angles.cos(), angles.sin())


def _scale_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, interpolate linearly in between.

    Same formula as `rope_type: llama3` of transformers.
    """
    # Number of full turns that a frequency makes within the original context length.
    turns = scaling.original_seq_len * frequencies / (2 * math.pi)
    slope = (turns - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    # 1 above high_freq_factor turns, 0 below low_freq_factor turns
    kept_share = slope.clamp(0, 1)
    return frequencies * kept_share + frequencies / scaling.factor * (1 - kept_share)
