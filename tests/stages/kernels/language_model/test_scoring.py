"""The compiled scoring gives the pieces of SentencePiece and the probabilities of KenLM."""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path
from typing import Any

import kenlm
import pyarrow as pa
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from stages.filters.language_model import LanguageModel, normalize_for_lm
from stages.kernels.language_model.ngrams import map_ngram_tables
from stages.kernels.language_model.normalization import UNSUPPORTED
from stages.kernels.language_model.scoring import TextScorer, load_text_scorer
from tests.stages.kernels.language_model.kenlm_files import write_probing_file
from tests.stages.kernels.language_model.piece_models import (
    WORDS,
    find_characters_in_context,
    train_pieces,
)


def replace_pieces(content: bytes, scores: dict[str, float]) -> bytes:
    """Return the model with these normal pieces only; control pieces stay."""
    formats: Any = sentencepiece_model_pb2
    model = formats.ModelProto.FromString(content)
    control = [piece for piece in model.pieces if piece.type != piece.NORMAL]
    del model.pieces[:]
    model.pieces.extend(control)
    for text, score in scores.items():
        model.pieces.add(piece=text, score=score)
    return model.SerializeToString()


def write_random_ngrams(path: Path, pieces: list[str], order: int) -> None:
    """Write a KenLM file of all unigrams and of random n-grams, with signs that are flags.

    N-grams extend each other or not, so all ways of backing off occur.
    """
    rng = random.Random(1)

    def draw() -> tuple[float, float]:
        log_prob = rng.uniform(0.01, 5) * rng.choice([-1, -1, 1])
        return log_prob, rng.choice([-0.0, 0.0, -rng.random()])

    words = ["<unk>", "<s>", "</s>", "日本", *pieces]
    shorter: list[tuple[str, ...]] = [(word,) for word in words]
    ngrams = {ngram: draw() for ngram in shorter}
    for _ in range(order - 1):
        added = rng.choices(words[1:], k=60 * len(words))
        shorter = [(*rng.choice(shorter), word) for word in added]
        for ngram in shorter:
            ngrams[ngram] = draw()
    write_probing_file(path, ngrams)


class Models:
    """A scorer, and the libraries with the same files."""

    def __init__(
        self,
        folder: Path,
        order: int,
        scores: dict[str, float] | None = None,
        **options: Any,
    ) -> None:
        content = train_pieces(**options)
        if scores is not None:
            content = replace_pieces(content, scores)
        (folder / "en.sp.model").write_bytes(content)
        self.pieces = sentencepiece.SentencePieceProcessor(model_proto=content)
        pieces = [self.pieces.id_to_piece(i) for i in range(3, self.pieces.vocab_size())]
        self.file = folder / "en.arpa.bin"
        write_random_ngrams(self.file, pieces, order)
        self.ngrams = kenlm.Model(str(self.file))
        scorer = load_text_scorer(content, self.file, normalize_for_lm)
        assert scorer is not None
        self.scorer: TextScorer = scorer

    def check(self, text: str) -> None:
        """Compare the probability, to the last bit, and the number of pieces."""
        log10_probs, num_pieces = self.scorer.score(pa.array([text]))
        if num_pieces[0] == UNSUPPORTED:
            assert not find_characters_in_context().isdisjoint(text)
            return
        pieces = self.pieces.encode(normalize_for_lm(text), out_type=str)
        assert num_pieces[0] == len(pieces)
        if pieces:
            assert log10_probs[0] == self.ngrams.score(" ".join(pieces))


@pytest.fixture(scope="module", params=[2, 3, 5])
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Models:
    """Models of several orders."""
    return Models(tmp_path_factory.mktemp("lm"), request.param)


TEXTS = st.lists(st.sampled_from([*WORDS, "日本", "日", "</s>", "<unk>", "cát"])).map(
    " ".join
)


@settings(deadline=None)
@given(TEXTS | st.text() | st.text("thecasmo,0 日本é▁"))
def test_every_line_scores_as_with_the_libraries(models: Models, text: str):
    """Any characters: known and unknown pieces, joined unknown pieces, words of the model's kind."""
    models.check(text)


def test_a_long_line_scores_as_with_the_libraries(models: Models):
    """Sums are rounded as in SentencePiece."""
    rng = random.Random(2)
    words = rng.choices([*WORDS, "zebra", "thecatsatonamat", "日本語"], k=30_000)
    models.check(" ".join(words))


def test_texts_of_a_batch_score_as_alone(models: Models):
    """The memory of a text is used for the next one, which may need more."""
    texts = [
        "the cat",
        "a b c d e f g h i j",
        "j i h g f e d c b a b c",
        "a",
        "",
        "the cat",
    ]
    together = models.scorer.score(pa.array(texts))
    alone = [models.scorer.score(pa.array([text])) for text in texts]
    for i in range(2):
        assert together[i].tolist() == [scored[i][0] for scored in alone]


def test_sums_are_reset_as_in_sentencepiece(tmp_path: Path):
    """Far from 0, float32 cannot tell two ways to cut a word apart; after a reset it can."""
    scores = {"▁": -100.0, "a": -10.0, "b": -10.0, "ab": -20.003}
    models = Models(tmp_path, 2, scores=scores, normalization_rule_name="identity")
    models.check("ab " * 4_000)
    pieces = models.pieces.encode("ab " * 4_000, out_type=str)
    assert pieces.count("ab") < 1_500, "without resets, thousands of words are one piece"


def test_pieces_across_words_and_other_rules_are_supported(tmp_path: Path):
    """Pieces may contain spaces, and normalization may be none."""
    models = Models(
        tmp_path, 3, split_by_whitespace=False, normalization_rule_name="identity"
    )
    rng = random.Random(3)
    for _ in range(50):
        models.check(" ".join(rng.choices([*WORDS, "zebra"], k=20)))


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "bpe"},
        {"model_type": "word"},
        {"byte_fallback": True, "vocab_size": 400},
        {"user_defined_symbols": ["cat"]},
    ],
)
def test_other_kinds_of_pieces_are_left_to_the_libraries(
    models: Models, options: dict[str, Any]
):
    """Only unigram models without special pieces are searched."""
    assert load_text_scorer(train_pieces(**options), models.file, normalize_for_lm) is None


def test_other_formats_of_kenlm_are_left_to_the_library(models: Models, tmp_path: Path):
    """ARPA texts, tries and unknown versions are not mapped."""
    content = models.file.read_bytes()
    file = tmp_path / "en.arpa.bin"
    kind, version = 96, 104
    for other in [
        b"\\data\\\n",
        b"",
        content[:100],
        b"x" + content[1:],
        content[:kind] + b"\x02" + content[kind + 1 :],
        content[:version] + b"\x02" + content[version + 1 :],
    ]:
        file.write_bytes(other)
        assert map_ngram_tables(file) is None


def test_damaged_files_are_refused(models: Models, tmp_path: Path):
    """The error names the file, what was found, and what to do."""
    content = models.file.read_bytes()
    file = tmp_path / "en.arpa.bin"
    tables = map_ngram_tables(models.file)
    assert tables is not None
    vocabulary, end = 4 * int(tables.tables[0, 0]), 4 * len(tables.words)
    used = next(at for at in itertools.count(vocabulary, 12) if any(content[at : at + 8]))
    for broken, fault in [
        (content[: end - 1], "the file is cut short: copy it again"),
        (content[: end + 2], "wanted the list of words"),
        (content[:end] + b"X" + content[end + 1 :], "found b'Xunk>"),
        (
            content[: used + 8] + struct.pack("<I", 10**6) + content[used + 12 :],
            "the vocabulary has word 1000000, but there are",
        ),
    ]:
        file.write_bytes(broken)
        with pytest.raises(ValueError, match=fault) as caught:
            map_ngram_tables(file)
        assert str(file) in str(caught.value)


def test_the_language_model_uses_the_compiled_scoring(models: Models):
    """Perplexities are those that the libraries give."""
    compiled = LanguageModel(models.file.parent, "en")
    by_libraries = LanguageModel(models.file.parent, "en")
    assert vars(compiled)["_scorer"] is not None
    vars(by_libraries)["_scorer"] = None
    for text in ["", " ", "The cat sat, 12 times…", "ΣΑΣ 日本 — cát", "\u0301", "a\u3000b"]:
        assert compiled.perplexity(text) == by_libraries.perplexity(text)
