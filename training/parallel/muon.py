"""Muon for hidden matrices: momentum whose singular values are all set near 1.

Sources: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", for the
update; Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2, for its scale. With one
process and bf16, the parameters equal those of `torch.optim.Muon`.

The update of a matrix needs the whole matrix. In each round, every rank orthogonalizes one matrix
for all others:

    momentum (sharded)  ->  gathered on all ranks, kept by its owner  ->  Newton-Schulz on the owner
                        ->  sent to all ranks, each of which updates its shard

Each matrix is sent twice, in the compute dtype. No more than two whole matrices are in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

# Jordan et al. 2024: their slope at 0 is the largest for which five iterations keep all singular
# values of a matrix of norm 1 within about 0.7 and 1.2.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5
_EPS = 1e-7  # smallest norm that a matrix is divided by
# Liu et al. 2025, equation 4: updates then have the root mean square of AdamW's, about 0.2 to 0.4,
# so a learning rate and a weight decay that were tuned for AdamW can be used.
_RMS_OF_ADAMW = 0.2


def orthogonalize(matrix: Tensor) -> Tensor:
    """Return U V^T of a matrix U S V^T, approximately: five Newton-Schulz iterations.

    Args:
        matrix: (A, B), of the dtype to compute in.

    Returns:
        (A, B), with singular values between about 0.7 and 1.2.
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrix.size(0) > matrix.size(1)
    # The products below are of the shorter side.
    found = matrix.T if is_tall else matrix
    found = found / found.norm().clamp(min=_EPS)
    for _ in range(_NUM_ITERATIONS):
        gram = found @ found.T
        found = torch.addmm(
            found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a
        )
    return found.T if is_tall else found


class Muon(torch.optim.Optimizer):
    """Muon over matrices that may be sharded (DTensor) or whole on every rank.

    The state of a parameter is `momentum_buffer`: fp32, sharded like the parameter.

    Attributes:
        found_inf: fp32 scalar; 1.0 leaves parameters and state unchanged, as in fused AdamW.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        compute_dtype: torch.dtype,
    ) -> None:
        """Create the state. All ranks of the default process group give the same matrices.

        Args:
            matrices: parameters with two dimensions.
            lr: learning rate.
            momentum: decay of the momentum; Nesterov's form is used.
            weight_decay: decoupled, as in AdamW.
            compute_dtype: of gathered matrices and Newton-Schulz iterations.
        """
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        # Ranks work at the same time on the matrices of a round: these should be alike.
        ordered = sorted(matrices, key=lambda matrix: (matrix.numel(), matrix.shape))
        super().__init__(ordered, defaults)
        self._compute_dtype = compute_dtype
        self._rank, self._num_ranks = 0, 1
        if dist.is_initialized():
            self._rank, self._num_ranks = dist.get_rank(), dist.get_world_size()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all matrices from their gradients. Every rank must call it."""
        assert closure is None
        for group in self.param_groups:
            matrices: list[nn.Parameter] = group["params"]
            for start in range(0, len(matrices), self._num_ranks):
                self._step_round(matrices[start : start + self._num_ranks], group)

    def _step_round(self, matrices: list[nn.Parameter], group: dict[str, Any]) -> None:
        """Update at most one matrix per rank; rank r orthogonalizes matrix r."""
        own: Tensor | None = None
        for owner, matrix in enumerate(matrices):
            whole = self._gather_direction(matrix, group["momentum"])
            if owner == self._rank:
                own = whole
        # After all gathers: collectives would otherwise wait for the iterations of each rank.
        if own is not None:
            own = orthogonalize(own).contiguous()
        for owner, matrix in enumerate(matrices):
            if owner == self._rank:
                assert own is not None
                direction = own
            else:
                direction = torch.empty(
                    matrix.shape, dtype=self._compute_dtype, device=matrix.device
                )
            if self._num_ranks > 1:
                dist.broadcast(direction, src=owner)
            self._update(matrix, direction, group["lr"], group["weight_decay"])

    def _gather_direction(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        """Add the gradient to the momentum, and return the whole direction of the update."""
        assert matrix.grad is not None
        gradient, buffer = matrix.grad, self.state[matrix]["momentum_buffer"]
        local = _get_local(gradient)
        local_buffer = _get_local(buffer)
        updated = local_buffer.lerp(local, 1 - momentum)
        local = local.lerp(updated, momentum).to(self._compute_dtype)
        self._replace(local_buffer, updated)
        if not isinstance(gradient, DTensor):
            return local
        sharded = DTensor.from_local(
            local,
            gradient.device_mesh,
            gradient.placements,
            run_check=False,
            shape=gradient.shape,
            stride=gradient.stride(),
        )
        return sharded.full_tensor()

    def _update(
        self,
        matrix: nn.Parameter,
        direction: Tensor,
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        """Decay a matrix and move it against the direction, of which each rank takes its shard."""
        if isinstance(matrix, DTensor):
            mesh = matrix.device_mesh
            whole = DTensor.from_local(
                direction, mesh, [Replicate()] * mesh.ndim, run_check=False
            )
            direction = whole.redistribute(placements=matrix.placements).to_local()
        scale = _RMS_OF_ADAMW * max(matrix.shape) ** 0.5
        local = _get_local(matrix)
        updated = local * (1 - learning_rate * weight_decay)
        self._replace(local, updated.add_(direction, alpha=-learning_rate * scale))

    def _replace(self, values: Tensor, updated: Tensor) -> None:
        """Write the updated values, unless the step is bad; the device decides."""
        if self.found_inf is not None:
            # Not a product with 0: the update of a bad step may be NaN.
            updated = torch.where(self.found_inf > 0, values, updated)
        values.copy_(updated)


def _get_local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
