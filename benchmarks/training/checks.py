"""Checks of what the trainer assumes about CUDA: a part of the GPU suite, with a row each in docs/training.md.

A check returns figures for its line, and raises an error if the assumption is wrong.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import os
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.training import kernels
from benchmarks.training.apart import describe_error
from benchmarks.training.cases import Case
from benchmarks.training.entrants import Ours, imitate_torchrun, make_config, plan
from loader import TokenLoader
from training.config import ModelConfig, ParallelConfig
from training.model import attention
from training.model.attention import AttentionMask, attend, make_document_mask
from training.model.decoder import FeedForward
from training.parallel import distributed
from training.parallel.activation_offload import ActivationOffload
from training.parallel.agreement import RankGroup
from training.parallel.muon import Muon
from training.trainer import Trainer

# The model of checks on a GPU: heads of 64, as those of the suite's model.
GPU_SHAPE = {
    "dim": 512,
    "num_layers": 4,
    "num_heads": 8,
    "num_kv_heads": 2,
    "ffn_dim": 1536,
}

NUM_BATCHES = 8

# Of output and gradients of attention, relative to fp32. bf16 rounds by up to 2**-9 = 0.2 %.
MAX_ERROR = 0.02

# Heads of one row. The fp32 reference computes all T * T scores of each.
NUM_HEADS = 8

# Losses of forms that compute in bf16 in another order, and of float8.
MAX_LOSS_ERROR = 0.01
MAX_FLOAT8_LOSS_ERROR = 0.03

# Of the planner: the same as on CPUs, and 5 % more for the workspaces of libraries.
MAX_PLAN_ERROR = 0.15


class NotAvailable(Exception):
    """The machine lacks something that the check needs; the message says what."""


def expect(is_true: object, message: str) -> None:
    """Raise an AssertionError with a message, unless the condition is true."""
    if not is_true:
        raise AssertionError(message)


def measure_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference, relative to that of the expected tensor."""
    difference = found.double() - expected.double()
    return float(difference.norm() / expected.double().norm())


def generate_code() -> AbstractContextManager[object]:
    """Let torch.compile generate code on a GPU. On a CPU it only traces: code takes a minute."""
    if torch.cuda.is_available():
        return nullcontext()
    return torch.compiler.set_stance("default", force_backend="aot_eager")


# ---- the device: its allocator, its process group, and copies of the loader ----


def _check_contexts(case: Case) -> str:
    """Only the GPU of this rank has a CUDA context after steps with the loader's thread."""
    num_gpus = torch.cuda.device_count()
    if num_gpus < 2:
        raise NotAvailable("needs two GPUs")
    # A wrong device would be the first one.
    os.environ["LOCAL_RANK"] = str(num_gpus - 1)
    with closing(Ours(case, {"data": {"document_masks": True}})) as ours:
        ours.run(1)
    has_context: Any = torch._C._cuda_hasPrimaryContext  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]
    found = [index for index in range(num_gpus) if has_context(index)]
    expect(found == [num_gpus - 1], f"contexts on GPUs {found}")
    return f"only on GPU {num_gpus - 1}"


def _check_segments(_: Case) -> str:
    """The allocator takes the setting that init_distributed makes."""
    with TemporaryDirectory(prefix="checks-") as folder:
        context = distributed.init_distributed(
            ParallelConfig(), timeout_s=60, dump_dir=Path(folder)
        )
        held = torch.zeros(1 << 28, dtype=torch.uint8, device=context.device)
        segments = torch.cuda.memory_snapshot()
        num_expandable = sum(bool(segment.get("is_expandable")) for segment in segments)
        del held
        distributed.shutdown_distributed()
    setting = os.environ.get("PYTORCH_ALLOC_CONF")
    expect(num_expandable, f"none of {len(segments)} segments; setting {setting}")
    return f"{num_expandable} of {len(segments)} segments, {setting}"


def _check_device_id(_: Case) -> str:
    """NCCL connects at the start; both backends and the mesh work, and timeouts can be set."""
    imitate_torchrun()
    with TemporaryDirectory(prefix="checks-") as folder:
        context = distributed.init_distributed(
            ParallelConfig(), timeout_s=60, dump_dir=Path(folder), eager_connections=True
        )
        for device in (context.device, torch.device("cpu")):
            found = context.max_over_ranks(torch.ones(4, device=device))
            dist.all_reduce(found)
            expect(found.sum() == 4, f"a sum of {found.sum()} on {device}")
        context.set_timeout(30)
        RankGroup(context).close()
        distributed.shutdown_distributed()
    return "NCCL and gloo reduce"


def open_loader(case: Case, device: torch.device | None = None) -> TokenLoader:
    """Open the dataset of a spec; batches have both forms of documents."""
    return TokenLoader(
        case.dataset,
        seq_len=case.seq_len,
        global_batch_rows=case.micro_batch_rows,
        documents=("cu_seqlens", "document_ids"),
        device=device,
    )


def _check_copies(case: Case) -> str:
    """Batches on the device equal those on the host, while the device is busy."""
    device = torch.device("cuda", torch.cuda.current_device())
    on_host, on_device = open_loader(case), open_loader(case, device)
    matrix = torch.randn(4096, 4096, device=device)
    for number in range(NUM_BATCHES):
        for _ in range(20):
            matrix = (matrix @ matrix).clamp(-1, 1)
        found, expected = next(on_device), next(on_host)
        expect(found.keys() == expected.keys(), "another set of entries")
        for name, value in expected.items():
            if isinstance(value, torch.Tensor):
                expect(found[name].is_cuda, f"{name} is not on the device")
                same = torch.equal(found[name].cpu(), value)
                expect(same, f"{name} differs in batch {number}")
    return f"{NUM_BATCHES} batches"


# ---- kernels: attention, the compiled loss, and Muon ----


def _compare_attention(case: Case, name: str, widths: tuple[int, ...] = (1, 2)) -> str:
    """Compare a form of attention with fp32 at each length and width of heads."""
    worst = 0.0
    shape = case.size.shape
    usual = shape["dim"] // shape["num_heads"]
    for seq_len in case.size.seq_lens:
        for factor in widths:
            torch.manual_seed(0)
            sizes = (1, seq_len, NUM_HEADS, factor * usual)
            heads = kernels.make_heads(sizes, *kernels.choose_device())
            forms = kernels.make_attention(*heads, compiles=True)
            try:
                found = forms[name]()
            except (ImportError, ValueError) as error:
                if "flash3" not in name:
                    raise
                raise NotAvailable(f"no FlashAttention 3: {error}") from error
            expected = _compute_reference(*heads, is_packed="documents" in name)
            for one, other in zip(found, expected, strict=True):
                error = measure_error(one, other)
                expect(error < MAX_ERROR, f"error {error:.2g} at {seq_len}, {sizes[3]}")
                worst = max(worst, error)
    return f"largest error {worst:.1e}"


def _compute_reference(
    query: Tensor, key: Tensor, value: Tensor, *, is_packed: bool
) -> tuple[Tensor, ...]:
    """Return output and gradients in fp32, with all scores in memory."""
    mask = AttentionMask()
    if is_packed:
        documents = kernels.number_documents(query, kernels.make_cu_seqlens(query))
        mask = make_document_mask(documents)
    heads = [tensor.detach().float().requires_grad_() for tensor in (query, key, value)]
    with sdpa_kernel(SDPBackend.MATH):
        attended = attend(heads[0], heads[1], heads[2], mask)
    weights = torch.linspace(-1, 1, attended.shape[-1], device=attended.device)
    grads = torch.autograd.grad(attended, heads, weights.expand_as(attended))
    return attended.detach(), *grads


def _check_repeated_heads(case: Case) -> str:
    """Compare the variable-length kernel without `enable_gqa`, as with torch 2.11."""
    before = attention._VARLEN_HAS_GQA  # noqa: SLF001
    attention._VARLEN_HAS_GQA = False  # noqa: SLF001
    try:
        return _compare_attention(case, "documents, varlen")
    finally:
        attention._VARLEN_HAS_GQA = before  # noqa: SLF001


def _check_shared_heads(case: Case) -> str:
    """Compare the variable-length kernel with `enable_gqa`."""
    if not attention._VARLEN_HAS_GQA:  # noqa: SLF001
        raise NotAvailable(f"torch {torch.__version__} has no enable_gqa there")
    return _compare_attention(case, "documents, varlen")


def _check_loss(case: Case) -> str:
    """Compare gradients of the compiled loss with those of the eager one."""
    torch.manual_seed(0)
    compiled = replace(case, size=replace(case.size, compile=True))
    forms = kernels.make_losses(compiled, case.size.vocab_size, *kernels.choose_device())
    worst = 0.0
    with generate_code():
        found = forms["compiled"]()
    for one, other in zip(found, forms["eager"](), strict=True):
        error = measure_error(one, other)
        expect(error < MAX_ERROR / 4, f"error {error:.2g} of a gradient")
        worst = max(worst, error)
    return f"largest error {worst:.1e}"


def _check_muon(_: Case) -> str:
    """Compare ten steps in bf16 with those of torch.optim.Muon."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(5)
    draw = functools.partial(torch.randn, generator=generator, device=device)
    ours = [torch.nn.Parameter(draw(shape)) for shape in ((96, 32), (32, 96), (64, 64))]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    settings: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    muon = Muon(ours, compute_dtype=torch.bfloat16, **settings)
    for matrix in ours:
        muon.state[matrix] = {"momentum_buffer": torch.zeros_like(matrix)}
    reference = torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(10):
        for matrix, copy in zip(ours, theirs, strict=True):
            matrix.grad = draw(matrix.shape)
            copy.grad = matrix.grad.clone()
        muon.step()
        reference.step()
    worst = max(measure_error(one, other) for one, other in zip(ours, theirs, strict=True))
    expect(worst < 1e-2, f"parameters differ by {worst:.2g}")
    return f"parameters differ by {worst:.1e}"


# ---- whole steps of the trainer ----


def _run(case: Case, **settings: Any) -> dict[str, Any]:
    """Return the figures of three steps."""
    with closing(Ours(case, settings)) as ours:
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


def _check_guard(case: Case) -> str:
    """A bad step of fused AdamW changes nothing; the next good one changes every tensor."""
    with closing(Ours(case, {"anomaly_guard": {"spike_factor": 100}})) as ours:
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


def _check_waits(case: Case) -> str:
    """Torch raises an error at each operation that waits for the device."""
    with closing(Ours(case, {"data": {"document_masks": True}})) as ours:
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


def _check_memory(case: Case) -> str:
    found = _run(case)["active_peak_gib"]
    planned = plan(case, {})["planned_gib"]
    text = f"{found:.2f} GiB, planned {planned:.2f}"
    expect(abs(planned / found - 1) < MAX_PLAN_ERROR, text)
    return text


def _check_offload(case: Case) -> str:
    """Gradients of a chain of feed-forward layers have the same bits with offload."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = case.size.shape
    torch.manual_seed(0)
    with device:
        config = ModelConfig(**{**shape, "vocab_size": case.size.vocab_size})
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
    with closing(Ours(case, {"parallel": {"activation_offload": True}})) as ours:
        loss = ours.run(2)["loss"]
    return f"equal gradients; {_compare_losses(loss, _run(case)['loss'])}"


def _check_checkpointing(case: Case) -> str:
    """Selective and full checkpointing have the same loss, within documents."""
    data = {"document_masks": True}
    expected = _run(case, data=data)["loss"]
    texts: list[str] = []
    for mode in ("selective", "full"):
        parallel = {"activation_checkpointing": mode}
        loss = _run(case, data=data, parallel=parallel)["loss"]
        texts.append(f"{mode}: {_compare_losses(loss, expected)}")
    return "; ".join(texts)


def _check_compiled(case: Case) -> str:
    """With document masks, compiled blocks have the same loss as eager ones, and are compiled once."""
    counters = torch._dynamo.utils.counters["stats"]  # noqa: SLF001
    data = {"document_masks": True}
    expected = _run(case, data=data)["loss"]
    before = counters["unique_graphs"]
    precision = {"compile": True, "loss_kernel": "eager"}
    with generate_code():
        loss = _run(case, data=data, precision=precision)["loss"]
    num_graphs = counters["unique_graphs"] - before
    # A second one is allowed for another number of documents.
    expect(1 <= num_graphs <= 2, f"{num_graphs} compilations")
    return f"{_compare_losses(loss, expected)}; {num_graphs} compilations"


def _check_float8(case: Case) -> str:
    if find_spec("torchao") is None:
        raise NotAvailable("torchao is not installed")
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        raise NotAvailable(f"{torch.cuda.get_device_name()} has no float8 products")
    expected = _run(case)["loss"]
    texts: list[str] = []
    for recipe in ("tensorwise", "rowwise"):
        precision = {"float8": recipe, "float8_layers": "all"}
        loss = _run(case, precision=precision)["loss"]
        text = _compare_losses(loss, expected, MAX_FLOAT8_LOSS_ERROR)
        texts.append(f"{recipe}: {text}")
    return "; ".join(texts)


def _check_checkpoint(case: Case) -> str:
    """A second trainer restores the bits that the first has saved."""
    with TemporaryDirectory(prefix="checks-") as folder, ExitStack() as ended:
        config = make_config(case, {"checkpoint": {"every_steps": 2}}, folder)
        config = config.model_copy(update={"steps": 2})
        context = distributed.init_distributed(
            config.parallel, timeout_s=60, dump_dir=Path(folder)
        )
        ended.callback(distributed.shutdown_distributed)
        saved = Trainer(config, context, ended)
        saved.run()
        restored = Trainer(config, context, ended)
        expect(restored.step == 2, f"step {restored.step} instead of 2")
        one, other = _copy_state(saved), _copy_state(restored)
        changed = [name for name in one if not torch.equal(one[name], other[name])]
        expect(not changed, f"restored with other bits: {changed[:3]}")
        expect(saved.batches.position == restored.batches.position, "another row")
    return f"{len(one)} tensors"


def _check_trace(case: Case) -> str:
    """The trace of a step has kernels, and the memory snapshot has segments."""
    watching = {"profile_steps": [2, 2], "memory_snapshot": True}
    with closing(Ours(case, {"observability": watching})) as ours:
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


# ---- all checks ----

# By name, in the order of docs/training.md.
CHECKS: dict[str, Callable[[Case], str]] = {
    "one context": _check_contexts,
    "expandable segments": _check_segments,
    "device_id": _check_device_id,
    "loader copies": _check_copies,
    "attention flash": functools.partial(_compare_attention, name="flash"),
    "attention cudnn": functools.partial(_compare_attention, name="cudnn"),
    "attention flash3": functools.partial(_compare_attention, name="flash3"),
    "varlen, repeated heads": _check_repeated_heads,
    "varlen, enable_gqa": _check_shared_heads,
    "varlen flash3": functools.partial(_compare_attention, name="documents, varlen flash3"),
    # One width: each takes ten seconds to compile.
    "attention flex": functools.partial(
        _compare_attention, name="documents, flex", widths=(1,)
    ),
    "compiled loss": _check_loss,
    "Muon": _check_muon,
    "bad steps": _check_guard,
    "no waiting": _check_waits,
    "peak memory": _check_memory,
    "activation offload": _check_offload,
    "activation checkpointing": _check_checkpointing,
    "compiled blocks": _check_compiled,
    "float8": _check_float8,
    "checkpoint": _check_checkpoint,
    "trace": _check_trace,
}

# Those that run on a CPU too.
ON_CPU = (
    "attention flash",
    "compiled loss",
    "Muon",
    "bad steps",
    "activation offload",
    "activation checkpointing",
    "compiled blocks",
    "float8",
    "checkpoint",
    "trace",
)


def run_check(name: str, case: Case) -> str:
    """Return "pass: ...", "fail: ...", "not available: ..." or "needs CUDA"."""
    if torch.cuda.is_available():
        case = replace(case, size=replace(case.size, shape=GPU_SHAPE, compile=False))
    elif name not in ON_CPU:
        return "needs CUDA"
    try:
        return f"pass: {CHECKS[name](case)}"
    except NotAvailable as missing:
        return f"not available: {missing}".splitlines()[0][:300]
    except Exception as error:  # noqa: BLE001 - every error refutes the assumption
        return f"fail: {describe_error(error)}"
