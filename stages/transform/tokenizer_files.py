"""Read tokenizer files: vocabulary, special tokens, and one format for all kinds of BPE.

The name of a file determines its kind. All kinds except SentencePiece models are converted to the
content of a tokenizer.json. `spec_for_text` makes it read special tokens as ordinary text.

    definition = read_definition(Path("gpt2/"), tiktoken_pattern=None)
    definition.special_ids, definition.vocab_size     # {"<|endoftext|>": 50256}, 50257
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

# Ids are stored as uint32.
MAX_VOCAB_SIZE = 2**32


@dataclass(frozen=True)
class Definition:
    """The definition of a tokenizer.

    `spec` is the content of a tokenizer.json; None for a SentencePiece model, which only that library
    reads exactly. `unk_id` is the id of text outside the vocabulary: text may encode to it.
    """

    files: tuple[Path, ...]
    spec: Mapping[str, Any] | None
    vocab: Mapping[str, int] = field(repr=False)
    special_ids: Mapping[str, int]
    own_end: str | None
    unk_id: int | None

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return 1 + max(chain(self.vocab.values(), self.special_ids.values()), default=-1)

    @cached_property
    def sha256(self) -> str:
        """Digest of the defining file; of several, the digest of their `sha256sum` lines by name."""
        digests = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.files
        }
        if len(digests) == 1:
            return next(iter(digests.values()))
        lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
        return hashlib.sha256(lines.encode()).hexdigest()


def read_definition(path: Path, tiktoken_pattern: str | None) -> Definition:
    """Read a tokenizer file, or a folder with one.

    Args:
        path: the file or folder.
        tiktoken_pattern: encoding of a *.tiktoken file; None takes it from the name of the file.

    Raises:
        ValueError: there is no tokenizer, a file does not have the format of its name, or an id
            does not fit into 32 bits.
    """
    definition = _read_kind(_defining_file(path), tiktoken_pattern)
    if definition.vocab_size > MAX_VOCAB_SIZE:
        raise ValueError(
            f"{definition.files[0]}: the largest token id is {definition.vocab_size - 1}, ids must be "
            f"below 2^32 ({MAX_VOCAB_SIZE}); renumber the vocabulary"
        )
    return definition


def _defining_file(path: Path) -> Path:
    """Return the file that determines the kind: the path, or the first such file of a folder."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise ValueError(
            f"{path}: no such tokenizer file or folder; give one of {_KINDS_WANTED}"
        )
    for pattern in ("tokenizer.json", "encoder.json", "*.tiktoken", "*.model"):
        match sorted(path.glob(pattern)):
            case []:
                continue
            case [only]:
                return only
            case several:
                names = ", ".join(p.name for p in several)
                raise ValueError(
                    f"{path}: the folder contains several tokenizers ({names}); give the path of one"
                )
    raise ValueError(f"{path}: no tokenizer in this folder; wanted one of {_KINDS_WANTED}")


_KINDS_WANTED = "tokenizer.json, encoder.json with vocab.bpe, *.tiktoken, *.model"


def _read_kind(path: Path, tiktoken_pattern: str | None) -> Definition:
    if path.name == "encoder.json":
        return _read_gpt2(path)
    match path.suffix:
        case ".json":
            return _definition_of_spec(
                (path,), _read_json(path), own_end=_end_in_config(path)
            )
        case ".tiktoken":
            return _read_tiktoken(path, tiktoken_pattern)
        case ".model":
            return _read_sentencepiece(path)
        case _:
            raise ValueError(f"{path}: not a tokenizer file; wanted one of {_KINDS_WANTED}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path}: cannot be read as JSON ({error}); fetch the file again"
        ) from error
    if isinstance(value, dict):
        return value
    raise ValueError(
        f"{path}: holds a JSON {type(value).__name__}, wanted an object; fetch the file again"
    )


# End-of-text tokens of GPT-2, Llama 3, Llama and T5, Gemma, and others, tried in this
# order.
_COMMON_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>")


def _definition_of_spec(
    files: tuple[Path, ...], spec: Mapping[str, Any], own_end: str | None
) -> Definition:
    """Build a definition from the content of a tokenizer.json (HuggingFace `Tokenizer.to_str`)."""
    try:
        model = spec["model"]
        tokens = model["vocab"]
        vocab = (
            tokens
            if isinstance(tokens, dict)
            else {piece: index for index, (piece, _) in enumerate(tokens)}
        )
        added: list[dict[str, Any]] = spec.get("added_tokens") or []
        special_ids = {
            token["content"]: int(token["id"]) for token in added if token["special"]
        }
        vocab = {**vocab, **{token["content"]: int(token["id"]) for token in added}}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{files[0]}: not a tokenizer.json of HuggingFace tokenizers ({error!r}); "
            f"save it with Tokenizer.save of that library"
        ) from error
    unk_id = model["unk_id"] if "unk_id" in model else vocab.get(model.get("unk_token"))
    own_end = own_end or next((name for name in _COMMON_ENDS if name in special_ids), None)
    return Definition(files, spec, vocab, special_ids, own_end, unk_id)


def _end_in_config(path: Path) -> str | None:
    """Return `eos_token` of the tokenizer_config.json next to a tokenizer.json."""
    config = path.with_name("tokenizer_config.json")
    token: str | dict[str, str] | None = (
        _read_json(config).get("eos_token") if config.is_file() else None
    )
    return token["content"] if isinstance(token, dict) else token


def _read_gpt2(encoder: Path) -> Definition:
    """Read GPT-2's two files (openai/gpt-2, src/encoder.py): token -> id, and one merge per line."""
    bpe = encoder.with_name("vocab.bpe")
    if not bpe.is_file():
        raise ValueError(
            f"{bpe}: missing beside {encoder.name}; a tokenizer needs both files"
        )
    vocab = _read_json(encoder)
    lines = bpe.read_text(encoding="utf-8").split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    specials = {"<|endoftext|>": vocab["<|endoftext|>"]} if "<|endoftext|>" in vocab else {}
    pre_tokenizer = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    spec = _bpe_spec(vocab, merges, specials, pre_tokenizer, ignore_merges=False)
    return _definition_of_spec((encoder, bpe), spec, own_end=None)


def _bpe_spec(
    vocab: Mapping[str, int],
    merges: Sequence[str | Sequence[str]],
    special_ids: Mapping[str, int],
    pre_tokenizer: Mapping[str, Any],
    *,
    ignore_merges: bool,
) -> dict[str, Any]:
    """Build the tokenizer.json of a byte-level BPE. Each merge is a pair, or "left right"."""
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": token_id, "content": name, **flags}
            for name, token_id in special_ids.items()
        ],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": merges,
            "ignore_merges": ignore_merges,
        },
    }


@dataclass(frozen=True)
class _TiktokenEncoding:
    """The part of an encoding that is not in its rank file (tiktoken_ext/openai_public.py)."""

    split_regex: str
    num_ranks: int
    special_ids: Mapping[str, int]


# The splits of tiktoken without possessive quantifiers: in the regex dialect of HuggingFace tokenizers
# `{1,3}+` means "repeated", not "possessive".
_TIKTOKEN_ENCODINGS = {
    "r50k": _TiktokenEncoding(
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        50256,
        {"<|endoftext|>": 50256},
    ),
    "cl100k": _TiktokenEncoding(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        100256,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k": _TiktokenEncoding(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        199998,
        {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    ),
}


def _read_tiktoken(path: Path, pattern: str | None) -> Definition:
    """Read a rank file: one `base64(token) rank` per line.

    Special tokens have the ids of the known encoding. With another number of ranks there is only
    the end of text, with the first free id.
    """
    name = pattern or path.stem.removesuffix("_base")
    if name not in _TIKTOKEN_ENCODINGS:
        raise ValueError(
            f"{path}: the file name is not that of a known encoding; "
            f"set tiktoken_pattern to one of {', '.join(_TIKTOKEN_ENCODINGS)}"
        )
    encoding = _TIKTOKEN_ENCODINGS[name]
    ranks = _read_ranks(path)
    first_free_id = 1 + max(ranks.values(), default=-1)
    specials = (
        encoding.special_ids
        if first_free_id == encoding.num_ranks
        else {"<|endoftext|>": first_free_id}
    )
    vocab = {_byte_level(token): rank for token, rank in ranks.items()}
    split = {
        "type": "Split",
        "pattern": {"Regex": encoding.split_regex},
        "behavior": "Isolated",
        "invert": False,
    }
    bytes_only = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, bytes_only]}
    # tiktoken looks up the whole word before it merges: ignore_merges.
    spec = _bpe_spec(
        vocab, _merges_of_ranks(ranks), specials, pre_tokenizer, ignore_merges=True
    )
    return _definition_of_spec((path,), spec, own_end="<|endoftext|>")


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ValueError(
                f"{path}: line {number} is {line[:60]!r}, wanted a base64 token and its rank "
                f"({error}); fetch the file again"
            ) from error
    return ranks


def _merges_of_ranks(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that form another one, by its rank: tiktoken merges any of them."""
    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        splits = ((token[:i], token[i:]) for i in range(1, len(token)))
        merges += [
            (_byte_level(a), _byte_level(b)) for a, b in splits if a in ranks and b in ranks
        ]
    return merges


def _byte_alphabet() -> dict[int, str]:
    """Return GPT-2's printable character of every byte (src/encoder.py, bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }


_BYTE_ALPHABET = _byte_alphabet()


def _byte_level(token: bytes) -> str:
    return "".join(_BYTE_ALPHABET[byte] for byte in token)


def _read_sentencepiece(path: Path) -> Definition:
    model = load_sentencepiece(path)
    vocab = {model.IdToPiece(i): i for i in range(model.GetPieceSize())}
    special_ids = {piece: i for piece, i in vocab.items() if model.IsControl(i)}
    own_end = model.IdToPiece(model.eos_id()) if model.eos_id() >= 0 else None
    return Definition((path,), None, vocab, special_ids, own_end, model.unk_id())


def load_sentencepiece(path: Path) -> Any:
    """Return the SentencePiece processor of a *.model file.

    Raises:
        ValueError: the file is not a SentencePiece model.
    """
    import sentencepiece

    try:
        return sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"{path}: not a SentencePiece model ({error}); fetch the file again"
        ) from error


def spec_for_text(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json that reads special tokens as ordinary text and keeps all other ids.

    Special tokens are renamed to a noncharacter and their id, so that no text contains their names.
    Removing them would change the ids of the tokens after them. Truncation, padding, templates and
    dropout are removed.
    """
    added: list[dict[str, Any]] = spec.get("added_tokens") or []
    renamed = {
        token["content"]: f"\uffff{token['id']}" for token in added if token["special"]
    }
    return {
        **spec,
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "added_tokens": [
            {**token, "content": renamed.get(token["content"], token["content"])}
            for token in added
        ],
        "model": _renamed_model(spec["model"], renamed),
    }


def _renamed_model(model: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    result = dict(model)
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        result["vocab"] = dict(vocab)
        for token in renamed.keys() & vocab.keys():
            result["vocab"][renamed[token]] = result["vocab"].pop(token)
    else:
        result["vocab"] = [[renamed.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") is not None:
        result["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        result["merges"] = _select_merges(model["merges"], renamed)
    if "dropout" in model:
        result["dropout"] = None
    return result


def _select_merges(
    merges: Sequence[str | Sequence[str]], removed: Mapping[str, str]
) -> Sequence[str | Sequence[str]]:
    """Return the merges that neither use nor produce a removed token."""
    # Almost always all of them, and one search is faster than a look at each merge.
    pairs = (merge if isinstance(merge, str) else "".join(merge) for merge in merges)
    text = "\n".join(pairs).replace(" ", "")
    if not any(token.replace(" ", "") in text for token in removed):
        return merges
    return [merge for merge in merges if not _touches(merge, removed)]


def _touches(merge: str | Sequence[str], tokens: Mapping[str, str]) -> bool:
    """Whether a merge, a pair or the string "left right", uses or produces one of the tokens."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in tokens or right in tokens or left + right in tokens
