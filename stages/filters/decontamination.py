"""Find word n-grams that documents share with evaluation sets, and drop documents that share too many.

`Decontamination` stores, for every set, the number and the share of a document's words in n-grams
that occur in the set. `DecontaminationFilter` decides by these alone.

    sets: {mmlu: mmlu.jsonl, gsm8k: gsm8k.txt}       # .jsonl: each string is an example; .txt: each line
    contamination                                    # [{"set": "gsm8k", "words": 41, "share": 0.1025}]

A *word* is a sequence of letters, marks and digits (Unicode's L, M and N) in lower case. All other
characters separate words, except format characters (Cf: soft hyphens, joiners), which are ignored. In
scripts without blanks between words each character is a word. So "Don’t stop—now!" equals
"don't stop, NOW".

N-grams are compared by 64-bit hashes. A document of w words has a false match with probability
w * n / 2^64 for n n-grams in the sets (1,000 words, 10 million n-grams: 5e-10).
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
"""One element for each set with which a document shares words, sorted by name."""

_EXAMPLES_AT_A_TIME = 100_000
_SUFFIXES = (".jsonl", ".txt", ".jsonl.gz", ".txt.gz")


class Decontamination(Stage[DecontaminationSettings]):
    """Adds `contamination`: the sets with which a document shares word n-grams, and the words in these.

    Speed per core: 50 MB/s for n-grams of one length (2 shared cores, 4.5 million n-grams), 30 MB/s
    for all lengths from 8 to 13. Memory: 17 bytes per n-gram.

    Source: Brown et al. 2020 (GPT-3), appendix C: 13-grams of the sets in lower-case training text
    without punctuation. GPT-3 removes 200 characters around a match; here the shares are stored.
    """

    name = "decontamination"
    version = 1
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
        longest, shortest = self.settings.ngram_words, self.settings.min_example_words
        self._names = tuple(sorted(self.settings.sets))
        found: dict[int, list[tuple[NDArray[np.uint64], int]]] = {
            n: [] for n in range(shortest, longest + 1)
        }
        for number, name in enumerate(self._names):
            path = self.files[self.settings.sets[name]]
            examples = _examples(path)
            num_ngrams = 0
            while some := list(islice(examples, _EXAMPLES_AT_A_TIME)):
                hashes, firsts = _word_hashes(pa.array(some, pa.large_string()))
                states = ngram_overlap.compute_prefix_states(hashes)
                for num_words, parts in found.items():
                    keys = ngram_overlap.compute_ngram_keys(
                        states, firsts, num_words, num_words < longest
                    )
                    parts.append((keys, number))
                    num_ngrams += len(keys)
            if not num_ngrams:
                raise ValueError(
                    f"decontamination.sets.{name}: no example in {path} has {shortest} words or more, "
                    f"so nothing of it would be found; lower min_example_words, or give the set's "
                    f"texts"
                )
        self._ngrams = [
            _SetNgrams.build(n, parts)
            for n, parts in found.items()
            if any(len(keys) for keys, _ in parts)
        ]

    def apply(self, batch: pa.Table) -> Outcome:
        """Add the shared sets to each row."""
        hashes, firsts = _word_hashes(
            pc.fill_null(pc.cast(batch.column("text"), pa.large_string()), "")
        )
        states, shared = (
            ngram_overlap.compute_prefix_states(hashes),
            np.zeros(len(hashes), np.uint64),
        )
        for ngrams in self._ngrams:
            ngram_overlap.mark_matches(
                states, firsts, ngrams.num_words, ngrams.keys, ngrams.members, ngrams.bits, shared
            )
        words = ngram_overlap.count_matches_by_set(shared, firsts, len(self._names))  # (n, sets)
        rows, sets = np.nonzero(words)
        found = words[rows, sets]
        elements = pa.StructArray.from_arrays(
            [
                pa.array(self._names, pa.string()).take(pa.array(sets)),
                pa.array(found, pa.int64()),
                pa.array(np.round(found / np.diff(firsts)[rows], 4), pa.float64()),
            ],
            fields=list(CONTAMINATION.type.value_type),
        )
        ends = np.append(0, np.cumsum(np.bincount(rows, minlength=batch.num_rows)))
        column = pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()), elements, type=CONTAMINATION.type
        )
        counters = Counters()
        for set_index, name in enumerate(self._names):
            of_set = words[:, set_index]
            counters.add(f"contaminated.{name}", int(np.count_nonzero(of_set)))
            counters.add(f"contaminated_words.{name}", int(of_set.sum()))
        return keep_all(batch, {CONTAMINATION.name: column}, counters)


class _SetNgrams(NamedTuple):
    """The n-grams of one length, of all sets."""

    num_words: int
    keys: NDArray[np.uint64]  # (k,) ascending
    members: NDArray[np.uint64]  # (k,) a bit for each set
    bits: NDArray[np.uint8]  # rejects most hashes that are no key

    @classmethod
    def build(cls, num_words: int, parts: list[tuple[NDArray[np.uint64], int]]) -> Self:
        keys = np.concatenate([keys for keys, _ in parts])
        members = np.concatenate(
            [np.full(len(keys), 1 << number, np.uint64) for keys, number in parts]
        )
        order = np.argsort(keys, kind="stable")
        keys, members = keys[order], members[order]
        firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        keys, members = keys[firsts], np.bitwise_or.reduceat(members, firsts)
        return cls(num_words, keys, members, ngram_overlap.build_bit_filter(keys))


def _examples(path: Path) -> Iterator[str]:
    """Yield the examples of a set, file by file."""
    files = (
        [path]
        if path.is_file()
        else sorted(f for f in path.rglob("*") if f.name.endswith(_SUFFIXES))
    )
    if not files:
        raise ValueError(f"{path}: no file in this folder ends with one of {', '.join(_SUFFIXES)}")
    for file in files:
        is_json = ".jsonl" in file.suffixes
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    text = line.decode("utf-8-sig")
                    yield from _strings(json.loads(text)) if is_json and text.strip() else [text]
                except ValueError as error:
                    raise ValueError(
                        f"{file}, line {number}: not {'JSON' if is_json else 'UTF-8'}: {error}"
                    ) from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        # JSON can contain lone surrogates, which cannot be encoded.
        yield value.encode("utf-8", "replace").decode()
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


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
    return lower if len(lower := character.lower()) == 1 else character


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
    return text.isalpha() and text.lower() == text and not UNSPACED.search(text)


def _word_hashes(texts: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of all words of all texts, and the offset of each text, (n + 1,)."""
    whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    if not len(whole):
        return np.zeros(0, np.uint64), np.zeros(1, np.int64)
    _, offsets, utf8 = whole.buffers()
    starts = np.frombuffer(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    return ngram_overlap.hash_words(np.frombuffer(utf8 or b"", np.uint8), starts, _characters())


# --- The filter ---


class DecontaminationFilter(Stage[DecontaminationFilterSettings]):
    """Drops documents that share too much with a set. The detail is the set with the largest excess.

    Source of the default: Brown et al. 2020, appendix C: any common 13-gram is a collision.
    """

    name = "decontamination"
    version = 1
    needs = Decontamination.adds
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "decontamination.share_too_high": "The share of words in word n-grams of an evaluation set "
            "is above max_share."
        }
    )
    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"decontaminated.": "Documents dropped because of the evaluation set"}
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows that share no more than max_share with each set."""
        column = batch.column(CONTAMINATION.name)
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        rows = np.repeat(np.arange(batch.num_rows), counts)  # (elements,) as are the next
        elements = pc.list_flatten(column)
        names, shares = (
            pc.struct_field(elements, "set"),
            pc.struct_field(elements, "share").to_numpy(),
        )
        limits = self._limits(names)
        order = np.lexsort((limits - shares, rows))  # in each row, the largest excess first
        first = order[np.flatnonzero(np.diff(rows[order], prepend=-1))]
        at = np.full(batch.num_rows, -1)  # the element with the largest excess of each row
        at[rows[first]] = first
        places = pa.array(at, mask=at < 0)
        value, limit = pa.array(shares).take(places), pa.array(limits).take(places)
        is_broken = pc.fill_null(pc.greater(value, limit), False)
        detail = (names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names).take(
            places
        )
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

    def _limits(self, names: pa.Array | pa.ChunkedArray) -> NDArray[np.float64]:
        given = self.settings.max_share
        if not isinstance(given, Mapping):
            return np.full(len(names), given)
        place = pc.index_in(names, value_set=pa.array(list(given), pa.string()))
        return pc.fill_null(pa.array(given.values(), pa.float64()).take(place), np.inf).to_numpy(
            zero_copy_only=False
        )
