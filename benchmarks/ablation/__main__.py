"""Does the corpus help? The same small model on as many tokens of a crawl, and of what the chain makes of it.

    python -m benchmarks.ablation --save                    # two processors: about 20 minutes
    python -m benchmarks.ablation --model small --save      # one GPU
    python -m benchmarks.ablation --model small --only-data --data FOLDER   # only makes the datasets, for a machine
                                                            # that has no pipeline; there: --data FOLDER
    python -m benchmarks.ablation --tiny                    # seconds: shows that it runs

Four datasets (datasets.py says how they are made, and why held-out text is in none of them), the trainer itself
(`python -m training run`), the same steps and rows, several seeds of weights and order. Prints and keeps each one's
loss on held-out Wikipedia and on web sentences, and draws the curves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import result_file
from benchmarks.ablation.chart import Panel, draw

HERE = Path(__file__).parent
ORDER = ("raw", "deduplicated", "head", "head + reference")
SETS = {"wikipedia": "held-out Wikipedia", "web": "held-out web and news sentences"}
HELD_OUT = "held-out"


@dataclass(frozen=True)
class Model:
    """A config beside this file, and how much text it is for."""

    config: str
    documents: int
    vocab_size: int
    held_out_per_language: int


MODELS = {
    "tiny": Model("tiny.yaml", 6_000, 2_048, 50),
    "small": Model("small.yaml", 100_000, 8_192, 400),
}
SEEDS = 3
EVALUATIONS = 4


@dataclass(frozen=True)
class Run:
    """One training run: which dataset, which seed, and the loss on each held-out set after so many tokens."""

    variant: str
    seed: int
    curves: Mapping[str, Sequence[tuple[float, float]]]
    by_language: Mapping[str, float]


def train(
    config: Path,
    variant: str,
    seed: int,
    datasets: Mapping[str, str],
    folder: Path,
    overrides: list[str],
) -> Run:
    """Run the trainer in a process of its own, and read its log."""
    run_dir = folder / f"{variant}-{seed}".replace(" ", "")
    settings = [
        f"data.manifest={json.dumps(datasets[variant])}",
        f"validation.manifest={json.dumps(datasets[HELD_OUT])}",
        "validation.documents=null",
        f"run_dir={json.dumps(str(run_dir))}",
        f"seed={seed}",
        f"data.seed={seed}",
        *overrides,
    ]
    from training.config import load_config

    loaded = load_config(str(config), settings)
    settings.append(f"validation.every_steps={max(1, loaded.steps // EVALUATIONS)}")
    command = [sys.executable, "-m", "training", "run", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *(word for setting in settings for word in ("--set", setting))],
        cwd=result_file.REPOSITORY, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{variant}, seed {seed}: {done.stderr[-2000:]}")
    lines = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    found = [line for line in lines if "validation/loss" in line]
    tokens = loaded.data.seq_len * loaded.data.global_batch_rows
    curves = {
        name: [(line["step"] * tokens, line[f"validation/loss/{name}"]) for line in found]
        for name in SETS
    }
    ends = {
        key.removeprefix("validation/loss/"): loss
        for key, loss in found[-1].items()
        if key.count("/") == 3
    }
    print(f"{variant}, seed {seed}: {curves['wikipedia'][-1][1]:.3f}", file=sys.stderr, flush=True)
    return Run(variant, seed, curves, ends)


def summarize(runs: Sequence[Run], datasets: Mapping[str, str], tokens: int) -> dict[str, Any]:
    """By dataset: size, epochs, and of each held-out set's last loss mean, spread and difference from raw."""
    from benchmarks.ablation.datasets import totals

    found: dict[str, Any] = {}
    for variant in ORDER:
        of_it = [run for run in runs if run.variant == variant]
        ends = {name: [run.curves[name][-1][1] for run in of_it] for name in SETS}
        size = totals(datasets[variant])
        found[variant] = {
            **size,
            "epochs": round(tokens / size["num_tokens"], 3),
            "loss": {name: round(statistics.mean(losses), 4) for name, losses in ends.items()},
            "spread": {name: round(max(losses) - min(losses), 4) for name, losses in ends.items()},
            "by_seed": {name: [round(loss, 4) for loss in losses] for name, losses in ends.items()},
            "by_language": {
                key: round(statistics.mean(run.by_language[key] for run in of_it), 4)
                for key in of_it[0].by_language
            },
        }
        for name in SETS:
            pairs = zip(
                ends[name],
                [run.curves[name][-1][1] for run in runs if run.variant == "raw"],
                strict=True,
            )
            found[variant].setdefault("less_than_raw", {})[name] = [
                round(raw - loss, 4) for loss, raw in pairs
            ]
    return found


def print_table(found: Mapping[str, Mapping[str, Any]]) -> None:
    print(
        f"{'':18}{'tokens':>12}{'epochs':>8}"
        + "".join(f"{name:>12}{'spread':>8}{'vs raw':>8}" for name in SETS)
    )
    for variant, row in found.items():
        line = f"{variant:18}{row['num_tokens']:>12,}{row['epochs']:>8.2f}"
        for name in SETS:
            gain = statistics.mean(row["less_than_raw"][name])
            line += f"{row['loss'][name]:>12.3f}{row['spread'][name]:>8.3f}{-gain:>+8.3f}"
        print(line)


def verdict(found: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Whether each dataset is better than the raw crawl with every seed."""
    words = []
    for variant in ORDER[1:]:
        gains = found[variant]["less_than_raw"][name]
        word = (
            "better"
            if min(gains) > 0
            else "worse"
            if max(gains) < 0
            else "not told apart by these seeds"
        )
        words.append(f"{variant} {word}")
    return f"{SETS[name]}, against the raw crawl: {', '.join(words)}"


def main() -> None:
    """Make, train, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument(
        "--data",
        type=Path,
        help="where datasets lie or are made; default: a folder that is removed",
    )
    parser.add_argument("--only-data", action="store_true", help="make them and stop")
    parser.add_argument(
        "--documents", type=int, help="pages of the crawl; default: for less than an epoch of each"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="of training",
    )
    parser.add_argument("--tiny", action="store_true", help="little text, few steps, one seed")
    parser.add_argument("--save", type=Path, nargs="?", const=result_file.FOLDER, metavar="FOLDER")
    args = parser.parse_args()
    from benchmarks.ablation.datasets import Sizes, make

    model = MODELS[args.model]
    sizes = Sizes(args.documents or model.documents, model.vocab_size, model.held_out_per_language)
    seeds, overrides = args.seeds, list(args.overrides)
    if args.tiny:
        sizes, seeds = Sizes(args.documents or 400, 512, 2), 1
        overrides = ["steps=2", "data.global_batch_rows=2", "data.micro_batch_rows=2", *overrides]
    with tempfile.TemporaryDirectory(prefix="ablation-") as scratch:
        datasets = make(
            args.data or Path(scratch) / "data",
            sizes,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
        if args.only_data:
            return
        runs = train_all(HERE / model.config, datasets, seeds, Path(scratch), overrides)
        tokens = int(runs[0].curves["wikipedia"][-1][0])
        found = summarize(runs, datasets, tokens)
    print_table(found)
    for name in SETS:
        print(verdict(found, name))
    if args.save is not None:
        keep(args, found, runs, tokens)


def train_all(
    config: Path, datasets: Mapping[str, str], seeds: int, folder: Path, overrides: list[str]
) -> Sequence[Run]:
    """One run per processor at a time; on a GPU, one. By seeds first, so that all datasets share what else goes on."""
    import torch

    at_a_time = 1 if torch.cuda.is_available() else max(1, len(os.sched_getaffinity(0)))
    jobs = [(variant, seed) for seed in range(seeds) for variant in ORDER]
    with ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(lambda job: train(config, *job, datasets, folder, overrides), jobs))


def keep(
    args: argparse.Namespace, found: Mapping[str, Any], runs: Sequence[Run], tokens: int
) -> None:
    """Write the result and the chart beside it."""
    name = f"ablation_{'try' if args.tiny else args.model}"
    path = result_file.save(
        name, {"tokens": tokens, "seeds": len(runs) // len(ORDER), "datasets": found}, args.save
    )
    panels = [
        Panel(title, {v: [run.curves[held_out] for run in runs if run.variant == v] for v in ORDER})
        for held_out, title in SETS.items()
    ]
    title = f"Loss of one small model after equal tokens of each dataset ({len(runs) // len(ORDER)} seeds)"
    chart = path.with_suffix(".svg")
    chart.write_text(draw(title, panels), encoding="utf-8")
    print(path, chart, sep="\n")


if __name__ == "__main__":
    main()
