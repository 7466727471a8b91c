"""Checks of whole steps of the trainer."""

from __future__ import annotations

import gc
import gzip
import json
import math
import pickle
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from benchmarks.training.checks.check import Check, NotAvailable, expect, generate_code
from benchmarks.training.ours import Ours, make_config, plan
from training.config import ModelConfig
from training.model.decoder import FeedForward
from training.parallel import distributed
from training.parallel.activation_offload import ActivationOffload
from training.trainer import Trainer

# Losses of forms that compute in bf16 in another order, and of float8.
MAX_LOSS_ERROR = 0.01
MAX_FLOAT8_LOSS_ERROR = 0.03

# Of the planner: the same as on CPUs, and 5 % more for the workspaces of libraries.
MAX_PLAN_ERROR = 0.15


@contextmanager
def open_ours(spec: Mapping[str, Any], **settings: Any) -> Generator[Ours]:
    """Build the trainer with other settings, and close it."""
    ours = Ours({**spec, "settings": settings})
    try:
        yield ours
    finally:
        ours.close()
        del ours
        gc.collect()


def _run(spec: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the figures of three steps."""
    with open_ours(spec, **settings) as ours:
        return ours.run(2)


def _compare_losses(found: float, expected: float, limit: float = MAX_LOSS_ERROR) -> str:
    difference = abs(found / expected - 1)
    text = f"loss {found:.4f}, {expected:.4f} without"
    expect(difference < limit, text)
    return text


def _copy_state(trainer: Trainer) -> dict[str, Tensor]:
    state = {**trainer.parameters, **trainer.optimizer.state_tensors()}
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        found[name] = local.detach().clone()
    return found


def _check_guard(spec: Mapping[str, Any]) -> str:
    """A bad step of fused AdamW changes nothing; the next good one changes every tensor."""
    with open_ours(spec, anomaly_guard={"spike_factor": 100}) as ours:
        trainer = ours.trainer

        def step(factor: float) -> dict[str, Tensor]:
            micro_batches = trainer.batches.read_step(trainer.step)
            scale = torch.tensor(factor, device=trainer.context.device)
            trainer._accumulate(micro_batches, scale)  # noqa: SLF001
            norm = trainer.optimizer.clip_gradients().double()
            loss = torch.ones_like(norm)
            trainer.optimizer.step(0.01, trainer.anomaly_guard.find_bad(loss, norm))
            trainer.optimizer.zero_grad()
            trainer.step += 1
            return _copy_state(trainer)

        before, bad, good = step(1e-3), step(math.nan), step(1e-3)
    changed = [name for name in before if not torch.equal(before[name], bad[name])]
    expect(not changed, f"a bad step changed {changed[:3]}")
    same = [name for name in before if torch.equal(before[name], good[name])]
    expect(not same, f"a good step did not change {same[:3]}")
    return f"{len(before)} tensors"


def _check_waits(spec: Mapping[str, Any]) -> str:
    """Torch raises an error at each operation that waits for the device."""
    with open_ours(spec, data={"document_masks": True}) as ours:
        ours.run(1)
        trainer = ours.trainer
        micro_batches = trainer.batches.read_step(trainer.step)
        torch.cuda.set_sync_debug_mode("error")
        try:
            figures = trainer._train_step(micro_batches, wants_stop=False)  # noqa: SLF001
        finally:
            torch.cuda.set_sync_debug_mode("default")
        figures.read()
    return "none in a step"


def _check_memory(spec: Mapping[str, Any]) -> str:
    gc.collect()
    torch.cuda.empty_cache()
    held_gib = torch.cuda.memory_allocated() / 2**30
    found = _run(spec)["active_peak_gib"] - held_gib
    planned = plan(spec)["gib"]
    text = f"{found:.2f} GiB, planned {planned:.2f}"
    expect(abs(planned / found - 1) < MAX_PLAN_ERROR, text)
    return text


def _check_offload(spec: Mapping[str, Any]) -> str:
    """Gradients of a chain of feed-forward layers have the same bits with offload."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = spec["shape"]
    torch.manual_seed(0)
    with device:
        config = ModelConfig(**{**shape, "vocab_size": spec["vocab_size"]})
        layers = nn.ModuleList(FeedForward(config) for _ in range(8))
        inputs = torch.randn(4, 512, shape["dim"])
    found: list[list[Tensor]] = []
    for is_offloaded in (False, True):
        offload = ActivationOffload(device, min_bytes=1)
        hidden: Any = inputs
        for index, layer in enumerate(layers):
            forward: Any = layer
            if is_offloaded:
                forward = offload.wrap(layer.forward, is_last=index == 7)
            hidden = hidden + forward(hidden)
        grads = torch.autograd.grad(hidden.square().mean(), list(layers.parameters()))
        found.append(list(grads))
    for one, other in zip(*found, strict=True):
        expect(torch.equal(one, other), "a gradient differs")
    with open_ours(spec, parallel={"activation_offload": True}) as ours:
        loss = ours.run(2)["loss"]
    return f"equal gradients; {_compare_losses(loss, _run(spec)['loss'])}"


def _check_checkpointing(spec: Mapping[str, Any]) -> str:
    """Selective and full checkpointing have the same loss, within documents."""
    data = {"document_masks": True}
    expected = _run(spec, data=data)["loss"]
    texts: list[str] = []
    for mode in ("selective", "full"):
        parallel = {"activation_checkpointing": mode}
        loss = _run(spec, data=data, parallel=parallel)["loss"]
        texts.append(f"{mode}: {_compare_losses(loss, expected)}")
    return "; ".join(texts)


def _check_compiled(spec: Mapping[str, Any]) -> str:
    """With document masks, compiled blocks have the same loss as eager ones, and are compiled once."""
    counters = torch._dynamo.utils.counters["stats"]  # noqa: SLF001
    data = {"document_masks": True}
    expected = _run(spec, data=data)["loss"]
    before = counters["unique_graphs"]
    precision = {"compile": True, "loss_kernel": "eager"}
    with generate_code():
        loss = _run(spec, data=data, precision=precision)["loss"]
    num_graphs = counters["unique_graphs"] - before
    # A second one is allowed for another number of documents.
    expect(1 <= num_graphs <= 2, f"{num_graphs} compilations")
    return f"{_compare_losses(loss, expected)}; {num_graphs} compilations"


def _check_float8(spec: Mapping[str, Any]) -> str:
    if find_spec("torchao") is None:
        raise NotAvailable("torchao is not installed")
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        raise NotAvailable(f"{torch.cuda.get_device_name()} has no float8 products")
    expected = _run(spec)["loss"]
    texts: list[str] = []
    for recipe in ("tensorwise", "rowwise"):
        precision = {"float8": recipe, "float8_layers": "all"}
        loss = _run(spec, precision=precision)["loss"]
        text = _compare_losses(loss, expected, MAX_FLOAT8_LOSS_ERROR)
        texts.append(f"{recipe}: {text}")
    return "; ".join(texts)


def _check_checkpoint(spec: Mapping[str, Any]) -> str:
    """A second trainer restores the bits that the first has saved."""
    with TemporaryDirectory(prefix="checks-") as folder, ExitStack() as closing:
        more = {"settings": {"checkpoint": {"every_steps": 2}}}
        config = make_config({**spec, **more}, folder).model_copy(update={"steps": 2})
        context = distributed.init_distributed(
            config.parallel, timeout_s=60, dump_dir=Path(folder)
        )
        closing.callback(distributed.shutdown_distributed)
        saved = Trainer(config, context, closing)
        saved.run()
        restored = Trainer(config, context, closing)
        expect(restored.step == 2, f"step {restored.step} instead of 2")
        one, other = _copy_state(saved), _copy_state(restored)
        changed = [name for name in one if not torch.equal(one[name], other[name])]
        expect(not changed, f"restored with other bits: {changed[:3]}")
        expect(saved.batches.position == restored.batches.position, "another row")
    return f"{len(one)} tensors"


def _check_trace(spec: Mapping[str, Any]) -> str:
    """The trace of a step has kernels, and the memory snapshot has segments."""
    watching = {"profile_steps": [2, 2], "memory_snapshot": True}
    with open_ours(spec, observability=watching) as ours:
        ours.run(2)
        folder = Path(ours.config.run_dir)
        (path,) = (folder / "profile").iterdir()
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        kinds = {str(event.get("cat")) for event in events}
        expect("cpu_op" in kinds, f"no operators among {sorted(kinds)}")
        if not torch.cuda.is_available():
            return f"{len(events)} events"
        expect("kernel" in kinds, f"no kernels among {sorted(kinds)}")
        (snapshot,) = folder.glob("memory-rank*.pickle")
        # Written by this process a moment ago.
        segments = pickle.loads(snapshot.read_bytes())["segments"]  # noqa: S301
        expect(segments, "no segments in the snapshot")
    return f"{len(events)} events, {len(segments)} segments"


CHECKS = (
    Check("bad steps", _check_guard, needs_cuda=False),
    Check("no waiting", _check_waits),
    Check("peak memory", _check_memory),
    Check("activation offload", _check_offload, needs_cuda=False),
    Check("activation checkpointing", _check_checkpointing, needs_cuda=False),
    Check("compiled blocks", _check_compiled, needs_cuda=False),
    Check("float8", _check_float8, needs_cuda=False),
    Check("checkpoint", _check_checkpoint, needs_cuda=False),
    Check("trace", _check_trace, needs_cuda=False),
)
