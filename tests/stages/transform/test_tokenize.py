"""Ids are the reference library's whatever encodes, special tokens never come out of text, faults name their remedy."""

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
from stages.transform.tokenizer_files import MAX_VOCAB_SIZE, read_definition

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


def batch_of(texts: list[str | None]) -> pa.Table:
    """A batch of documents with these texts, numbered from 0."""
    return pa.table(
        {
            "doc_id": pa.array(range(len(texts)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
        },
    )


def opened(path: Path, **keys: Any) -> Tokenize:
    """The stage, ready, for the tokenizer that lies at a path."""
    stage = Tokenize(TokenizeSettings(tokenizer="t", **keys), {"t": path})
    stage.open()
    return stage


def applied(stage: Tokenize, texts: list[str | None]) -> Outcome:
    """The stage's outcome on texts, its accounts and column types checked."""
    batch = batch_of(texts)
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    assert outcome.kept.schema.field("tokens").type == pa.large_list(pa.uint32())
    assert outcome.kept.schema.field("num_tokens").type == pa.int64()
    return outcome


def ids_of(stage: Tokenize, texts: list[str | None]) -> list[list[int]]:
    """The ids of each text that is kept."""
    return applied(stage, texts).kept["tokens"].to_pylist()


# --- Tokenizers of every kind, made here ---


def train_byte_level() -> tokenizers.Tokenizer:
    """A byte-level BPE of 600 tokens without special ones."""
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
    """A tokenizer.json with special tokens before an ordinary added one; it cuts and pads when called bare."""
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
    """A Unigram tokenizer.json, whose vocabulary would match the spelling of its special tokens."""
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
    """A small tokenizer in the two files that GPT-2 came in."""
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
    """A SentencePiece BPE model with a symbol of its own, which a fast encoder may read otherwise."""
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
    """Kind -> the stage with each encoder that can do it; the reference library first."""
    cl100k: dict[str, Any] = {"tiktoken_pattern": "cl100k"}
    return {
        "json": tuple(
            opened(json_file, encoder=e) for e in ("tokenizers", "gigatoken", "auto")
        ),
        "gpt2": tuple(opened(gpt2_folder, encoder=e) for e in ("tokenizers", "gigatoken")),
        "tiktoken": tuple(
            opened(tiktoken_file, encoder=e, **cl100k) for e in ("tokenizers", "gigatoken")
        ),
        "sentencepiece": tuple(
            opened(sentencepiece_file, encoder=e) for e in ("sentencepiece", "auto")
        ),
        "unigram": (opened(unigram_file, encoder="tokenizers"), opened(unigram_file)),
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
    """Any text, spelled special tokens included, has one list of ids and one fate, whatever library encodes."""
    first, *others = [applied(stage, [*texts]) for stage in stages[kind]]
    for other in others:
        assert other.kept.equals(first.kept)
        assert other.dropped.equals(first.dropped)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=st.text())
def test_json_kind_equals_the_library_called_bare(
    stages: dict[str, tuple[Tokenize, ...]], json_file: Path, text: str
):
    """The ids of a tokenizer.json are those of HuggingFace tokenizers, without its cutting and padding, and the end."""
    bare = tokenizers.Tokenizer.from_file(str(json_file))
    bare.no_truncation()
    bare.no_padding()
    end = bare.token_to_id("<|endoftext|>")
    for stage in stages["json"]:
        assert ids_of(stage, [text]) == [
            [*bare.encode(text, add_special_tokens=False).ids, end]
        ]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=crawled)
def test_sentencepiece_kind_equals_the_library_called_bare(
    stages: dict[str, tuple[Tokenize, ...]], sentencepiece_file: Path, text: str
):
    """The ids of a model file are those of SentencePiece, which reads `</s>` as text."""
    bare = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_file))
    for stage in stages["sentencepiece"]:
        assert ids_of(stage, [text]) == [[*bare.encode(text), bare.eos_id()]]


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
def test_tiktoken_kind_gives_the_ids_of_tiktoken(
    tiktoken_file: Path, pattern: str, digits: list[int], accent: list[int]
):
    """The ids are those that tiktoken 0.14 gave for these ranks under each split; the end is the first free id."""
    text = "the theme's 1234 aaaa caféTHEing  \n  a's<|endoftext|>"
    for encoder in ("tokenizers", "gigatoken"):
        stage = opened(tiktoken_file, tiktoken_pattern=pattern, encoder=encoder)
        expected = [*THE_THEMES, *digits, 32, 259, 259, *CAFE_TO_END, *accent, *TAIL, 268]
        assert ids_of(stage, [text]) == [expected]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(words=st.lists(st.text(alphabet="ahei tnég", min_size=1, max_size=12), max_size=4))
def test_tiktoken_kind_merges_by_rank(
    stages: dict[str, tuple[Tokenize, ...]], tiktoken_file: Path, words: list[str]
):
    """Within a word, the pair that makes the lowest rank is merged first, as tiktoken's byte_pair_merge does."""
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
    assert ids_of(stages["tiktoken"][1], [text]) == [[*expected, 268]]


def merge_by_rank(word: bytes) -> list[int]:
    """What tiktoken does with a word, written for clarity."""
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
    """Byte-level BPE loses nothing: the ids decode to the text and the end token's name."""
    stage = stages[kind][-1]
    assert stage.decode(ids_of(stage, [text])[0]) == text + "<|endoftext|>"


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
    """Two batches give together what one gives, however the batch's columns are chunked."""
    stage = stages[kind][-1]
    batch = batch_of([*texts])
    chunked = pa.concat_tables([batch.slice(0, cut), batch.slice(cut)])
    halves = [stage.apply(batch.slice(0, cut)), stage.apply(batch.slice(cut))]
    whole = stage.apply(batch)
    assert stage.apply(chunked).kept.combine_chunks() == whole.kept.combine_chunks()
    assert pa.concat_tables([h.kept for h in halves]) == whole.kept
    assert pa.concat_tables([h.dropped for h in halves]) == whole.dropped


def test_batches_longer_than_a_slice_are_one_list(stages: dict[str, tuple[Tokenize, ...]]):
    """What gigatoken takes in several calls comes back as if it were one."""
    reference, fast = stages["tiktoken"]
    long = "a" * (SLICE_BYTES // 8 + 1)
    rows: list[str | None] = [long[:7], *[long] * 9, "", "the"]
    tokens = applied(fast, rows).kept["tokens"]
    assert tokens[0].as_py() == ids_of(reference, rows[:1])[0]
    assert tokens[9].as_py() == tokens[1].as_py()
    assert tokens.to_pylist()[-2:] == ids_of(reference, ["", "the"])


@pytest.mark.parametrize("kind", KINDS)
def test_empty_and_null_texts_are_just_the_end(
    stages: dict[str, tuple[Tokenize, ...]], kind: str
):
    """A document without text has one token, the end-of-document id; num_tokens counts it; no documents, no tokens."""
    for stage in stages[kind]:
        end = stage.describe().end_of_document
        kept = applied(stage, ["", None]).kept
        assert kept["tokens"].to_pylist() == [[end], [end]]
        assert kept["num_tokens"].to_pylist() == [1, 1]
        assert applied(stage, []).kept.num_rows == 0


# --- Special tokens ---


def test_spelled_special_tokens_stay_text(
    stages: dict[str, tuple[Tokenize, ...]], json_file: Path
):
    """`<|endoftext|>` in a page is not the end id; an ordinary added token behind it keeps its own id."""
    bare = tokenizers.Tokenizer.from_file(str(json_file))
    for stage in stages["json"]:
        (ids,) = ids_of(stage, ["x<|endoftext|><|pad|> <tool>"])
        assert ids[-1] == bare.token_to_id("<|endoftext|>")
        assert ids[-2] == bare.token_to_id("<tool>")
        assert not {bare.token_to_id("<|endoftext|>"), bare.token_to_id("<|pad|>")} & set(
            ids[:-1]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_reserved_ids_come_from_no_text(stages: dict[str, tuple[Tokenize, ...]], kind: str):
    """No spelling of a special token, alone or glued to others, gives a special id but the end that is put there."""
    for stage in stages[kind]:
        info = stage.describe()
        names = list(info.special_ids)
        reserved = {
            token_id for name, token_id in info.special_ids.items() if name != "<unk>"
        }
        for ids in ids_of(
            stage, [f"a{name}b {name} {name}{name}\n{name}" for name in names]
        ):
            assert ids[-1] == info.end_of_document
            assert not reserved & set(ids[:-1])


def test_a_forged_special_is_dropped_with_its_id(stages: dict[str, tuple[Tokenize, ...]]):
    """Should a text reach a reserved id all the same, the document goes, with the reason and the id."""
    stage = stages["unigram"][0]
    end = stage.describe().end_of_document
    outcome = applied(stage, ["fine", f"x \uffff{end}", "fine too"])
    assert outcome.kept["doc_id"].to_pylist() == [0, 2]
    (drop,) = outcome.dropped.select(["doc_id", "reason", "value"]).to_pylist()
    assert drop == {
        "doc_id": 1,
        "reason": "tokenize.error_reserved_id",
        "value": float(end or 0),
    }


# --- Which encoder, and what the manifest is told ---


def test_describe_tells_tokenizer_and_encoder(
    stages: dict[str, tuple[Tokenize, ...]], json_file: Path
):
    """The manifest learns name, digest, size, end, special ids, the encoder and the reason for it."""
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
    """Of several files, the digest is that of what `sha256sum` prints for them in order of name."""
    lines = [
        f"{hashlib.sha256((gpt2_folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("encoder.json", "vocab.bpe")
    ]
    assert (
        read_definition(gpt2_folder, None).sha256
        == hashlib.sha256("".join(lines).encode()).hexdigest()
    )


def test_what_gigatoken_does_not_load_goes_to_the_reference(
    stages: dict[str, tuple[Tokenize, ...]],
):
    """A Unigram tokenizer falls back to tokenizers, and the reason says that gigatoken refused it."""
    info = stages["unigram"][1].describe()
    assert info.encoder.startswith("tokenizers ")
    assert info.encoder_reason.startswith("gigatoken does not load it")


def test_what_gigatoken_reads_otherwise_goes_to_the_reference(symbols_file: Path):
    """A tokenizer that normalises is left to its own library: no battery of texts can prove a normaliser."""
    stage = opened(symbols_file)
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
    assert ids_of(stage, texts) == [[*bare.encode(text), bare.eos_id()] for text in texts]
    with pytest.raises(
        ValueError,
        match=r"bpe\.model: encoder gigatoken was requested, but .* set encoder to auto",
    ):
        opened(symbols_file, encoder="gigatoken")


def test_an_encoder_for_another_kind_is_refused(sentencepiece_file: Path):
    """HuggingFace tokenizers cannot stand in for SentencePiece, and the message lists what can."""
    with pytest.raises(
        ValueError,
        match=r"'tokenizers' does not read this kind.*auto, gigatoken or sentencepiece",
    ):
        opened(sentencepiece_file, encoder="tokenizers")


def test_merges_may_be_written_as_text(
    json_file: Path, tmp_path: Path, stages: dict[str, tuple[Tokenize, ...]]
):
    """Older tokenizer.json files write a merge as "left right"; the ids are the same."""
    spec = json.loads(json_file.read_text())
    spec["model"]["merges"] = [" ".join(merge) for merge in spec["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert ids_of(opened(tmp_path), [*SENTENCES]) == ids_of(stages["json"][0], [*SENTENCES])


def test_dropout_does_not_apply(
    json_file: Path, tmp_path: Path, stages: dict[str, tuple[Tokenize, ...]]
):
    """A tokenizer file with BPE dropout encodes like one without: the same text has the same ids, always."""
    spec = json.loads(json_file.read_text())
    spec["model"]["dropout"] = 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert ids_of(opened(tmp_path, encoder="tokenizers"), [*SENTENCES]) == ids_of(
        stages["json"][0], [*SENTENCES]
    )


def _growth_by_new_words(tokenizer_file: Path) -> int:
    """Bytes by which a process grows over 40 calls, each of 50,000 new words, after 10 such calls."""
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
    """Ever new words grow a process only as long as the cache lives (seen: 4 to 26 MB; without an end, 175 MB)."""
    # nothing else grows there
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        assert alone.submit(_growth_by_new_words, json_file).result() < 48 << 20


# --- The end of a document ---


def test_end_of_document_by_name_id_or_none(json_file: Path):
    """The end is the token named, the id given, the tokenizer's own, or nothing at all."""
    bare = tokenizers.Tokenizer.from_file(str(json_file))
    pad = bare.token_to_id("<|pad|>")
    assert ids_of(opened(json_file, end_of_document="<|pad|>"), [""]) == [[pad]]
    assert ids_of(opened(json_file, end_of_document=pad), [""]) == [[pad]]
    assert ids_of(opened(json_file, end_of_document=None), ["", "the"])[0] == []


def test_the_config_beside_a_tokenizer_names_its_end(json_file: Path, tmp_path: Path):
    """The word auto takes eos_token of tokenizer_config.json, written as text or as an object, before common names."""
    (tmp_path / "tokenizer.json").write_bytes(json_file.read_bytes())
    for token in ("<|pad|>", {"content": "<|pad|>"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
        stage = opened(tmp_path)
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
def test_an_end_that_will_not_do_is_refused(json_file: Path, end: str | int, message: str):
    """An end outside the vocabulary, or one that ordinary text contains, is refused with the remedy."""
    with pytest.raises(ValueError, match=message):
        opened(json_file, end_of_document=end)


def test_a_tokenizer_without_an_end_must_be_told(tmp_path: Path):
    """The word auto does not guess where no special token is an end."""
    train_byte_level().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        ValueError,
        match="names no end-of-document token; set end_of_document to a token, an id or null",
    ):
        opened(tmp_path)


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
    """open() raises a ValueError that tells the file, the fault and what to do."""
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        opened(tmp_path)


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path):
    """A missing file, and one of no known kind, are told apart."""
    with pytest.raises(ValueError, match=r"gone\.json: no such tokenizer file or folder"):
        opened(tmp_path / "gone.json")
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match=r"a\.txt: not a tokenizer file; wanted one of"):
        opened(tmp_path / "a.txt")


# --- The real thing ---


@pytest.mark.shared_data
def test_gpt2_on_wikipedia(shared_data: Path):
    """GPT-2's own files give the known ids of a known sentence, and both encoders agree on real pages."""
    folder = shared_data / "tokenizers" / "gpt2"
    fast, reference = opened(folder), opened(folder, encoder="tokenizers")
    assert fast.describe().encoder.startswith("gigatoken")
    assert ids_of(fast, ["Hello world"]) == [[15496, 995, 50256]]
    for file in sorted((shared_data / "reference").glob("*.xz")):
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            texts: list[str | None] = [lines.read(400) for _ in range(25)]
        assert ids_of(fast, texts) == ids_of(reference, texts)


def test_offsets_survive_a_sliced_column(stages: dict[str, tuple[Tokenize, ...]]):
    """A batch that is a window into larger buffers is read from its own beginning."""
    texts: list[str | None] = ["before", "the theme", "", "after"]
    for kind in KINDS:
        for stage in stages[kind]:
            window = stage.apply(batch_of(texts).slice(1, 2)).kept["tokens"]
            assert window.to_pylist() == ids_of(stage, texts[1:3])
            assert np.diff(window.combine_chunks().offsets.to_numpy()).sum() == sum(
                map(len, window.to_pylist())
            )
