"""Convert texts to token ids.

The ids are those of the reference library: HuggingFace tokenizers, or SentencePiece for its models.
gigatoken, which is faster, is used if it gives the same ids on difficult texts; `Tokenize.describe`
reports the choice. Special tokens are never read from text: a page that contains `<|endoftext|>`
gets the ids of these thirteen characters, so no text can forge the end of a document. Truncation,
padding, templates and dropout of a tokenizer file are ignored. Uses one thread.

    stage = Tokenize(TokenizeSettings(tokenizer="gpt2-bpe"), {"gpt2-bpe": Path("gpt2/")})
    stage.open()
    kept = stage.apply(batch).kept      # "Hello world": tokens [15496, 995, 50256], num_tokens 3
    stage.describe().end_of_document    # 50256
    stage.decode([15496, 995])          # "Hello world"
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.contract import DOC_ID, Outcome, Stage, drop_where, keep_all, with_columns
from stages.kernels import token_ids
from stages.settings.transform import TokenizeSettings
from stages.string_buffers import make_read_only
from stages.transform.encoders import (
    Encoder,
    Ids,
    ReferenceEncoder,
    choose_encoder,
    load_reference,
    read_offsets,
)
from stages.transform.tokenizer_files import Definition, read_definition

# Bytes of text per call of an encoder: bounds its memory, and the growth of the cache in a
# call.
SLICE_BYTES = 8 << 20


@dataclass(frozen=True)
class TokenizerInfo:
    """The description of a tokenizer in the manifest of a dataset.

    Attributes:
        name: the name of the file or folder.
        sha256: digest of the defining file. For several files, the digest of their `sha256sum`
            lines, sorted by name.
        vocab_size: the largest id plus one, special tokens included.
        end_of_document: the id after each document, or None.
        special_ids: token -> id.
        encoder: the library and its version. It has no effect on the ids.
        encoder_reason: why this library was chosen.
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
            "tokenize.error_reserved_id": "The text encodes to a special id of the tokenizer (the "
            "value), which would forge a document boundary."
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
        self._encoder, reason = choose_encoder(definition, self.settings.encoder)
        self._end = _find_end_of_document(definition, self.settings.end_of_document)
        self._reserved = _list_reserved_ids(definition, self._end)
        _check_reserved_ids(definition, self._encoder, self._reserved)
        self._info = TokenizerInfo(
            name=Path(self.settings.tokenizer).name,
            sha256=definition.sha256,
            vocab_size=definition.vocab_size,
            end_of_document=self._end,
            special_ids=MappingProxyType(dict(definition.special_ids)),
            encoder=f"{self._encoder.library} {metadata.version(self._encoder.library)}",
            encoder_reason=reason,
        )

    def _read_definition(self) -> Definition:
        return read_definition(
            self.files[self.settings.tokenizer], self.settings.tiktoken_pattern
        )

    def apply(self, batch: pa.Table) -> Outcome:
        """Add `tokens` and `num_tokens`. A null text counts as empty."""
        tokens: list[pa.Array] = []
        forged = [np.zeros(0, np.int64)]
        for texts in _slice_texts(_read_texts(batch), SLICE_BYTES):
            ids, offsets = map(make_read_only, self._encoder.encode(texts))
            # Before the ends are added: they are reserved ids themselves.
            forged.append(token_ids.find_reserved(ids, offsets, self._reserved))
            if self._end is not None:
                ids, offsets = token_ids.append_ends(ids, offsets, self._end)
            tokens.append(pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids)))
        column = pa.chunked_array(tokens, self.adds.field("tokens").type)
        num_tokens = pc.cast(pc.list_value_length(column), pa.int64())
        annotated = with_columns(batch, {"tokens": column, "num_tokens": num_tokens})
        outcome = _drop_forged(annotated, np.concatenate(forged))
        outcome.counters.add("tokens", pc.sum(outcome.kept.column("num_tokens")).as_py())
        return outcome

    def describe(self) -> TokenizerInfo:
        """Return the tokenizer and its encoder. Call `open` first."""
        return self._info

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. Special tokens are spelled out; invalid UTF-8 becomes U+FFFD."""
        names = {token_id: name for name, token_id in self._info.special_ids.items()}
        parts: list[str] = []
        ordinary: list[int] = []  # ids since the last special token
        for token_id in map(int, ids):
            if token_id not in names:
                ordinary.append(token_id)
                continue
            parts += [self._decode_ordinary(ordinary), names[token_id]]
            ordinary = []
        parts.append(self._decode_ordinary(ordinary))
        return "".join(parts)

    def _decode_ordinary(self, ids: list[int]) -> str:
        return self._decoder.decode(ids) if ids else ""

    @cached_property
    def _decoder(self) -> ReferenceEncoder:
        # Created on first use: it takes 50 to 150 MB, and most workers only encode.
        return load_reference(self._read_definition())


# --- End-of-document id, and ids that no text may encode to ---


def _find_end_of_document(definition: Definition, wanted: str | int | None) -> int | None:
    where = definition.files[0]
    if wanted is None:
        return None
    if isinstance(wanted, int):
        if not 0 <= wanted < definition.vocab_size:
            raise ValueError(
                f"{where}: end_of_document is id {wanted}, the vocabulary has "
                f"0..{definition.vocab_size - 1}; "
                f"special tokens: {_format_special_ids(definition.special_ids)}"
            )
        return wanted
    name = definition.own_end if wanted == "auto" else wanted
    if name is None:
        raise ValueError(
            f"{where}: the tokenizer names no end-of-document token; set end_of_document to a token, "
            f"an id or null; special tokens: {_format_special_ids(definition.special_ids)}"
        )
    if name not in definition.vocab:
        tokens = [*definition.special_ids, *definition.vocab]
        nearest = difflib.get_close_matches(name, tokens, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"{where}: end_of_document {name!r} is not in the vocabulary; the nearest is {nearest!r}"
        )
    return definition.vocab[name]


def _format_special_ids(special_ids: Mapping[str, int]) -> str:
    first_ids = list(special_ids.items())[:10]
    return ", ".join(f"{name!r} = {token_id}" for name, token_id in first_ids) or "none"


def _list_reserved_ids(definition: Definition, end: int | None) -> Ids:
    """Return the ids that no text may encode to, sorted."""
    # Text outside the vocabulary has the unknown id, so it is allowed.
    reserved = set(definition.special_ids.values()) - {definition.unk_id}
    if end is not None:
        reserved.add(end)
    return make_read_only(np.array(sorted(reserved), dtype=np.uint32))


def _check_reserved_ids(definition: Definition, encoder: Encoder, reserved: Ids) -> None:
    """Raise if the spelling of a reserved token encodes to a reserved id.

    This happens if `end_of_document` is an ordinary token.
    """
    reserved_ids = set(reserved.tolist())
    texts: list[str] = []
    ordinary: list[int] = []
    for name, token_id in definition.vocab.items():
        if token_id not in reserved_ids:
            continue
        texts.append(name)
        if name not in definition.special_ids:
            ordinary.append(token_id)
    if ordinary:
        # The name of an ordinary token is not its text: GPT-2 writes a blank as "Ġ".
        reference = load_reference(definition)
        texts += [reference.decode([token_id]) for token_id in ordinary]
    ids, offsets = encoder.encode(pa.array(texts, pa.large_string()))
    ids, offsets = make_read_only(ids), make_read_only(offsets)
    found_ids = token_ids.find_reserved(ids, offsets, reserved)
    for text, found in zip(texts, found_ids, strict=True):
        if found >= 0:
            raise ValueError(
                f"{definition.files[0]}: the text {text!r} encodes to id {found}, which must only "
                f"mark the end of a document or another special place; set end_of_document to a "
                f"special token ({_format_special_ids(definition.special_ids)}) or to null"
            )


# --- Arrays ---


def _read_texts(batch: pa.Table) -> pa.Array:
    return pc.fill_null(
        pc.cast(batch.column("text"), pa.large_string()), ""
    ).combine_chunks()


def _slice_texts(texts: pa.Array, slice_bytes: int) -> Iterator[pa.Array]:
    """Yield slices of whole texts, each of at most `slice_bytes` or one text."""
    start = 0
    while start < len(texts):
        offsets = read_offsets(texts)
        stop = int(np.searchsorted(offsets, offsets[start] + slice_bytes, side="right")) - 1
        stop = max(stop, start + 1)  # a text over slice_bytes is a slice alone
        yield texts.slice(start, stop - start)
        start = stop


def _drop_forged(annotated: pa.Table, forged: npt.NDArray[np.int64]) -> Outcome:
    """Drop the rows whose text contains a reserved id.

    Args:
        annotated: the rows.
        forged: (num_rows,) the first reserved id of each row, or -1.
    """
    if not (forged >= 0).any():
        return keep_all(annotated)
    return drop_where(
        annotated,
        pa.array(forged >= 0),
        "tokenize.error_reserved_id",
        value=pa.array(forged),
    )
