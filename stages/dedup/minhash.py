r"""MinHash signatures of documents, and the filter that drops near-duplicates.

Signatures are those of datasketch (2.0, its default scheme) for the word n-grams of `split_ngrams`.
Two documents with Jaccard similarity s share a band with probability 1 - (1 - s^rows)^bands (Broder
1997; Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4.2), so bands only find
candidates. The phase fuzzy_dedup compares their n-gram sets.

    stage = MinHash(MinHashSettings(threshold=0.8))      # 16 bands of 6 rows
    stage.apply(batch).kept.column("minhash")[0]         # 16 hashes; null without words

A *word* is a sequence of characters that are not white space, in lower case and without accents,
punctuation and symbols, unless nothing is left: copies that differ in typography or in the normal
form of Unicode have equal words. In scripts without blanks between words each character is a word. A document with fewer words than an n-gram is one n-gram, so only equal documents are its
near-duplicates.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import Outcome, Settings, Stage, drop_where, keep_all
from stages.counters import Counters
from stages.kernels import characters
from stages.kernels.dedup.ngram_hashes import hash_ngrams
from stages.kernels.dedup.signatures import hash_bands, sign_ngrams
from stages.settings.dedup import MinHashSettings, compute_bands
from stages.string_buffers import make_read_only, read_string_buffers

# Thai, Lao, Burmese, Khmer, Chinese and Japanese (Unicode, Blocks.txt). Korean has blanks.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|"
    "[\U00020000-\U0003134f]"
)

# Seed of the permutations, datasketch's default. Only signatures of the same seed are
# comparable.
SEED = 1


@cache
def _permutations(num_permutations: int) -> NDArray[np.uint32]:
    """Return datasketch's permutations, (2, num_permutations), as the kernel takes them."""
    import datasketch

    permutations = datasketch.MinHash(num_perm=num_permutations, seed=SEED).permutations
    return np.ascontiguousarray(permutations, np.uint32)


def split_ngrams(text: str, ngram_words: int) -> list[str]:
    """Return the n-grams of a text in order, with repetitions: the reference of the kernel."""
    words = UNSPACED.sub(r" \g<0> ", "".join(map(_normal_form, text))).split()
    if not words:
        return []
    span = min(ngram_words, len(words))  # a short text is one n-gram
    return [" ".join(words[i : i + span]) for i in range(len(words) - span + 1)]


def _normal_form(character: str) -> str:
    """Return one character or none: the kernel replaces characters one by one.

    Accents, punctuation and symbols are those of datatrove's `simplify_text`: Mn after NFD, P and S.
    """
    category = unicodedata.category(character)
    if category[0] in "PS":
        return ""
    if UNSPACED.match(character):
        return character
    decomposed = unicodedata.normalize("NFD", character)
    base = [part for part in decomposed if unicodedata.category(part) != "Mn"]
    # Syllables of Hangul have two or three parts.
    becomes = character if len(base) > 1 else "".join(base)
    lower = becomes.lower()
    return lower if len(lower) == 1 else becomes


@cache
def get_characters() -> characters.CharacterTable:
    """Return the rule of `split_ngrams` for every character, from this Python's Unicode tables.

    Takes 0.1 s and 60 kB.
    """
    return characters.build_character_table(_action, _is_plain)


def _action(character: str) -> int:
    if character.isspace():
        return characters.KEEP_SPACE
    becomes = _normal_form(character)
    if not becomes:
        return characters.DELETE
    if UNSPACED.match(character):
        return characters.ALONE
    return characters.KEEP if becomes == character else characters.pack_replacement(becomes)


def _is_plain(text: str) -> bool:
    return (
        text.split() == [text]
        and text.lower() == text
        and not UNSPACED.search(text)
        and unicodedata.is_normalized("NFD", text)
        and not any(
            category[0] in "PS" or category == "Mn"
            for category in map(unicodedata.category, text)
        )
    )


def signatures(
    texts: pa.Array | pa.ChunkedArray, settings: MinHashSettings
) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Compute the signature of every text.

    Args:
        texts: (n,) string or large_string; a null counts as empty.
        settings: number and seed of the permutations, words per n-gram.

    Returns:
        signatures: (n, num_permutations) uint32.
        has_words: (n,) False for a text without words.
    """
    starts, hashes = flatten_lists(ngram_sets(texts, settings))
    permutations = _permutations(settings.num_permutations)
    return sign_ngrams(starts, hashes, permutations), np.diff(starts) > 0


def ngram_sets(
    texts: pa.Array | pa.ChunkedArray, settings: MinHashSettings
) -> pa.LargeListArray:
    """Compute the distinct hashes of each text's n-grams, sorted.

    A hash is the first 4 bytes of the SHA-1 as a little-endian integer, as in datasketch. Two sets of
    n hashes have n * n / 2^32 equal ones by chance, a share of n / 2^32 of the set.

    Args:
        texts: (n,) string or large_string; a null counts as empty.
        settings: words per n-gram.
    """
    if len(texts) == 0:
        return pa.array([], pa.large_list(pa.uint32()))
    offsets, hashes = hash_ngrams(
        *read_string_buffers(texts), get_characters(), settings.ngram_words
    )
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(hashes))


def hash_bands_of_ngrams(
    starts: NDArray[np.int64], ngrams: NDArray[np.uint32], settings: MinHashSettings
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Compute the band hashes of texts from their n-gram sets.

    Args:
        starts: (n + 1,) the start of each set.
        ngrams: the sets of `ngram_sets`, one after another.
        settings: number of permutations, and bands.

    Returns:
        hashes: (n, num_bands) uint64.
        has_words: (n,) False for a text without words.
    """
    num_bands, rows = compute_bands(settings)
    permutations = _permutations(settings.num_permutations)
    in_bands = np.ascontiguousarray(permutations[:, : num_bands * rows])
    minima = sign_ngrams(starts, ngrams, in_bands)
    return hash_bands(minima, num_bands, rows), np.diff(starts) > 0


def flatten_lists(lists: pa.LargeListArray) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the start of each list among all values, shape (n + 1,), and the values."""
    sizes = pc.list_value_length(lists).to_numpy()
    starts = np.append(0, np.cumsum(sizes)).astype(np.int64)
    return starts, make_read_only(lists.flatten().to_numpy())


class MinHash(Stage[MinHashSettings]):
    """Adds the hashes of the bands of each signature. Drops nothing."""

    name = "minhash"
    version = 4  # the files that annotate makes of the columns count, too
    needs: ClassVar[pa.Schema] = pa.schema([pa.field("text", pa.large_string())])
    adds: ClassVar[pa.Schema] = pa.schema(
        [
            # One hash per band; null for a text without words.
            pa.field("minhash", pa.list_(pa.uint64())),
        ]
    )

    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"band_hashes": "Hashes of bands, by which near-duplicates are found"}
    )

    @classmethod
    def added_columns(cls, settings: MinHashSettings) -> pa.Schema:
        """Return the columns, with the n-grams if they are stored."""
        ngrams = pa.field("minhash_ngrams", pa.large_list(pa.uint32()))
        return cls.adds.append(ngrams) if settings.store_ngrams else cls.adds

    def open(self) -> None:
        """Compute the permutations with datasketch, and the table of characters."""
        _permutations(self.settings.num_permutations)
        get_characters()

    def apply(self, batch: pa.Table) -> Outcome:
        """Add the band hashes, and the n-grams that fuzzy_dedup compares."""
        ngrams = ngram_sets(batch.column("text"), self.settings)
        hashes, has_words = hash_bands_of_ngrams(*flatten_lists(ngrams), self.settings)
        added: dict[str, pa.Array] = {"minhash": _to_lists(hashes, has_words)}
        if self.settings.store_ngrams:
            added["minhash_ngrams"] = ngrams
        counters = Counters()
        counters.add("band_hashes", np.count_nonzero(has_words) * hashes.shape[1])
        return keep_all(batch, added, counters)


def _to_lists(
    rows: NDArray[np.uint64] | NDArray[np.uint32], is_valid: NDArray[np.bool_]
) -> pa.ListArray:
    """Return a list per row of a matrix, null where it is not valid."""
    offsets = np.append(0, np.cumsum(is_valid * rows.shape[1])).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(rows[is_valid].reshape(-1)), mask=pa.array(~is_valid)
    )


class MinHashFilter(Stage[Settings]):
    """Drops documents that have a `representative`: another document of their cluster is kept."""

    name = "minhash"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([pa.field("representative", pa.uint64())])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "minhash.near_duplicate": "The document is a near-duplicate of another one, which was "
            "preferred and may be dropped for another reason; `explain` names it."
        }
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the documents without a representative."""
        return drop_where(
            batch, pc.is_valid(batch.column("representative")), "minhash.near_duplicate"
        )
