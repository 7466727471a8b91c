"""Open a supervised fastText model and predict with it, faster than fastText.

    model = load_model(Path("lid.176.ftz"))
    labels, scores = model.predict_best(pa.array(["un chat et un chien"]))
    labels[0], scores[0]                                   # "__label__fr", 0.99...

Scores are fastText's own, bit for bit. Models of other kinds are left to the library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.kernels.fasttext.model_file import (
    HIERARCHICAL_SOFTMAX,
    MAX_COUNT,
    SOFTMAX,
    ModelFile,
    read_model_file,
)
from stages.kernels.fasttext.prediction import BEST, NO_LABEL, Model, predict_lines
from stages.kernels.fasttext.vectors import make_divisor
from stages.kernels.fasttext.words import (
    Dictionary,
    WordCache,
    build_slots,
    make_aligned,
    make_word_cache,
)
from stages.string_buffers import make_read_only, read_string_buffers

# Above it, a product or a sum could overflow, which fastText reports as an error.
_LARGEST_VALUE = 1e12


class FastTextModel(Protocol):
    """A supervised model. Texts are read as one line, without their newlines."""

    labels: list[str]

    def predict_best(self, texts: pa.Array) -> tuple[list[str | None], NDArray[np.float64]]:
        """Return the most probable label of each text, and its probability.

        Args:
            texts: (n,) string. A null counts as an empty text.

        Returns:
            labels: (n,) with their prefix. None for a text without a word that the model can use.
            scores: (n,) in 0..1.00001, as fastText gives it; 0 without label.
        """
        ...

    def score_label(self, texts: pa.Array, label: str) -> NDArray[np.float64]:
        """Return the probability of a label for each text, 0 where fastText omits the label."""
        ...


def load_model(path: Path) -> FastTextModel:
    """Return the model in a file.

    Raises:
        ValueError: the file is missing, is not a fastText model or is damaged.
    """
    content = read_model_file(path)
    if _is_supported(content):
        return CompiledModel(content)
    return LibraryModel(path)


def _is_supported(content: ModelFile) -> bool:
    """Whether the kernels have the model's loss, n-grams and numbers."""
    uses_ngrams = content.max_chars > 0 or content.word_ngrams > 1
    return (
        content.is_supervised
        and content.loss in (HIERARCHICAL_SOFTMAX, SOFTMAX)
        and len(content.label_counts) > 0
        and min(content.min_chars, content.max_chars) >= 0
        and (content.num_buckets > 0 or not uses_ngrams)
        and all(
            # False for NaN too
            np.abs(values).max(initial=0) <= _LARGEST_VALUE
            for values in (*content.input, *content.output)
        )
    )


class CompiledModel:
    """A model that the kernels compute."""

    def __init__(self, content: ModelFile) -> None:
        """Build the tables of the kernels."""
        self.labels = content.labels
        self._model = _make_model(content)
        # One per thread that predicts at the same time. `pop` and `append` are atomic.
        self._caches: list[WordCache] = []

    def predict_best(self, texts: pa.Array) -> tuple[list[str | None], NDArray[np.float64]]:
        """See `FastTextModel`."""
        found, scores = self._predict(texts, BEST)
        labels = [None if label == NO_LABEL else self.labels[label] for label in found]
        return labels, scores

    def score_label(self, texts: pa.Array, label: str) -> NDArray[np.float64]:
        """See `FastTextModel`."""
        if label not in self.labels:
            return np.zeros(len(texts), np.float64)
        return self._predict(texts, self.labels.index(label))[1]

    def _predict(
        self, texts: pa.Array, label: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        try:
            cache = self._caches.pop()
        except IndexError:
            cache = make_word_cache()
        utf8, offsets = read_string_buffers(texts)
        found, scores = predict_lines(utf8, offsets, self._model, cache, label)
        self._caches.append(cache)
        return found, scores.astype(np.float64)


def _make_model(content: ModelFile) -> Model:
    left, right, parents = _build_tree(content)
    rows, scales = content.input
    if not np.all(scales == 1):
        rows = rows * scales[:, None]
    buckets, bucket_rows = _sort_pruned(content)
    if content.pruned is not None:
        words, ngrams = np.split(rows, [content.num_words])
        rows = np.concatenate([words, ngrams[bucket_rows]])
    return Model(
        _make_dictionary(content, buckets),
        content.word_ngrams,
        make_read_only(make_aligned(rows)),
        make_read_only(content.output.rows),
        make_read_only(content.output.scales),
        make_read_only(left),
        make_read_only(right),
        make_read_only(parents),
    )


def _sort_pruned(content: ModelFile) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the buckets of a pruned model that have a row, in order, and their rows."""
    if content.pruned is None:
        return np.empty(0, np.int64), np.empty(0, np.int32)
    rows = np.full(content.num_buckets, -1, np.int32)
    rows[content.pruned[:, 0]] = content.pruned[:, 1]  # of two rows the last counts
    buckets = np.flatnonzero(rows >= 0)
    return buckets, rows[buckets]


def _make_dictionary(content: ModelFile, buckets: NDArray[np.int64]) -> Dictionary:
    """Return the dictionary, with the buckets of a pruned model that have a row."""
    has_row = np.zeros((content.num_buckets // 64 + 1, 64), np.bool_)
    has_row.flat[buckets] = True
    num_before = np.cumsum(has_row.sum(axis=1)) - has_row.sum(axis=1)
    entries = (
        make_read_only(content.dictionary),
        make_read_only(content.starts),
        make_read_only(content.ends),
    )
    return Dictionary(
        *entries,
        make_read_only(build_slots(*entries)),
        content.num_words,
        content.min_chars,
        content.max_chars,
        make_divisor(max(content.num_buckets, 1)),
        content.pruned is not None,
        make_read_only(np.packbits(has_row, bitorder="little").view(np.uint64)),
        make_read_only(num_before.astype(np.int32)),
    )


def _build_tree(
    content: ModelFile,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return the left and right child and the parent of each node, -1 for none.

    It is a Huffman tree of the labels' counts. Source: `HierarchicalSoftmaxLoss::buildTree`.
    """
    if content.loss != HIERARCHICAL_SOFTMAX:
        empty = np.empty(0, np.int32)
        return empty, empty, empty
    num_labels = len(content.label_counts)
    num_nodes = 2 * num_labels - 1
    counts = [*content.label_counts.tolist(), *[MAX_COUNT] * (num_labels - 1)]
    left, right, parents = np.full((3, num_nodes), -1, np.int32)
    leaf, inner = num_labels - 1, num_labels
    for node in range(num_labels, num_nodes):
        children: list[int] = []
        for _ in range(2):
            if leaf >= 0 and counts[leaf] < counts[inner]:
                children.append(leaf)
                leaf -= 1
            else:
                children.append(inner)
                inner += 1
        left[node], right[node] = children
        parents[children] = node
        counts[node] = counts[children[0]] + counts[children[1]]
    return left, right, parents


class LibraryModel:
    """A model that the fastText library computes."""

    def __init__(self, path: Path) -> None:
        """Load the model."""
        import fasttext

        self._model: Any = fasttext.load_model(str(path))
        self.labels: list[str] = self._model.get_labels()

    def predict_best(self, texts: pa.Array) -> tuple[list[str | None], NDArray[np.float64]]:
        """See `FastTextModel`."""
        labels: list[str | None] = []
        scores = np.zeros(len(texts), np.float64)
        for row, (found, found_scores) in enumerate(self._predict(texts, 1)):
            labels.append(found[0] if found else None)
            scores[row] = found_scores[0] if found else 0.0
        return labels, scores

    def score_label(self, texts: pa.Array, label: str) -> NDArray[np.float64]:
        """See `FastTextModel`."""
        scores = np.zeros(len(texts), np.float64)
        # k = -1 returns all labels: with a smaller k the label could be missing from the best k.
        for row, (found, found_scores) in enumerate(self._predict(texts, -1)):
            scores[row] = found_scores[found.index(label)] if label in found else 0.0
        return scores

    def _predict(self, texts: pa.Array, k: int) -> zip[tuple[list[str], Any]]:
        # `predict` of the Python module appends the newline too: it counts as a word.
        texts = pc.fill_null(texts, "").cast(pa.large_binary())
        lines = [text.replace(b"\n", b"") + b"\n" for text in texts.to_pylist()]
        return zip(*self._model.f.multilinePredict(lines, k, 0.0, "strict"), strict=True)
