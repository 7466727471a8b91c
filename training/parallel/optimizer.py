"""AdamW and Muon for every sharding strategy, and the learning rate schedule.

Moments and master weights are fp32. The state is exposed under the names of the parameters, so a
checkpoint of one strategy can be loaded by any other.
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
from training.parallel.distributed import RankContext
from training.parallel.muon import Muon

# Added to the square root of the second moment (Kingma and Ba 2015).
ADAM_EPS = 1e-8

# Decay of Muon's momentum (Jordan et al. 2024).
MUON_MOMENTUM = 0.95


class Optimizer:
    """AdamW (Loshchilov and Hutter 2019) over the parameters that require a gradient.

    If configured, Muon updates the matrices of the blocks instead.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        config: OptimizerConfig,
        parallel: ParallelConfig,
        context: RankContext,
        compute_dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._parameters: dict[str, nn.Parameter] = {}
        for name, parameter in parameters.items():
            if parameter.requires_grad:
                self._parameters[name] = parameter
        self._steps_on_host = parallel.offload == "optimizer"
        # The optimizer updates the masters: the parameters themselves, or copies in CPU memory.
        self._masters = self._parameters
        if self._steps_on_host:
            pin_memory = context.device.type == "cuda"
            self._masters = _copy_to_host(self._parameters, pin_memory=pin_memory)
        settings: dict[str, Any] = {
            "lr": config.learning_rate,
            "betas": config.betas,
            "eps": ADAM_EPS,
            "fused": True,
        }
        groups = self._make_groups()
        if parallel.strategy == "zero1" and context.world_size > 1:
            zero1: Any = _make_zero1(groups, settings, context)
            self._optimizers: list[torch.optim.Optimizer] = [zero1]
            # The inner optimizer has the state of this rank's parameters.
            self._state_owners: list[torch.optim.Optimizer] = [zero1.optim]
        else:
            self._optimizers = [torch.optim.AdamW(groups, **settings)]
            if config.algorithm == "muon":
                self._optimizers.append(self._make_muon(compute_dtype))
            self._state_owners = self._optimizers
        self._init_state()

    def clip_gradients(self) -> Tensor:
        """Scale the gradients down to max_grad_norm.

        Returns:
            The norm before clipping, over all ranks, as a scalar tensor.
        """
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = get_total_norm(gradients)
        if isinstance(norm, DTensor):
            # With shards, each rank has only a part of the norm. This is the collective that adds
            # them up.
            norm = norm.full_tensor()
        # Scales on the device, without waiting for the value of the norm.
        clip_grads_with_norm_(self._parameters.values(), self._config.max_grad_norm, norm)
        return norm

    def step(self, learning_rate: float, is_bad: Tensor) -> None:
        """Update the parameters from their gradients, unless the step is bad.

        Args:
            learning_rate: of this step.
            is_bad: fp32 scalar; 1.0 leaves parameters and state unchanged. The host does not read
                it if the optimizer steps on the same device.
        """
        # Fused AdamW skips its update if this attribute is 1, as for torch's GradScaler.
        found_inf = is_bad.to(next(iter(self._masters.values())).device)
        for owner in self._state_owners:
            vars(owner)["found_inf"] = found_inf
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        if self._steps_on_host:
            self._step_on_host()
        else:
            self._step_all()

    def zero_grad(self) -> None:
        """Free the gradients."""
        for parameter in self._parameters.values():
            # None and not zeros: the memory is free during the next forward pass.
            parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the live state tensors of this rank.

        Keys are `<parameter>.exp_avg`, `<parameter>.exp_avg_sq` and `<parameter>.step` (AdamW), or
        `<parameter>.momentum_buffer` (Muon).
        """
        # By identity, because comparing tensors compares their values.
        names = {id(master): name for name, master in self._masters.items()}
        tensors: dict[str, Tensor] = {}
        for owner in self._state_owners:
            for master, values in owner.state.items():
                for key, value in values.items():
                    tensors[f"{names[id(master)]}.{key}"] = value
        return tensors

    def sync_masters(self) -> None:
        """Copy the parameters to their masters in CPU memory. Call it after loading weights."""
        if self._steps_on_host:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    self._masters[name].copy_(parameter)

    def _make_groups(self) -> list[dict[str, Any]]:
        """Return AdamW's parameter groups: matrices with weight decay, norms without."""
        # Decay pulls weights to 0, which would shrink the norms' scales (initially 1).
        matrices: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        for name, master in self._masters.items():
            if self._is_for_muon(name):
                continue
            (matrices if master.ndim > 1 else vectors).append(master)
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": self._config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def _is_for_muon(self, name: str) -> bool:
        return self._config.algorithm == "muon" and is_hidden_matrix(
            name, self._masters[name].ndim
        )

    def _make_muon(self, compute_dtype: torch.dtype) -> Muon:
        config = self._config
        return Muon(
            [master for name, master in self._masters.items() if self._is_for_muon(name)],
            lr=config.learning_rate,
            momentum=MUON_MOMENTUM,
            weight_decay=config.weight_decay,
            compute_dtype=compute_dtype,
        )

    def _init_state(self) -> None:
        """Create the state that the optimizers would create in their first step.

        A checkpoint is loaded into live tensors, so they must exist before the first step.
        """
        for owner in self._state_owners:
            for group in owner.param_groups:
                for master in group["params"]:
                    if isinstance(owner, Muon):
                        owner.state[master] = {"momentum_buffer": torch.zeros_like(master)}
                        continue
                    owner.state[master] = {
                        # Fused kernels want the step count on the device of the parameter.
                        "step": torch.zeros((), dtype=torch.float32, device=master.device),
                        "exp_avg": _make_moment(master),
                        "exp_avg_sq": _make_moment(master),
                    }

    def _step_all(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()

    def _step_on_host(self) -> None:
        """Copy gradients to CPU memory, step there, and copy the parameters back."""
        pairs = [(self._parameters[name], master) for name, master in self._masters.items()]
        for parameter, master in pairs:
            assert parameter.grad is not None
            assert master.grad is not None
            master.grad.copy_(parameter.grad, non_blocking=True)
        if pairs[0][0].device.type == "cuda":
            # The CPU must not read the gradients before the copies have ended.
            torch.cuda.current_stream().synchronize()
        self._step_all()
        with torch.no_grad():
            for parameter, master in pairs:
                # No wait: the next forward pass runs on the same stream, and the masters change
                # only in the next step.
                parameter.copy_(master, non_blocking=True)


def is_hidden_matrix(name: str, num_dims: int) -> bool:
    """Return whether a parameter is a matrix of a block. Embedding and output are not."""
    return name.startswith("layers.") and num_dims == 2


def _make_moment(master: nn.Parameter) -> Tensor:
    return torch.zeros_like(master, memory_format=torch.preserve_format)


def _copy_to_host(
    parameters: Mapping[str, nn.Parameter], *, pin_memory: bool
) -> dict[str, nn.Parameter]:
    """Return a master of each parameter in CPU memory, with memory for its gradient."""
    masters: dict[str, nn.Parameter] = {}
    for name, parameter in parameters.items():
        source = parameter.detach()
        master = nn.Parameter(torch.empty_like(source, device="cpu", pin_memory=pin_memory))
        # Allocated once: pinning memory in every step would be slow.
        master.grad = torch.empty_like(source, device="cpu", pin_memory=pin_memory)
        with torch.no_grad():
            master.copy_(source)
        masters[name] = master
    return masters


def _make_zero1(
    groups: list[dict[str, Any]], settings: dict[str, Any], context: RankContext
) -> ZeroRedundancyOptimizer:
    """Return an optimizer that keeps the state of each parameter on one rank.

    That rank updates the parameter and broadcasts it after the step.
    """
    first, *rest = groups
    weight_decay = first.pop("weight_decay")
    optimizer = ZeroRedundancyOptimizer(
        first["params"],
        optimizer_class=torch.optim.AdamW,
        process_group=context.mesh.get_group("replicate"),
        weight_decay=weight_decay,
        **settings,
    )
    # Its constructor takes only one group.
    for group in rest:
        optimizer.add_param_group({**settings, **group})
    return optimizer


def compute_learning_rate(step: int, num_steps: int, config: OptimizerConfig) -> float:
    """Return the learning rate of a step: linear warm-up, then the configured schedule.

    cosine: Loshchilov and Hutter 2017, equation 5. wsd: Hu et al. 2024 (MiniCPM), section 4, with
    a linear decay.

    Args:
        step: 0 .. num_steps - 1.
        num_steps: steps of the whole run.
        config: schedule, peak and end of the learning rate.
    """
    if step < config.warmup_steps:
        # step + 1: the first step already has a learning rate above 0.
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps)
    if config.schedule == "constant":
        share = 1.0
    elif config.schedule == "cosine":
        share = (1 + math.cos(math.pi * progress)) / 2
    elif config.schedule == "linear":
        share = 1 - progress
    else:
        # wsd: decay_share counts all steps, but the decay cannot begin before the warm-up ends.
        decay_steps = min(config.decay_share * num_steps, num_steps - config.warmup_steps)
        share = min(1.0, (num_steps - step) / decay_steps) if decay_steps else 1.0
    return config.learning_rate * (config.min_lr_share + (1 - config.min_lr_share) * share)
