"""Compare perplexity by our kernels with SentencePiece and KenLM on the same documents.

    python -m benchmarks.stages.perplexity --megabytes 20 --rounds 7

The documents are those of the sample crawl in the languages of the demo's models. The entrants are bare calls of the
libraries on lines that are already normalized, the stage's model with the libraries, and with the kernels. Loading and
compiling are not counted. All perplexities must be equal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fasttext
import pyarrow as pa

from benchmarks.demo_chain import load_demo_config
from benchmarks.frame import (
    compare_with,
    count_bytes,
    finish,
    make_parser,
    print_comparison,
    read_records,
    take_turns,
    time_cpu,
)
from pipeline.config import RunConfig
from pipeline.models import registry as model_registry
from pipeline.planning.plan import make_plan
from stages.filters.language_model import LanguageModel, normalize_for_lm

KERNELS = "with the kernels"

# language -> documents
Texts = dict[str, list[str]]


def read_texts(config: RunConfig) -> Texts:
    """Return the documents of the crawl for which the config has a language model."""
    assert config.annotate.perplexity is not None
    path = model_registry.resolve(config.annotate.language.model)
    model: Any = fasttext.load_model(str(path))
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
        model = LanguageModel(model_registry.resolve(reference), language)
        if not with_kernels:
            vars(model)["_scorer"] = None
        elif vars(model)["_scorer"] is None:
            raise SystemExit(f"{reference}: the kernels do not support this kind of model")
        models[language] = model
    return models


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
    calls = {
        "bare calls": partial(score_bare, libraries, lines),
        "with the libraries": partial(score, libraries, columns),
        KERNELS: partial(score, kernels, columns),
    }
    seconds = take_turns({name: time_cpu(call) for name, call in calls.items()}, rounds)
    num_bytes = sum(map(count_bytes, texts.values()))
    return {
        "documents": len(wanted),
        "different_perplexities": sum(a != b for a, b in zip(wanted, found, strict=True)),
        "megabytes": round(num_bytes / 1e6, 2),
        "entrants": compare_with(seconds, KERNELS, num_bytes),
    }


def main() -> None:
    """Compare, print the table, and save the figures with `--save`."""
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument("--megabytes", type=float, default=20, help="WET text")
    parser.add_argument("--model", type=Path, help="folder of another English model")
    args = parser.parse_args()
    figures = compare(args.megabytes, args.rounds, args.model)
    print_comparison(figures["entrants"], KERNELS)
    num_different = figures["different_perplexities"]
    print(f"{figures['documents']:,} documents, {num_different} with another perplexity")
    finish(args, "perplexity_other_model" if args.model else "perplexity", figures)


if __name__ == "__main__":
    main()
