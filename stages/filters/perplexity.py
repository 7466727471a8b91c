"""Score how much a document reads like Wikipedia in its language, and sort documents into head, middle and tail.

Promises: `Perplexity` stores what CCNet computes: the text normalised for the language model, cut into SentencePiece
pieces and scored by KenLM as one sentence; perplexity = 10^(-log10 p / (pieces + 1)), one decimal. `PerplexityFilter`
names the bucket from stored perplexities and cutoffs. `bins` and `percentile` measure cutoffs on a run.
Leaves to others: fetching or training the models, and choosing the cutoffs.

    perplexity = Perplexity(PerplexitySettings(models={"en": "lm-en"}), {"lm-en": folder})
    perplexity.open()                                         # folder / "en.sp.model", folder / "en.arpa.bin"
    scored = perplexity.apply(batch).kept                     # perplexity 312.4
    PerplexityFilter(PerplexityFilterSettings(cutoffs={"en": (340, 520)}, keep=("head",))).apply(scored)
"""

from __future__ import annotations

import csv
import math
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from stages.contract import DOCUMENT, Outcome, Settings, Stage, drop_where, keep_all, with_columns
from stages.counters import Counters

Bucket = Literal["head", "middle", "tail", "all"]

# ---- text as the language model reads it ----

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
"""ASCII -> the punctuation it stands for. CCNet's table maps the digit １ too, but digits are 0 by then."""
_EXPANDED = {"…": "...", "—": " - ", "．": ". "}
_CONTROLS = (*range(32), *range(127, 160))
_DELETED = 0xFFFFFFFF  # beyond the last code point


@cache
def _code_points() -> np.ndarray:
    """(0x110000,) uint32: what each code point becomes, or _DELETED; made once per process in 0.2 s."""
    table = np.arange(0x110000, dtype="<u4")
    categories = np.array([unicodedata.category(chr(code)) for code in range(len(table))])
    table[categories == "Nd"] = ord("0")  # what \d matches
    table[categories == "Mn"] = _DELETED
    for ascii_mark, marks in _REPLACED.items():
        table[[ord(mark) for mark in marks]] = ord(ascii_mark)
    table[list(_CONTROLS)] = _DELETED
    table.flags.writeable = False
    return table


def normalize_for_lm(text: str) -> str:
    """The text as CCNet's language models were trained to read it, on one line.

    Stripped, lower case, without accents (NFD, then no code point of category Mn), every digit 0, Unicode punctuation
    as ASCII, no control characters, so no newlines either.
    Source: `normalize` of cc_net's `text_normalizer.py` with its defaults. Here a table is applied to the UTF-32 code
    points by numpy: 77-135 MB/s where `str.translate` over the same table does 15-25 and CCNet's own code 9.
    """
    decomposed = unicodedata.normalize("NFD", text.strip().lower())
    codes = np.frombuffer(decomposed.encode("utf-32-le", "surrogatepass"), "<u4")
    codes = _code_points().take(
        codes, mode="clip"
    )  # nothing is out of range; "clip" spares take the check
    line = codes[codes != _DELETED].tobytes().decode("utf-32-le", "surrogatepass")
    for mark, replacement in _EXPANDED.items():
        line = line.replace(mark, replacement)
    return line


# ---- scores ----

SPACES = " \xa0\u1680\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
"""All that `str.split` splits at and `normalize_for_lm` leaves in a text."""

MAX_PERPLEXITY = 1e300
"""What cannot be told from infinity is stored as this, so that a hopeless text is finite and in the tail."""


class LanguageModel:
    """The SentencePiece and KenLM models of one language. Holds open files: build one per process, do not pickle."""

    def __init__(self, folder: Path, language: str) -> None:
        """Load `<language>.sp.model` and map `<language>.arpa.bin` (a KenLM binary, or an ARPA text, which is slower).

        Raises:
            FileNotFoundError: one of the two is missing.
            OSError, RuntimeError: one of the two cannot be read as what it should be.
        """
        import kenlm
        import sentencepiece

        pieces_file, lm_file = folder / f"{language}.sp.model", folder / f"{language}.arpa.bin"
        for file in (pieces_file, lm_file):
            if not file.is_file():
                raise FileNotFoundError(
                    f"{folder}: no {file.name}, wanted {pieces_file.name} and {lm_file.name}; "
                    f"point models.{language} at a folder that holds both"
                )
        config = kenlm.Config()
        config.load_method = (
            kenlm.LoadMethod.LAZY
        )  # mapped, not read: the processes of a machine share its pages
        config.show_progress = False
        config.arpa_complain = kenlm.ARPALoadComplain.NONE
        self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(pieces_file))
        self._lm = kenlm.Model(str(lm_file), config)
        pieces = self._pieces.encode("a".join(SPACES), out_type=str)
        self._is_piece_one_token = len(" ".join(pieces).split()) == len(pieces)

    def perplexity(self, text: str) -> float | None:
        """10^(-log10 p / (tokens + 1)) of the whole text as one sentence, one decimal; None when nothing is left of it.

        Tokens are counted on white space after the pieces are joined, and the one more is the end of the sentence, as
        in `DocLM` of cc_net's `perplexity.py`. Never infinite or NaN: MAX_PERPLEXITY stands for both.
        """
        # One text per call: as fast as a list, and memory is bounded by the longest text. As bytes, not str: 1.3 times
        # as fast, because pieces are made and joined without being decoded.
        pieces = self._pieces.encode(normalize_for_lm(text).encode(), out_type=bytes)
        if not pieces:
            return None
        sentence = b" ".join(pieces)
        # Splitting costs a seventh of the time and changes nothing where SentencePiece lets no white space through.
        num_tokens = len(pieces) if self._is_piece_one_token else len(sentence.decode().split())
        # min() in this order also turns NaN into the limit.
        exponent = min(math.log10(MAX_PERPLEXITY), -self._lm.score(sentence) / (num_tokens + 1))
        return round(10.0**exponent, 1)


class PerplexitySettings(Settings):
    """Which language model scores which language."""

    models: Mapping[str, str] = Field(
        description="Language code -> the folder that holds <code>.sp.model and <code>.arpa.bin: a name of the asset "
        "registry, or a path.",
    )


class Perplexity(Stage[PerplexitySettings]):
    """Adds `perplexity`: null where the language has no model or nothing is left of the text once normalised."""

    name = "perplexity"
    version = 1
    needs = pa.schema([DOCUMENT.field("text"), pa.field("language", pa.string())])
    adds = pa.schema([pa.field("perplexity", pa.float64())])
    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"perplexity.": "Histogram (see `bins`) of the perplexities of documents in the language"}
    )

    _models: dict[str, LanguageModel]

    @classmethod
    def required_files(cls, settings: PerplexitySettings) -> tuple[str, ...]:
        """The folders, each once, sorted."""
        return tuple(sorted(set(settings.models.values())))

    def open(self) -> None:
        """Load every language's model; `LanguageModel` says what it raises."""
        _code_points()
        self._models = {
            language: LanguageModel(self.files[reference], language)
            for language, reference in self.settings.models.items()
        }

    def apply(self, batch: pa.Table) -> Outcome:
        """Annotate every row; nothing is dropped."""
        texts, languages = batch.column("text"), batch.column("language").to_pylist()
        perplexities: list[float | None] = [None] * batch.num_rows
        # One language after another: models that take turns push each other out of the processor's caches (10 % of
        # the time with three languages).
        counters = Counters()
        for language, model in self._models.items():
            found: list[float] = []
            for row in [i for i, other in enumerate(languages) if other == language]:
                perplexity = perplexities[row] = model.perplexity(texts[row].as_py() or "")
                if perplexity is not None:
                    found.append(perplexity)
            counters.observe(f"perplexity.{language}", bins(found).tolist())
        added = {"perplexity": pa.array(perplexities, pa.float64())}
        return keep_all(batch, added, counters)


# ---- cutoffs ----

BIN_WIDTH = 1.005
"""Upper over lower edge of a bin of perplexities: finer than CCNet's cutoffs, which are rounded to tens (en 340)."""


@cache
def _bin_edges() -> np.ndarray:
    """(n + 1,) float64: bin k holds edges[k] <= perplexity < edges[k + 1]; edges[0] is 1, the least perplexity.

    A running product, because it rounds the same way on every machine; powers do not.
    """
    num_bins = math.ceil(math.log(MAX_PERPLEXITY) / math.log(BIN_WIDTH)) + 1
    return np.multiply.accumulate(np.concatenate([[1.0], np.full(num_bins, BIN_WIDTH)]))


def bins(perplexities: Sequence[float] | np.ndarray | pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The bin of every perplexity: bin k holds the values from 1.005^k to below 1.005^(k + 1).

    Args:
        perplexities: (n,) without nulls, 1 to MAX_PERPLEXITY.

    Returns:
        (n,) int64, at least 0. Counts per bin merge by addition.
    """
    return np.searchsorted(_bin_edges(), np.asarray(perplexities, np.float64), side="right") - 1


def percentile(histogram: Mapping[int, int], percent: float) -> float:
    """The perplexity below which at least `percent` per cent of the observations lie, at most one bin too high.

    It is the upper edge of the bin that holds the percentile (the "inverted_cdf" of numpy), so that cutting strictly
    below it, as the buckets do, takes in the percentile itself.

    Args:
        histogram: bin of `bins` -> number of observations.
        percent: 0..100.

    Raises:
        ValueError: the histogram is empty or percent lies outside 0..100.
    """
    total = sum(histogram.values())
    if total == 0 or not 0 <= percent <= 100:
        raise ValueError(
            f"percentile {percent!r} of {total} observations; wanted 0..100 of at least one: is there a document of "
            f"this language with a perplexity?"
        )
    rank = max(1, math.ceil(percent * total / 100))
    seen = 0
    for k in sorted(histogram):
        seen += histogram[k]
        if seen >= rank:
            return float(_bin_edges()[k + 1])
    raise AssertionError(f"counts of a histogram are at least 0, found {dict(histogram)!r}")


def read_cutoffs_csv(
    path: Path, percentiles: tuple[int, int] = (30, 60)
) -> dict[str, tuple[float, float]]:
    """Language -> (head below, middle below) out of a table in the format of CCNet's `cutoff.csv`.

    Args:
        path: a header of language codes over one row per percentile, whose number stands in the first column.
        percentiles: the rows to take; CCNet's buckets use 30 and 60.

    Raises:
        ValueError: a row is missing, has other columns than the header or holds something that is not a number.
    """
    with path.open(encoding="utf-8", newline="") as file:
        table = {row[0]: row[1:] for row in csv.reader(file) if row}
    languages = table.pop("", [])
    for wanted in map(str, percentiles):
        if wanted not in table:
            raise ValueError(
                f"{path}: no row for percentile {wanted}, found {', '.join(table) or 'none'}"
            )
    try:
        head, middle = ([float(cell) for cell in table[str(wanted)]] for wanted in percentiles)
        return dict(zip(languages, zip(head, middle, strict=True), strict=True))
    except ValueError as error:
        raise ValueError(
            f"{path}: rows {percentiles[0]} and {percentiles[1]} want one number for each of the {len(languages)} "
            f"languages of the header (whose first cell is empty): {error}"
        ) from error


# ---- buckets ----


class PerplexityFilterSettings(Settings):
    """Where the buckets end, and which of them are kept."""

    cutoffs: Mapping[str, tuple[float, float]] = Field(
        default_factory=dict[str, tuple[float, float]],
        description="Language code -> [head below, middle below]: a perplexity strictly below the first is head, "
        "strictly below the second middle, any other tail. CCNet takes the 30th and 60th percentile of each language "
        "(en 340 and 520). A language without cutoffs is in bucket all.",
    )
    keep: tuple[Bucket, ...] = Field(
        default=("head", "middle", "tail", "all"),
        min_length=1,
        description="Buckets to keep: head, middle, tail, and all for documents without cutoffs or perplexity.",
    )

    @model_validator(mode="after")
    def _cutoffs_in_order(self) -> Self:
        for language, (head_below, middle_below) in self.cutoffs.items():
            if not 0 <= head_below <= middle_below:
                raise ValueError(
                    f"cutoffs.{language} is [{head_below}, {middle_below}]; wanted two numbers of 0 and more, "
                    f"the head's first and not above the middle's"
                )
        return self


class PerplexityFilter(Stage[PerplexityFilterSettings]):
    """Adds `bucket` and drops the documents whose bucket is not kept.

    A drop's value is the perplexity and its limit the cutoff below which the document would have been kept (null where
    no perplexity would have been low enough). Source: `PerplexityBucket` of cc_net's `perplexity.py`.
    """

    name = "perplexity"
    version = 1
    needs = pa.schema([pa.field("language", pa.string()), pa.field("perplexity", pa.float64())])
    adds = pa.schema([pa.field("bucket", pa.string())])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "perplexity.bucket_not_wanted": "The perplexity puts the document into a bucket that is not kept."
        }
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Name every row's bucket, keep the rows of the buckets asked for."""
        perplexity = batch.column("perplexity")
        head_below, middle_below = self._cutoffs_of(batch.column("language"))
        bucket = _buckets(perplexity, head_below, middle_below)
        return drop_where(
            with_columns(batch, {"bucket": bucket}),
            pc.invert(pc.is_in(bucket, value_set=pa.array(self.settings.keep))),
            "perplexity.bucket_not_wanted",
            value=perplexity,
            limit=self._missed(perplexity, head_below, middle_below),
            detail=bucket,
        )

    def _missed(self, perplexity: Any, head_below: Any, middle_below: Any) -> Any:
        """(n,) float64: the cutoff under which a row would have been head or middle, if kept; null for all others."""
        none = pa.nulls(len(perplexity), pa.float64())
        keep = self.settings.keep
        cutoff = middle_below if "middle" in keep else head_below if "head" in keep else none
        return pc.if_else(pc.greater_equal(perplexity, cutoff), cutoff, none)

    def _cutoffs_of(self, language: Any) -> tuple[Any, Any]:
        """(n,) float64 each: head below and middle below of every row, null where the language has none."""
        cutoffs = self.settings.cutoffs
        row_of_cutoffs = pc.index_in(language, value_set=pa.array(cutoffs, pa.string()))
        head_below, middle_below = (
            pa.array([pair[side] for pair in cutoffs.values()], pa.float64()) for side in (0, 1)
        )
        return pc.take(head_below, row_of_cutoffs), pc.take(middle_below, row_of_cutoffs)


def _buckets(perplexity: Any, head_below: Any, middle_below: Any) -> Any:
    """(n,) string. Comparing with null gives null, so the one case that has nulls is decided outermost."""
    scored = pc.if_else(
        pc.less(perplexity, head_below),
        "head",
        pc.if_else(pc.less(perplexity, middle_below), "middle", "tail"),
    )
    has_no_bucket = pc.or_(pc.is_null(perplexity), pc.is_null(head_below))
    return pc.if_else(has_no_bucket, "all", scored)
