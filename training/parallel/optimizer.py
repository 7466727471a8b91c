"""AdamW, wherever its state lies, under one name per parameter; and the learning rate of each step.

Promises: the same steps whether state is whole (ddp), cut by parameters over ranks (zero1), sharded with the parameters
(zero2, zero3) or in CPU memory (offload); `state` gives all of it by parameter's name, so that a checkpoint of any of
these is one of all. Moments and master weights are fp32.
Leaves to others: when to step (trainer.py), saving (checkpoint.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from training.config import OptimizerConfig, ParallelConfig
from training.parallel.distributed import Ranks


class Optimizer:
    """AdamW over the named parameters that want a gradient."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        config: OptimizerConfig,
        parallel: ParallelConfig,
        ranks: Ranks,
    ) -> None:
        self._config = config
        self._parameters = {
            name: parameter for name, parameter in parameters.items() if parameter.requires_grad
        }
        self._on_host = parallel.offload == "optimizer"
        self._masters = self._copies(ranks) if self._on_host else self._parameters
        decayed = [master for master in self._masters.values() if master.ndim > 1]
        others = [master for master in self._masters.values() if master.ndim <= 1]
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        settings: dict[str, Any] = {
            "lr": config.learning_rate,
            "betas": config.betas,
            "eps": config.eps,
            "fused": True,
        }
        groups = [group for group in groups if group["params"]]
        if parallel.strategy == "zero1" and ranks.world_size > 1:
            self._optimizer: torch.optim.Optimizer = _zero1(groups, settings, ranks)
            self._holder: torch.optim.Optimizer = self._optimizer.optim  # pyright: ignore[reportAttributeAccessIssue]
        else:
            self._optimizer = self._holder = torch.optim.AdamW(groups, **settings)
        self._begin()

    def clip(self) -> Tensor:
        """Scale gradients down to max_grad_norm; the norm they had, over all ranks, as a scalar tensor."""
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = get_total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        clip_grads_with_norm_(self._parameters.values(), self._config.max_grad_norm, norm)
        return norm

    def step(self, learning_rate: float) -> None:
        """Change the parameters by their gradients."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if self._on_host:
            self._step_on_host()
        else:
            self._optimizer.step()

    def zero_grad(self) -> None:
        """Free them."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Live tensors by `<parameter>.<exp_avg|exp_avg_sq|step>`: what this rank holds of them."""
        names = {id(master): name for name, master in self._masters.items()}
        return {
            f"{names[id(master)]}.{key}": value
            for master, values in self._holder.state.items()
            for key, value in values.items()
        }

    def loaded(self) -> None:
        """To be called when parameters were loaded: masters on the host follow them."""
        if self._on_host:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    self._masters[name].copy_(parameter)

    def _begin(self) -> None:
        """Make the state that AdamW would make at its first step, so that a checkpoint can be loaded into it."""
        for group in self._holder.param_groups:
            for master in group["params"]:
                step_device = master.device  # where fused kernels want the count
                self._holder.state[master] = {
                    "step": torch.zeros((), dtype=torch.float32, device=step_device),
                    "exp_avg": torch.zeros_like(master, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(master, memory_format=torch.preserve_format),
                }

    def _copies(self, ranks: Ranks) -> dict[str, nn.Parameter]:
        """A master of each parameter in (pinned) CPU memory, with room for its gradient."""
        masters: dict[str, nn.Parameter] = {}
        pinned = ranks.device.type == "cuda"
        for name, parameter in self._parameters.items():
            like = parameter.detach()
            master = nn.Parameter(torch.empty_like(like, device="cpu", pin_memory=pinned))
            master.grad = torch.empty_like(like, device="cpu", pin_memory=pinned)
            with torch.no_grad():
                master.copy_(like)
            masters[name] = master
        return masters

    def _step_on_host(self) -> None:
        pairs = [(self._parameters[name], master) for name, master in self._masters.items()]
        for parameter, master in pairs:
            assert parameter.grad is not None
            assert master.grad is not None
            master.grad.copy_(parameter.grad, non_blocking=True)
        if pairs[0][0].device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self._optimizer.step()
        with torch.no_grad():
            for parameter, master in pairs:
                parameter.copy_(master, non_blocking=True)


def _zero1(
    groups: list[dict[str, Any]], settings: dict[str, Any], ranks: Ranks
) -> ZeroRedundancyOptimizer:
    """Whole parameters, each one's state on one rank, and sent to the others after the step."""
    first, *rest = groups
    decay = first.pop("weight_decay")
    optimizer = ZeroRedundancyOptimizer(
        first["params"],
        optimizer_class=torch.optim.AdamW,
        process_group=ranks.mesh.get_group("replicate"),
        weight_decay=decay,
        **settings,
    )
    for group in rest:
        optimizer.add_param_group({**settings, **group})
    return optimizer


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Of step 0 .. steps - 1: up from 0 over the warm-up, then as the schedule says, down to min_lr_share.

    cosine: Loshchilov and Hutter 2017, equation 5. wsd: Hu et al. 2024 (MiniCPM), section 4, with a line at the end.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    if config.schedule == "constant":
        share = 1.0
    elif config.schedule == "cosine":
        share = (1 + math.cos(math.pi * progress)) / 2
    elif config.schedule == "linear":
        share = 1 - progress
    else:
        # decay_share of all steps, as far as the warm-up leaves room
        decay_steps = min(config.decay_share * steps, steps - config.warmup_steps)
        share = min(1.0, (steps - step) / decay_steps) if decay_steps else 1.0
    return config.learning_rate * (config.min_lr_share + (1 - config.min_lr_share) * share)
