"""Speed and memory of the trainer on one GPU, and what each mechanism costs or saves.

    python -m benchmarks.training.gpu_suite --save           # on an H100 or H200; under nine minutes
    python -m benchmarks.training.gpu_suite --save FOLDER --only short long --budget-s 500
    python -m benchmarks.training.gpu_suite --only checks    # checks the assumptions about CUDA
    python -m benchmarks.training.gpu_suite --tiny           # all of it on a CPU, in seconds

The model has 1.2 B parameters in Llama 3's shape, in bf16 and compiled. Its shards are generated.
Each entrant is a separate process, whose warm-up (compiling) is not measured. Entrants that fit
into the GPU's memory together take turns, round by round. A part for which too little time is left
is skipped and listed. The result file is written after every part.

Run it from the root of a copy of the repository. A machine without a network needs the packages of
`make gpu-bundle`, in PYTHONPATH. torchao and torchtitan are measured if they can be imported.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import result_file
from benchmarks.training.gpu_parts import PARTS
from benchmarks.training.gpu_runner import Suite, report
from benchmarks.training.gpu_sizes import FULL, TINY, write_dataset
from benchmarks.training.gpu_tables import (
    describe_device,
    print_tables,
    save_result,
    summarize,
)

# Modules, and the packages that contain them.
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "pydantic": "pydantic",
    "yaml": "pyyaml",
    "isal": "isal",
    "xxhash": "xxhash",
}


def main() -> None:
    """Measure and print. The exit code is 1 if a check failed, or nothing could be measured."""
    args = _parse_arguments()
    _check_packages()
    import torch

    if args.tiny:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        sys.exit("there is no CUDA device; --tiny runs a small form on a CPU")
    name = "training_gpu_tiny" if args.tiny else "training_gpu"
    folder = result_file.FOLDER if args.save == Path() else args.save
    size = TINY if args.tiny else FULL
    with tempfile.TemporaryDirectory(prefix="gpu-suite-") as scratch:
        suite = Suite(size, args.budget_s, Path(scratch))
        write_dataset(Path(suite.dataset), size)
        figures = _run_parts(suite, args.only, name, folder)
    print_tables(figures)
    print(f"\n{figures['took_s']} s on {describe_device()['name']}")
    if not (figures["entrants"] or figures["findings"] or figures["checks"]):
        sys.exit("nothing could be measured")
    failed = [name for name, text in figures["checks"].items() if text.startswith("fail")]
    if failed:
        sys.exit(f"checks failed: {', '.join(failed)}")


def _run_parts(
    suite: Suite, only: list[str] | None, name: str, folder: Path | None
) -> dict[str, Any]:
    """Run the parts for which there is time, and save the figures after each."""
    figures = summarize(suite)
    for part in PARTS:
        if only is not None and part.name not in only:
            continue
        needed_s = part.num_entrants * suite.size.start_s
        if suite.left_s() < needed_s:
            reason = f"needs {needed_s:.0f} s, {suite.left_s():.0f} s left"
            suite.skipped[part.name] = reason
            report(f"{part.name}: skipped, {reason}")
        else:
            report(f"{part.name}, {suite.left_s():.0f} s left")
            part.run(suite)
        figures = {**summarize(suite), "took_s": round(time.monotonic() - suite.began)}
        if folder is not None:
            report(f"  written to {save_result(figures, name, folder)}")
    return figures


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a small form, on a CPU")
    parser.add_argument(
        "--budget-s", type=float, default=520, help="seconds for all parts (520)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        choices=[part.name for part in PARTS],
        help=f"only these of {', '.join(part.name for part in PARTS)}",
    )
    parser.add_argument(
        "--save",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FOLDER",
        help="write a result file, into benchmarks/results/ by default",
    )
    return parser.parse_args()


def _check_packages() -> None:
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        sys.exit(
            f"missing packages: {', '.join(missing)}; pip install {' '.join(missing)}, or set "
            f"PYTHONPATH to the folder of `make gpu-bundle`"
        )


if __name__ == "__main__":
    main()
