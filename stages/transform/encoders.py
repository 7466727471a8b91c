"""Encoders from text to token ids: the reference libraries, and gigatoken where it gives the same ids.

definition = read_definition(Path("gpt2/"), tiktoken_pattern=None)
encoder, reason = choose_encoder(definition, "auto")
ids, offsets = encoder.encode(pa.array(["Hello world"], pa.large_string()))
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.transform.probe_record import ProbeRecord
from stages.transform.probe_texts import build_probe_texts
from stages.transform.tokenizer_files import Definition, load_sentencepiece, spec_for_text

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]

# Bytes of text after which gigatoken is loaded again, because its cache of words never shrinks.
#
# Measured growth per byte of text: 3.7 bytes on Wikipedia in six languages, 8 on random words of ten
# letters. The cache therefore stays below 0.5 GB on text, and near 1 GB on noise. Loading takes 0.1 s,
# filling the cache with common words 0.5 s.
CACHE_LIFE_BYTES = 128 << 20


class Encoder(Protocol):
    """A library that converts texts to ids."""

    library: str

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        """Return the ids of all texts, (num_tokens,), and their offsets, (num_texts + 1,)."""
        ...


class ReferenceEncoder(Encoder, Protocol):
    """The library that a tokenizer was made with. Its ids are correct by definition."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        ...


def load_reference(definition: Definition) -> ReferenceEncoder:
    """Load a tokenizer with SentencePiece if it is one of its models, else with HuggingFace's library."""
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
        ids: list[list[int]] = []
        # One by one, because encode_batch starts threads.
        for text in texts.to_pylist():
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            ids.append(encoding.ids)
        return _concatenate_ids(ids)

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


class _SentencePiece:
    """The SentencePiece library. Its encoder never reads control symbols from text."""

    library = "sentencepiece"

    def __init__(self, path: Path) -> None:
        self._model = load_sentencepiece(path)

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        return _concatenate_ids(
            self._model.Encode(texts.to_pylist(), out_type=int, num_threads=1)
        )

    def decode(self, ids: list[int]) -> str:
        return self._model.Decode(ids)


def _concatenate_ids(lists: Iterable[list[int]]) -> tuple[Ids, Offsets]:
    # The empty array keeps the dtype if there are no texts.
    arrays = [np.zeros(0, np.uint32)]
    arrays += [np.asarray(ids, dtype=np.uint32) for ids in lists]
    # The length of the empty array is the first offset, 0.
    offsets = np.cumsum(list(map(len, arrays)), dtype=np.int64)
    return np.concatenate(arrays), offsets


class Gigatoken:
    """gigatoken with bounded memory: it is loaded again after `cache_life_bytes` of text."""

    library = "gigatoken"

    def __init__(
        self, spec: Mapping[str, Any], cache_life_bytes: int = CACHE_LIFE_BYTES
    ) -> None:
        text_spec = spec_for_text(spec)
        # gigatoken keeps the ids of the file, so special tokens can be removed from the definition.
        text_spec["added_tokens"] = [
            token for token in text_spec["added_tokens"] if not token["special"]
        ]
        self._json = json.dumps(text_spec)
        # What gigatoken reads: equal digests mean equal ids.
        self.digest = hashlib.sha256(self._json.encode()).hexdigest()
        self._cache_life_bytes = cache_life_bytes
        self._load()

    def _load(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        self._backend = load_hf_json(self._json)
        self._cached_bytes = 0

    def encode(self, texts: pa.Array) -> tuple[Ids, Offsets]:
        """Return the ids of all texts, (num_tokens,), and their offsets, (num_texts + 1,)."""
        import awkward

        # Before the call, not after it: the last batch of a task does not pay for a new load.
        if self._cached_bytes >= self._cache_life_bytes:
            self._load()
        encoded: Any = self._backend.encode_batch(awkward.from_arrow(texts), parallel=False)
        offsets = read_offsets(texts)
        self._cached_bytes += int(offsets[-1] - offsets[0])
        return encoded.layout.content.data, encoded.layout.offsets.data


def choose_encoder(definition: Definition, wanted: str) -> tuple[Encoder, str]:
    """Return the encoder and the reason of the choice.

    Args:
        definition: the tokenizer.
        wanted: "auto", "gigatoken" or the name of the reference library.

    Raises:
        ValueError: the tokenizer cannot be read, or the wanted encoder does not read it or does not
            give the same ids.
    """
    library = _SentencePiece.library if definition.spec is None else _Tokenizers.library
    if wanted == library:
        return load_reference(definition), "asked for"
    if wanted not in ("auto", "gigatoken"):
        raise ValueError(
            f"{definition.files[0]}: encoder {wanted!r} does not read this kind of tokenizer; "
            f"set encoder to auto, gigatoken or {library}"
        )
    fast, finding = _load_exact_gigatoken(definition)
    if fast is None and wanted == "gigatoken":
        raise ValueError(
            f"{definition.files[0]}: encoder gigatoken was requested, but {finding}; set encoder "
            f"to auto to use {library} instead"
        )
    return fast or load_reference(definition), finding


def _load_exact_gigatoken(definition: Definition) -> tuple[Gigatoken | None, str]:
    """Return gigatoken if it gives the ids of the reference on all probe texts; and the finding."""
    spec = definition.spec
    if spec is None or spec.get("normalizer"):
        # gigatoken normalises rare sequences differently: U+00A8 U+2DE0 with SentencePiece's
        # nmt_nfkc has other ids. No set of texts can prove that two normalisers are equal, so
        # gigatoken is only used for byte-level tokenizers without a normaliser.
        return None, "gigatoken normalises text otherwise in rare cases"
    try:
        fast = Gigatoken(spec)
    except Exception as error:  # noqa: BLE001 - a library that refuses the file is not used
        return None, _describe_refusal(error)
    record = ProbeRecord(definition.sha256, fast.digest)
    if (agreement := record.read()) is not None:
        return fast, agreement
    finding, is_equal = _compare_on_probe_texts(fast, load_reference(definition), spec)
    if not is_equal:
        return None, finding
    record.write(finding)
    return fast, finding


def _compare_on_probe_texts(
    fast: Gigatoken, reference: ReferenceEncoder, spec: Mapping[str, Any]
) -> tuple[str, bool]:
    """Return the finding, and whether both encoders give the same ids. Takes 0.5 s."""
    try:
        texts = build_probe_texts(spec)
        fast_ids, fast_offsets = fast.encode(texts)
    except Exception as error:  # noqa: BLE001 - a library that refuses the file is not used
        return _describe_refusal(error), False
    ids, offsets = reference.encode(texts)
    for row, text in enumerate(texts):
        expected = ids[offsets[row] : offsets[row + 1]]
        found = fast_ids[fast_offsets[row] : fast_offsets[row + 1]]
        if not np.array_equal(expected, found):
            sample = text.as_py()[:60]
            return (
                f"gigatoken differs from {reference.library} on the text {sample!r}",
                False,
            )
    return f"gigatoken agrees with {reference.library} on {len(texts)} probe texts", True


def _describe_refusal(error: Exception) -> str:
    return f"gigatoken does not load it ({repr(error)[:200]})"


def read_offsets(texts: pa.Array) -> Offsets:
    """Return (num_texts + 1,) int64: the offset of each text in the buffer of a large_string array."""
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int64)
    return offsets[texts.offset : texts.offset + len(texts) + 1]
