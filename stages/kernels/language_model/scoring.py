"""Score texts with a SentencePiece unigram model and a KenLM binary file.

model = processor.serialized_model_proto()
scorer = load_text_scorer(model, Path("en.arpa.bin"), normalize_for_lm)
scorer.score(pa.array(["The cat sat."]))          # ([-4.25], [3])
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled
from stages.kernels.language_model.ngrams import (
    NgramTables,
    find_word,
    map_ngram_tables,
    score_words,
)
from stages.kernels.language_model.normalization import (
    UNSUPPORTED,
    Normalization,
    load_normalization,
    measure_normal_form,
    normalize_text,
)
from stages.kernels.language_model.pieces import (
    UNKNOWN,
    BestPath,
    PieceModel,
    build_piece_model,
    find_pieces,
    make_path,
)
from stages.string_buffers import read_string_buffers


class TextScorer:
    """The two models of a language, for `score`."""

    def __init__(
        self,
        texts: list[bytes],
        scores: NDArray[np.float32],
        ngrams: NgramTables,
        normalization: Normalization,
    ) -> None:
        """Prepare the search.

        Args:
            texts: the pieces.
            scores: (num_pieces,) log probability of each.
            ngrams: the n-grams of pieces.
            normalization: the form of the pieces.
        """
        self._normalization = normalization
        self._pieces = build_piece_model(texts, scores)
        self._ngrams = ngrams
        offsets = np.zeros(len(texts) + 3, np.int64)
        words = [*texts, b"<s>", b"</s>"]
        np.cumsum([*map(len, words)], out=offsets[1:])
        utf8 = np.frombuffer(b"".join(words), np.uint8)
        # (num_pieces + 2,) KenLM's number of each piece, of <s> and of </s>
        self._words = _find_words(utf8, offsets, ngrams)

    def score(
        self, texts: pa.Array | pa.ChunkedArray
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Score each text as one sentence.

        Args:
            texts: (n,) string or large_string. A null counts as an empty text.

        Returns:
            log10_probs: (n,)
            num_pieces: (n,), UNSUPPORTED for texts that only the libraries can score.
        """
        utf8, offsets = read_string_buffers(texts)
        return _score_texts(
            utf8, offsets, self._normalization, self._pieces, self._words, self._ngrams
        )


def load_text_scorer(
    pieces_model: bytes, lm_file: Path, normalize: Callable[[str], str]
) -> TextScorer | None:
    """Return the scorer of two models, or None if their kinds are not supported.

    Supported are unigram models without byte fallback and without user-defined symbols, and KenLM
    binary files with probing hash tables: those of CCNet.

    Args:
        pieces_model: a SentencePiece model, serialized.
        lm_file: any file that KenLM reads.
        normalize: CCNet's rules, see `build_normalization`.

    Raises:
        ValueError: the KenLM file is damaged.
    """
    from sentencepiece import sentencepiece_model_pb2

    formats: Any = sentencepiece_model_pb2  # its classes are made when it is imported
    model = formats.ModelProto.FromString(pieces_model)
    kinds = model.SentencePiece
    trainer, rules = model.trainer_spec, model.normalizer_spec
    has_plain_spaces = (
        rules.add_dummy_prefix
        and rules.remove_extra_whitespaces
        and rules.escape_whitespaces
        and not trainer.treat_whitespace_as_suffix
    )
    if trainer.model_type != trainer.UNIGRAM or not has_plain_spaces:
        return None
    texts: list[bytes] = []
    scores: list[float] = []
    for piece in model.pieces:
        if piece.type in (kinds.USER_DEFINED, kinds.BYTE):
            return None
        if piece.type == kinds.NORMAL:
            texts.append(piece.piece.encode())
            scores.append(piece.score)
    ngrams = map_ngram_tables(lm_file)
    if not texts or ngrams is None:
        return None
    charsmap = rules.precompiled_charsmap
    normalization = load_normalization(charsmap, normalize)
    return TextScorer(texts, np.array(scores, np.float32), ngrams, normalization)


@compiled
def _find_words(
    utf8: NDArray[np.uint8], offsets: NDArray[np.int64], ngrams: NgramTables
) -> NDArray[np.uint32]:
    """Return KenLM's number of each text."""
    words = np.empty(len(offsets) - 1, np.uint32)
    for i in range(len(words)):
        words[i] = find_word(utf8[offsets[i] : offsets[i + 1]], ngrams)
    return words


@compiled
def _score_texts(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    normalization: Normalization,
    model: PieceModel,
    words_of_pieces: NDArray[np.uint32],
    ngrams: NgramTables,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return log10 p and the number of pieces of each text, see `TextScorer.score`."""
    num_texts = len(offsets) - 1
    log10_probs = np.zeros(num_texts, np.float64)
    num_pieces = np.empty(num_texts, np.int64)
    longest = 0
    for i in range(num_texts):
        longest = max(longest, offsets[i + 1] - offsets[i])
    line = np.empty(measure_normal_form(longest), np.uint8)
    run = np.empty(measure_normal_form(longest), np.uint8)
    # Memory that is used again for each text: where it is new, the system must clear it.
    room = 2 * longest  # in bytes of normal form; more is rare
    path, words = make_path(room), np.empty(room + 2, np.uint32)
    for i in range(num_texts):
        text = utf8[offsets[i] : offsets[i + 1]]
        size = normalize_text(text, normalization, line, run)
        if size == UNSUPPORTED:
            num_pieces[i] = UNSUPPORTED
        else:
            if size > room:
                room = size
                path, words = make_path(room), np.empty(room + 2, np.uint32)
            log10_probs[i], num_pieces[i] = _score_line(
                line[:size], model, words_of_pieces, ngrams, path, words
            )
    return log10_probs, num_pieces


@njit(nogil=True)
def _score_line(
    line: NDArray[np.uint8],
    model: PieceModel,
    words_of_pieces: NDArray[np.uint32],
    ngrams: NgramTables,
    path: BestPath,
    words: NDArray[np.uint32],
) -> tuple[float, int]:
    """Return log10 p and the number of pieces of a text in normal form.

    `path` and `words` are memory for lines of that length.
    """
    size = len(line)
    find_pieces(line, model, path)
    # The best path is read from its end, so words are written from the end.
    words[size + 1] = words_of_pieces[-1]
    first = size + 1
    end = size
    while end > 0:
        start = path.starts[end]
        piece = path.pieces[end]
        first -= 1
        if piece == UNKNOWN:
            # SentencePiece joins adjacent unknown characters to one piece.
            while start > 0 and path.pieces[start] == UNKNOWN:
                start = path.starts[start]
            words[first] = find_word(line[start:end], ngrams)
        else:
            words[first] = words_of_pieces[piece]
        end = start
    num_pieces = size + 1 - first
    words[first - 1] = words_of_pieces[-2]
    return score_words(words[first - 1 : size + 2], ngrams), num_pieces
