r"""Hashes of lines in CCNet's normal form, by which duplicate lines are found.

Hashes are equal to those of `cc_net`, bit for bit (Wenzek et al. 2020, arXiv:1911.00359, section
3.1). They follow its code (`text_normalizer.normalize_for_dedup`, `dedup.compute_hashes`), which
keeps accents and ASCII punctuation, unlike the paper.

    hash_paragraphs(pa.array(["Bread\nCookies?", "Wine"]))     # offsets [0, 2, 3] and three hashes
"""

from __future__ import annotations

import hashlib
import re
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.kernels import characters, line_hashes
from stages.stored_tables import TableKey, load_or_build
from stages.string_buffers import make_read_only, read_string_buffers

# The marks that `cc_net.text_normalizer.UNICODE_PUNCT` deletes, except １, which is 0 by
# then.
_PUNCTUATION = "«´»–—’“”„…∶━►、。〈〉《》「」【】！％（），．１：；？～"
_DELETED = re.compile(f"[{_PUNCTUATION}\x00-\x1f\x7f-\x9f]")
_DIGIT = re.compile(r"\d")
# The only character whose lower case depends on its neighbours (Unicode, SpecialCasing;
# CPython's `str.lower`).
_FINAL_SIGMA = "Σ"


def hash_paragraph(line: str) -> int:
    """Return the hash of one line: the reference in plain Python.

    Strip white space, lower-case, replace each decimal digit (Unicode Nd) by 0, delete 34
    punctuation marks and the control characters 0-31 and 127-159. The hash is the first 8 bytes of
    the SHA-1 of the UTF-8, as a little-endian uint64.
    """
    sha1 = hashlib.sha1(_normal_form(line).encode(), usedforsecurity=False)
    return int.from_bytes(sha1.digest()[:8], "little")


def _normal_form(line: str) -> str:
    return _DELETED.sub("", _DIGIT.sub("0", line.strip().lower()))


def hash_paragraphs(
    texts: pa.Array | pa.ChunkedArray,
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    r"""Compute the hash of every line of every text.

    Args:
        texts: (n,) string or large_string. Lines end at \n only. An empty text has one empty line, a
            null text has none.

    Returns:
        offsets: (n + 1,) int64, the start of each text in `hashes`.
        hashes: (offsets[n],) uint64, equal to those of `hash_paragraph`.

    Raises:
        ValueError: a text is not UTF-8.
    """
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    offsets, hashes, num_lines = [np.zeros(1, np.int64)], [np.empty(0, np.uint64)], 0
    for chunk in chunks:
        firsts, chunk_hashes = _hash_chunk(chunk)
        offsets.append(firsts[1:] + num_lines)
        hashes.append(chunk_hashes)
        num_lines += len(chunk_hashes)
    return np.concatenate(offsets), np.concatenate(hashes)


def _hash_chunk(texts: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    utf8, offsets = read_string_buffers(texts)
    is_valid = read_validity(texts)
    firsts = line_hashes.count_lines(utf8, offsets, is_valid)
    hashes, exact = line_hashes.hash_lines(utf8, offsets, firsts, _characters())
    # The kernel leaves a few lines to Python, for example those with a final sigma.
    for line, start, end in exact:
        try:
            hashes[line] = hash_paragraph(utf8[start:end].tobytes().decode())
        except UnicodeDecodeError as error:
            text = int(np.searchsorted(firsts, line, "right")) - 1
            raise ValueError(
                f"text {text}, line {line - firsts[text]}: not UTF-8 at byte {error.start} of the "
                f"line ({error.reason}); decode input with errors='replace'"
            ) from error
    return firsts, hashes


def read_validity(texts: pa.Array) -> NDArray[np.bool_]:
    """Return whether each text is not null, as the kernels take it, shape (n,)."""
    return make_read_only(texts.is_valid().to_numpy(zero_copy_only=False))


@cache
def _characters() -> characters.CharacterTable:
    """Return the rule of `hash_paragraph` for every character, from this Python's Unicode tables."""
    key = TableKey("paragraph-hashes", [__file__, characters.__file__])
    return load_or_build(
        key,
        characters.CharacterTable,
        lambda: characters.build_character_table(_action, _is_plain),
    )


def _is_plain(text: str) -> bool:
    return text.split() == [text] and _normal_form(text) == text


def _action(character: str) -> int:
    if character == _FINAL_SIGMA:
        return characters.EXACT
    # Without the strip of `_normal_form`: inside a line, white space is kept.
    becomes = _DELETED.sub("", _DIGIT.sub("0", character.lower()))
    if character.isspace():
        return characters.KEEP_SPACE if becomes else characters.DELETE_SPACE
    if not becomes:
        return characters.DELETE
    return characters.KEEP if becomes == character else characters.pack_replacement(becomes)
