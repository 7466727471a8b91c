"""torchtitan 0.2.2 on the same shape: its trainer, step by step, on batches in memory.

It computes what the other entrants compute: causal SDPA over whole rows, weights that are not tied,
no recomputation, gradients accumulated over micro-batches. It saves and logs nothing.
"""

from __future__ import annotations

import functools
import importlib
import sys
import tempfile
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.training.bare import draw_token_batches
from benchmarks.training.cases import Case, Size
from benchmarks.training.entrants import imitate_torchrun, measure_rounds, time_steps

SPEC_NAME = FLAVOR = "benchmark"

# Modules that torchtitan imports and this entrant does not use, with the names that it takes. Bare
# machines lack tensorboard, pandas and pyarrow.
UNUSED = {
    "torch.utils.tensorboard": ("SummaryWriter",),
    "datasets": ("Dataset", "load_dataset"),
    "datasets.distributed": ("split_dataset_by_node",),
}


def open_trainer(case: Case) -> Any:
    """Return torchtitan's trainer, built from its JobConfig."""
    imitate_torchrun()
    replace_missing_modules()
    if not torch.cuda.is_available():
        _use_cpu()
    from torchtitan.protocols.train_spec import register_train_spec
    from torchtitan.train import Trainer

    register_train_spec(SPEC_NAME, _make_train_spec(case))
    return Trainer(_make_job_config(case))


def measure_titan(case: Case) -> dict[str, Any]:
    """Measure torchtitan's trainer."""
    began = time.perf_counter()
    trainer = open_trainer(case)
    rows = trainer.batch_generator(trainer.dataloader)

    def step() -> None:
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        trainer.train_step(rows)

    return measure_rounds(case, functools.partial(time_steps, case, step), began)


def replace_missing_modules() -> None:
    """Put empty modules in the place of unused ones that cannot be imported."""
    for name, members in UNUSED.items():
        try:
            importlib.import_module(name)
        except ImportError:
            module = ModuleType(name)
            vars(module).update(dict.fromkeys(members))
            sys.modules[name] = module


def make_model_args(size: Size) -> Any:
    """Return torchtitan's description of the shape.

    Its feed-forward width is 8/3 * dim * ffn_dim_multiplier, rounded up to multiple_of: 8192 for
    dim 2048, 1.5 and 1024.
    """
    from torchtitan.models.llama3 import TransformerModelArgs

    shape = size.shape
    ffn_dim = shape["ffn_dim"]
    multiple_of = 1024 if ffn_dim % 1024 == 0 else ffn_dim
    return TransformerModelArgs(
        dim=shape["dim"],
        n_layers=shape["num_layers"],
        n_heads=shape["num_heads"],
        n_kv_heads=shape["num_kv_heads"],
        vocab_size=size.vocab_size,
        # Rounded down before it is rounded up to the multiple.
        ffn_dim_multiplier=ffn_dim * 3 / (8 * shape["dim"]),
        multiple_of=multiple_of,
        rope_theta=500_000,
    )


def _make_train_spec(case: Case) -> Any:
    from torchtitan.components.loss import build_cross_entropy_loss
    from torchtitan.components.lr_scheduler import build_lr_schedulers
    from torchtitan.components.optimizer import build_optimizers
    from torchtitan.models.llama3 import Transformer, parallelize_llama
    from torchtitan.protocols.train_spec import TrainSpec

    return TrainSpec(
        model_cls=Transformer,
        model_args={FLAVOR: make_model_args(case.size)},
        parallelize_fn=parallelize_llama,
        pipelining_fn=None,
        build_optimizers_fn=build_optimizers,
        build_lr_schedulers_fn=build_lr_schedulers,
        build_dataloader_fn=lambda **_: _Batches(case),  # type: ignore[arg-type]
        build_tokenizer_fn=None,
        build_loss_fn=build_cross_entropy_loss,
        build_metrics_processor_fn=lambda *_: _NoMetrics(),  # type: ignore[arg-type]
    )


def _make_job_config(case: Case) -> Any:
    from torchtitan.config import JobConfig

    config = JobConfig()
    config.job.dump_folder = tempfile.mkdtemp(prefix="titan-")
    config.model.name, config.model.flavor = SPEC_NAME, FLAVOR
    config.optimizer.lr = 3e-4
    training = config.training
    training.local_batch_size = case.micro_batch_rows
    training.global_batch_size = case.global_batch_rows
    training.seq_len = case.seq_len
    training.steps = 10**6
    config.lr_scheduler.warmup_steps = 10
    config.compile.enable = case.size.compile
    config.activation_checkpoint.mode = "none"
    return config


def _use_cpu() -> None:
    """Let torchtitan compute on the CPU. Without an accelerator it would take CUDA."""
    import torchtitan.train

    assert torchtitan.train  # imports all modules that are needed here
    for name, module in list(sys.modules.items()):
        # Each module has copied these names.
        if name.startswith("torchtitan.") and hasattr(module, "device_type"):
            module.device_type, module.device_module = "cpu", torch.cpu


class _Batches:
    """An endless iterator of a few batches in memory."""

    def __init__(self, case: Case) -> None:
        batches = draw_token_batches(case)
        self._batches = batches.pin_memory() if torch.cuda.is_available() else batches

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            for batch in self._batches:
                yield {"input": batch[:, :-1]}, batch[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class _NoMetrics:
    """What torchtitan's trainer needs of a MetricsProcessor, without logs."""

    def __init__(self) -> None:
        self.color = SimpleNamespace(blue="", red="", reset="")
        self.device_memory_monitor = SimpleNamespace(
            device_name="NVIDIA H100",
            get_peak_stats=lambda: SimpleNamespace(
                max_reserved_gib=0.0, max_reserved_pct=0.0
            ),
        )
        self.num_flops_per_token = self.ntokens_since_last_log = 0
        self.data_loading_times: list[float] = []
        self.optimizers = self.model_parts = None

    def should_log(self, _: int) -> bool:
        return False

    def close(self) -> None:
        pass
