"""Read the files of fastText models, .bin and .ftz, into arrays.

A file has five parts. Integers and floats are little-endian. Source: `saveModel` of fastText 0.9.3
and the `save` methods that it calls.

    magic number, version
    arguments      12 int32 and a double
    dictionary     counts, an entry per word and label, the map of pruned n-grams
    input matrix   a row per word, then a row per bucket of n-grams
    output matrix  a row per label, or per inner node of the tree of labels
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stages.kernels.compilation import compiled
from stages.string_buffers import make_read_only

_MAGIC = 793712314
# Version 11 has no character n-grams in supervised models.
_VERSIONS = (11, 12)

# Values of the argument `loss`.
HIERARCHICAL_SOFTMAX = 1
SOFTMAX = 3
_LOSSES = range(1, 5)
_SUPERVISED = 3
_KINDS = range(1, 4)

_WORD, _LABEL = 0, 1
# Count and type, after the NUL that ends the text of an entry.
_ENTRY_TAIL = 9
# fastText builds the tree of labels with this number for "more than any count".
MAX_COUNT = 10**15
# Centroids of each part of a quantized vector.
_NUM_CENTROIDS = 256


class Matrix(NamedTuple):
    """Row i is `scales[i] * rows[i]`."""

    rows: NDArray[np.float32]  # (n, dim)
    scales: NDArray[np.float32]  # (n,) 1 in a matrix that is not quantized by norm


@dataclass(frozen=True)
class ModelFile:
    """The content of a model file.

    Attributes:
        kind: 3 for a supervised model.
        loss: HIERARCHICAL_SOFTMAX, SOFTMAX or another.
        word_ngrams: words of the longest word n-gram.
        num_buckets: of hashed n-grams.
        min_chars: characters of the shortest character n-gram.
        max_chars: characters of the longest one, 0 for none.
        dictionary: (num_bytes,) uint8, the entries as they are stored.
        starts: (num_words + num_labels,) int64, where the text of each entry starts in `dictionary`.
        ends: (num_words + num_labels,) int64, where it ends. Words are first, labels last.
        num_words: entries that are words.
        labels: with their prefix, in the order of the file.
        label_counts: (num_labels,) int64, how often the training text had each label.
        pruned: (p, 2) int32, pairs of a bucket and its row after those of the words. None if every
            bucket has a row.
        input: the vectors of words and n-grams.
        output: the weights of the labels, or of the inner nodes of their tree.
    """

    kind: int
    loss: int
    word_ngrams: int
    num_buckets: int
    min_chars: int
    max_chars: int
    dictionary: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    num_words: int
    labels: list[str]
    label_counts: NDArray[np.int64]
    pruned: NDArray[np.int32] | None
    input: Matrix
    output: Matrix

    @property
    def is_supervised(self) -> bool:
        """Whether the model predicts labels."""
        return self.kind == _SUPERVISED


def read_model_file(path: Path) -> ModelFile:
    """Read a model file and check that its parts fit together.

    fastText does not check: it reads a cut file without an error, or without end.

    Raises:
        ValueError: the file is missing, is not a fastText model or is damaged.
    """
    try:
        content = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        raise ValueError(f"{path} cannot be read as a fastText model: {error}") from error
    try:
        return _parse(_Cursor(content))
    except _DamagedError as error:
        raise ValueError(
            f"{path} is not a whole fastText model: {error}; fetch or train it again"
        ) from error


class _DamagedError(Exception):
    """The file is not what `saveModel` writes."""


def _check(is_right: bool, message: str) -> None:
    if not is_right:
        raise _DamagedError(message)


class _Cursor:
    """A position in the file. Reading past the end raises _DamagedError."""

    def __init__(self, content: NDArray[np.uint8]) -> None:
        self.content = content
        self.at = 0

    def unpack(self, layout: str) -> tuple[Any, ...]:
        """Return the values of a `struct` layout, without its byte order."""
        content = self.take(np.uint8, struct.calcsize("<" + layout))
        return struct.unpack("<" + layout, content.tobytes())

    def take(self, kind: Any, num_values: int) -> NDArray[Any]:
        """Return a copy of the next values."""
        size = num_values * np.dtype(kind).itemsize
        left = len(self.content) - self.at
        _check(
            0 <= size <= left,
            f"at byte {self.at} there are {left} bytes, of {size} that should follow",
        )
        values = np.empty(num_values, kind)
        values.view(np.uint8)[:] = self.content[self.at : self.at + size]
        self.at += size
        return values


def _parse(cursor: _Cursor) -> ModelFile:
    magic, version = cursor.unpack("ii")
    _check(magic == _MAGIC, f"it begins with {magic}, not with {_MAGIC}")
    _check(
        version in _VERSIONS,
        f"its version is {version}, and this program reads {_VERSIONS}",
    )
    dim, _, _, _, _, word_ngrams, loss, kind, num_buckets, min_chars, max_chars, _ = (
        cursor.unpack("12i")
    )
    cursor.unpack("d")
    _check(loss in _LOSSES, f"its loss is {loss}, outside 1 to 4")
    _check(kind in _KINDS, f"its kind is {kind}, outside 1 to 3")
    _check(dim > 0, f"its vectors have {dim} dimensions")
    _check(num_buckets >= 0, f"it has {num_buckets} buckets")
    if version == _VERSIONS[0] and kind == _SUPERVISED:
        max_chars = 0
    num_entries, num_words, num_labels, _, num_pruned = cursor.unpack("3i2q")
    _check(
        min(num_words, num_labels) >= 0 and num_entries == num_words + num_labels,
        f"it has {num_entries} entries: {num_words} words and {num_labels} labels",
    )
    dictionary, starts, ends = _take_dictionary(cursor, num_entries)
    _check_types(dictionary, ends, num_words)
    pruned = None
    if num_pruned >= 0:
        pruned = cursor.take(np.int32, 2 * num_pruned).reshape(num_pruned, 2)
    input_matrix, is_quantized = _take_matrix(cursor, can_be_quantized=True)
    output_matrix, _ = _take_matrix(cursor, can_be_quantized=is_quantized)
    num_left = len(cursor.content) - cursor.at
    _check(num_left == 0, f"it has {num_left} bytes after its end")
    labels, counts = _read_labels(dictionary, starts[num_words:], ends[num_words:])
    model = ModelFile(
        kind, loss, word_ngrams, num_buckets, min_chars, max_chars, dictionary, starts, ends,
        num_words, labels, counts, pruned, input_matrix, output_matrix,
    )  # fmt: skip
    _check_shapes(model, dim)
    return model


def _take_dictionary(
    cursor: _Cursor, num_entries: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    rest = cursor.content[cursor.at :]
    _check(
        num_entries <= len(rest) // (1 + _ENTRY_TAIL),
        f"{num_entries} entries do not fit into the {len(rest)} bytes that follow",
    )
    starts, ends = find_entries(make_read_only(rest), num_entries)
    _check(
        len(ends) == num_entries,
        f"entry {len(ends)} of {num_entries} in the dictionary has no end",
    )
    size = int(ends[-1]) + 1 + _ENTRY_TAIL if num_entries else 0
    return cursor.take(np.uint8, size), starts, ends


@compiled
def find_entries(
    content: NDArray[np.uint8], num_entries: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the texts of the entries start and end.

    Each text ends with NUL, and 9 bytes follow that can have any value. The arrays are shorter than
    `num_entries` if the content ends before.
    """
    starts = np.empty(num_entries, np.int64)
    ends = np.empty(num_entries, np.int64)
    at = 0
    for entry in range(num_entries):
        starts[entry] = at
        while at < len(content) and content[at] != 0:
            at += 1
        ends[entry] = at
        at += 1 + _ENTRY_TAIL
        if at > len(content):
            return starts[:entry].copy(), ends[:entry].copy()
    return starts, ends


def _check_types(
    dictionary: NDArray[np.uint8], ends: NDArray[np.int64], num_words: int
) -> None:
    """Check that the words are first and the labels last."""
    types = dictionary[ends + _ENTRY_TAIL]
    is_right = bool(
        np.all(types[:num_words] == _WORD) and np.all(types[num_words:] == _LABEL)
    )
    _check(is_right, "the words of its dictionary do not come before its labels")


def _read_labels(
    dictionary: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[list[str], NDArray[np.int64]]:
    """Return the texts of the labels and how often the training text had each."""
    labels: list[str] = []
    for start, end in zip(starts, ends, strict=True):
        text = dictionary[start:end].tobytes()
        try:
            labels.append(text.decode("utf-8"))
        except UnicodeDecodeError:
            _check(False, f"label {text!r} is not UTF-8")
    counts = dictionary[ends[:, None] + np.arange(1, 9)].view(np.int64)[:, 0]
    _check(
        bool(np.all((counts >= 0) & (counts < MAX_COUNT // max(1, len(counts))))),
        f"a label has a count outside of 0 to {MAX_COUNT // max(1, len(counts))}",
    )
    return labels, counts


def _take_matrix(cursor: _Cursor, *, can_be_quantized: bool) -> tuple[Matrix, bool]:
    """Return a matrix, and whether it is quantized. A byte in front of it says which."""
    (flag,) = cursor.unpack("B")
    _check(flag <= 1, f"byte {cursor.at - 1} is {flag}, and should be 0 or 1")
    if flag and can_be_quantized:
        return _take_quantized(cursor), True
    num_rows, dim = cursor.unpack("qq")
    _check(min(num_rows, dim) >= 0, f"a matrix has {num_rows} rows and {dim} columns")
    rows = cursor.take(np.float32, num_rows * dim).reshape(num_rows, dim)
    return Matrix(rows, np.ones(num_rows, np.float32)), False


def _take_quantized(cursor: _Cursor) -> Matrix:
    """Return a matrix that is stored by product quantization (Jegou et al. 2011).

    Each part of a row is a code, the index of the centroid that replaces the part. If the norms are
    quantized too, a row must be multiplied by its norm. Source: `QuantMatrix::load`.
    """
    has_norms, num_rows, dim, num_codes = cursor.unpack("?qqi")
    codes = cursor.take(np.uint8, num_codes)
    parts = _take_centroids(cursor)
    _check(
        min(num_rows, dim) >= 0
        and num_codes == num_rows * len(parts)
        and sum(part.shape[1] for part in parts) == dim,
        f"a matrix of {num_rows} rows and {dim} columns has {num_codes} codes for {len(parts)} "
        "parts",
    )
    by_row = codes.reshape(num_rows, len(parts))
    rows = np.empty((num_rows, dim), np.float32)
    first = 0
    for index, part in enumerate(parts):
        width = part.shape[1]
        rows[:, first : first + width] = part[by_row[:, index]]
        first += width
    scales = np.ones(num_rows, np.float32)
    if has_norms:
        norm_codes = cursor.take(np.uint8, num_rows)
        norms = _take_centroids(cursor)
        _check(len(norms) == 1 and norms[0].shape[1] == 1, "norms have more than one part")
        scales = norms[0][norm_codes, 0]
    return Matrix(rows, scales)


def _take_centroids(cursor: _Cursor) -> list[NDArray[np.float32]]:
    """Return the centroids of each part of the vectors, (256, columns of the part)."""
    dim, num_parts, width, last_width = cursor.unpack("4i")
    _check(
        min(dim, num_parts, width) > 0
        and 0 < last_width <= width
        and (num_parts - 1) * width + last_width == dim,
        f"{dim} columns are in {num_parts} parts of {width}, the last of {last_width}",
    )
    values = cursor.take(np.float32, dim * _NUM_CENTROIDS)
    ends = np.arange(1, num_parts) * width * _NUM_CENTROIDS
    return [part.reshape(_NUM_CENTROIDS, -1) for part in np.split(values, ends)]


def _check_shapes(model: ModelFile, dim: int) -> None:
    """Check that every row that a text can ask for exists."""
    num_rows = len(model.input.rows)
    for matrix in (model.input, model.output):
        columns = matrix.rows.shape[1]
        _check(columns == dim, f"a matrix has {columns} columns for {dim} dimensions")
    num_ngram_rows = num_rows - model.num_words
    if model.pruned is None:
        _check(
            num_ngram_rows >= model.num_buckets,
            f"{num_rows} rows for {model.num_words} words and {model.num_buckets} buckets",
        )
    else:
        buckets, rows = model.pruned[:, 0], model.pruned[:, 1]
        _check(
            bool(np.all((buckets >= 0) & (buckets < model.num_buckets)))
            and bool(np.all((rows >= 0) & (rows < num_ngram_rows))),
            f"its map of n-grams leads outside of {model.num_buckets} buckets or {num_rows} rows",
        )
    if model.is_supervised:
        num_labels = len(model.label_counts)
        _check(
            len(model.output.rows) == num_labels,
            f"it has {len(model.output.rows)} rows of weights for {num_labels} labels",
        )
