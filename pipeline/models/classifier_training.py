"""Train LLaMA's reference classifier: pages that Wikipedia cites against pages of a crawl.

    train_reference(cited_pages, crawl_pages, Path("models/reference-de"))["roc_auc"]

The folder then has `model.bin` and `record.json`. Equal texts, settings and versions give equal
bytes, including `record.json`. Training and scoring format lines with the same function,
`stages.filters.classifiers.to_line`.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.models.corpus import (
    MIN_HELD_OUT_DOCS,
    CrawlPage,
    TextDigest,
    TrainingFailed,
    is_held_out,
    list_versions,
    write_model,
)
from stages.filters import classifiers

log = logging.getLogger(__name__)

# Label of training lines made from pages that Wikipedia cites as references.
REFERENCE_LABEL = "__label__reference"
# Label of training lines made from random pages of a crawl.
CRAWL_LABEL = "__label__crawl"


@dataclass(frozen=True)
class ReferenceSettings:
    """The settings of a reference classifier. RedPajama uses fastText's defaults, as here.

    Attributes:
        num_epochs: passes over the texts.
        learning_rate: at the start; it falls to 0.
        dimension: of the word vectors.
        seed: of the initial weights.
        held_out_share: 0..1, of the texts, for the evaluation.
        min_score: 0..1, lowest score kept when precision and recall are measured; RedPajama 1
            keeps 0.25 and more.
    """

    num_epochs: int = 5
    learning_rate: float = 0.1
    dimension: int = 100
    seed: int = 0
    held_out_share: float = 0.1
    min_score: float = 0.25

    @property
    def fasttext_options(self) -> dict[str, Any]:
        """The arguments of `fasttext.train_supervised`."""
        return {
            "epoch": self.num_epochs,
            "lr": self.learning_rate,
            "dim": self.dimension,
            "seed": self.seed,
        }


DEFAULT_SETTINGS = ReferenceSettings()


def train_reference(
    positive: Iterable[str],
    negative: Iterable[str],
    out: Path,
    settings: ReferenceSettings = DEFAULT_SETTINGS,
    crawl: Iterable[CrawlPage] = (),
) -> dict[str, Any]:
    """Train a linear classifier that separates references from pages of a crawl.

    Source: LLaMA (arXiv:2302.13971, section 2.1) and RedPajama-Data 1 (`data_prep/cc/classifier`).
    RedPajama uses as many crawl pages as references, references of 1,000 characters and more, and
    several threads; here it is one thread, because several give another model each time.

    References against pages give a model that tells the two sources apart, and nearly perfect
    figures on held-out texts of both. It is near chance on pages (docs/recipes.md). With `crawl`,
    the text that main content extraction leaves out is negative and main content is positive, so
    that the source of a text says nothing; and the model is evaluated on pages of other domains.

    Args:
        positive: references.
        negative: pages of a crawl, about as many. May be empty if `crawl` is given.
        out: folder to write; created if needed. It is complete when it has `record.json`.
        settings: of the training and of the evaluation.
        crawl: HTML pages, of many domains.

    Returns:
        The content of `record.json`, see `_train_into`.

    Raises:
        TrainingFailed: too few texts of one class, or pages of held-out domains.
    """
    pages = list(crawl)
    return write_model(
        out,
        [classifiers.MODEL_FILE],
        lambda scratch: _train_into(scratch, (positive, negative), settings, pages),
    )


def _train_into(
    scratch: Path,
    texts: tuple[Iterable[str], Iterable[str]],
    settings: ReferenceSettings,
    crawl: Sequence[CrawlPage],
) -> dict[str, Any]:
    """Write the model into `scratch`, and the training lines next to it.

    Returns:
        The record. `positive` and `negative` have num_docs, num_chars and sha256 of the texts;
        precision, recall and roc_auc are those of the held-out texts. With `crawl`, `crawl` has
        those of the pages of held-out domains.
    """
    model_file, train_file = scratch / classifiers.MODEL_FILE, scratch / "train.txt"
    training, evaluated = _hold_out_domains(crawl, settings.held_out_share)
    main_contents, left_outs = _list_parts(training)
    positive, negative = TextDigest(), TextDigest()
    digested = (
        positive.read(chain(texts[0], main_contents)),
        negative.read(chain(texts[1], left_outs)),
    )
    held_out = _write_labelled(train_file, digested, settings.held_out_share)
    num_docs = (f"{positive.num_docs:,}", f"{negative.num_docs:,}")
    log.info("training on %s positive and %s negative texts", *num_docs)
    options = settings.fasttext_options
    _train_fasttext(train_file, model_file, options)
    limits = {"held_out_share": settings.held_out_share, "min_score": settings.min_score}
    record: dict[str, Any] = {
        "kind": "reference-classifier",
        "settings": {**options, **limits},
        "positive": positive.summarize(),
        "negative": negative.summarize(),
        "num_held_out_docs": sum(map(len, held_out)),
        **_evaluate(model_file, held_out, settings.min_score),
        "versions": list_versions("fasttext"),
    }
    if crawl:
        record["crawl"] = _evaluate_on_crawl(model_file, evaluated, settings.min_score)
    return record


def _hold_out_domains(
    crawl: Sequence[CrawlPage], share: float
) -> tuple[list[CrawlPage], list[CrawlPage]]:
    """Return the pages for training and for evaluation; all pages of a domain are on one side."""
    training: list[CrawlPage] = []
    held_out: list[CrawlPage] = []
    for page in crawl:
        (held_out if is_held_out(page.domain, share) else training).append(page)
    if crawl and min(map(len, _list_parts(held_out))) < MIN_HELD_OUT_DOCS:
        raise TrainingFailed(
            f"train reference: {len(held_out)} of {len(crawl)} crawl pages are of held-out "
            f"domains; wanted {MIN_HELD_OUT_DOCS} and more with and without main content: give "
            f"pages of more domains"
        )
    return training, held_out


def _list_parts(pages: Iterable[CrawlPage]) -> tuple[list[str], list[str]]:
    """Return the main contents and the left-out texts that are not empty."""
    main_contents: list[str] = []
    left_outs: list[str] = []
    for page in pages:
        if page.main_content:
            main_contents.append(page.main_content)
        if page.left_out:
            left_outs.append(page.left_out)
    return main_contents, left_outs


def _evaluate_on_crawl(
    model_file: Path, pages: Sequence[CrawlPage], min_score: float
) -> dict[str, Any]:
    """Return how well the model separates main content from the text that is left out."""
    main_contents, left_outs = _list_parts(pages)
    lines = (
        [classifiers.to_line(text) for text in main_contents],
        [classifiers.to_line(text) for text in left_outs],
    )
    return {
        "num_held_out_pages": len(pages),
        "num_held_out_domains": len({page.domain for page in pages}),
        **_evaluate(model_file, lines, min_score),
    }


def _write_labelled(
    train_file: Path, texts: tuple[Iterable[str], Iterable[str]], held_out_share: float
) -> tuple[list[str], list[str]]:
    """Write the training lines. Return the held-out lines of both classes, without labels.

    fastText learns from the lines in order, so they are sorted by hash to mix the classes.
    """
    labelled: list[tuple[bytes, str]] = []
    held_out: tuple[list[str], list[str]] = ([], [])
    for label, documents, held in zip(
        (REFERENCE_LABEL, CRAWL_LABEL), texts, held_out, strict=True
    ):
        for document in documents:
            # fastText takes every word with this prefix for a label.
            line = classifiers.to_line(document).replace("__label__", "label")
            if line and is_held_out(line, held_out_share):
                held.append(line)
            elif line:
                line_hash = hashlib.blake2b(line.encode(), digest_size=16).digest()
                labelled.append((line_hash, f"{label} {line}\n"))
    labelled.sort()
    if min(map(len, held_out)) < MIN_HELD_OUT_DOCS:
        raise TrainingFailed(
            f"train reference: {len(held_out[0])} references and {len(held_out[1])} crawl pages "
            f"held out; wanted {MIN_HELD_OUT_DOCS} and more of each: give more text"
        )
    with train_file.open("w", encoding="utf-8", newline="\n") as out:
        for _, line in labelled:
            out.write(line)
    return held_out


def _train_fasttext(
    train_file: Path, model_file: Path, settings: Mapping[str, Any]
) -> None:
    """Train in one thread: several threads write to the same weights without locks.

    fastText 0.9.3 with one thread initializes only a tenth of the weights
    (`DenseMatrix::uniform`). The rest is uninitialized memory: another model each time, or
    NaN. So all weights are passed as pretrained vectors, drawn as fastText would draw them.
    That covers words, not the hash buckets of n-grams, so no n-grams are used.
    """
    import fasttext

    vectors_file = train_file.with_name("first-weights.vec")
    _write_initial_weights(train_file, vectors_file, settings["dim"], settings["seed"])
    try:
        model = fasttext.train_supervised(
            input=str(train_file),
            pretrainedVectors=str(vectors_file),
            thread=1,
            verbose=0,
            **settings,
        )
    except RuntimeError as error:
        raise TrainingFailed(f"fastText: {error}") from error
    model.save_model(str(model_file))


def _write_initial_weights(
    train_file: Path, vectors_file: Path, dimension: int, seed: int
) -> None:
    # A dict keeps the order of first occurrence. "</s>" is fastText's word for the end of a line.
    words: dict[str, None] = {"</s>": None}
    with train_file.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            words.update(dict.fromkeys(_FASTTEXT_SPACE.split(line)[1:]))
    words.pop("", None)
    rng = np.random.default_rng(seed)
    with vectors_file.open("w", encoding="utf-8", newline="\n") as out:
        out.write(f"{len(words)} {dimension}\n")
        for word in words:
            # (dimension,) float64
            weights = rng.uniform(-1 / dimension, 1 / dimension, dimension)
            out.write(
                f"{word} {' '.join(f'{weight:.4g}' for weight in weights.tolist())}\n"
            )


# Separators of words: `Dictionary::readWord` in fastText's dictionary.cc.
_FASTTEXT_SPACE = re.compile("[ \n\r\t\v\f\0]")


def _evaluate(
    model_file: Path, held_out: tuple[list[str], list[str]], min_score: float
) -> dict[str, float]:
    model = classifiers.load_model(model_file)
    # RedPajama 1 rounds scores to 4 decimals; the evaluation sees the same scores.
    positive = np.round(classifiers.score_lines(model, REFERENCE_LABEL, held_out[0]), 4)
    negative = np.round(classifiers.score_lines(model, REFERENCE_LABEL, held_out[1]), 4)
    precision, recall = compute_precision_and_recall(positive, negative, min_score)
    roc_auc = compute_roc_auc(positive, negative)
    return {
        "precision": round(precision, 4),
        "recall": round(recall, 4),
        "roc_auc": round(roc_auc, 4),
    }


def compute_precision_and_recall(
    positive: np.ndarray, negative: np.ndarray, min_score: float
) -> tuple[float, float]:
    """Return precision and recall if scores of `min_score` and more are kept.

    Args:
        positive: (n,) float64 scores of positives.
        negative: (m,) float64 scores of negatives.
        min_score: lowest score kept.
    """
    num_true, num_false = (
        int((positive >= min_score).sum()),
        int((negative >= min_score).sum()),
    )
    return num_true / max(1, num_true + num_false), num_true / len(positive)


def compute_roc_auc(positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the area under the ROC curve.

    It is the probability that a positive scores above a negative, with ties counted half.
    Source: the Mann-Whitney U statistic from rank sums; J. A. Hanley and B. J. McNeil,
    Radiology 143 (1982).

    Args:
        positive: (n,) float64 scores of positives.
        negative: (m,) float64 scores of negatives.
    """
    ordered = np.sort(np.concatenate([positive, negative]))
    # (n,) rank of each positive, from 1; equal scores share their mean rank.
    left, right = (
        np.searchsorted(ordered, positive),
        np.searchsorted(ordered, positive, "right"),
    )
    ranks = (left + right + 1) / 2
    u = ranks.sum() - len(positive) * (len(positive) + 1) / 2
    return float(u / (len(positive) * len(negative)))


def compute_average_precision(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the mean precision at the positives, in the order of falling scores.

    Equal scores count as a group with one precision, as in scikit-learn.

    Args:
        scores: (n,) float64.
        is_positive: (n,) bool, at least one of them true.
    """
    order = np.argsort(-scores, kind="stable")
    positive, ordered = is_positive[order], scores[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)  # of its group
    num_positive = np.cumsum(positive)[is_last]
    precision = num_positive / (np.flatnonzero(is_last) + 1)
    num_new = np.diff(num_positive, prepend=0)
    return float((num_new * precision).sum() / positive.sum())
