"""CCNet's language models: text normalisation, SentencePiece pieces, and a KenLM 5-gram over them.

Source: `text_normalizer.py` and `perplexity.py` of cc_net (Wenzek et al. 2020, arXiv:1911.00359).

    model = LanguageModel(folder, "en")       # folder / "en.sp.model", folder / "en.arpa.bin"
    model.perplexity("The treaty was signed in Ghent.")        # 312.4
"""

from __future__ import annotations

import math
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.kernels.characters import PLANES, bound_marks, list_categories
from stages.kernels.language_model.normalization import UNSUPPORTED
from stages.kernels.language_model.scoring import TextScorer, load_text_scorer

# ASCII mark -> the marks that it replaces. CCNet's table also has １, but digits are 0 by
# then.
_REPLACED = {
    ",": "，、",
    ".": "。",
    '"': "„”“«»」「《》",
    "'": "´’",
    ":": "∶：",
    "?": "？",
    "!": "！",
    "(": "（",
    ")": "）",
    ";": "；",
    "-": "–━►",
    "~": "～",
    "<": "〈",
    ">": "〉",
    "[": "【",
    "]": "】",
    "%": "％",
}
_EXPANDED = {"…": "...", "—": " - ", "．": ". "}
_CONTROLS = (*range(32), *range(127, 160))
_DELETED = 0xFFFFFFFF  # beyond the last code point


@cache
def build_code_point_table() -> NDArray[np.uint32]:
    """Return (0x110000,) uint32: the replacement of each code point, or _DELETED. Takes 0.1 s."""
    table = np.arange(0x110000, dtype="<u4")
    for plane in PLANES:
        codes, categories = list_categories(plane.start, plane.stop)
        table[codes[categories == b"Nd"]] = ord("0")  # the digits that \d matches
        table[codes[categories == b"Mn"]] = _DELETED
    for ascii_mark, marks in _REPLACED.items():
        table[list(map(ord, marks))] = ord(ascii_mark)
    table[list(_CONTROLS)] = _DELETED
    table.flags.writeable = False
    return table


def normalize_for_lm(text: str) -> str:
    """Return the text in the form on which CCNet's language models were trained, on one line.

    The text is stripped and lower-cased. Accents (code points of category Mn after NFD) and control
    characters, newlines included, are deleted. Digits become 0, Unicode punctuation becomes ASCII.
    Source: `normalize` in cc_net's `text_normalizer.py` with its defaults.
    """
    # The grapheme joiner is an accent, and deleted with the others.
    decomposed = unicodedata.normalize("NFD", bound_marks(text.strip().lower()))
    # numpy looks the UTF-32 code points up in a table: 77-135 MB/s. `str.translate` with the same
    # table reaches 15-25 MB/s, CCNet's own code 9 MB/s.
    codes = np.frombuffer(decomposed.encode("utf-32-le", "surrogatepass"), "<u4")
    # No code is out of range; mode="clip" makes take skip the check.
    codes = build_code_point_table().take(codes, mode="clip")
    line = codes[codes != _DELETED].tobytes().decode("utf-32-le", "surrogatepass")
    for mark, replacement in _EXPANDED.items():
        line = line.replace(mark, replacement)
    return line


# The characters at which `str.split` splits and that `normalize_for_lm` does not delete.
SPACES = (
    " \xa0\u1680\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)

# Stored instead of infinity and NaN, so that every score is finite.
MAX_PERPLEXITY = 1e300


class LanguageModel:
    """The SentencePiece and KenLM models of one language.

    Holds open files, so it cannot be pickled: create one per process.
    """

    def __init__(self, folder: Path, language: str) -> None:
        """Load `<language>.sp.model` and map `<language>.arpa.bin` into memory.

        The second is a KenLM binary; an ARPA text is also accepted, but loads slowly.

        Raises:
            FileNotFoundError: one of the two is missing.
            OSError, RuntimeError, ValueError: one of the two cannot be read as such a model.
        """
        import kenlm
        import sentencepiece

        pieces_file, lm_file = (
            folder / f"{language}.sp.model",
            folder / f"{language}.arpa.bin",
        )
        for file in (pieces_file, lm_file):
            if not file.is_file():
                raise FileNotFoundError(
                    f"{folder}: no {file.name}, wanted {pieces_file.name} and {lm_file.name}; "
                    f"point models.{language} at a folder that holds both"
                )
        config = kenlm.Config()
        # LAZY maps the file instead of reading it, so all processes of a machine share its pages.
        config.load_method = kenlm.LoadMethod.LAZY
        config.show_progress = False
        config.arpa_complain = kenlm.ARPALoadComplain.NONE
        self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(pieces_file))
        self._lm = kenlm.Model(str(lm_file), config)
        # Whether no piece of this model contains white space, see `_score`.
        pieces = self._pieces.encode("a".join(SPACES), out_type=str)
        self._is_piece_one_token = len(" ".join(pieces).split()) == len(pieces)
        self._scorer: TextScorer | None = None
        if self._is_piece_one_token:
            self._scorer = load_text_scorer(
                self._pieces.serialized_model_proto(), lm_file, normalize_for_lm
            )

    def perplexity(self, text: str) -> float | None:
        """Return the perplexity of one text, see `perplexities`."""
        return self.perplexities(pa.array([text]))[0]

    def perplexities(self, texts: pa.Array | pa.ChunkedArray) -> list[float | None]:
        """Return 10^(-log10 p / (num_tokens + 1)) of each text as one sentence, one decimal.

        None if the normalised text is empty. Tokens are the pieces, joined by blanks and split at
        white space; the additional one is the end of the sentence. At most MAX_PERPLEXITY.
        Source: `DocLM` in cc_net's `perplexity.py`.

        Args:
            texts: (n,) string or large_string. A null counts as an empty text.
        """
        if self._scorer is None:
            return [self._score_by_libraries(text.as_py() or "") for text in texts]
        log10_probs, num_tokens = self._scorer.score(texts)
        perplexities: list[float | None] = []
        scored = zip(log10_probs.tolist(), num_tokens.tolist(), strict=True)
        for i, (log10_prob, num) in enumerate(scored):
            if num == UNSUPPORTED:
                perplexities.append(self._score_by_libraries(texts[i].as_py() or ""))
            else:
                perplexities.append(_to_perplexity(log10_prob, num) if num else None)
        return perplexities

    def _score_by_libraries(self, text: str) -> float | None:
        # Bytes are 1.3 times as fast as str, because pieces are joined without being decoded.
        pieces = self._pieces.encode(normalize_for_lm(text).encode(), out_type=bytes)
        if not pieces:
            return None
        sentence = b" ".join(pieces)
        # Splitting takes a seventh of the time. It has no effect if no piece contains white space.
        num_tokens = (
            len(pieces) if self._is_piece_one_token else len(sentence.decode().split())
        )
        return _to_perplexity(self._lm.score(sentence), num_tokens)


def _to_perplexity(log10_prob: float, num_tokens: int) -> float:
    # The order of the arguments matters: min(limit, NaN) is the limit.
    exponent = min(math.log10(MAX_PERPLEXITY), -log10_prob / (num_tokens + 1))
    return round(10.0**exponent, 1)
