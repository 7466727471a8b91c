"""Predict labels of lines with the arithmetic of fastText, operation by operation.

Results have the bits of fastText 0.9.3 built for x86-64 without fused multiply-add: sums are in
float32 and in the same order, logarithms in float64. Source: `Model::predict` and `loss.cc`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stages.kernels.compilation import compiled, inlined
from stages.kernels.fasttext.vectors import LANES, sum_rows
from stages.kernels.fasttext.words import (
    BLOCK_WORDS,
    IS_LABEL,
    Dictionary,
    WordCache,
    WordMemory,
    add_bucket,
    copy_cached,
    count_max_rows,
    find_cached,
    get_word,
    list_rows,
    read_words,
    store_word,
)

# Instead of a label: the most probable one is wanted, or there is none.
BEST = -1
NO_LABEL = -1

# `Dictionary::addWordNgrams`
_NGRAM_FACTOR = np.uint64(116049371)


class Model(NamedTuple):
    """A supervised model, in the form that the kernels read.

    `left` and `right` are the tree of hierarchical softmax, empty for softmax: the children of each
    node, -1 for a label. Labels are the nodes 0 to num_labels - 1, the root is the last node.
    """

    dictionary: Dictionary
    word_ngrams: int
    input: NDArray[np.float32]  # (num_rows, dim)
    output: NDArray[np.float32]  # (num_labels, dim)
    output_scales: NDArray[np.float32]  # (num_labels,)
    left: NDArray[np.int32]  # (2 * num_labels - 1,)
    right: NDArray[np.int32]
    parents: NDArray[np.int32]


class LabelMemory(NamedTuple):
    """Memory to work in, for labels and nodes of their tree."""

    nodes: NDArray[np.int32]  # (2 * num_labels,)
    scores: NDArray[np.float32]  # (2 * num_labels,)


@compiled
def predict_lines(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    model: Model,
    cache: WordCache,
    label: int,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return a label of each text, read as one line without its newlines, and the probability.

    Args:
        utf8: the bytes of all texts.
        offsets: (n + 1,) where each text starts.
        model: the model.
        cache: of `make_word_cache`, used with this model only.
        label: the label whose probability is wanted, or BEST.

    Returns:
        labels: (n,) NO_LABEL for a text without any word that the model can use, and for `label`
            where fastText omits it because its probability is below 1e-5.
        scores: (n,) probability plus up to 1e-5, as fastText gives it; 0 without label.
    """
    num_lines = len(offsets) - 1
    labels = np.full(num_lines, NO_LABEL, np.int32)
    scores = np.zeros(num_lines, np.float32)
    longest = 0
    for i in range(num_lines):
        longest = max(longest, offsets[i + 1] - offsets[i])
    # A word can be as long as its line, or the mark of its end. Memory that is never written is
    # never mapped.
    memory_size = (
        longest + 4 * BLOCK_WORDS + 3 * LANES
    )  # with what vectors read beyond a word
    memory = WordMemory(
        np.empty(memory_size, np.uint8),
        np.empty(memory_size, np.int64),
        np.empty((BLOCK_WORDS, 4), np.int64),
        np.empty(LANES * (longest + 8), np.uint32),
    )
    hashes = np.empty(longest // 2 + 2, np.uint64)
    max_rows = count_max_rows(longest, model.dictionary, model.word_ngrams)
    rows = np.empty(max_rows, np.int32)
    hidden = np.empty(model.input.shape[1], np.float32)
    num_nodes = max(len(model.left) + 1, len(model.output))
    label_memory = LabelMemory(
        np.empty(num_nodes, np.int32), np.empty(num_nodes, np.float32)
    )
    for i in range(num_lines):
        start, end = offsets[i], offsets[i + 1]
        num_rows = _list_line(utf8, start, end, model, cache, hashes, memory, rows)
        if num_rows == 0:
            continue
        _average_rows(rows, num_rows, model.input, hidden)
        labels[i], scores[i] = _predict(model, hidden, label, label_memory)
    return labels, scores


@inlined
def _predict(
    model: Model, hidden: NDArray[np.float32], label: int, memory: LabelMemory
) -> tuple[int, float]:
    """Return `label`, or the best label, and its probability."""
    if len(model.left) == 0:
        return _apply_softmax(model, hidden, label, memory)
    if label == BEST:
        return _find_best_leaf(model, hidden, memory)
    return _follow_path(model, hidden, label, memory)


@inlined
def _list_line(
    utf8: NDArray[np.uint8],
    at: int,
    end: int,
    model: Model,
    cache: WordCache,
    hashes: NDArray[np.uint64],
    memory: WordMemory,
    rows: NDArray[np.int32],
) -> int:
    """Write the rows of utf8[at:end] to `rows` and return their number.

    `hashes` and `memory` are memory to work in.
    """
    word_ngrams = model.word_ngrams
    num_rows, num_words, is_end = 0, 0, False
    while not is_end:
        num_read, at, is_end = read_words(utf8, at, end, model.dictionary, cache, memory)
        for index in range(num_read):
            word = get_word(memory, index)
            slot = find_cached(cache.words, word)
            if slot >= 0:
                num_rows = copy_cached(cache, slot, rows, num_rows)
            else:
                stop = list_rows(word, model.dictionary, memory.buckets, rows, num_rows)
                if stop == IS_LABEL:
                    continue
                store_word(cache, word, rows, num_rows, stop)
                num_rows = stop
            if word_ngrams > 1:
                hashes[num_words] = np.uint64(np.int64(np.int32(word.state)))
                num_words += 1
    if word_ngrams > 1:
        num_rows = _add_word_ngrams(hashes, num_words, model, rows, num_rows)
    return num_rows


@inlined
def _add_word_ngrams(
    hashes: NDArray[np.uint64],
    num_words: int,
    model: Model,
    rows: NDArray[np.int32],
    n: int,
) -> int:
    """Append the rows of the word n-grams of a line to `rows[n:]`; return the new `n`."""
    for first in range(num_words):
        state = hashes[first]
        for next_word in range(first + 1, min(first + model.word_ngrams, num_words)):
            state = state * _NGRAM_FACTOR + hashes[next_word]
            bucket = np.uint32(state % np.uint64(model.dictionary.num_buckets.value))
            n = add_bucket(bucket, model.dictionary, rows, n)
    return n


@inlined
def _average_rows(
    rows: NDArray[np.int32],
    num_rows: int,
    matrix: NDArray[np.float32],
    hidden: NDArray[np.float32],
) -> None:
    """Write the mean of some rows of the matrix to `hidden`, added in order.

    One long loop lets the processor load the next rows while it adds. The sum of 16 columns, as in
    lid.176, stays in a register.
    """
    hidden[:] = 0
    if len(hidden) == LANES:
        sum_rows(matrix, rows, num_rows, hidden)
    else:
        for n in range(num_rows):
            row = rows[n]
            for x in range(len(hidden)):
                hidden[x] += matrix[row, x]
    scale = np.float32(1.0 / num_rows)
    for x in range(len(hidden)):
        hidden[x] *= scale


@inlined
def _multiply_row(model: Model, row: int, hidden: NDArray[np.float32]) -> np.float32:
    """Return the product of a row of the output matrix and the hidden vector."""
    total = np.float32(0)
    for x in range(len(hidden)):
        total += model.output[row, x] * hidden[x]
    return total * model.output_scales[row]


@inlined
def _log(probability: np.float32) -> np.float32:
    return np.float32(math.log(np.float64(probability) + 1e-5))


@inlined
def _apply_softmax(
    model: Model, hidden: NDArray[np.float32], label: int, memory: LabelMemory
) -> tuple[int, float]:
    """Return `label`, or the best label, and its probability."""
    num_labels = len(model.output)
    outputs = memory.scores
    largest = np.float32(-math.inf)
    for row in range(num_labels):
        outputs[row] = _multiply_row(model, row, hidden)
        largest = max(largest, outputs[row])
    total = np.float32(0)
    for row in range(num_labels):
        outputs[row] = np.float32(math.exp(np.float64(outputs[row] - largest)))
        total += outputs[row]
    if label != BEST:
        return label, math.exp(_log(outputs[label] / total))
    best, best_score = NO_LABEL, np.float32(-math.inf)
    for row in range(num_labels):
        score = _log(outputs[row] / total)
        # Of equal scores fastText takes the last.
        if score >= best_score:
            best, best_score = row, score
    return best, math.exp(best_score)


@inlined
def _score_children(
    model: Model, hidden: NDArray[np.float32], node: int, score: np.float32
) -> tuple[np.float32, np.float32]:
    """Return the logarithms of the probabilities of the children of an inner node."""
    product = _multiply_row(model, node - len(model.output), hidden)
    right = np.float32(1.0 / np.float64(np.float32(1) + math.exp(-product)))
    left = np.float32(1.0 - np.float64(right))
    return score + _log(left), score + _log(right)


@inlined
def _find_best_leaf(
    model: Model, hidden: NDArray[np.float32], memory: LabelMemory
) -> tuple[int, float]:
    """Return the label that the search of fastText finds, and its probability.

    The search takes left children first and leaves out nodes whose score is below that of the best
    leaf so far. A child's score is at most 1e-5 above its parent's, so a leaf that is better than
    all others by more than that per node is found in any order. It is faster to take the more
    probable children first. Only a narrow result is searched for again in fastText's order.
    """
    margin = np.float32(2e-5 * len(model.left))
    best, best_score, second_score = _search_tree(model, hidden, margin, True, memory)
    is_clear = best_score > max(second_score, _log(np.float32(0))) + margin
    if not is_clear:
        best, best_score, _ = _search_tree(model, hidden, np.float32(0), False, memory)
    if best == NO_LABEL:
        return NO_LABEL, 0.0
    return best, math.exp(best_score)


@inlined
def _search_tree(
    model: Model,
    hidden: NDArray[np.float32],
    margin: np.float32,
    is_greedy: bool,
    memory: LabelMemory,
) -> tuple[int, np.float32, np.float32]:
    """Return the best leaf or NO_LABEL, its score, and a bound of the other leaves' scores.

    Args:
        model: with a tree of labels.
        hidden: (dim,) the mean of the rows of the line.
        margin: nodes that are worse than the best leaf by more than twice as much are left out.
        is_greedy: take the more probable child first, instead of the left one.
        memory: to work in.
    """
    nodes, scores = memory  # one node waits per level of the tree
    lowest = _log(np.float32(0))
    best, best_score, second_score = NO_LABEL, np.float32(-math.inf), np.float32(-math.inf)
    nodes[0], scores[0], size = len(model.left) - 1, 0, 1
    while size > 0:
        size -= 1
        node, score = nodes[size], scores[size]
        if score < lowest or score < best_score - 2 * margin:
            continue
        if model.left[node] < 0:
            if score >= best_score:
                best, best_score, second_score = node, score, best_score
            else:
                second_score = max(second_score, score)
            continue
        left, right = _score_children(model, hidden, node, score)
        first = 1 if is_greedy and right > left else 0
        nodes[size + 1 - first], scores[size + 1 - first] = model.left[node], left
        nodes[size + first], scores[size + first] = model.right[node], right
        size += 2
    return best, best_score, second_score


@inlined
def _follow_path(
    model: Model, hidden: NDArray[np.float32], label: int, memory: LabelMemory
) -> tuple[int, float]:
    """Return `label` and its probability, or NO_LABEL and 0 if it is below 1e-5."""
    path = memory.nodes
    depth, node = 0, label
    while node >= 0:
        path[depth] = node
        depth += 1
        node = model.parents[node]
    lowest = _log(np.float32(0))
    score = np.float32(0)
    for step in range(depth - 1, 0, -1):
        left, right = _score_children(model, hidden, path[step], score)
        score = left if model.left[path[step]] == path[step - 1] else right
        if score < lowest:
            return NO_LABEL, 0.0
    return label, math.exp(score)
