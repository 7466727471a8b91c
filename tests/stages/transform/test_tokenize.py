"""Token ids equal those of the reference library, and texts cannot make special tokens."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import lzma
import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from stages.contract import Outcome
from stages.transform.encoders import Gigatoken
from stages.transform.tokenize import SLICE_BYTES, Tokenize, TokenizeSettings
from stages.transform.tokenizer_files import MAX_VOCAB_SIZE, read_definition, spec_for_text
from tests.stages.batches import make_batch

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and the dog did not mind at all.",
    "I don't think that 1234 people they've met would say it's 3.14 or 2,718!",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "def f(x):\n    return x + 1  # indent\n\n\tif y:\n\t\tpass",
    "我能吞下玻璃而不伤身体。日本語のテキスト、カタカナ。",
] * 4

LITERALS = [
    "<|endoftext|>",
    "<|pad|>",
    "<tool>",
    "</s>",
    "<s>",
    "<unk>",
    "<sep>",
    "\uffff1",
    "\uffff300",
]

crawled = st.lists(
    st.one_of(
        st.text(),
        st.sampled_from([*LITERALS, " ", "  ", "\n", "\r\n", "1234", "the", "'ve", "ÄÖ"]),
    ),
    max_size=12,
).map("".join)


def open_stage(path: Path, **keys: Any) -> Tokenize:
    """Return the opened stage for the tokenizer at a path."""
    stage = Tokenize(TokenizeSettings(tokenizer="t", **keys), {"t": path})
    stage.open()
    return stage


def apply_stage(stage: Tokenize, texts: list[str | None]) -> Outcome:
    """Check rows and column types, and return the outcome of the stage."""
    batch = make_batch(texts)
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    assert outcome.kept.schema.field("tokens").type == pa.large_list(pa.uint32())
    assert outcome.kept.schema.field("num_tokens").type == pa.int64()
    return outcome


def encode(stage: Tokenize, texts: list[str | None]) -> list[list[int]]:
    """Return the ids of each kept text."""
    return apply_stage(stage, texts).kept["tokens"].to_pylist()


# --- Tokenizers of every kind, made here ---


def train_byte_level() -> tokenizers.Tokenizer:
    """Train a byte-level BPE of 600 tokens without special tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False),
    )
    return tokenizer


@pytest.fixture(scope="module")
def json_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json with special tokens, an added token, truncation and padding."""
    tokenizer = train_byte_level()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|pad|>"])
    tokenizer.add_tokens(["<tool>"])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9, pad_token="<|pad|>")
    path = tmp_path_factory.mktemp("json") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def unigram_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Unigram tokenizer.json.

    Its vocabulary contains the spelling of its special tokens.
    """
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    path = tmp_path_factory.mktemp("unigram") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer in the two files of GPT-2."""
    model = json.loads(train_byte_level().to_str())["model"]
    folder = tmp_path_factory.mktemp("gpt2")
    vocab = {**model["vocab"], "<|endoftext|>": len(model["vocab"])}
    (folder / "encoder.json").write_text(json.dumps(vocab), encoding="utf-8")
    merges = "\n".join(" ".join(merge) for merge in model["merges"])
    (folder / "vocab.bpe").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    return folder


RANKS: Mapping[bytes, int] = {bytes([b]): b for b in range(256)} | {
    token.encode(): 256 + i
    for i, token in enumerate(
        [
            " t",
            "he",
            " the",
            "aa",
            "aaa",
            "123",
            "é",
            "in",
            "ing",
            "  ",
            " a",
            "éT",
        ]  # nothing but 123 makes 123
    )
}


@pytest.fixture(scope="module")
def tiktoken_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rank file of 268 tokens."""
    path = tmp_path_factory.mktemp("tiktoken") / "tiny.tiktoken"
    path.write_bytes(
        b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in RANKS.items())
    )
    return path


def train_sentencepiece(path: Path, **keys: Any) -> Path:
    """Train a SentencePiece model into a file."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=420,
        hard_vocab_limit=False,
        minloglevel=2,
        **keys,
    )
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture(scope="module")
def sentencepiece_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece BPE model with byte fallback."""
    path = tmp_path_factory.mktemp("sentencepiece") / "bpe.model"
    return train_sentencepiece(path, model_type="bpe", byte_fallback=True)


@pytest.fixture(scope="module")
def symbols_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece BPE model with a user-defined symbol."""
    path = tmp_path_factory.mktemp("symbols") / "bpe.model"
    return train_sentencepiece(
        path, model_type="bpe", byte_fallback=True, user_defined_symbols=["<sep>"]
    )


@pytest.fixture(scope="module")
def stages(
    json_file: Path,
    gpt2_folder: Path,
    tiktoken_file: Path,
    sentencepiece_file: Path,
    unigram_file: Path,
) -> dict[str, tuple[Tokenize, ...]]:
    """Kind -> the stage with each possible encoder; the reference library is first."""
    cl100k: dict[str, Any] = {"tiktoken_pattern": "cl100k"}
    return {
        "json": tuple(
            open_stage(json_file, encoder=e) for e in ("tokenizers", "gigatoken", "auto")
        ),
        "gpt2": tuple(
            open_stage(gpt2_folder, encoder=e) for e in ("tokenizers", "gigatoken")
        ),
        "tiktoken": tuple(
            open_stage(tiktoken_file, encoder=e, **cl100k)
            for e in ("tokenizers", "gigatoken")
        ),
        "sentencepiece": tuple(
            open_stage(sentencepiece_file, encoder=e) for e in ("sentencepiece", "auto")
        ),
        "unigram": (
            open_stage(unigram_file, encoder="tokenizers"),
            open_stage(unigram_file),
        ),
    }


KINDS = ["json", "gpt2", "tiktoken", "sentencepiece", "unigram"]


# --- The ids ---


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(texts=st.lists(crawled, max_size=5))
def test_every_encoder_gives_the_same_ids(
    stages: dict[str, tuple[Tokenize, ...]], kind: str, texts: list[str]
):
    """For any text, with spelled special tokens, ids and decisions are equal."""
    first, *others = [apply_stage(stage, [*texts]) for stage in stages[kind]]
    for other in others:
        assert other.kept.equals(first.kept)
        assert other.dropped.equals(first.dropped)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=st.text().filter(lambda text: "<|" not in text))
def test_json_ids_equal_those_of_tokenizers(
    stages: dict[str, tuple[Tokenize, ...]], json_file: Path, text: str
):
    """Without truncation and padding, and with the end-of-document id.

    The library reads the names of special tokens in a text as these tokens.
    """
    bare = tokenizers.Tokenizer.from_file(str(json_file))
    bare.no_truncation()
    bare.no_padding()
    end = bare.token_to_id("<|endoftext|>")
    for stage in stages["json"]:
        assert encode(stage, [text]) == [
            [*bare.encode(text, add_special_tokens=False).ids, end]
        ]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=crawled)
def test_sentencepiece_ids_equal_those_of_sentencepiece(
    stages: dict[str, tuple[Tokenize, ...]], sentencepiece_file: Path, text: str
):
    """`</s>` in a text is text."""
    bare = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_file))
    for stage in stages["sentencepiece"]:
        assert encode(stage, [text]) == [[*bare.encode(text), bare.eos_id()]]


THE_THEMES = [116, 257, 258, 109, 101, 39, 115, 32]
CAFE_TO_END = [32, 99, 97, 102]
TAIL = [
    72,
    69,
    264,
    265,
    10,
    32,
    266,
    39,
    115,
    60,
    124,
    101,
    110,
    100,
    111,
    102,
    116,
    101,
    120,
    116,
    124,
    62,
]


@pytest.mark.parametrize(
    ("pattern", "digits", "accent"),
    [
        ("r50k", [49, 50, 51, 52], [267]),
        ("cl100k", [261, 52], [267]),
        ("o200k", [261, 52], [262, 84]),
    ],
)
def test_tiktoken_ids_equal_those_of_tiktoken(
    tiktoken_file: Path, pattern: str, digits: list[int], accent: list[int]
):
    """Recorded from tiktoken 0.14 for these ranks and splits.

    The end is the first free id.
    """
    text = "the theme's 1234 aaaa caféTHEing  \n  a's<|endoftext|>"
    for encoder in ("tokenizers", "gigatoken"):
        stage = open_stage(tiktoken_file, tiktoken_pattern=pattern, encoder=encoder)
        expected = [*THE_THEMES, *digits, 32, 259, 259, *CAFE_TO_END, *accent, *TAIL, 268]
        assert encode(stage, [text]) == [expected]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(words=st.lists(st.text(alphabet="ahei tnég", min_size=1, max_size=12), max_size=4))
def test_tiktoken_kind_merges_by_rank(
    stages: dict[str, tuple[Tokenize, ...]], tiktoken_file: Path, words: list[str]
):
    """The pair with the lowest rank is merged first, as in tiktoken's byte_pair_merge."""
    text = " ".join(words)
    definition = read_definition(tiktoken_file, "cl100k")
    assert definition.spec is not None
    split = definition.spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    pieces = pre_tokenizers.Split(tokenizers.Regex(split), "isolated").pre_tokenize_str(
        text
    )
    expected = [
        token_id for piece, _ in pieces for token_id in merge_by_rank(piece.encode())
    ]
    assert encode(stages["tiktoken"][1], [text]) == [[*expected, 268]]


def merge_by_rank(word: bytes) -> list[int]:
    """Return the ids of a word by tiktoken's rule, in plain Python."""
    parts = [word] if word in RANKS else [word[i : i + 1] for i in range(len(word))]
    while len(parts) > 1:
        ranks = [RANKS.get(a + b, MAX_VOCAB_SIZE) for a, b in pairwise(parts)]
        lowest = min(range(len(ranks)), key=ranks.__getitem__)
        if ranks[lowest] == MAX_VOCAB_SIZE:
            break
        parts[lowest : lowest + 2] = [parts[lowest] + parts[lowest + 1]]
    return [RANKS[part] for part in parts]


@pytest.mark.parametrize("kind", ["json", "gpt2", "tiktoken"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=crawled)
def test_byte_level_decoding_undoes_encoding(
    stages: dict[str, tuple[Tokenize, ...]], kind: str, text: str
):
    """The ids decode to the text and the name of the end token."""
    stage = stages[kind][-1]
    assert stage.decode(encode(stage, [text])[0]) == text + "<|endoftext|>"


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(texts=st.lists(crawled, max_size=6), cut=st.integers(0, 6))
def test_batch_size_changes_nothing(
    stages: dict[str, tuple[Tokenize, ...]], kind: str, texts: list[str], cut: int
):
    """The result does not depend on batches and chunks."""
    stage = stages[kind][-1]
    batch = make_batch([*texts])
    chunked = pa.concat_tables([batch.slice(0, cut), batch.slice(cut)])
    halves = [stage.apply(batch.slice(0, cut)), stage.apply(batch.slice(cut))]
    whole = stage.apply(batch)
    assert stage.apply(chunked).kept.combine_chunks() == whole.kept.combine_chunks()
    assert pa.concat_tables([h.kept for h in halves]) == whole.kept
    assert pa.concat_tables([h.dropped for h in halves]) == whole.dropped


def test_batches_longer_than_a_slice_are_one_list(stages: dict[str, tuple[Tokenize, ...]]):
    """The results of several calls of gigatoken are joined."""
    reference, fast = stages["tiktoken"]
    long = "a" * (SLICE_BYTES // 8 + 1)
    rows: list[str | None] = [long[:7], *[long] * 9, "", "the"]
    tokens = apply_stage(fast, rows).kept["tokens"]
    assert tokens[0].as_py() == encode(reference, rows[:1])[0]
    assert tokens[9].as_py() == tokens[1].as_py()
    assert tokens.to_pylist()[-2:] == encode(reference, ["", "the"])


@pytest.mark.parametrize("kind", KINDS)
def test_empty_and_null_texts_are_just_the_end(
    stages: dict[str, tuple[Tokenize, ...]], kind: str
):
    """A document without text has one token, the end-of-document id."""
    for stage in stages[kind]:
        end = stage.describe().end_of_document
        kept = apply_stage(stage, ["", None]).kept
        assert kept["tokens"].to_pylist() == [[end], [end]]
        assert kept["num_tokens"].to_pylist() == [1, 1]
        assert apply_stage(stage, []).kept.num_rows == 0


# --- Special tokens ---


def test_spelled_special_tokens_stay_text(
    stages: dict[str, tuple[Tokenize, ...]], json_file: Path
):
    """`<|endoftext|>` in a page is not the end id; added tokens keep their ids."""
    bare = tokenizers.Tokenizer.from_file(str(json_file))
    for stage in stages["json"]:
        (ids,) = encode(stage, ["x<|endoftext|><|pad|> <tool>"])
        assert ids[-1] == bare.token_to_id("<|endoftext|>")
        assert ids[-2] == bare.token_to_id("<tool>")
        assert not {bare.token_to_id("<|endoftext|>"), bare.token_to_id("<|pad|>")} & set(
            ids[:-1]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_has_a_reserved_id(stages: dict[str, tuple[Tokenize, ...]], kind: str):
    """The only special id in a document is the end that the stage adds."""
    for stage in stages[kind]:
        info = stage.describe()
        names = list(info.special_ids)
        reserved = {
            token_id for name, token_id in info.special_ids.items() if name != "<unk>"
        }
        for ids in encode(
            stage, [f"a{name}b {name} {name}{name}\n{name}" for name in names]
        ):
            assert ids[-1] == info.end_of_document
            assert not reserved & set(ids[:-1])


def test_a_text_with_a_reserved_id_is_dropped(stages: dict[str, tuple[Tokenize, ...]]):
    """The drop has the reason and the id."""
    stage = stages["unigram"][0]
    end = stage.describe().end_of_document
    outcome = apply_stage(stage, ["fine", f"x \uffff{end}", "fine too"])
    assert outcome.kept["doc_id"].to_pylist() == [0, 2]
    (drop,) = outcome.dropped.select(["doc_id", "reason", "value"]).to_pylist()
    assert drop == {
        "doc_id": 1,
        "reason": "tokenize.error_reserved_id",
        "value": float(end or 0),
    }


# --- The choice of the encoder, and its description in the manifest ---


def test_describe_names_tokenizer_and_encoder(
    stages: dict[str, tuple[Tokenize, ...]], json_file: Path
):
    """Name, digest, size, end, special ids, and the encoder with its reason."""
    info = stages["json"][2].describe()
    bare = tokenizers.Tokenizer.from_file(str(json_file))
    assert info.name == "t"
    assert info.sha256 == hashlib.sha256(json_file.read_bytes()).hexdigest()
    assert info.vocab_size == bare.get_vocab_size(with_added_tokens=True)
    assert info.end_of_document == bare.token_to_id("<|endoftext|>")
    assert dict(info.special_ids) == {
        name: bare.token_to_id(name) for name in ("<|endoftext|>", "<|pad|>")
    }
    assert info.encoder.startswith("gigatoken 0.10")
    assert info.encoder_reason.startswith("gigatoken agrees with tokenizers on ")


def test_two_files_have_one_digest(gpt2_folder: Path):
    """It is the digest of the output of `sha256sum`, in order of name."""
    lines = [
        f"{hashlib.sha256((gpt2_folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("encoder.json", "vocab.bpe")
    ]
    assert (
        read_definition(gpt2_folder, None).sha256
        == hashlib.sha256("".join(lines).encode()).hexdigest()
    )


def test_tokenizers_that_gigatoken_cannot_load_use_the_reference(
    stages: dict[str, tuple[Tokenize, ...]],
):
    """A Unigram tokenizer uses tokenizers, with the reason."""
    info = stages["unigram"][1].describe()
    assert info.encoder.startswith("tokenizers ")
    assert info.encoder_reason.startswith("gigatoken does not load it")


def test_tokenizers_that_normalize_use_the_reference(symbols_file: Path):
    """Probe texts cannot prove that two normalizers are equal."""
    stage = open_stage(symbols_file)
    bare = sentencepiece.SentencePieceProcessor(model_file=str(symbols_file))
    assert stage.describe().encoder.startswith("sentencepiece ")
    assert (
        stage.describe().encoder_reason
        == "gigatoken normalises text otherwise in rare cases"
    )
    texts = [
        "<sep>",
        "a<sep>",
        "\u00a8\u2de0",
    ]  # a symbol that begins a text; a combining mark that is reordered
    assert encode(stage, texts) == [[*bare.encode(text), bare.eos_id()] for text in texts]
    with pytest.raises(
        ValueError,
        match=r"bpe\.model: encoder gigatoken was requested, but .* set encoder to auto",
    ):
        open_stage(symbols_file, encoder="gigatoken")


def test_an_encoder_for_another_kind_is_refused(sentencepiece_file: Path):
    """The error lists the encoders for this kind of tokenizer."""
    with pytest.raises(
        ValueError,
        match=r"'tokenizers' does not read this kind.*auto, gigatoken or sentencepiece",
    ):
        open_stage(sentencepiece_file, encoder="tokenizers")


def test_merges_may_be_written_as_text(
    json_file: Path, tmp_path: Path, stages: dict[str, tuple[Tokenize, ...]]
):
    """Older tokenizer.json files write a merge as "left right"."""
    spec = json.loads(json_file.read_text())
    spec["model"]["merges"] = [" ".join(merge) for merge in spec["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert encode(open_stage(tmp_path), [*SENTENCES]) == encode(
        stages["json"][0], [*SENTENCES]
    )


@pytest.mark.parametrize("as_text", [False, True])
def test_merges_that_make_a_special_token_are_removed(as_text: bool):
    """Otherwise a text could be merged to it. Merges of other tokens stay."""
    pairs = [("<", "e"), ("e", "n"), ("<e", "nd>"), ("<end>", "x"), ("x", "y")]
    merges = [" ".join(pair) for pair in pairs] if as_text else pairs
    special = {"id": 1, "content": "<end>", "special": True}
    model = {"vocab": {"x": 0, "<end>": 1}, "merges": merges}
    spec = spec_for_text({"added_tokens": [special], "model": model})
    assert spec["model"]["merges"] == [merges[0], merges[1], merges[4]]
    assert spec["model"]["vocab"] == {"x": 0, "\uffff1": 1}


def test_dropout_does_not_apply(
    json_file: Path, tmp_path: Path, stages: dict[str, tuple[Tokenize, ...]]
):
    """A tokenizer with BPE dropout gives the same ids as one without."""
    spec = json.loads(json_file.read_text())
    spec["model"]["dropout"] = 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert encode(open_stage(tmp_path, encoder="tokenizers"), [*SENTENCES]) == encode(
        stages["json"][0], [*SENTENCES]
    )


def _growth_by_new_words(tokenizer_file: Path) -> int:
    """Return the growth of a process in bytes over 40 calls with 50,000 new words each."""
    encoder = Gigatoken(json.loads(tokenizer_file.read_text()), cache_life_bytes=1 << 20)
    rng = np.random.default_rng(0)

    def encode_new_words() -> int:
        words = rng.integers(ord("a"), ord("z") + 1, size=(50_000, 11), dtype=np.uint8)
        words[:, -1] = ord(" ")
        encoder.encode(pa.array([words.tobytes().decode()], pa.large_string()))
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    warm = max(encode_new_words() for _ in range(10))
    return max(encode_new_words() for _ in range(40)) - warm


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc"
)
def test_memory_of_gigatoken_is_bounded(json_file: Path):
    """New words fill the cache until it is emptied (seen:

    4 to 26 MB; unbounded: 175 MB).
    """
    # nothing else grows there
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        assert alone.submit(_growth_by_new_words, json_file).result() < 48 << 20


# --- The end of a document ---


def test_end_of_document_by_name_id_or_none(json_file: Path):
    """The end is a named token, an id, the tokenizer's own, or none."""
    bare = tokenizers.Tokenizer.from_file(str(json_file))
    pad = bare.token_to_id("<|pad|>")
    assert encode(open_stage(json_file, end_of_document="<|pad|>"), [""]) == [[pad]]
    assert encode(open_stage(json_file, end_of_document=pad), [""]) == [[pad]]
    assert encode(open_stage(json_file, end_of_document=None), ["", "the"])[0] == []


def test_the_config_beside_a_tokenizer_names_its_end(json_file: Path, tmp_path: Path):
    """`auto` reads eos_token of tokenizer_config.json before common names."""
    (tmp_path / "tokenizer.json").write_bytes(json_file.read_bytes())
    for token in ("<|pad|>", {"content": "<|pad|>"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
        stage = open_stage(tmp_path)
        assert stage.describe().end_of_document == stage.describe().special_ids["<|pad|>"]


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (
            "<|endoftxt|>",
            r"end_of_document '<\|endoftxt\|>' is not in the vocabulary; the nearest is '<\|endoftext\|>'",
        ),
        (
            10**6,
            r"end_of_document is id 1000000, the vocabulary has 0\.\.\d+; special tokens: '<\|endoftext\|>' = ",
        ),
        (
            "e",
            r"the text 'e' encodes to id \d+, which must only mark the end .* set end_of_document to a special token",
        ),
    ],
)
def test_an_unusable_end_is_refused(json_file: Path, end: str | int, message: str):
    """An end outside the vocabulary, or one that ordinary text contains."""
    with pytest.raises(ValueError, match=message):
        open_stage(json_file, end_of_document=end)


def test_a_tokenizer_without_an_end_needs_a_setting(tmp_path: Path):
    """`auto` does not guess if no special token is an end."""
    train_byte_level().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        ValueError,
        match="names no end-of-document token; set end_of_document to a token, an id or null",
    ):
        open_stage(tmp_path)


# --- Faults of the files ---


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer in this folder; wanted one of tokenizer.json"),
        (
            {"a.model": b"", "b.model": b""},
            r"the folder contains several tokenizers \(a.model, b.model\); give the path of one",
        ),
        (
            {"a.model": b"no protobuf"},
            r"a\.model: not a SentencePiece model .* fetch the file again",
        ),
        ({"encoder.json": b"{}"}, r"vocab\.bpe: missing beside encoder\.json"),
        ({"tokenizer.json": b"{"}, r"tokenizer\.json: cannot be read as JSON"),
        ({"tokenizer.json": b"[]"}, "holds a JSON list, wanted an object"),
        (
            {"tokenizer.json": b"{}"},
            "not a tokenizer.json of HuggingFace tokenizers .* save it with Tokenizer.save",
        ),
        (
            {"tokenizer.json": b'{"model": {"vocab": {"a": 0}}}'},
            "HuggingFace tokenizers cannot read it",
        ),
        ({"x.tiktoken": b"YQ== 0\n"}, "set tiktoken_pattern to one of r50k, cl100k, o200k"),
        (
            {"r50k_base.tiktoken": b"YQ== 0\nYg==\n"},
            r"line 2 is b'Yg==', wanted a base64 token and its rank",
        ),
        (
            {"r50k_base.tiktoken": b"YQ== 4294967296\n"},
            r"largest token id is 4294967297, ids must be below 2\^32",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_remedy(
    tmp_path: Path, files: dict[str, bytes], message: str
):
    """The ValueError of open() has the file, the fault and the remedy."""
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_stage(tmp_path)


def test_missing_and_unknown_files_are_different_errors(tmp_path: Path):
    """The error has the path."""
    with pytest.raises(ValueError, match=r"gone\.json: no such tokenizer file or folder"):
        open_stage(tmp_path / "gone.json")
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match=r"a\.txt: not a tokenizer file; wanted one of"):
        open_stage(tmp_path / "a.txt")


# --- The real thing ---


@pytest.mark.shared_data
def test_gpt2_on_wikipedia(shared_data: Path):
    """GPT-2's files give known ids of a sentence, and both encoders agree on real pages."""
    folder = shared_data / "tokenizers" / "gpt2"
    fast, reference = open_stage(folder), open_stage(folder, encoder="tokenizers")
    assert fast.describe().encoder.startswith("gigatoken")
    assert encode(fast, ["Hello world"]) == [[15496, 995, 50256]]
    for file in sorted((shared_data / "reference").glob("*.xz")):
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            texts: list[str | None] = [lines.read(400) for _ in range(25)]
        assert encode(fast, texts) == encode(reference, texts)


def test_offsets_survive_a_sliced_column(stages: dict[str, tuple[Tokenize, ...]]):
    """A batch that is a slice of larger buffers is read from its own start."""
    texts: list[str | None] = ["before", "the theme", "", "after"]
    for kind in KINDS:
        for stage in stages[kind]:
            window = stage.apply(make_batch(texts).slice(1, 2)).kept["tokens"]
            assert window.to_pylist() == encode(stage, texts[1:3])
            assert np.diff(window.combine_chunks().offsets.to_numpy()).sum() == sum(
                map(len, window.to_pylist())
            )
