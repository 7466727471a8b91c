"""Train the same small model on equal tokens of a raw crawl and of three filtered versions of it.

    python -m benchmarks.ablation --save                    # two processors: about 20 minutes
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
from benchmarks.ablation.chart import Curve, draw
from benchmarks.ablation.datasets import HELD_OUT, Sizes, create_datasets, read_totals
from benchmarks.frame import make_parser, print_table
from training.config import load_config

CONFIG = Path(__file__).with_name("tiny.yaml")
ORDER = ("raw", "deduplicated", "head", "head + reference")
SETS = {"wikipedia": "held-out Wikipedia", "web": "held-out web and news sentences"}

SIZES = Sizes(documents=6_000, vocab_size=2_048, held_out_per_language=50)
SEEDS = 3
EVALUATIONS = 4

# What `--tiny` makes and trains on. It creates all datasets.
TINY_SIZES = Sizes(documents=200, vocab_size=300, held_out_per_language=1)
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
    curves: Mapping[str, Curve]


def train(
    variant: str,
    seed: int,
    datasets: Mapping[str, str],
    folder: Path,
    overrides: Sequence[str],
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
    config = load_config(str(CONFIG), settings)
    settings.append(f"validation.every_steps={max(1, config.steps // EVALUATIONS)}")
    command = [sys.executable, "-m", "training", "run", str(CONFIG)]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(
        command,
        cwd=result_file.REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{variant}, seed {seed}: {done.stderr[-2000:]}")
    curves = read_losses(run_dir, config.data.seq_len * config.data.global_batch_rows)
    print(f"{variant}, seed {seed}: {curves['wikipedia'][-1][1]:.3f}", file=sys.stderr)
    return Run(variant, seed, curves)


def read_losses(
    run_dir: Path, tokens_per_step: int
) -> dict[str, list[tuple[float, float]]]:
    """Return the curve (tokens, loss) of each held-out set, from a trainer's log."""
    lines = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in SETS}
    for line in lines:
        for name, curve in curves.items():
            if (loss := line.get(f"validation/loss/{name}")) is not None:
                curve.append((line["step"] * tokens_per_step, loss))
    return curves


def summarize(
    runs: Sequence[Run], datasets: Mapping[str, str], tokens: int
) -> dict[str, Any]:
    """Return size, epochs and last losses of each dataset; losses as mean, spread and difference from raw."""
    raw_losses = list_last_losses(runs, "raw")
    summary: dict[str, Any] = {}
    for variant in dict.fromkeys(run.variant for run in runs):
        losses = list_last_losses(runs, variant)
        totals = read_totals(datasets[variant])
        summary[variant] = row = {
            **totals,
            "epochs": round(tokens / totals["num_tokens"], 3),
            "loss": {},
            "spread": {},
            "by_seed": {},
            "less_than_raw": {},
        }
        for name, ends in losses.items():
            row["loss"][name] = round(statistics.mean(ends), 4)
            row["spread"][name] = round(max(ends) - min(ends), 4)
            row["by_seed"][name] = [round(end, 4) for end in ends]
            pairs = zip(raw_losses[name], ends, strict=True)
            row["less_than_raw"][name] = [round(raw - loss, 4) for raw, loss in pairs]
    return summary


def list_last_losses(runs: Sequence[Run], variant: str) -> dict[str, list[float]]:
    """Return the last loss of each seed of a dataset, by held-out set."""
    variant_runs = [run for run in runs if run.variant == variant]
    return {name: [run.curves[name][-1][1] for run in variant_runs] for name in SETS}


def print_summary(summary: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one line per dataset."""
    columns = [f"{name}{what}" for name in SETS for what in ("", " spread", " vs raw")]
    rows: list[list[object]] = []
    for variant, row in summary.items():
        cells: list[object] = [variant, f"{row['num_tokens']:,}", f"{row['epochs']:.2f}"]
        for name in SETS:
            gain = statistics.mean(row["less_than_raw"][name])
            cells.append(f"{row['loss'][name]:.3f}")
            cells += [f"{row['spread'][name]:.3f}", f"{-gain:+.3f}"]
        rows.append(cells)
    print_table(("dataset", "tokens", "epochs", *columns), rows)


def main() -> None:
    """Create the datasets, train on each, print the table, and save it with a chart."""
    parser = make_parser(__doc__, saves=False)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--tiny", action="store_true", help="little text, few steps, one seed"
    )
    parser.add_argument(
        "--save", type=Path, nargs="?", const=result_file.FOLDER, metavar="FOLDER"
    )
    args = parser.parse_args()
    variants, sizes, seeds, overrides = ORDER, SIZES, args.seeds, ()
    if args.tiny:
        variants, sizes, seeds = TINY_TRAINED, TINY_SIZES, 1
        overrides = TINY_OVERRIDES
    with tempfile.TemporaryDirectory(prefix="ablation-") as name:
        folder = Path(name)
        datasets = create_datasets(folder / "data", sizes)

        def train_job(job: tuple[int, str]) -> Run:
            seed, variant = job
            return train(variant, seed, datasets, folder, overrides)

        # Ordered by seed, so that other work on the machine disturbs all datasets equally.
        jobs = [(seed, variant) for seed in range(seeds) for variant in variants]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            runs = list(pool.map(train_job, jobs))
        tokens = int(runs[0].curves["wikipedia"][-1][0])
        summary = summarize(runs, datasets, tokens)
        sizes_of_all = {variant: read_totals(datasets[variant]) for variant in ORDER}
    print_summary(summary)
    if args.save is not None:
        figures = {"tokens": tokens, "seeds": seeds, "datasets": sizes_of_all | summary}
        save(args, figures, runs)


def save(args: argparse.Namespace, figures: dict[str, Any], runs: Sequence[Run]) -> None:
    """Write the result file and the chart next to it."""
    name = f"ablation_{'try' if args.tiny else 'tiny'}"
    path = result_file.save(name, figures, args.save)
    panels: dict[str, dict[str, list[Curve]]] = {}
    for held_out, title in SETS.items():
        curves = panels.setdefault(title, {})
        for run in runs:
            curves.setdefault(run.variant, []).append(run.curves[held_out])
    title = f"Loss of one small model after equal tokens ({figures['seeds']} seeds)"
    chart = path.with_suffix(".svg")
    chart.write_text(draw(title, panels), encoding="utf-8")
    print(path, chart, sep="\n")


if __name__ == "__main__":
    main()
