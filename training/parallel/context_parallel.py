"""Context parallelism: the tokens of each row are divided over ranks.

Everything but attention works on each token by itself. For attention, ranks exchange tokens for
heads and back (Ulysses; Jacobs et al. 2023), so that masks and kernels see whole rows:

    (B, T / c, H, C) on each of c ranks  ->  (B, T, H / c, C)  ->  attention  ->  (B, T / c, H, C)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh

from training.model.attention import AttentionMask, attend


class ContextParallel:
    """The ranks that share the tokens of a row. Rank r has the tokens r * T / c .. ."""

    def __init__(self, mesh: DeviceMesh) -> None:
        """Join the ranks of a one-dimensional mesh."""
        self._mesh = mesh
        # Collectives get the name: torch 2.13 cannot save a mesh for backward in compiled code.
        self._group_name = mesh.get_group().group_name
        self.degree, self.rank = mesh.size(), mesh.get_local_rank()

    def take_tokens(self, values: Tensor, dim: int) -> Tensor:
        """Return this rank's part of a tensor, whose dimension `dim` has the tokens of a row."""
        num_tokens = values.shape[dim] // self.degree
        return values.narrow(dim, self.rank * num_tokens, num_tokens)

    def gather_tokens(self, values: Tensor, dim: int) -> Tensor:
        """Return the parts of all ranks together, without gradient."""
        parts = [torch.empty_like(values) for _ in range(self.degree)]
        torch.distributed.all_gather(parts, values.contiguous(), self._mesh.get_group())
        return torch.cat(parts, dim)

    def attend(
        self, query_BTHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, mask: AttentionMask
    ) -> Tensor:
        """Return the attention output of this rank's tokens, (B, T / c, H, C).

        Args:
            query_BTHC: this rank's tokens, all heads; c divides H.
            key_BTKC: the same; c divides K.
            value_BTKC: the same.
            mask: of whole rows.
        """
        sizes = [heads.shape[2] // self.degree for heads in (query_BTHC, key_BTKC)]
        # (B, T / c, c, H / c, C) each: heads in groups, one for each rank
        parts = [
            heads.unflatten(2, (self.degree, -1))
            for heads in (query_BTHC, key_BTKC, value_BTKC)
        ]
        # One exchange of all three: (c, B, T / c, (H + 2 K) / c, C), by destination
        received = self._exchange(torch.cat(parts, dim=3).movedim(2, 0))
        # Now the first dimension is the source, which is the position in the row.
        whole = received.movedim(0, 1).flatten(1, 2)
        query, key, value = whole.split([*sizes, sizes[1]], dim=2)
        attended = attend(query, key, value, mask).unflatten(1, (self.degree, -1))
        returned = self._exchange(attended.movedim(1, 0))  # (c, B, T / c, H / c, C)
        return returned.movedim(0, 2).flatten(2, 3)

    def _exchange(self, parts: Tensor) -> Tensor:
        """Send part i of the first dimension to rank i; return the parts by their source."""
        received: Any = _Exchange.apply(parts, self._group_name)
        return received


class _Exchange(torch.autograd.Function):
    """An all-to-all of equal parts, which is its own inverse and so its own gradient.

    torch's `all_to_all_single_autograd` returns a subclass of Tensor, whose copies autograd keeps.
    """

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group_name: Any) -> Tensor:
        ctx.group_name = group_name
        return _exchange(parts, group_name)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _exchange(grads[0], ctx.group_name), None


def _exchange(parts: Tensor, group_name: Any) -> Tensor:
    sizes = [1] * len(parts)
    sent = collectives.all_to_all_single(parts.contiguous(), sizes, sizes, group_name)
    return collectives.wait_tensor(sent)
