"""Train the same small model on equal tokens of a raw crawl and of three filtered versions of it.

    python -m benchmarks.ablation --save                    # two processors: about 20 minutes
    python -m benchmarks.ablation --model small --save      # one GPU
    python -m benchmarks.ablation --model small --only-data --data FOLDER   # only creates the datasets, for a machine
                                                            # without the pipeline; use --data FOLDER there
    python -m benchmarks.ablation --tiny                    # seconds: shows that it runs

datasets.py defines the four datasets and the held-out text, which is in none of them. Each dataset trains with
`python -m training run`, the same steps and rows, and several seeds for weights and order. The result is the loss on
held-out Wikipedia and on web sentences, and a chart of the curves.
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
    """A training config in this folder, and the sizes of its datasets."""

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

# The datasets that `--tiny` trains on. It creates all of them.
TINY_TRAINED = ("raw", "head")

TINY_OVERRIDES = (
    "steps=1",
    "data.seq_len=32",
    "data.global_batch_rows=2",
    "data.micro_batch_rows=2",
)


@dataclass(frozen=True)
class Run:
    """One training run: the dataset, the seed, and the loss on each held-out set by tokens trained on."""

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
    """Run the trainer in a separate process and read its log."""
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
    _run_trainer(f"{variant}, seed {seed}", config, settings)
    curves, by_language = read_losses(
        run_dir, loaded.data.seq_len * loaded.data.global_batch_rows
    )
    print(
        f"{variant}, seed {seed}: {curves['wikipedia'][-1][1]:.3f}",
        file=sys.stderr,
        flush=True,
    )
    return Run(variant, seed, curves, by_language)


def _run_trainer(name: str, config: Path, settings: Sequence[str]) -> None:
    command = [sys.executable, "-m", "training", "run", str(config)]
    for setting in settings:
        command += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=result_file.REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")


def read_losses(
    run_dir: Path, tokens_per_step: int
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, float]]:
    """Return the curve (tokens, loss) of each held-out set, and the last losses by language, from a trainer's log."""
    lines = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if "validation/loss" in line]
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in SETS}
    for line in evaluations:
        for name, curve in curves.items():
            curve.append((line["step"] * tokens_per_step, line[f"validation/loss/{name}"]))
    by_language: dict[str, float] = {}
    for key, loss in evaluations[-1].items():
        if key.count("/") == 3:  # validation/loss/SET/LANGUAGE
            by_language[key.removeprefix("validation/loss/")] = loss
    return curves, by_language


def summarize(
    runs: Sequence[Run], datasets: Mapping[str, str], tokens: int
) -> dict[str, Any]:
    """Return size, epochs and last losses of each dataset; losses as mean, spread and difference from raw."""
    from benchmarks.ablation.datasets import read_totals

    raw_losses = list_last_losses(runs, "raw")
    summary: dict[str, Any] = {}
    for variant in dict.fromkeys(run.variant for run in runs):
        losses = list_last_losses(runs, variant)
        totals = read_totals(datasets[variant])
        summary[variant] = {
            **totals,
            "epochs": round(tokens / totals["num_tokens"], 3),
            "loss": {
                name: round(statistics.mean(ends), 4) for name, ends in losses.items()
            },
            "spread": {
                name: round(max(ends) - min(ends), 4) for name, ends in losses.items()
            },
            "by_seed": {
                name: [round(end, 4) for end in ends] for name, ends in losses.items()
            },
            "by_language": average_by_language(runs, variant),
            "less_than_raw": {},
        }
        for name, ends in losses.items():
            pairs = zip(raw_losses[name], ends, strict=True)
            gains = [round(raw - loss, 4) for raw, loss in pairs]
            summary[variant]["less_than_raw"][name] = gains
    return summary


def list_last_losses(runs: Sequence[Run], variant: str) -> dict[str, list[float]]:
    """Return the last loss of each seed of a dataset, by held-out set."""
    variant_runs = [run for run in runs if run.variant == variant]
    return {name: [run.curves[name][-1][1] for run in variant_runs] for name in SETS}


def average_by_language(runs: Sequence[Run], variant: str) -> dict[str, float]:
    """Return the last losses by language of a dataset, averaged over its seeds."""
    variant_runs = [run for run in runs if run.variant == variant]
    means: dict[str, float] = {}
    for key in variant_runs[0].by_language:
        means[key] = round(statistics.mean(run.by_language[key] for run in variant_runs), 4)
    return means


def print_table(summary: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one line per dataset."""
    columns = "".join(f"{name:>12}{'spread':>8}{'vs raw':>8}" for name in SETS)
    print(f"{'':18}{'tokens':>12}{'epochs':>8}{columns}")
    for variant, row in summary.items():
        line = f"{variant:18}{row['num_tokens']:>12,}{row['epochs']:>8.2f}"
        for name in SETS:
            gain = statistics.mean(row["less_than_raw"][name])
            line += f"{row['loss'][name]:>12.3f}{row['spread'][name]:>8.3f}{-gain:>+8.3f}"
        print(line)


def format_verdict(summary: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Return whether each dataset is better than the raw crawl with every seed."""
    verdicts: list[str] = []
    for variant, row in summary.items():
        gains = row["less_than_raw"][name]
        if variant == "raw":
            continue
        if min(gains) > 0:
            verdict = "better"
        elif max(gains) < 0:
            verdict = "worse"
        else:
            verdict = "not distinguished by these seeds"
        verdicts.append(f"{variant} {verdict}")
    return f"{SETS[name]}, against the raw crawl: {', '.join(verdicts)}"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of the datasets, created if missing; default: a temporary folder",
    )
    parser.add_argument(
        "--only-data", action="store_true", help="create the datasets and stop"
    )
    parser.add_argument(
        "--documents",
        type=int,
        help="pages of the crawl; default: enough for less than one epoch",
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="a setting of the trainer",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="little text, few steps, one seed"
    )
    parser.add_argument(
        "--save", type=Path, nargs="?", const=result_file.FOLDER, metavar="FOLDER"
    )
    return parser.parse_args()


def main() -> None:
    """Create the datasets, train on each, print the table, and save it with a chart."""
    from benchmarks.ablation.datasets import Sizes, create_datasets, read_totals

    args = parse_arguments()
    model = MODELS[args.model]
    sizes = Sizes(
        args.documents or model.documents, model.vocab_size, model.held_out_per_language
    )
    variants, seeds, overrides = ORDER, args.seeds, list(args.overrides)
    if args.tiny:
        sizes, seeds = Sizes(args.documents or 200, 300, 1), 1
        variants = TINY_TRAINED
        overrides = [*TINY_OVERRIDES, *overrides]
    with tempfile.TemporaryDirectory(prefix="ablation-") as scratch:
        datasets = create_datasets(args.data or Path(scratch) / "data", sizes)
        if args.only_data:
            return
        jobs = [(variant, seed) for seed in range(seeds) for variant in variants]
        runs = train_all(HERE / model.config, jobs, datasets, Path(scratch), overrides)
        tokens = int(runs[0].curves["wikipedia"][-1][0])
        summary = summarize(runs, datasets, tokens)
        sizes_of_all = {variant: read_totals(datasets[variant]) for variant in ORDER}
    print_table(summary)
    for name in SETS:
        print(format_verdict(summary, name))
    if args.save is not None:
        figures = {"tokens": tokens, "seeds": seeds, "datasets": sizes_of_all | summary}
        save(args, figures, runs)


def train_all(
    config: Path,
    jobs: Sequence[tuple[str, int]],
    datasets: Mapping[str, str],
    folder: Path,
    overrides: list[str],
) -> Sequence[Run]:
    """Train each (dataset, seed): one run at a time on a GPU, else one per processor.

    The jobs are ordered by seed, so that other work on the machine disturbs all datasets equally.
    """
    import torch

    num_workers = 1 if torch.cuda.is_available() else max(1, len(os.sched_getaffinity(0)))

    def train_job(job: tuple[str, int]) -> Run:
        variant, seed = job
        return train(config, variant, seed, datasets, folder, overrides)

    with ThreadPoolExecutor(num_workers) as pool:
        return list(pool.map(train_job, jobs))


def save(args: argparse.Namespace, figures: dict[str, Any], runs: Sequence[Run]) -> None:
    """Write the result file and the chart next to it."""
    name = f"ablation_{'try' if args.tiny else args.model}"
    path = result_file.save(name, figures, args.save)
    panels: list[Panel] = []
    for held_out, title in SETS.items():
        curves: dict[str, list[Sequence[tuple[float, float]]]] = {}
        for run in runs:
            curves.setdefault(run.variant, []).append(run.curves[held_out])
        panels.append(Panel(title, curves))
    num_seeds = figures["seeds"]
    title = (
        f"Loss of one small model after equal tokens of each dataset ({num_seeds} seeds)"
    )
    chart = path.with_suffix(".svg")
    chart.write_text(draw(title, panels), encoding="utf-8")
    print(path, chart, sep="\n")


if __name__ == "__main__":
    main()
