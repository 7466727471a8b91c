"""Split a line into the pieces of a SentencePiece unigram model.

The pieces are stored in a double array (Aoe 1989): child c of node n is node `base[n] + c` if that
node's parent is n. Source of the search: `Model::EncodeOptimized` in unigram_model.cc of
SentencePiece 0.2.3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled, inlined

UNKNOWN = -1
_ROOT = np.uint64(0)
_BASE, _PARENT, _PIECE, _SCORE = (np.uint64(column) for column in range(4))  # of `nodes`
_ONE = np.uint64(1)
_FREE = -1  # parent of a node that is not in use
_FULL = 0.95  # share of nodes in use, as in SentencePiece's trie

# A character that is in no piece costs this much more than the least probable piece.
_UNKNOWN_PENALTY = np.float32(10.0)
# SentencePiece subtracts a score that exceeds this from all scores that are still in use, so that
# long lines keep the precision of float32.
_RESET_ABOVE = np.float32(100_000.0)

# The length of a character by the upper four bits of its first byte.
_CHARACTER_LENGTHS = np.array([1] * 12 + [2, 2, 3, 4], np.uint64)


class PieceModel(NamedTuple):
    """The pieces of a unigram model as a trie of bytes.

    A row of `nodes` has a node's base and parent, and the piece that ends at it, or UNKNOWN. The
    log probability of the piece is in the fourth column of `floats`. A step of a search reads one
    row, so one cache line.
    """

    nodes: NDArray[np.int32]  # (num_nodes, 4)
    floats: NDArray[np.float32]  # the same memory
    unknown_score: np.float32


def build_piece_model(texts: list[bytes], scores: NDArray[np.float32]) -> PieceModel:
    """Build the trie of distinct, non-empty pieces. Piece i is texts[i]."""
    order = np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int64)
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(texts[i]) for i in order], out=offsets[1:])
    utf8 = np.frombuffer(b"".join(texts[i] for i in order), np.uint8)
    links, pieces = _build_trie(utf8, offsets, order)
    nodes = np.zeros((len(links), 4), np.int32)
    nodes[:, :2], nodes[:, _PIECE] = links, pieces
    floats = nodes.view(np.float32)
    floats[pieces != UNKNOWN, _SCORE] = scores[pieces[pieces != UNKNOWN]]
    return PieceModel(nodes, floats, scores.min() - _UNKNOWN_PENALTY)


@compiled
def _build_trie(
    utf8: NDArray[np.uint8], offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return (num_nodes, 2) base and parent, and (num_nodes,) the piece of each node.

    The pieces are in ascending order.
    """
    nodes, pieces = _grow(np.empty((0, 2), np.int32), np.empty(0, np.int32), 1024)
    nodes[0, 1] = 0  # the root
    # Each entry is a node whose children are missing, and its pieces: first, end, length so far.
    stack = [(0, 0, len(order), 0)]
    search_from = 1
    labels = np.empty(257, np.int64)
    starts = np.empty(257, np.int64)
    while stack:
        node, first, end, length = stack.pop()
        if offsets[first] + length == offsets[first + 1]:
            pieces[node] = order[first]
            first += 1
        num_labels = _group(utf8, offsets, first, end, length, labels, starts)
        if num_labels == 0:
            continue
        first_child = max(search_from, labels[0] + 1)
        num_used = 0
        while True:
            if first_child + 256 > len(nodes):
                nodes, pieces = _grow(nodes, pieces, 2 * len(nodes))
            if nodes[first_child, 1] != _FREE:
                num_used += 1
            elif _are_free(nodes, first_child - labels[0], labels[:num_labels]):
                break
            first_child += 1
        # Do not search again where almost no node is free, or building takes quadratic time.
        if num_used > _FULL * (first_child + 1 - search_from):
            search_from = first_child
        base = first_child - labels[0]
        nodes[node, 0] = base
        for i in range(num_labels):
            nodes[base + labels[i], 1] = node
            stack.append((base + labels[i], starts[i], starts[i + 1], length + 1))
    return nodes, pieces


@njit(nogil=True)
def _group(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first: int,
    end: int,
    length: int,
    labels: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> int:
    """Group the sorted pieces [first, end) by the byte after the first `length`.

    Returns:
        The number of groups. `labels` has their bytes; group i is pieces starts[i]:starts[i + 1].
    """
    num_labels = 0
    for i in range(first, end):
        label = np.int64(utf8[offsets[i] + length])
        if num_labels == 0 or labels[num_labels - 1] != label:
            labels[num_labels] = label
            starts[num_labels] = i
            num_labels += 1
    starts[num_labels] = end
    return num_labels


@njit(nogil=True)
def _grow(
    nodes: NDArray[np.int32], pieces: NDArray[np.int32], num_nodes: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return copies with free nodes at the end."""
    more_nodes = np.empty((num_nodes, 2), np.int32)
    more_nodes[:, 0] = 0  # a base that leads to no child
    more_nodes[:, 1] = _FREE
    more_nodes[: len(nodes)] = nodes
    more_pieces = np.full(num_nodes, UNKNOWN, np.int32)
    more_pieces[: len(pieces)] = pieces
    return more_nodes, more_pieces


@njit(nogil=True)
def _are_free(nodes: NDArray[np.int32], base: int, labels: NDArray[np.int64]) -> bool:
    for label in labels:  # noqa: SIM110 (numba compiles no generators)
        if nodes[base + label, 1] != _FREE:
            return False
    return True


class BestPath(NamedTuple):
    """The best path to each byte of a line of n bytes, as its last piece.

    The arrays can be longer, and are used again for the next line.
    """

    # (n + 1,) log probability of the path
    scores: NDArray[np.float32]
    # (n + 1,) where the last piece starts, -1 if there is no path
    starts: NDArray[np.int32]
    # (n + 1,) that piece, or UNKNOWN for a character that is in no piece
    pieces: NDArray[np.int32]


@njit(nogil=True)
def make_path(size: int) -> BestPath:
    """Return memory for the path of a line of up to `size` bytes."""
    return BestPath(
        np.empty(size + 1, np.float32),
        np.empty(size + 1, np.int32),
        np.empty(size + 1, np.int32),
    )


@njit(nogil=True)
def find_pieces(line: NDArray[np.uint8], model: PieceModel, path: BestPath) -> None:
    """Find the most probable segmentation of UTF-8 that is normalized as the model does it.

    Args:
        line: n bytes.
        model: the pieces.
        path: for the result, of at least n + 1 entries.
    """
    nodes, floats, unknown_score = model
    path.scores[0] = 0
    path.starts[: len(line) + 1] = -1
    # Unsigned indexes save a quarter of the time: numba adds no code for negative ones.
    size = np.uint64(len(line))
    first_base = np.uint64(nodes[_ROOT, _BASE])
    frontier = np.uint64(0)  # the last byte that a path has reached
    start = np.uint64(0)
    while start < size:
        if abs(path.scores[start]) > _RESET_ABOVE:
            _subtract_score(path, np.int64(start), np.int64(frontier))
        score_here = path.scores[start]
        width = np.uint64(min(_CHARACTER_LENGTHS[line[start] >> 4], size - start))
        is_known = False
        node, base = _ROOT, first_base
        end = start
        while end < size:
            child = base + np.uint64(line[end])
            if np.uint64(nodes[child, _PARENT]) != node:
                break
            node, base = child, np.uint64(nodes[child, _BASE])
            end += _ONE
            piece = nodes[node, _PIECE]
            if piece == UNKNOWN:
                continue
            frontier = max(frontier, end)
            _offer(path, start, end, piece, floats[node, _SCORE] + score_here)
            if end - start == width:
                is_known = True
        if not is_known:
            end = start + width
            frontier = max(frontier, end)
            _offer(path, start, end, UNKNOWN, unknown_score + score_here)
        start += width


@inlined
def _offer(
    path: BestPath, start: np.uint64, end: np.uint64, piece: int, score: np.float32
) -> None:
    """Let the best path to byte `end` finish with this piece if that is better."""
    if path.starts[end] == -1 or score > path.scores[end]:
        path.scores[end] = score
        path.starts[end] = start
        path.pieces[end] = piece


@njit(nogil=True)
def _subtract_score(path: BestPath, start: np.int64, frontier: np.int64) -> None:
    """Subtract scores[start] from the scores of all paths that end in [start, frontier]."""
    offset = path.scores[start]
    for i in range(start, frontier + 1):
        if i == start or path.starts[i] != -1:
            path.scores[i] -= offset
