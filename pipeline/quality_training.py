"""Fit the quality score to labelled documents of a run: a logistic model of percentile ranks.

    fitted = fit_quality(RunFolder.open("runs/crawl"), read_labels(Path("labels.jsonl")))
    fitted["cross_validation"]["roc_auc"]       # of documents that the model was not fitted to
    fitted["score"]                             # the section `select.score` of a config

Equal labels, runs and versions give an equal model, up to the rounding to 4 decimals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.models.classifier_training import compute_average_precision, compute_roc_auc
from pipeline.models.corpus import MIN_HELD_OUT_DOCS, TextUnreadable, TrainingFailed
from pipeline.phases.annotate import Annotate
from pipeline.runs.run_folder import RunFolder, RunNotFound
from pipeline.runs.split_output import read_row_groups
from stages.counters import Counters
from stages.filters.score import NO_RANK, Score
from stages.settings.quality import ScoreSettings

NUM_FOLDS = 5

# Strength of the L2 penalty, scikit-learn's default: the signals are correlated.
PENALTY = 1.0

# The objective is convex: Newton's method needs about six steps.
MAX_STEPS = 50

# URL or doc_id -> whether the document is good.
Labels = Mapping[str | int, bool]

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


def read_labels(path: Path) -> Labels:
    """Read labels: JSON lines with `label` (true, false, 1 or 0), and `url` or `doc_id`.

    Raises:
        TextUnreadable: a line is no such object, or a document has both labels.
    """
    labels: dict[str | int, bool] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        key, label = _parse_label(line, f"{path}:{number}")
        if labels.setdefault(key, label) != label:
            raise TextUnreadable(
                f"{path}:{number}: {key!r} has the label {label}, and another one above; keep one"
            )
    return labels


def _parse_label(line: str, where: str) -> tuple[str | int, bool]:
    try:
        row = json.loads(line)
        key, label = row["url"] if "url" in row else row["doc_id"], row["label"]
    except (ValueError, TypeError, KeyError) as error:
        raise TextUnreadable(
            f'{where}: found {line[:80]!r}, wanted {{"url": ..., "label": true}}, or doc_id in '
            "place of url"
        ) from error
    if not isinstance(key, str | int) or label not in (0, 1):
        raise TextUnreadable(
            f"{where}: found {key!r} with the label {label!r}; wanted a URL or a number, and a "
            "label of true, false, 1 or 0"
        )
    return key, bool(label)


def fit_quality(run: RunFolder, labels: Labels) -> dict[str, Any]:
    """Fit a logistic model of all stored signals to labels of documents in a run.

    The documents of a domain are in one fold of the cross-validation, because pages of a site
    resemble each other. Documents without a domain are distributed one by one, by a hash of the id.

    Returns:
        `score`: the section `select.score`; `cross_validation`: roc_auc and average_precision of
        documents outside of the fitted folds, num_without_domain; `calibration`: their shares of good documents, in
        tenths of the probability; num_documents, num_good, num_not_found and sha256 of the labels.

    Raises:
        RunNotFound: annotate is not done yet.
        TrainingFailed: too few documents of one label.
    """
    if not run.has_finished(Annotate.name):
        raise RunNotFound(
            f"{run.run_dir}: annotate is not done yet; run the config to its end first"
        )
    signals = _list_stored_signals(run)
    documents = _read_labelled(run, signals, labels)
    is_good = np.array(documents.column("label").to_pylist(), np.bool_)
    ranks = _measure_ranks(run, signals, documents)
    folds = _choose_folds(documents)
    _check_folds(folds, is_good)
    predicted = _cross_validate(ranks, is_good, folds)
    intercept, weights = _fit(ranks, is_good)
    return {
        "score": _make_section(signals, intercept, weights),
        "cross_validation": {
            "folds": NUM_FOLDS,
            "num_without_domain": _list_domains(documents).count(None),
            "roc_auc": round(compute_roc_auc(predicted[is_good], predicted[~is_good]), 4),
            "average_precision": round(compute_average_precision(predicted, is_good), 4),
        },
        "calibration": _calibrate(predicted, is_good),
        "num_documents": len(is_good),
        "num_good": int(is_good.sum()),
        "num_not_found": len(labels) - _count_found(documents, labels),
        "labels_sha256": _digest(labels),
    }


def _list_stored_signals(run: RunFolder) -> list[str]:
    """Return the signals of the run, sorted. A run of an older version may lack some."""
    folder, first = run.folder(Annotate.name), run.splits[0]
    with folder.open(Annotate.documents.file_name(first.key)) as file:
        stored = pq.read_schema(file).names
    return sorted(set(run.config.annotate.list_signals()) & set(stored))


def _read_documents(run: RunFolder, names: Sequence[str]) -> Iterator[pa.Table]:
    for split in run.splits:
        file_name = Annotate.documents.file_name(split.key)
        yield from read_row_groups(run.folder(Annotate.name).open(file_name), names)


def _read_labelled(run: RunFolder, signals: Sequence[str], labels: Labels) -> pa.Table:
    """Read the labelled documents, in input order, with their labels."""
    names = ["doc_id", "url", "source_domain", "language", *signals]
    urls = pa.array([key for key in labels if isinstance(key, str)], pa.string())
    ids = pa.array([key for key in labels if isinstance(key, int)], pa.uint64())
    found: list[pa.Table] = []
    for batch in _read_documents(run, list(dict.fromkeys(names))):
        has_url = pc.is_in(batch.column("url"), value_set=urls)
        has_id = pc.is_in(batch.column("doc_id"), value_set=ids)
        found.append(batch.filter(pc.or_(has_url, has_id)))
    documents = pa.concat_tables(found)
    values: list[bool] = []
    for doc_id, url in zip(
        documents.column("doc_id").to_pylist(),
        documents.column("url").to_pylist(),
        strict=True,
    ):
        values.append(labels[doc_id] if doc_id in labels else labels[url])
    return documents.append_column("label", pa.array(values, pa.bool_()))


def _count_found(documents: pa.Table, labels: Labels) -> int:
    keys = {*documents.column("doc_id").to_pylist(), *documents.column("url").to_pylist()}
    return sum(key in keys for key in labels)


def _digest(labels: Labels) -> str:
    rows = sorted((str(key), label) for key, label in labels.items())
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _measure_ranks(run: RunFolder, signals: Sequence[str], documents: pa.Table) -> Values:
    """(n, k) float64: the percentile ranks from below, among all documents of the run."""
    counters = Counters()
    settings = ScoreSettings(signals=dict.fromkeys(signals, 1.0))
    for batch in _read_documents(run, ["language", *signals]):
        for histogram in Score.histograms(settings):
            histogram.count(counters, batch)
    stage = Score(settings, run_counters=counters)
    stage.open()
    ranks = stage.measure_ranks(documents)
    return np.where(np.isnan(ranks), NO_RANK, ranks)


def _list_domains(documents: pa.Table) -> list[str | None]:
    return [domain or None for domain in documents.column("source_domain").to_pylist()]


def _choose_folds(documents: pa.Table) -> NDArray[np.int64]:
    """(n,) int64 in 0..NUM_FOLDS-1, by a hash of the domain, or of the id without a domain."""
    folds: list[int] = []
    ids = documents.column("doc_id").to_pylist()
    for domain, doc_id in zip(_list_domains(documents), ids, strict=True):
        digest = hashlib.sha256((domain or str(doc_id)).encode()).digest()
        folds.append(int.from_bytes(digest[:8], "little") % NUM_FOLDS)
    return np.array(folds, np.int64)


def _check_folds(folds: NDArray[np.int64], is_good: Mask) -> None:
    """Raise TrainingFailed unless each fit has enough documents with either label."""
    fewest = [len(is_good)]
    for fold in range(NUM_FOLDS):
        is_fitted = folds != fold
        num_good = int((is_good & is_fitted).sum())
        fewest += [num_good, int(is_fitted.sum()) - num_good]
    if min(fewest) < MIN_HELD_OUT_DOCS:
        raise TrainingFailed(
            f"train quality: {int(is_good.sum())} good and {int((~is_good).sum())} other documents "
            f"of the run have a label; without one fold of {NUM_FOLDS}, which has all documents of its "
            f"domains, {min(fewest)} have one of the labels, wanted {MIN_HELD_OUT_DOCS}: label more "
            "documents, of more domains"
        )


def _cross_validate(ranks: Values, is_good: Mask, folds: NDArray[np.int64]) -> Values:
    """(n,) float64: the probability of every document by a model of the other folds."""
    predicted = np.zeros(len(is_good))
    for fold in range(NUM_FOLDS):
        is_fitted = folds != fold
        intercept, weights = _fit(ranks[is_fitted], is_good[is_fitted])
        predicted[~is_fitted] = _predict(ranks[~is_fitted], intercept, weights)
    return predicted


def _predict(ranks: Values, intercept: float, weights: Values) -> Values:
    return 1 / (1 + np.exp(-(intercept + ranks @ weights)))


def _fit(ranks: Values, is_good: Mask) -> tuple[float, Values]:
    """Return intercept and weights of the model with the largest penalised likelihood.

    Newton's method, also known as iteratively reweighted least squares: Bishop 2006, Pattern
    Recognition and Machine Learning, section 4.3.3.
    """
    inputs = np.column_stack([np.ones(len(ranks)), ranks])
    penalty = np.full(inputs.shape[1], PENALTY)
    penalty[0] = 0.0  # the intercept has none
    weights = np.zeros(inputs.shape[1])
    for _ in range(MAX_STEPS):
        predicted = _predict(ranks, float(weights[0]), weights[1:])
        gradient = inputs.T @ (predicted - is_good) + penalty * weights
        curvature = (inputs * (predicted * (1 - predicted))[:, np.newaxis]).T @ inputs
        step = np.linalg.solve(curvature + np.diag(penalty), gradient)
        weights -= step
        if np.abs(step).max() < 1e-10:
            break
    return float(weights[0]), weights[1:]


def _make_section(
    signals: Sequence[str], intercept: float, weights: Values
) -> dict[str, Any]:
    """Return the section `select.score`.

    There a negative weight belongs to the percentile rank from above, 1 - r: w r = |w| (1 - r) + w.
    """
    rounded = {
        name: round(weight, 4)
        for name, weight in zip(signals, weights.tolist(), strict=True)
        if round(weight, 4)
    }
    shift = sum(weight for weight in rounded.values() if weight < 0)
    return {"signals": rounded, "intercept": round(intercept + shift, 4)}


def _calibrate(predicted: Values, is_good: Mask) -> list[dict[str, float]]:
    """Return the documents and the share of good ones for each tenth of the probability."""
    rows: list[dict[str, float]] = []
    tenths = np.minimum((predicted * 10).astype(np.int64), 9)
    for tenth in np.unique(tenths).tolist():
        chosen = tenths == tenth
        rows.append(
            {
                "from": tenth / 10,
                "to": (tenth + 1) / 10,
                "num_documents": int(chosen.sum()),
                "mean_score": round(float(predicted[chosen].mean()), 4),
                "good_share": round(float(is_good[chosen].mean()), 4),
            }
        )
    return rows
