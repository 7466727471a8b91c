"""Speed and memory of the trainer on one GPU, and what each mechanism costs or saves.

    python -m benchmarks.training.gpu_suite --save           # on an H100 or H200; under nine minutes
    python -m benchmarks.training.gpu_suite --save FOLDER --only short long --budget-s 500
    python -m benchmarks.training.gpu_suite --only checks    # checks the assumptions about CUDA
    python -m benchmarks.training.gpu_suite --tiny           # all of it on a CPU, in seconds

The model has 1.2 B parameters in Llama 3's shape, in bf16 and compiled. Its shards are generated.
Each entrant is a separate process, which has the GPU for itself; its warm-up (compiling) is not
measured. An entrant for which too little time is left is skipped and listed. The result file is
written after every part.

Run it from the root of a copy of the repository. A machine without a network needs the packages of
`make gpu-bundle`, in PYTHONPATH. torchao and torchtitan are measured if they can be imported.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks import result_file
from benchmarks.frame import make_parser
from benchmarks.training import kernels
from benchmarks.training.apart import Skipped, call_apart
from benchmarks.training.bare import measure_bare
from benchmarks.training.cases import FULL, TINY, Case, Size, make_dataset
from benchmarks.training.checks import CHECKS, run_check
from benchmarks.training.entrants import measure_ours
from benchmarks.training.gpu_tables import (
    LIBRARIES,
    describe_device,
    name_ours,
    print_tables,
    summarize,
)
from benchmarks.training.titan import measure_titan

# Seconds for all checks, and for one of them, which may compile.
CHECKS_BUDGET_S = 150
CHECK_LIMIT_S = 60

SHORT, LONG = 0, 1  # places in `Size.seq_lens`

# Parts that measure our trainer with other settings: length of rows, name, and sections.
MASKS = {"document_masks": True}
VARIANTS: dict[str, tuple[tuple[int, str, dict[str, Any]], ...]] = {
    "offload": (
        (SHORT, "offload", {"parallel": {"activation_offload": True}}),
        (
            SHORT,
            "checkpointing full, offload",
            {"parallel": {"activation_offload": True, "activation_checkpointing": "full"}},
        ),
    ),
    "checkpointing": tuple(
        (SHORT, f"checkpointing {mode}", {"parallel": {"activation_checkpointing": mode}})
        for mode in ("selective", "full")
    ),
    # Other entrants attend over whole rows.
    "masks": (
        (LONG, "document masks", {"data": MASKS}),
        (SHORT, "document masks", {"data": MASKS}),
    ),
    "float8": (
        (
            SHORT,
            "float8 all layers",
            {"precision": {"float8": "tensorwise", "float8_layers": "all"}},
        ),
        (SHORT, "float8 rowwise", {"precision": {"float8": "rowwise"}}),
    ),
    # Autocast over whole fp32 weights.
    "strategies": ((SHORT, "ddp", {"parallel": {"strategy": "ddp"}}),),
    "flex": (
        (LONG, "document masks, flex", {"data": MASKS, "precision": {"attention": "flex"}}),
        (
            SHORT,
            "document masks, flex",
            {"data": MASKS, "precision": {"attention": "flex"}},
        ),
    ),
}


@dataclass
class Suite:
    """What was measured so far.

    Attributes:
        budget_s: seconds for all parts.
        folder: the dataset, logs of entrants, and the cache of the compiler.
        entrants: figures by the entrant's name.
        findings: other figures, by name.
        skipped: reasons by the name of an entrant.
        checks: verdicts by the name of a check.
    """

    size: Size
    budget_s: float
    folder: Path
    began: float = field(default_factory=time.monotonic)
    entrants: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)

    def left_s(self) -> float:
        """Return the seconds left of the budget."""
        return self.budget_s - (time.monotonic() - self.began)

    def make_case(self, length: int) -> Case:
        """Return the case of short or long rows."""
        return Case(self.size, str(self.folder / "dataset"), self.size.seq_lens[length])

    def measure(
        self,
        found: dict[str, Any],
        name: str,
        function: Callable[..., dict[str, Any]],
        *arguments: Any,
    ) -> None:
        """Add what a function returns in a new process, or the reason why it is skipped."""
        if self.left_s() < self.size.entrant_s:
            self.skipped[name] = f"{self.left_s():.0f} s left"
            return
        try:
            found[name] = call_apart(
                function, *arguments, log=self.folder / "log", limit_s=self.left_s()
            )
        except Skipped as skipped:
            self.skipped[name] = str(skipped)
        else:
            report(f"  {name}: done, {self.left_s():.0f} s left")


def report(line: str) -> None:
    """Print a line about the progress."""
    print(line, file=sys.stderr, flush=True)


# ---- the parts ----


def run_checks(suite: Suite) -> None:
    """Run the checks of what the trainer assumes about CUDA, each in a separate process."""
    # In the tiny form, a test may share two slow cores with others.
    is_full = suite.size.compile
    end_s = max(0.0, suite.left_s() - CHECKS_BUDGET_S) if is_full else 0.0
    for name in CHECKS:
        if suite.left_s() <= end_s:
            suite.checks[name] = "not run: no time left"
            continue
        limit_s = min(CHECK_LIMIT_S, suite.left_s()) if is_full else suite.left_s()
        case, log = suite.make_case(SHORT), suite.folder / "log"
        try:
            verdict = call_apart(run_check, name, case, log=log, limit_s=limit_s)
        except Skipped as skipped:
            verdict = f"fail: {skipped}"
        suite.checks[name] = verdict
        report(f"  {name}: {verdict}")


def measure_throughput(suite: Suite, length: int) -> None:
    """Measure our trainer, also with float8, the bare loop, and torchtitan if it is installed."""
    case = suite.make_case(length)
    ours = functools.partial(measure_ours, compares_gc=length == SHORT)
    suite.measure(suite.entrants, name_ours(case.seq_len), ours, case, {})
    suite.measure(suite.entrants, f"bare, {case.seq_len}", measure_bare, case)
    if find_spec("torchtitan") is None:
        suite.skipped[f"torchtitan, {case.seq_len}"] = "torchtitan is not installed"
    else:
        name = f"torchtitan, {case.seq_len}"
        suite.measure(suite.entrants, name, measure_titan, case)
    measure_variant(suite, length, "float8", {"precision": {"float8": "tensorwise"}})


def measure_variant(
    suite: Suite, length: int, variant: str, settings: dict[str, Any]
) -> None:
    """Measure our trainer with other settings."""
    case = suite.make_case(length)
    name = name_ours(case.seq_len, variant)
    is_tiny = not suite.size.compile
    if "float8" in variant and find_spec("torchao") is None:
        suite.skipped[name] = "torchao is not installed"
        return
    if "flex" in variant and is_tiny:
        suite.skipped[name] = "torch has no backward of it for CPUs"
        return
    if "float8" in variant and is_tiny:  # no layer of the tiny model is large
        settings = {"precision": {**settings["precision"], "float8_layers": "all"}}
    suite.measure(suite.entrants, name, measure_ours, case, settings)


def measure_kernels(suite: Suite, name: str) -> None:
    """Measure forms of the loss or of attention by themselves."""
    functions = {"loss": kernels.measure_losses, "attention": kernels.measure_attention}
    suite.measure(suite.findings, name, functions[name], suite.make_case(SHORT))


def measure_variants(suite: Suite, part: str) -> None:
    """Measure our trainer with the settings of a part."""
    for length, variant, settings in VARIANTS[part]:
        measure_variant(suite, length, variant, settings)


# The most wanted first.
PARTS: dict[str, Callable[[Suite], None]] = {
    "checks": run_checks,
    "short": functools.partial(measure_throughput, length=SHORT),
    "long": functools.partial(measure_throughput, length=LONG),
    "loss": functools.partial(measure_kernels, name="loss"),
    "attention": functools.partial(measure_kernels, name="attention"),
    **{name: functools.partial(measure_variants, part=name) for name in VARIANTS},
}


# ---- the command line ----


def main() -> None:
    """Measure and print. The exit code is 1 if a check failed, or nothing could be measured."""
    args = _parse_arguments()
    if args.tiny:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        sys.exit("there is no CUDA device; --tiny runs a small form on a CPU")
    with tempfile.TemporaryDirectory(prefix="gpu-suite-") as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{scratch}/inductor"
        suite = Suite(TINY if args.tiny else FULL, args.budget_s, Path(scratch))
        make_dataset(suite.folder / "dataset", suite.size)
        figures = _run_parts(suite, args)
    print_tables(figures)
    print(f"\n{figures['took_s']} s on {describe_device()['name']}")
    if not (figures["entrants"] or figures["findings"] or figures["checks"]):
        sys.exit("nothing could be measured")
    failed = [name for name, text in figures["checks"].items() if text.startswith("fail")]
    if failed:
        sys.exit(f"checks failed: {', '.join(failed)}")


def _run_parts(suite: Suite, args: argparse.Namespace) -> dict[str, Any]:
    """Run the parts, and save the figures after each."""
    figures: dict[str, Any] = {}
    for name in args.only or PARTS:
        report(f"{name}, {suite.left_s():.0f} s left")
        PARTS[name](suite)
        took_s = round(time.monotonic() - suite.began)
        figures = {
            **summarize(suite.size, suite.entrants, suite.findings),
            "skipped": suite.skipped,
            "checks": suite.checks,
            "took_s": took_s,
        }
        if args.save is not None:
            saved = {"device": describe_device(), **figures}
            result = "training_gpu_tiny" if args.tiny else "training_gpu"
            path = result_file.save(result, saved, args.save, LIBRARIES)
            report(f"  written to {path}")
    return figures


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, saves=False)
    parser.add_argument("--tiny", action="store_true", help="a small form, on a CPU")
    parser.add_argument(
        "--budget-s", type=float, default=520, help="seconds for all parts (520)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        choices=list(PARTS),
        help=f"only these of {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--save",
        type=Path,
        nargs="?",
        const=result_file.FOLDER,
        metavar="FOLDER",
        help="write a result file, into benchmarks/results/ by default",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
