"""Cross-entropy computed in chunks of tokens, without the logits of the whole batch.

Shapes: N tokens, D width, V rows of the output matrix on this rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Label of tokens that are not predicted; the same value as in
# loader/batches/batch_builder.py.
IGNORED_LABEL = -100


def chunked_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    *,
    chunk_tokens: int,
    z_loss: float = 0.0,
    group: dist.ProcessGroup | None = None,
    is_compiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of `hidden @ weight.T`, as a sum and per token.

    The gradients are computed together with the loss, chunk by chunk. No chunk's logits are kept
    for backward and nothing is computed twice. `linear_cross_entropy` of torch 2.13 also computes in
    chunks, but not with a vocabulary that is sharded over ranks
    (docs/decisions/0008-own-chunked-loss.md).

    Args:
        hidden_ND: hidden states in the compute dtype. With a group, their gradient is this
            rank's share of the sum over ranks.
        weight_VD: output matrix in the same dtype. With a group, rank r holds the rows
            r * V .. (r + 1) * V - 1 of the whole matrix.
        labels_N: int64 ids of the whole vocabulary, or IGNORED_LABEL.
        chunk_tokens: tokens whose logits exist at the same time.
        z_loss: weight of log(Z)**2, where Z is the sum of exp(logits) of a token (Chowdhery et al.
            2022, PaLM, section 5: 1e-4). It changes the gradients, not the returned losses, so
            losses with and without it can be compared.
        group: ranks over which the vocabulary is sharded ("loss parallel"; Shoeybi et al. 2019,
            section 3). Three numbers per token are exchanged instead of the logits.
        is_compiled: whether torch.compile fuses the passes over the logits.

    Returns:
        The sum over tokens (fp32 scalar with gradient), and the loss of each token ((N,) fp32
        without gradient). Ignored tokens count as 0.
    """
    result: Any = _ChunkedCrossEntropy.apply(
        hidden_ND, weight_VD, labels_N, chunk_tokens, z_loss, group, is_compiled
    )
    return result


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        chunk_tokens: int,
        z_loss: float,
        group: dist.ProcessGroup | None,
        is_compiled: bool,
    ) -> tuple[Tensor, Tensor]:
        compute_chunk = _compile_chunk_loss() if is_compiled else _chunk_loss
        # (N,) written chunk by chunk
        losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        grad_hidden = grad_weight = None
        if needs_hidden:
            grad_hidden = torch.empty_like(hidden)
        if needs_weight:
            # fp32, because a bf16 sum over many chunks would lose the later ones.
            grad_weight = torch.zeros(
                weight.shape, dtype=torch.float32, device=weight.device
            )
        for start in range(0, len(hidden), chunk_tokens):
            chunk = slice(start, start + chunk_tokens)
            losses[chunk], grad_logits = compute_chunk(
                hidden[chunk], weight, labels[chunk], z_loss, group
            )
            if grad_hidden is not None:
                # (n, V) @ (V, D): with a group, only this rank's columns contribute, so this is a
                # partial sum.
                grad_hidden[chunk] = grad_logits @ weight
            if grad_weight is not None:
                # This sum over chunks is (V, D), in fp32.
                grad_weight += grad_logits.T @ hidden[chunk]
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # The gradients exist already; only the gradient of the loss itself is applied here.
        scale = grads[0]
        grad_hidden, grad_weight = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = grad_hidden * scale.to(grad_hidden.dtype)
        if grad_weight is not None:
            grad_weight = grad_weight * scale.to(grad_weight.dtype)
        # None for the arguments that have no gradient.
        return grad_hidden, grad_weight, None, None, None, None, None


def _chunk_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    z_loss: float,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each token, and its gradient by this rank's logits in hidden's dtype.

    Reuses one (n, V) buffer in place; n is the number of tokens in the chunk.
    """
    logits = (hidden @ weight.T).float()  # (n, V)
    first_row = 0 if group is None else dist.get_rank(group) * len(weight)
    local_labels = labels - first_row
    is_local = (local_labels >= 0) & (local_labels < len(weight))
    # gather needs valid columns for all tokens. Wrong ones are multiplied by is_local below.
    target_column = local_labels.clamp(0, len(weight) - 1).unsqueeze(1)  # (n, 1)
    # Subtract the largest logit before exp, as every stable softmax does.
    highest = _all_reduce(logits.amax(1), dist.ReduceOp.MAX, group)
    logits -= highest.unsqueeze(1)
    # The target's logit is on one rank only. The others add 0, so the sum over ranks is the logit.
    local_target = logits.gather(1, target_column).squeeze(1) * is_local
    target = _all_reduce(local_target, dist.ReduceOp.SUM, group)
    logits.exp_()
    total = _all_reduce(logits.sum(1), dist.ReduceOp.SUM, group)
    is_counted = labels != IGNORED_LABEL
    losses = (total.log() - target) * is_counted
    # The gradient of the loss by the logits is softmax - one_hot(target). All factors of a token
    # are multiplied first: every pass over the logits takes as long as reading them.
    factor = is_counted / total  # (n,)
    if z_loss:
        # d log(Z)**2 = 2 log(Z) softmax. The largest logit was subtracted from log(Z) above.
        factor = factor * (1 + 2 * z_loss * (highest + total.log()))
    logits *= factor.unsqueeze(1)
    is_target = (is_local & is_counted).float()
    at_target = logits.gather(1, target_column) - is_target.unsqueeze(1)
    grad_logits = logits.to(hidden.dtype)
    # After the conversion: a scatter into fp32 would keep the compiler from fusing it.
    grad_logits.scatter_(1, target_column, at_target.to(hidden.dtype))
    return losses, grad_logits


@functools.cache
def _compile_chunk_loss() -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `_chunk_loss`, which torch.compile turns into a few passes over the logits."""
    return torch.compile(_chunk_loss)


def _all_reduce(values: Tensor, op: Any, group: dist.ProcessGroup | None) -> Tensor:
    if group is not None:
        dist.all_reduce(values, op, group)
    return values
