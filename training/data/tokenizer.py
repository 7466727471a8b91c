"""Opens the tokenizer of a run, and counts the bytes of text of each of its tokens."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from training.errors import IncompatibleConfig

# GPT-2's files (openai/gpt-2, src/encoder.py): token -> id, and one merge per line.
_GPT2_FILES = ("encoder.json", "vocab.bpe")

_BYTE_PIECE_CHARS = len("<0xE4>")


@dataclass(frozen=True)
class OpenedTokenizer:
    """A tokenizer and the digest by which manifests name it.

    Attributes:
        sha256: as in a manifest: of the file, or of the `sha256sum` lines of several files.
    """

    path: Path
    tokenizer: Tokenizer
    sha256: str

    @property
    def vocab_size(self) -> int:
        """The highest id plus one."""
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        return max(vocabulary.values(), default=-1) + 1

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the tokens of each text, without special tokens around them."""
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encoded]


def open_tokenizer(name: str) -> OpenedTokenizer:
    """Open `data.tokenizer` of a config.

    Args:
        name: a tokenizer.json, a folder with one or with GPT-2's two files, or the name of a
            tokenizer that the pipeline has downloaded, such as gpt2-bpe.

    Raises:
        IncompatibleConfig: there is no such tokenizer, or it cannot be read.
    """
    path = find_tokenizer(name)
    try:
        if path.is_dir():
            encoder, merges = (path / file for file in _GPT2_FILES)
            return OpenedTokenizer(
                path, _open_gpt2(encoder, merges), _digest(encoder, merges)
            )
        return OpenedTokenizer(path, Tokenizer.from_file(str(path)), _digest(path))
    except Exception as error:  # the library raises plain Exception
        raise IncompatibleConfig(
            f"data.tokenizer {path} cannot be read as a tokenizer ({error}); give a "
            f"tokenizer.json, or a folder with {' and '.join(_GPT2_FILES)}"
        ) from error


def find_tokenizer(name: str) -> Path:
    """Return the tokenizer.json of `data.tokenizer`, or its folder with GPT-2's two files.

    Raises:
        IncompatibleConfig: there is none.
    """
    path = Path(name).expanduser()
    candidates = [path]
    if path.name == name:
        # A name, not a path: the pipeline stores assets as NAME/<digest of their origin>/.
        candidates += sorted((find_cache() / "assets" / name).glob("*/"))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
        if (candidate / "tokenizer.json").is_file():
            return candidate / "tokenizer.json"
        if all((candidate / file).is_file() for file in _GPT2_FILES):
            return candidate
    raise IncompatibleConfig(
        f"data.tokenizer is {name!r}: there is no such file, no such folder with a "
        f"tokenizer.json, and no such tokenizer in {find_cache() / 'assets'}; correct it"
    )


def count_token_bytes(tokenizer: Tokenizer, vocab_size: int) -> NDArray[np.int64]:
    """Return (V,) the bytes of UTF-8 that each token adds to a text; 0 for special tokens.

    The bytes of a text's tokens sum to the bytes of the text, except for a space that some
    tokenizers put before its first word.

    Args:
        tokenizer: of byte-level BPE, or of pieces with bytes as fallback.
        vocab_size: ids of the dataset.

    Raises:
        IncompatibleConfig: tokens of this kind of tokenizer have no fixed bytes.
    """
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    decoders = _list_types(spec["decoder"])
    if "ByteLevel" in decoders:
        # Each character of a token represents one byte.
        count_bytes = len
    elif "ByteFallback" in decoders:
        count_bytes = _count_piece_bytes
    else:
        raise IncompatibleConfig(
            f"data.tokenizer has the decoders {decoders}, for which the bytes of a token are not "
            f"known; bits per byte need ByteLevel or ByteFallback. Remove data.tokenizer to "
            f"validate without bits per byte"
        )
    token_bytes = np.zeros(vocab_size, np.int64)
    for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
        if index < vocab_size:
            token_bytes[index] = count_bytes(token)
    for token in spec["added_tokens"]:
        if token["id"] < vocab_size:
            text = "" if token["special"] else token["content"]
            token_bytes[token["id"]] = len(text.encode())
    return token_bytes


def _list_types(decoder: Mapping[str, Any] | None) -> list[str]:
    """Return the types of a decoder, or of all decoders of a sequence."""
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step["type"] for step in decoder["decoders"]]
    return [decoder["type"]]


def _count_piece_bytes(piece: str) -> int:
    """Return the bytes of a piece of SentencePiece, where ▁ is a space."""
    if piece.startswith("<0x") and len(piece) == _BYTE_PIECE_CHARS:
        return 1
    return len(piece.replace("▁", " ").encode())


def _open_gpt2(encoder: Path, merges: Path) -> Tokenizer:
    tokenizer = Tokenizer(BPE.from_file(str(encoder), str(merges)))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def _digest(*paths: Path) -> str:
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    if len(paths) == 1:
        return digests[0]
    lines = [
        f"{digest}  {path.name}\n" for digest, path in zip(digests, paths, strict=True)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def find_cache() -> Path:
    """Return the cache folder of the pipeline (docs/config.md, "Models")."""
    if own := os.environ.get("CORPUSMILL_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "corpusmill"
