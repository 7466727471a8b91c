"""Find word n-grams that documents share with evaluation sets, and drop contaminated documents.

`Decontamination` stores, for every set, the number and the share of a document's words in n-grams
that occur in the set. `DecontaminationFilter` decides by these columns alone.

    sets: {mmlu: mmlu.jsonl, gsm8k: gsm8k.txt}    # examples: strings of .jsonl, lines of .txt
    contamination                                 # [{"set": "gsm8k", "words": 41, "share": 0.1025}]

A *word* is a sequence of letters and digits (Unicode's L, M and N) in lower case, without accents and
in their usual width. All other characters separate words, except format characters (Cf: soft hyphens,
joiners), which are ignored. In scripts without blanks between words each character is a word. For example, "Don’t stop—now!"
equals "don't stop, NOW".

N-grams are compared by 64-bit hashes. With n n-grams in the sets, a document of w words has a false
match with probability w * n / 2^64: 5e-10 for 1,000 words and 10 million n-grams.
"""

from __future__ import annotations

import gzip
import json
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import DOCUMENT, Outcome, Stage, drop_where, keep_all
from stages.counters import Counters
from stages.dedup.minhash import UNSPACED
from stages.kernels import characters, ngram_overlap
from stages.settings.filters import DecontaminationFilterSettings, DecontaminationSettings
from stages.string_buffers import read_string_buffers

# One element for each set with which a document shares words, sorted by name.
CONTAMINATION = pa.field(
    "contamination",
    pa.list_(
        pa.struct(
            [
                pa.field("set", pa.string()),
                pa.field("words", pa.int64()),
                pa.field("share", pa.float64()),
            ]
        )
    ),
)

_EXAMPLES_AT_A_TIME = 100_000  # bounds the memory of a set while it is read
_SUFFIXES = (".jsonl", ".txt", ".jsonl.gz", ".txt.gz")


# Words per n-gram -> (keys, number of their set).
_KeysByLength = dict[int, list[tuple[NDArray[np.uint64], int]]]


class Decontamination(Stage[DecontaminationSettings]):
    """Adds `contamination`: the sets that share word n-grams with a document, and how many words.

    Speed per core: 50 MB/s for n-grams of one length (2 shared cores, 4.5 million n-grams), 30 MB/s
    for all lengths from 8 to 13. Memory: 17 bytes per n-gram.

    Source: Brown et al. 2020 (GPT-3), appendix C: 13-grams of words in lower case, by white space, from
    which punctuation is removed. Here punctuation separates words. GPT-3 removes 200 characters
    around a match; here the shares are stored.
    """

    name = "decontamination"
    version = 2
    needs = pa.schema([DOCUMENT.field("text")])
    adds = pa.schema([CONTAMINATION])
    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "contaminated.": "Documents that share a word n-gram with the evaluation set",
            "contaminated_words.": "Words of documents in word n-grams of the evaluation set",
        }
    )

    _names: tuple[str, ...]
    _ngrams: list[_SetNgrams]

    @classmethod
    def required_files(cls, settings: DecontaminationSettings) -> tuple[str, ...]:
        """Return the files, without duplicates, sorted."""
        return tuple(sorted(set(settings.sets.values())))

    @classmethod
    def expected_counters(cls, settings: DecontaminationSettings) -> tuple[str, ...]:
        """Return the counters of every evaluation set, found or not."""
        names: list[str] = []
        for family in cls.counters:
            names += [f"{family}{name}" for name in sorted(settings.sets)]
        return tuple(names)

    def open(self) -> None:
        """Read the sets.

        Raises:
            ValueError: a file does not have the format of its name, or a set has no example that is
                long enough.
        """
        self._names = tuple(sorted(self.settings.sets))
        found: _KeysByLength = {}
        for number, name in enumerate(self._names):
            path = self.files[self.settings.sets[name]]
            if not self._read_set(path, number, found):
                raise ValueError(
                    f"decontamination.sets.{name}: no example in {path} has "
                    f"{self.settings.min_example_words} words or more, so the set matches no "
                    f"document; lower min_example_words, or use a file with the set's texts"
                )
        self._ngrams = [_SetNgrams.build(n, parts) for n, parts in sorted(found.items())]

    def _read_set(self, path: Path, number: int, found: _KeysByLength) -> bool:
        """Add the n-grams of a set to `found`. Return whether there are any."""
        longest = self.settings.ngram_words
        has_ngrams = False
        examples = _read_examples(path)
        while some := list(islice(examples, _EXAMPLES_AT_A_TIME)):
            hashes, firsts = _hash_words(pa.array(some, pa.large_string()))
            states = ngram_overlap.compute_prefix_states(hashes)
            for num_words in range(self.settings.min_example_words, longest + 1):
                # An example that is shorter than an n-gram must occur as a whole.
                is_whole = num_words < longest
                keys = ngram_overlap.compute_ngram_keys(states, firsts, num_words, is_whole)
                if len(keys):
                    found.setdefault(num_words, []).append((keys, number))
                    has_ngrams = True
        return has_ngrams

    def apply(self, batch: pa.Table) -> Outcome:
        """Add the shared sets to each row."""
        texts = pc.fill_null(pc.cast(batch.column("text"), pa.large_string()), "")
        hashes, firsts = _hash_words(texts)
        states = ngram_overlap.compute_prefix_states(hashes)
        shared = np.zeros(len(hashes), np.uint64)  # a bit per set, for each word
        for ngrams in self._ngrams:
            ngram_overlap.mark_matches(
                states,
                firsts,
                ngrams.num_words,
                ngrams.keys,
                ngrams.members,
                ngrams.bits,
                shared,
            )
        num_words = ngram_overlap.count_matches_by_set(shared, firsts, len(self._names))
        column = self._build_column(num_words, np.diff(firsts))
        counters = Counters()
        for set_index, name in enumerate(self._names):
            num_words_of_set = num_words[:, set_index]
            counters.add(f"contaminated.{name}", int(np.count_nonzero(num_words_of_set)))
            counters.add(f"contaminated_words.{name}", int(num_words_of_set.sum()))
        return keep_all(batch, {CONTAMINATION.name: column}, counters)

    def _build_column(
        self, shared: NDArray[np.int64], num_words: NDArray[np.int64]
    ) -> pa.Array:
        """Return (n,) CONTAMINATION, from the shared words (n, sets) and all words (n,)."""
        rows, sets = np.nonzero(shared)
        found = shared[rows, sets]
        values = [
            pa.array(self._names, pa.string()).take(pa.array(sets)),
            pa.array(found, pa.int64()),
            pa.array(np.round(found / num_words[rows], 4), pa.float64()),
        ]
        elements = pa.StructArray.from_arrays(
            values, fields=list(CONTAMINATION.type.value_type)
        )
        num_elements = np.bincount(rows, minlength=len(shared))
        offsets = pa.array(np.append(0, np.cumsum(num_elements)), pa.int32())
        return pa.ListArray.from_arrays(offsets, elements, type=CONTAMINATION.type)


class _SetNgrams(NamedTuple):
    """The n-grams of one length, of all sets."""

    num_words: int
    keys: NDArray[np.uint64]  # (k,) ascending
    members: NDArray[np.uint64]  # (k,) a bit for each set
    bits: NDArray[np.uint8]  # rejects most hashes that are no key

    @classmethod
    def build(cls, num_words: int, parts: list[tuple[NDArray[np.uint64], int]]) -> Self:
        all_keys: list[NDArray[np.uint64]] = []
        all_members: list[NDArray[np.uint64]] = []
        for some_keys, number in parts:
            all_keys.append(some_keys)
            all_members.append(np.full(len(some_keys), 1 << number, np.uint64))
        keys, members = np.concatenate(all_keys), np.concatenate(all_members)
        # Sort, then join the bits of equal keys: an n-gram can be in several sets.
        order = np.argsort(keys, kind="stable")
        keys, members = keys[order], members[order]
        firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        keys, members = keys[firsts], np.bitwise_or.reduceat(members, firsts)
        return cls(num_words, keys, members, ngram_overlap.build_bit_filter(keys))


def _read_examples(path: Path) -> Iterator[str]:
    """Yield the examples of a file, or of the files in a folder."""
    if path.is_file():
        yield from _read_file(path)
        return
    files = sorted(file for file in path.rglob("*") if file.name.endswith(_SUFFIXES))
    if not files:
        raise ValueError(
            f"{path}: no file in this folder ends with one of {', '.join(_SUFFIXES)}"
        )
    for file in files:
        yield from _read_file(file)


def _read_file(file: Path) -> Iterator[str]:
    is_json = ".jsonl" in file.suffixes
    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = line.decode("utf-8-sig")
                if is_json and text.strip():
                    yield from _find_strings(json.loads(text))
                else:
                    yield text
            except ValueError as error:
                wanted = "JSON" if is_json else "UTF-8"
                raise ValueError(f"{file}, line {number}: not {wanted}: {error}") from error


def _find_strings(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value at any depth, in order. Keys of objects are no examples."""
    if isinstance(value, str):
        # JSON can contain lone surrogates, which cannot be encoded.
        yield value.encode("utf-8", "replace").decode()
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _find_strings(inner)


# --- Words ---


def words(text: str) -> list[str]:
    """Return the words of a text in order: the reference of the kernel."""
    return "".join(map(_normal_form, text)).split()


def _normal_form(character: str) -> str:
    """Return what a character becomes: part of a word, a separator, or nothing."""
    category = unicodedata.category(character)
    if category == "Cf":
        return ""
    if category[0] not in "LMN":
        return " "
    if UNSPACED.match(character):
        return f" {character} "
    # Full-width letters become those of ASCII. One character only: the kernel replaces them one by one.
    decomposed = unicodedata.normalize("NFKD", character)
    base = [part for part in decomposed if unicodedata.category(part) != "Mn"]
    becomes = character if len(base) > 1 else "".join(base)
    lower = becomes.lower()
    return lower if len(lower) == 1 else becomes


@cache
def _characters() -> characters.CharacterTable:
    """Return the rule of `words` for every character, from this Python's Unicode tables (0.5 s)."""
    return characters.build_character_table(_action, _is_plain)


def _action(character: str) -> int:
    becomes = _normal_form(character)
    if becomes == " ":
        return ngram_overlap.SEPARATE
    if becomes == f" {character} ":
        return characters.ALONE
    if not becomes:
        return characters.DELETE
    return characters.KEEP if becomes == character else characters.pack_replacement(becomes)


def _is_plain(text: str) -> bool:
    return (
        text.isalpha()
        and text.lower() == text
        and unicodedata.is_normalized("NFKD", text)
        and not UNSPACED.search(text)
    )


def _hash_words(
    texts: pa.Array | pa.ChunkedArray,
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of all words of all texts, and the offset of each text, (n + 1,)."""
    return ngram_overlap.hash_words(*read_string_buffers(texts), _characters())


# --- The filter ---


class DecontaminationFilter(Stage[DecontaminationFilterSettings]):
    """Drops documents that share too many words with a set.

    If several sets are above their limits, the detail names the one with the largest excess.

    Source of the default: Brown et al. 2020, appendix C: any common 13-gram is a collision.
    """

    name = "decontamination"
    version = 1
    needs = Decontamination.adds
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "decontamination.share_too_high": "The share of words in word n-grams of an evaluation "
            "set is above max_share."
        }
    )
    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"decontaminated.": "Documents dropped because of the evaluation set"}
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows that share no more than max_share with each set."""
        column = batch.column(CONTAMINATION.name)
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        # These arrays have one value per shared set, (elements,).
        rows = np.repeat(np.arange(batch.num_rows), counts)
        elements = pc.list_flatten(column)
        names = pc.struct_field(elements, "set")
        shares = pc.struct_field(elements, "share").to_numpy()
        limits = self._find_limits(names)
        order = np.lexsort((limits - shares, rows))  # in each row, the largest excess first
        first = order[np.flatnonzero(np.diff(rows[order], prepend=-1))]
        worst = np.full(batch.num_rows, -1)  # (n,) the element with the largest excess
        worst[rows[first]] = first
        indices = pa.array(worst, mask=worst < 0)  # null for a row that shares nothing
        value, limit = pa.array(shares).take(indices), pa.array(limits).take(indices)
        is_broken = pc.fill_null(pc.greater(value, limit), False)
        whole_names = (
            names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
        )
        detail = whole_names.take(indices)
        outcome = drop_where(
            batch,
            is_broken,
            "decontamination.share_too_high",
            value=value,
            limit=limit,
            detail=detail,
        )
        outcome.counters.add_values("decontaminated.", outcome.dropped.column("detail"))
        return outcome

    def _find_limits(self, names: pa.Array | pa.ChunkedArray) -> NDArray[np.float64]:
        """Return the limit of each set, (elements,); infinity for a set without one."""
        max_share = self.settings.max_share
        if not isinstance(max_share, Mapping):
            return np.full(len(names), max_share)
        index = pc.index_in(names, value_set=pa.array(list(max_share), pa.string()))
        limits = pa.array(max_share.values(), pa.float64()).take(index)
        return pc.fill_null(limits, np.inf).to_numpy(zero_copy_only=False)
