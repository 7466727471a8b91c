"""The loss without ever holding the logits of a whole batch.

Promises: `cross_entropy` equals `torch.nn.functional.cross_entropy` over `hidden @ weight.T`, but logits exist for
`chunk_tokens` tokens at a time, and are gone before backward: gradients are made together with the loss, so nothing is
computed twice. Where the vocabulary is cut over ranks ("loss parallel"; Shoeybi et al. 2019, section 3), each holds its
columns only and three numbers per token travel. torch 2.13's `linear_cross_entropy` has the chunks, not the ranks.
Leaves to others: the mean over tokens, which belongs to the whole step (trainer.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

IGNORED_LABEL = -100
"""As loader.loader's: labels that are not predicted."""


def cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    labels_N: Tensor,
    *,
    chunk_tokens: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """(sum over tokens, fp32 scalar with gradient; loss per token (N,) fp32 without), 0 where labels are ignored.

    Args:
        hidden_ND: in the type that is computed in; with a group, its gradient is this rank's part of the sum.
        weight_VD: of the same type; with a group, rank r's rows r * V .. (r + 1) * V - 1 of the whole.
        labels_N: int64, of the whole vocabulary, or IGNORED_LABEL.
        chunk_tokens: tokens whose logits exist at a time.
        group: ranks among which the vocabulary is cut.
    """
    return _ChunkedCrossEntropy.apply(hidden_ND, weight_VD, labels_N, chunk_tokens, group)  # pyright: ignore[reportReturnType]


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        chunk_tokens: int,
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        # fp32: a sum of many chunks in bf16 would lose the later ones
        grad_weight = (
            torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
            if needs_weight
            else None
        )
        for start in range(0, len(hidden), chunk_tokens):
            chunk = slice(start, start + chunk_tokens)
            losses[chunk], grad_logits = _chunk(hidden[chunk], weight, labels[chunk], group)
            if grad_hidden is not None:
                grad_hidden[chunk] = grad_logits @ weight
            if grad_weight is not None:
                grad_weight += grad_logits.T @ hidden[chunk]
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale = grads[0]
        scaled = [
            grad if grad is None else grad * scale.to(grad.dtype) for grad in ctx.saved_tensors
        ]
        return (*scaled, None, None, None)


def _chunk(
    hidden: Tensor, weight: Tensor, labels: Tensor, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Loss of each token, and its gradient by the logits of this rank, in hidden's type."""
    logits = (hidden @ weight.T).float()  # (n, V)
    first = 0 if group is None else dist.get_rank(group) * len(weight)
    here = labels - first
    is_here = (here >= 0) & (here < len(weight))
    here = here.clamp(0, len(weight) - 1).unsqueeze(1)
    highest = _reduced(logits.amax(1), dist.ReduceOp.MAX, group)
    logits -= highest.unsqueeze(1)
    target = _reduced(logits.gather(1, here).squeeze(1) * is_here, dist.ReduceOp.SUM, group)
    logits.exp_()
    total = _reduced(logits.sum(1), dist.ReduceOp.SUM, group)
    is_counted = labels != IGNORED_LABEL
    losses = (total.log() - target) * is_counted
    # d loss / d logit = softmax - 1 at the target
    logits /= total.unsqueeze(1)
    logits.scatter_add_(1, here, -is_here.unsqueeze(1).float())
    logits *= is_counted.unsqueeze(1)
    return losses, logits.to(hidden.dtype)


def _reduced(values: Tensor, op: Any, group: dist.ProcessGroup | None) -> Tensor:
    if group is not None:
        dist.all_reduce(values, op, group)
    return values
