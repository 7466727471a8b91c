"""Bytes of tokens sum to the bytes of texts; tokenizers are found by path and by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence
from tokenizers.models import BPE, WordLevel

from tests.training.evaluation.texts import TextDataset, write_texts
from training.data.tokenizer import count_token_bytes, find_tokenizer, open_tokenizer
from training.errors import IncompatibleConfig


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TextDataset:
    """Return a dataset with a byte-level tokenizer."""
    return write_texts(tmp_path_factory.mktemp("texts") / "texts")


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_of_tokens_sum_to_the_bytes_of_a_text(texts: TextDataset, text: str) -> None:
    """For any text, also where a character is several tokens."""
    opened = open_tokenizer(str(texts.tokenizer))
    token_bytes = count_token_bytes(opened.tokenizer, 384)
    (tokens,) = opened.encode([text])
    assert token_bytes[tokens].sum() == len(text.encode())


def test_pieces_with_bytes_as_fallback_are_counted() -> None:
    """A space is one byte, and so is a piece like <0xE4>."""
    vocab = {"<0xE4>": 0, "▁the": 1, "é": 2, "</s>": 3}
    tokenizer = Tokenizer(BPE(vocab, [], byte_fallback=True))
    tokenizer.decoder = Sequence([Replace("▁", " "), ByteFallback(), Fuse()])
    tokenizer.add_special_tokens(["</s>"])
    assert count_token_bytes(tokenizer, 5).tolist() == [1, 4, 2, 0, 0]


def test_other_tokenizers_are_refused() -> None:
    """Tokens without fixed bytes."""
    with pytest.raises(IncompatibleConfig, match="bits per byte need ByteLevel"):
        count_token_bytes(Tokenizer(WordLevel({"a": 0}, unk_token="a")), 1)


def test_a_downloaded_tokenizer_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: TextDataset
) -> None:
    """GPT-2's two files in the cache of the pipeline encode as the tokenizer.json."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path))
    with pytest.raises(IncompatibleConfig, match=r"'mine': there is no such file"):
        find_tokenizer("mine")
    folder = tmp_path / "assets" / "mine" / "0123456789abcdef"
    folder.mkdir(parents=True)
    model = json.loads(texts.tokenizer.read_text())["model"]
    (folder / "encoder.json").write_text(json.dumps(model["vocab"]))
    merges = [" ".join(merge) for merge in model["merges"]]
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *merges, ""]))
    by_name, by_file = open_tokenizer("mine"), open_tokenizer(str(texts.tokenizer))
    lines = [text for text, _ in texts.documents]
    assert by_name.encode(lines) == by_file.encode(lines)
    assert len(by_name.sha256) == len(by_file.sha256)
    shutil.copy(texts.tokenizer, folder / "tokenizer.json")
    assert find_tokenizer("mine") == folder / "tokenizer.json"
