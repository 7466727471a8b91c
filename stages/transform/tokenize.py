"""Convert texts to token ids, with the fastest library that gives the ids of the tokenizer's own one.

The ids are those of the reference library: HuggingFace tokenizers, or SentencePiece for its models.
gigatoken is used if it loads the tokenizer and agrees with the reference, id by id, on difficult
texts; `Tokenize.describe` reports the choice. Special tokens are never read from text: a page that
contains `<|endoftext|>` gets the ids of these thirteen characters, so no text can forge the end of a
document. Truncation, padding, templates and dropout of a tokenizer file are ignored. Uses one thread.

    stage = Tokenize(TokenizeSettings(tokenizer="gpt2-bpe"), {"gpt2-bpe": Path("gpt2/")})
    stage.open()
    kept = stage.apply(batch).kept      # "Hello world": tokens [15496, 995, 50256], num_tokens 3
    stage.describe().end_of_document    # 50256
    stage.decode([15496, 995])          # "Hello world"
"""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version as version_of
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.contract import DOC_ID, Outcome, Stage, drop_where, keep_all, with_columns
from stages.settings.transform import TokenizeSettings
from stages.transform.tokenizer_files import (
    Definition,
    load_sentencepiece,
    read_definition,
    spec_for_text,
)

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]

CACHE_LIFE_BYTES = 128 << 20
"""Bytes of text after which gigatoken is loaded again, because its cache of words grows without limit.
Measured growth per byte of text: 3.7 bytes on Wikipedia in six languages, 8 on random words of ten
letters. So the cache stays below 0.5 GB on text, and about 1 GB on noise. Loading takes 0.1 s, filling
the cache with common words 0.5 s."""

SLICE_BYTES = 8 << 20
"""Bytes of text per call of an encoder: bounds its memory, and the growth of the cache in a call."""


@dataclass(frozen=True)
class TokenizerInfo:
    """The description of a tokenizer in the manifest of a dataset.

    `sha256` is the digest of the defining file; of several files, the digest of their `sha256sum`
    lines sorted by name. `vocab_size` is the largest id plus one, special tokens included. `encoder`
    and `encoder_reason` have no effect on the ids.
    """

    name: str
    sha256: str
    vocab_size: int
    end_of_document: int | None
    special_ids: Mapping[str, int]
    encoder: str
    encoder_reason: str


class Tokenize(Stage[TokenizeSettings]):
    """Adds the token ids of each document, with the end-of-document id, and their number."""

    name = "tokenize"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([DOC_ID, pa.field("text", pa.large_string())])
    adds: ClassVar[pa.Schema] = pa.schema(
        [pa.field("tokens", pa.large_list(pa.uint32())), pa.field("num_tokens", pa.int64())]
    )
    counters: ClassVar[Mapping[str, str]] = MappingProxyType({"tokens": "Tokens"})
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "tokenize.error_reserved_id": "The text encodes to a special id of the tokenizer (the value), "
            "which would forge a document boundary."
        }
    )

    @classmethod
    def required_files(cls, settings: TokenizeSettings) -> tuple[str, ...]:
        """Return the file or folder of the tokenizer."""
        return (settings.tokenizer,)

    def open(self) -> None:
        """Read the tokenizer and choose its encoder.

        Raises:
            ValueError: a file is missing or has an unknown format, the vocabulary is too large,
                `end_of_document` is not one of its tokens or can occur in ordinary text, or the
                requested encoder does not give the exact ids.
        """
        definition = self._read_definition()
        reference = _reference_of(definition)
        self._encoder, encoder_reason = _choose_encoder(
            definition, reference, self.settings.encoder
        )
        self._end = _end_of_document(definition, self.settings.end_of_document)
        self._reserved = _reserved_ids(definition, self._end)
        _check_reserved_ids(definition, reference, self._reserved)
        self._info = TokenizerInfo(
            name=Path(self.settings.tokenizer).name,
            sha256=definition.sha256,
            vocab_size=definition.vocab_size,
            end_of_document=self._end,
            special_ids=MappingProxyType(dict(definition.special_ids)),
            encoder=f"{self._encoder.library} {version_of(self._encoder.library)}",
            encoder_reason=encoder_reason,
        )

    def _read_definition(self) -> Definition:
        return read_definition(self.files[self.settings.tokenizer], self.settings.tiktoken_pattern)

    def apply(self, batch: pa.Table) -> Outcome:
        """Add `tokens` and `num_tokens`. A null text counts as empty."""
        tokens: list[pa.Array] = []
        forged = [np.zeros(0, np.int64)]
        for texts in _slices(_texts_of(batch), SLICE_BYTES):
            ids, offsets = self._encoder.encode(texts)
            forged.append(_first_reserved(ids, offsets, self._reserved))
            values, ends = (
                (ids, offsets) if self._end is None else _with_ends(ids, offsets, self._end)
            )
            tokens.append(pa.LargeListArray.from_arrays(pa.array(ends), pa.array(values)))
        column = pa.chunked_array(tokens, self.adds.field("tokens").type)
        num_tokens = pc.cast(pc.list_value_length(column), pa.int64())
        annotated = with_columns(batch, {"tokens": column, "num_tokens": num_tokens})
        outcome = _without_forged(annotated, np.concatenate(forged))
        outcome.counters.add("tokens", pc.sum(outcome.kept.column("num_tokens")).as_py())
        return outcome

    def describe(self) -> TokenizerInfo:
        """Return the tokenizer and its encoder. Call `open` first."""
        return self._info

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. Special tokens are spelled out; invalid UTF-8 becomes U+FFFD."""
        names = {token_id: name for name, token_id in self._info.special_ids.items()}
        runs = groupby((int(token_id) for token_id in ids), key=names.get)
        return "".join(
            self._decoder.decode(list(run)) if name is None else name * len(list(run))
            for name, run in runs
        )

    @cached_property
    def _decoder(self) -> _Reference:
        # Created on first use: it takes 50 to 150 MB, and most workers only encode.
        return _reference_of(self._read_definition())


# --- End of a document, and ids that no text may encode to ---


def _end_of_document(definition: Definition, wanted: str | int | None) -> int | None:
    where = definition.files[0]
    if wanted is None:
        return None
    if isinstance(wanted, int):
        if not 0 <= wanted < definition.vocab_size:
            raise ValueError(
                f"{where}: end_of_document is id {wanted}, the vocabulary has 0..{definition.vocab_size - 1}; "
                f"special tokens: {_listed(definition.special_ids)}"
            )
        return wanted
    name = definition.own_end if wanted == "auto" else wanted
    if name is None:
        raise ValueError(
            f"{where}: the tokenizer names no end-of-document token; set end_of_document to a token, an id or null; "
            f"special tokens: {_listed(definition.special_ids)}"
        )
    if name not in definition.vocab:
        near = difflib.get_close_matches(
            name, [*definition.special_ids, *definition.vocab], n=1, cutoff=0.0
        )
        raise ValueError(
            f"{where}: end_of_document {name!r} is not in the vocabulary; the nearest is {near[0]!r}"
        )
    return definition.vocab[name]


def _listed(special_ids: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{name!r} = {token_id}" for name, token_id in list(special_ids.items())[:10])
        or "none"
    )


def _reserved_ids(definition: Definition, end: int | None) -> Ids:
    """Return the ids that no text may encode to, sorted."""
    special = set(definition.special_ids.values()) - {definition.unk_id}
    return np.array(sorted(special if end is None else special | {end}), dtype=np.uint32)


def _check_reserved_ids(definition: Definition, reference: _Reference, reserved: Ids) -> None:
    """Raise if the spelling of a reserved token encodes to a reserved id.

    This happens if `end_of_document` is an ordinary token.
    """
    reserved_ids = set(reserved.tolist())
    names = [name for name, token_id in definition.vocab.items() if token_id in reserved_ids]
    ordinary = [definition.vocab[name] for name in names if name not in definition.special_ids]
    literals = [*names, *(reference.decode([token_id]) for token_id in ordinary)]
    ids, offsets = reference.encode(pa.array(literals, pa.large_string()))
    hits = _first_reserved(ids, offsets, reserved)
    for literal, hit in zip(literals, hits, strict=True):
        if hit >= 0:
            raise ValueError(
                f"{definition.files[0]}: the text {literal!r} encodes to id {hit}, which is to mark the end of a "
                f"document or another special place; set end_of_document to a special token "
                f"({_listed(definition.special_ids)}) or to null"
            )


# --- Encoders ---


class _Encoder(Protocol):
    library: str

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        """Return the ids of all texts, (num_tokens,), and the offset of each text, (num_texts + 1,)."""
        ...


class _Reference(_Encoder, Protocol):
    def decode(self, ids: list[int]) -> str: ...


def _reference_of(definition: Definition) -> _Reference:
    if definition.spec is None:
        return _SentencePiece(definition.files[0])
    return _Tokenizers(definition.files[0], definition.spec)


class _Tokenizers:
    """HuggingFace tokenizers."""

    library = "tokenizers"

    def __init__(self, path: Path, spec: Mapping[str, Any]) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec_for_text(spec)))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(
                f"{path}: HuggingFace tokenizers cannot read it ({error}); fetch the file again"
            ) from error
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        # One by one, because encode_batch starts threads.
        return _concatenate_ids(
            self._tokenizer.encode(t, add_special_tokens=False).ids for t in texts.to_pylist()
        )

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


class _SentencePiece:
    """The SentencePiece library. Its encoder never reads control symbols from text."""

    library = "sentencepiece"

    def __init__(self, path: Path) -> None:
        self._model = load_sentencepiece(path)

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        return _concatenate_ids(self._model.Encode(texts.to_pylist(), out_type=int, num_threads=1))

    def decode(self, ids: list[int]) -> str:
        return self._model.Decode(ids)


def _concatenate_ids(lists: Iterable[list[int]]) -> tuple[Ids, Offsets]:
    arrays = [np.asarray(ids, dtype=np.uint32) for ids in lists]
    offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
    np.cumsum([len(ids) for ids in arrays], out=offsets[1:])
    return np.concatenate([np.zeros(0, np.uint32), *arrays]), offsets


class Gigatoken:
    """gigatoken with bounded memory: it is loaded again after `cache_life_bytes` of text."""

    library = "gigatoken"

    def __init__(self, spec: Mapping[str, Any], cache_life_bytes: int = CACHE_LIFE_BYTES) -> None:
        text_spec = spec_for_text(spec)
        # gigatoken keeps the ids of the file, so special tokens can be removed from the definition.
        text_spec["added_tokens"] = [
            token for token in text_spec["added_tokens"] if not token["special"]
        ]
        self._json = json.dumps(text_spec)
        self._cache_life_bytes = cache_life_bytes
        self._load()

    def _load(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        self._backend = load_hf_json(self._json)
        self._cached_bytes = 0

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        """Return the ids of all texts, (num_tokens,), and the offset of each text, (num_texts + 1,)."""
        import awkward

        if self._cached_bytes >= self._cache_life_bytes:
            self._load()
        encoded: Any = self._backend.encode_batch(awkward.from_arrow(texts), parallel=False)
        offsets = _byte_offsets(texts)
        self._cached_bytes += int(offsets[-1] - offsets[0])
        return encoded.layout.content.data, encoded.layout.offsets.data


def _choose_encoder(
    definition: Definition, reference: _Reference, wanted: str
) -> tuple[_Encoder, str]:
    """Return the encoder and the reason of the choice."""
    if wanted == reference.library:
        return reference, "asked for"
    if wanted not in ("auto", "gigatoken"):
        raise ValueError(
            f"{definition.files[0]}: encoder {wanted!r} does not read this kind of tokenizer; "
            f"set encoder to auto, gigatoken or {reference.library}"
        )
    fast, finding = _agreeing_gigatoken(definition, reference)
    if fast is None and wanted == "gigatoken":
        raise ValueError(
            f"{definition.files[0]}: encoder gigatoken was asked for, but {finding}; set encoder to auto to use "
            f"{reference.library} in its place"
        )
    return fast or reference, finding


def _agreeing_gigatoken(
    definition: Definition, reference: _Reference
) -> tuple[Gigatoken | None, str]:
    spec = definition.spec
    if spec is None or spec.get("normalizer"):
        # gigatoken normalises rare sequences differently: U+00A8 U+2DE0 with SentencePiece's nmt_nfkc
        # has other ids. No set of texts can prove a normaliser equal, so gigatoken is used for
        # byte-level tokenizers without one only.
        return None, "gigatoken normalises text otherwise in rare cases"
    try:
        texts = _probe_texts(spec)
        fast = Gigatoken(spec)
        fast_ids, fast_offsets = fast.encode(texts)
    except Exception as error:  # noqa: BLE001 - any refusal by a foreign loader means: use the reference, and say so
        return None, f"gigatoken does not load it ({repr(error)[:200]})"
    ids, offsets = reference.encode(texts)
    if np.array_equal(ids, fast_ids) and np.array_equal(offsets, fast_offsets):
        return fast, f"gigatoken agrees with {reference.library} on {len(texts)} probe texts"
    row = next(
        i
        for i, text_ids in enumerate(np.split(ids, offsets[1:-1]))
        if not np.array_equal(text_ids, fast_ids[fast_offsets[i] : fast_offsets[i + 1]])
    )
    return (
        None,
        f"gigatoken differs from {reference.library} on the text {texts[row].as_py()[:60]!r}",
    )


# --- Texts on which an encoder must agree ---

_DIFFICULT_TEXTS = (
    "",
    " ",
    "\n",
    "\r\n\r\n",
    "  leading, trailing  ",
    "tabs\t\tand   runs    of     blanks \n \n\n  \t\n x",
    "\x00nul\x00 \x01\x02\x1f\x7f\x80\x9f control \ufeff bom \u200b\u200d zero width",
    "\u00a0no-break\u2028line\u2029paragraph\u3000ideographic\u0085next",
    "I'm you're they'll we'd it's don't I'VE HE'S 'tis ''quoted'' ’s",
    "1 12 123 1234 12345678901234567890 3.14 1,000,000 ١٢٣ ४५६ Ⅷ ½ x²",
    "Hello World hELLO CamelCaseWord snake_case kebab-case ALLCAPS iPhone",
    "...!!!???---===###@@@ :-) ;;{}[]<>|\\/ ~`^ <b>html</b> &amp; https://example.org/a?b=c#d",
    "def f(x):\n    return x  # code\n\n\n\tif y:\r\n\t\tpass",
    "Straße ŒUVRE İstanbul ΣΑΣ naïve cafe\u0301 Å A\u030a ﬁ ﬀ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "我能吞下玻璃而不伤身体。日本語のテキスト、カタカナ。한국어 텍스트",
    "مرحبا بالعالم שלום עולם สวัสดีชาวโลก नमस्ते दुनिया ஆத்திசூடி ሰላም ခင်ဗျား",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 😀😀 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0010ffff \uffff \ue000 \ufffd",
    "<|endoftext|> <|im_start|>user <s> </s> <unk> <pad> [CLS] [MASK] <0x0A> ▁ ▁▁a Ġ Ċ ##ing",
    "a" * 3000 + " " * 300 + "ab" * 500 + "\n" * 300 + "?!" * 200 + "好" * 300,
)


def _probe_texts(spec: Mapping[str, Any]) -> pa.Array:
    """Return difficult texts, special and added tokens in various contexts, and Unicode samples."""
    symbols = [token["content"] for token in spec.get("added_tokens") or []]
    surroundings = ("{0}", " {0}", "{0} ", "a{0}b", "a {0} b{0}{0}\n{0}\n\n{0}")
    spelled = [surrounding.format(symbol) for symbol in symbols for surrounding in surroundings]
    return pa.array([*_DIFFICULT_TEXTS, *spelled, *_sample_unicode()], pa.large_string())


def _sample_unicode() -> Iterator[str]:
    """Yield characters on both sides of each change of category, and every 16th code point.

    Libraries differ where their Unicode tables differ. Covers the assigned part of planes 0 to 3,
    with each character after a letter, a blank, a digit and itself.
    """
    points = [p for p in range(0x32000) if not 0xD800 <= p < 0xE000]
    categories = [unicodedata.category(chr(p)) for p in points]
    seams = [
        chr(point)
        for point, before, here, after in zip(
            points, ["", *categories], categories, [*categories[1:], ""], strict=False
        )
        if here != before or here != after or point % 16 == 0
    ]
    for start in range(0, len(seams), 64):
        yield "".join(f"a{c} {c}1{c}{c}\n" for c in seams[start : start + 64])


# --- Arrays ---


def _texts_of(batch: pa.Table) -> pa.Array:
    return pc.fill_null(pc.cast(batch.column("text"), pa.large_string()), "").combine_chunks()


def _byte_offsets(texts: pa.Array) -> Offsets:
    """(num_texts + 1,) int64: the offset of each text in the buffer of the array."""
    return np.frombuffer(texts.buffers()[1], dtype=np.int64)[
        texts.offset : texts.offset + len(texts) + 1
    ]


def _slices(texts: pa.Array, slice_bytes: int) -> Iterator[pa.Array]:
    """Yield slices of whole texts, each of at most `slice_bytes` or one text."""
    start = 0
    while start < len(texts):
        offsets = _byte_offsets(texts)
        stop = int(np.searchsorted(offsets, offsets[start] + slice_bytes, side="right")) - 1
        stop = max(stop, start + 1)
        yield texts.slice(start, stop - start)
        start = stop


def _with_ends(ids: Ids, offsets: Offsets, end: int) -> tuple[Ids, Offsets]:
    """Insert `end` after the ids of each text."""
    num_texts = len(offsets) - 1
    new_offsets = offsets + np.arange(num_texts + 1)
    values = np.empty(len(ids) + num_texts, dtype=np.uint32)
    is_end = np.zeros(len(values), dtype=np.bool_)
    is_end[new_offsets[1:] - 1] = True
    values[is_end] = end
    values[~is_end] = ids
    return values, new_offsets


def _first_reserved(ids: Ids, offsets: Offsets, reserved: Ids) -> npt.NDArray[np.int64]:
    """(num_texts,) int64: the first of the (sorted) reserved ids in each text, or -1."""
    first = np.full(len(offsets) - 1, -1, dtype=np.int64)
    if not len(reserved):
        return first
    # Special ids are close together, at one end of the vocabulary: two comparisons exclude nearly
    # every token.
    hits = np.flatnonzero((ids >= reserved[0]) & (ids <= reserved[-1]))
    hits = hits[np.isin(ids[hits], reserved)]
    rows = np.searchsorted(offsets, hits, side="right") - 1
    first[rows[::-1]] = ids[
        hits[::-1]
    ]  # in reverse order, so the first hit of a row is written last
    return first


def _without_forged(annotated: pa.Table, forged: npt.NDArray[np.int64]) -> Outcome:
    """Drop the rows whose text encodes to a reserved id: `forged` (num_rows,) is that id, or -1."""
    if not (forged >= 0).any():
        return keep_all(annotated)
    return drop_where(
        annotated, pa.array(forged >= 0), "tokenize.error_reserved_id", value=pa.array(forged)
    )
