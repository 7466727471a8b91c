"""The parts of the GPU suite, the most wanted first."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from benchmarks.training.gpu_runner import Entrant, Skipped, Suite, report

# Seconds for all checks, and for one of them, which may compile.
CHECKS_BUDGET_S = 115
CHECK_LIMIT_S = 60


@dataclass(frozen=True)
class Part:
    """A part of the suite.

    Attributes:
        num_entrants: its time, as a multiple of the start of one entrant.
    """

    name: str
    run: Callable[[Suite], None]
    num_entrants: float


def name_ours(seq_len: int, variant: str = "") -> str:
    """Return the name of an entrant of this project."""
    return f"ours, {seq_len}{', ' + variant if variant else ''}"


def measure_throughput(suite: Suite, length: int) -> None:
    """Measure our trainer, also with float8, the bare loop, and torchtitan if it is installed.

    Args:
        suite: the state.
        length: 0 for short rows, 1 for long ones.
    """
    seq_len = suite.size.seq_lens[length]
    float8 = {"precision": {"float8": "tensorwise", **_choose_layers(suite)}}
    specs = {
        name_ours(seq_len): suite.make_spec("ours", seq_len),
        f"bare, {seq_len}": suite.make_spec("bare", seq_len),
    }
    optional = (
        ("torchtitan", f"torchtitan, {seq_len}", suite.make_spec("torchtitan", seq_len)),
        (
            "torchao",
            name_ours(seq_len, "float8"),
            suite.make_spec("ours", seq_len, settings=float8),
        ),
    )
    for module, name, spec in optional:
        if find_spec(module) is None:
            suite.skipped[name] = f"{module} is not installed"
        else:
            specs[name] = spec
    compare = functools.partial(_compare_garbage_collection, suite)
    suite.measure(specs, compare if length == 0 else None)


def _compare_garbage_collection(suite: Suite, name: str, entrant: Entrant) -> None:
    """Compare automatic and scheduled garbage collection in turns, in one process."""
    needed_s = 4 * suite.size.round_s
    if name != name_ours(suite.size.seq_lens[0]) or suite.left_s() < needed_s:
        return
    seconds: dict[str, list[float]] = {"scheduled": [], "automatic": []}
    for _ in range(suite.size.rounds):
        for kind, every in (("scheduled", 50), ("automatic", None)):
            command = {"steps": suite.size.steps, "gc_every_steps": every}
            seconds[kind] += entrant.ask(command)["step_s"]
    suite.findings["garbage"] = {
        kind: {"median_step_s": statistics.median(values), "longest_step_s": max(values)}
        for kind, values in seconds.items()
    }


def measure_checkpointing(suite: Suite) -> None:
    """Measure what activation checkpointing costs and saves."""
    for mode in ("selective", "full"):
        parallel = {"activation_checkpointing": mode}
        _measure_variant(suite, f"checkpointing {mode}", {"parallel": parallel})


def measure_offload(suite: Suite) -> None:
    """Measure activation offload: ours, torch's save_on_cpu, and ours with full checkpointing."""

    def measure_copies(_: str, entrant: Entrant) -> None:
        suite.findings["copy"] = entrant.ask("copy")

    offloaded = {"activation_offload": True}
    both = {"activation_offload": True, "activation_checkpointing": "full"}
    _measure_variant(suite, "offload", {"parallel": offloaded}, measure_copies)
    seq_len = suite.size.seq_lens[0]
    saved = suite.make_spec("ours", seq_len, save_on_cpu=True)
    suite.measure({name_ours(seq_len, "save_on_cpu"): saved})
    _measure_variant(suite, "checkpointing full, offload", {"parallel": both})


def measure_masks(suite: Suite) -> None:
    """Measure attention within documents; other entrants attend over whole rows."""
    for length in (1, 0):
        seq_len = suite.size.seq_lens[length]
        settings = {"data": {"document_masks": True}}
        spec = suite.make_spec("ours", seq_len, settings=settings)
        suite.measure({name_ours(seq_len, "document masks"): spec})


def measure_flex(suite: Suite) -> None:
    """Measure flex attention in the whole model, within documents as in `measure_masks`."""
    if not suite.size.compile:
        return  # torch has no backward of it for CPUs
    for length in (1, 0):
        seq_len = suite.size.seq_lens[length]
        settings = {"data": {"document_masks": True}, "precision": {"attention": "flex"}}
        spec = suite.make_spec("ours", seq_len, settings=settings)
        suite.measure({name_ours(seq_len, "document masks, flex"): spec})


def _choose_layers(suite: Suite) -> dict[str, Any]:
    """Return the layers to convert to float8: no layer of the tiny model is large."""
    return {"float8_layers": "large" if suite.size.compile else "all"}


def measure_float8(suite: Suite) -> None:
    """Measure float8 with all layers, and with a scale for each row."""
    if find_spec("torchao") is None:
        suite.skipped["float8"] = "torchao is not installed"
        return
    every_layer = {"float8": "tensorwise", "float8_layers": "all"}
    _measure_variant(suite, "float8 all layers", {"precision": every_layer})
    rowwise = {"float8": "rowwise", **_choose_layers(suite)}
    _measure_variant(suite, "float8 rowwise", {"precision": rowwise})


def measure_loss(suite: Suite) -> None:
    """Measure forms of the loss by themselves, on the tokens of one micro-batch."""
    suite.measure_kernels("loss", {"steps": suite.size.steps, "kernel": "loss"})


def measure_attention(suite: Suite) -> None:
    """Measure kernels of attention by themselves, at both lengths and two widths of heads."""
    command = {"steps": suite.size.steps, "kernel": "attention"}
    suite.measure_kernels("attention", command)


def measure_strategies(suite: Suite) -> None:
    """Measure ddp: autocast over whole fp32 weights."""
    _measure_variant(suite, "ddp", {"parallel": {"strategy": "ddp"}})


def _measure_variant(
    suite: Suite,
    variant: str,
    settings: dict[str, Any],
    then: Callable[[str, Entrant], None] | None = None,
) -> None:
    """Measure our trainer with other settings, on short rows."""
    seq_len = suite.size.seq_lens[0]
    spec = suite.make_spec("ours", seq_len, settings=settings)
    suite.measure({name_ours(seq_len, variant): spec}, then)


def run_checks(suite: Suite) -> None:
    """Run the checks of what the trainer assumes about CUDA, each with a verdict.

    They share a process. After a failed check, which may have damaged its CUDA context, the next
    one gets a new process.
    """
    from benchmarks.training.checks.catalog import CHECKS, choose_shape

    # In the tiny form, a test may share two slow cores with others.
    budget_s = CHECKS_BUDGET_S if suite.size.compile else suite.left_s()
    limit_s = CHECK_LIMIT_S if suite.size.compile else math.inf
    deadline_s = max(0.0, suite.left_s() - budget_s)
    seq_lens = suite.size.seq_lens
    more = {"shape": choose_shape(suite.size.shape), "seq_lens": seq_lens, "compile": False}
    entrant: Entrant | None = None
    for check in CHECKS:
        if suite.left_s() < deadline_s:
            suite.checks[check.name] = "not run: no time left"
            continue
        try:
            if entrant is None:
                spec = suite.make_spec("checks", seq_lens[0], **more)
                entrant = Entrant("checks", spec, suite)
                entrant.wait_until_ready()
            figures = entrant.ask({"steps": 0, "check": check.name}, limit_s)
            verdict, seconds = figures["verdict"], f" ({figures['seconds']} s)"
        except Skipped as skipped:
            verdict, seconds = f"fail: {skipped}", ""
        suite.checks[check.name] = verdict
        report(f"  {check.name}: {verdict}{seconds}")
        if verdict.startswith("fail") and entrant is not None:
            entrant.close()
            entrant = None
    if entrant is not None:
        entrant.close()


# A part begins if there is time for it, and skips the entrants for which there is none.
PARTS = (
    Part("checks", run_checks, 1),
    Part("short", functools.partial(measure_throughput, length=0), 4),
    Part("long", functools.partial(measure_throughput, length=1), 3),
    Part("loss", measure_loss, 1),
    Part("attention", measure_attention, 1),
    Part("offload", measure_offload, 2),
    Part("checkpointing", measure_checkpointing, 1),
    Part("masks", measure_masks, 1),
    Part("float8", measure_float8, 1),
    Part("strategies", measure_strategies, 1),
    Part("flex", measure_flex, 1),
)
