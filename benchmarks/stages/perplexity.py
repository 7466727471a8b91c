"""Compare perplexity by our kernels with SentencePiece and KenLM on the same documents.

    python -m benchmarks.stages.perplexity --megabytes 20 --rounds 7

The documents are those of the sample crawl in the languages of the demo's models. The entrants take
turns: bare calls of the libraries on lines that are already normalized, the stage's model with the
libraries, and with the kernels. Figures are medians of CPU seconds, without loading and compiling.
All perplexities must be equal.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fasttext
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.demo_chain import load_demo_config
from benchmarks.result_file import save
from benchmarks.stages.table.bare_calls import read_records
from pipeline.config import RunConfig
from pipeline.models import registry as model_registry
from pipeline.planning.plan import make_plan
from stages.filters.language_model import LanguageModel, normalize_for_lm

# language -> documents
Texts = dict[str, list[str]]


def read_texts(config: RunConfig) -> Texts:
    """Return the documents of the crawl for which the config has a language model."""
    assert config.annotate.perplexity is not None
    model: Any = fasttext.load_model(
        str(model_registry.resolve(config.annotate.language.model))
    )
    texts: Texts = {language: [] for language in config.annotate.perplexity.models}
    for split in make_plan(config).splits:
        for file in split.files:
            for text in read_records(Path(file.location)):
                line = text.replace("\n", "") + "\n"
                for _, label in model.f.predict(line, 1, 0.0, "strict"):
                    texts.get(label.removeprefix("__label__"), []).append(text)
    return texts


def load_models(
    references: Mapping[str, str], with_kernels: bool
) -> dict[str, LanguageModel]:
    """Return the model of each language."""
    models: dict[str, LanguageModel] = {}
    for language, reference in references.items():
        model = models[language] = LanguageModel(
            model_registry.resolve(reference), language
        )
        if not with_kernels:
            vars(model)["_scorer"] = None
        elif vars(model)["_scorer"] is None:
            raise SystemExit(f"{reference}: the kernels do not support this kind of model")
    return models


def measure_models(references: Mapping[str, str]) -> dict[str, float]:
    """Return the size of the n-grams of each language."""
    sizes: dict[str, float] = {}
    for language, reference in references.items():
        file = model_registry.resolve(reference) / f"{language}.arpa.bin"
        sizes[language] = round(file.stat().st_size / 1e6, 1)
    return sizes


def score_bare(models: dict[str, LanguageModel], lines: Texts) -> None:
    """Call SentencePiece and KenLM on normalized lines."""
    for language, model in models.items():
        pieces, lm = vars(model)["_pieces"], vars(model)["_lm"]
        for line in lines[language]:
            lm.score(" ".join(pieces.encode(line, out_type=str)))


def score(
    models: dict[str, LanguageModel], texts: dict[str, pa.ChunkedArray]
) -> list[float | None]:
    """Return the perplexity of each document."""
    scores: list[float | None] = []
    for language, model in models.items():
        scores.extend(model.perplexities(texts[language]))
    return scores


def measure(entrants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each entrant. The first round is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in entrants}
    for _ in range(rounds + 1):
        for name, action in entrants.items():
            started = time.process_time()
            action()
            taken[name].append(time.process_time() - started)
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def compare(megabytes: float, rounds: int, model: Path | None) -> dict[str, Any]:
    """Return the figures, after a check that all perplexities are equal.

    Args:
        megabytes: WET text.
        rounds: of each entrant.
        model: a folder with another English model; None: the demo's models of all languages.
    """
    with tempfile.TemporaryDirectory(prefix="corpusmill-") as folder:
        config = load_demo_config(megabytes, Path(folder) / "run", num_files=1)
        texts = read_texts(config)
    assert config.annotate.perplexity is not None
    references = {"en": str(model)} if model else config.annotate.perplexity.models
    texts = {language: texts[language] for language in references}
    lines = {name: [*map(normalize_for_lm, some)] for name, some in texts.items()}
    libraries = load_models(references, with_kernels=False)
    kernels = load_models(references, with_kernels=True)
    columns = {name: pa.chunked_array([pa.array(some)]) for name, some in texts.items()}
    wanted, found = score(libraries, columns), score(kernels, columns)
    num_different = sum(a != b for a, b in zip(wanted, found, strict=True))
    seconds = measure(
        {
            "bare calls": partial(score_bare, libraries, lines),
            "with the libraries": partial(score, libraries, columns),
            "with the kernels": partial(score, kernels, columns),
        },
        rounds,
    )
    num_bytes = sum(len(text.encode()) for some in texts.values() for text in some)
    return {
        "rounds": rounds,
        "model_megabytes": measure_models(references),
        "documents": len(wanted),
        "different_perplexities": num_different,
        "megabytes": round(num_bytes / 1e6, 2),
        "cpu_seconds": {name: round(taken, 3) for name, taken in seconds.items()},
        "mb_per_s": {name: round(num_bytes / 1e6 / s, 1) for name, s in seconds.items()},
        "speedup": round(seconds["with the libraries"] / seconds["with the kernels"], 2),
    }


def main() -> None:
    """Compare, print the table, and save the figures with `--save`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=20, help="WET text")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", type=Path, help="folder of another English model")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    figures = compare(args.megabytes, args.rounds, args.model)
    table = Table("perplexity", "CPU seconds", "MB/s", box=None)
    for name, seconds in figures["cpu_seconds"].items():
        table.add_row(name, f"{seconds:.2f}", f"{figures['mb_per_s'][name]}")
    console = Console(width=100)
    console.print(table)
    console.print(
        f"{figures['documents']:,} documents, {figures['different_perplexities']} with another "
        f"perplexity; the kernels are {figures['speedup']} times as fast",
        highlight=False,
    )
    if args.save:
        name = "perplexity_other_model" if args.model else "perplexity"
        print(save(name, figures))


if __name__ == "__main__":
    main()
