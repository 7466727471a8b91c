"""Labels and scores have the bits of fastText's, for every kind of supervised model."""

from __future__ import annotations

import lzma
from itertools import islice
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.kernels.fasttext.model import (
    CompiledModel,
    FastTextModel,
    LibraryModel,
    load_model,
)
from stages.kernels.fasttext.words import BLOCK_WORDS

# More rows than centroids, which quantization needs.
NUM_LABELS = 300
BUCKETS = 500

KINDS: dict[str, dict[str, Any]] = {
    "tree, characters": {"loss": "hs", "minn": 1, "maxn": 4},
    "tree, words": {"loss": "hs", "wordNgrams": 3},
    "softmax, words": {"loss": "softmax"},
    "softmax, characters and words": {
        "loss": "softmax",
        "minn": 2,
        "maxn": 3,
        "wordNgrams": 2,
    },
    "quantized tree": {"loss": "hs", "minn": 2, "maxn": 4, "quantize": {}},
    "pruned tree": {
        "loss": "hs",
        "minn": 2,
        "maxn": 4,
        "quantize": {"cutoff": 400, "qnorm": True},
    },
    "pruned softmax": {
        "loss": "softmax",
        "minn": 2,
        "maxn": 3,
        "wordNgrams": 2,
        "quantize": {"cutoff": 400, "qnorm": True, "qout": True, "dsub": 3},
    },
}

# Words of the training text, and texts that trip readers of lines.
SPECIAL = [
    *(f"wort{i % 7} слово{i} 語{i}" for i in range(9)),
    "the </s> end",
    "</s>",
    "__label__1",
    "__label__1x __label__",
    "</s",
    "x" * 40,
    # with 23 and 24 rows or so, and of 31 and 32 bytes: those that fit into the cache, and those that do not
    *("y" * num_bytes for num_bytes in (7, 8, 9, 10, 30, 31, 32)),
    "語" * 20,
    "a\0b\x0bc\x0cd\re\tf\ng",
    "\u2028\x85\xa0",
    "<<>>",
    "",
    "👩‍🚀🇫🇷",
]
texts_strategy = st.lists(
    st.lists(
        st.text(max_size=12) | st.sampled_from(SPECIAL),
        max_size=6,
    ).map(" ".join),
    max_size=8,
)


def train(
    folder: Path, name: str, quantize: dict[str, Any] | None = None, **options: Any
) -> Path:
    """Train a model of many labels on a few made-up words."""
    text = folder / "train.txt"
    lines: list[str] = []
    for label in range(NUM_LABELS):
        words = f"wort{label % 7} слово{label % 9} 語{label % 5} the end"
        lines += [f"__label__{label} {words}"] * (1 + label % 3)
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    # One thread draws a tenth of the weights and leaves the others as malloc gave them.
    model = fasttext.train_supervised(
        str(text), dim=16, epoch=2, bucket=BUCKETS, thread=11, verbose=0, **options
    )
    if quantize is not None:
        model.quantize(str(text), thread=1, **quantize)
    path = folder / f"{name}.bin"
    model.save_model(str(path))
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model file of each kind."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: train(folder, f"{i}", **KINDS[kind]) for i, kind in enumerate(KINDS)}


def check_equal(
    ours: FastTextModel, library: FastTextModel, texts: list[str | None]
) -> None:
    """Compare the results of both models, without any tolerance."""
    column = pa.array(texts, pa.large_string())
    assert ours.labels == library.labels
    labels, scores = ours.predict_best(column)
    wanted_labels, wanted_scores = library.predict_best(column)
    assert labels == wanted_labels
    assert scores.tolist() == wanted_scores.tolist()
    for label in (ours.labels[0], ours.labels[-1], "__label__missing"):
        found = ours.score_label(column, label)
        assert found.tolist() == library.score_label(column, label).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_equals_fasttext(models: dict[str, Path], kind: str) -> None:
    """Also with the same texts again, when the words are cached."""
    ours, library = load_model(models[kind]), LibraryModel(models[kind])
    assert isinstance(ours, CompiledModel)

    @settings(max_examples=25, deadline=None)
    @given(texts=texts_strategy)
    def check(texts: list[str]) -> None:
        check_equal(ours, library, [*texts, *texts, None])

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_lines_longer_than_the_words_read_ahead(models: dict[str, Path], kind: str) -> None:
    """A mark of the end, a label and another text follow at every place around the border."""
    words = [f"wort{i % 7} ночь{i} 語{i}" for i in range(2 * BLOCK_WORDS)]
    words = " ".join(words).split()[: 2 * BLOCK_WORDS + 2]
    texts: list[str | None] = []
    for num_words in (*range(BLOCK_WORDS - 2, BLOCK_WORDS + 3), 2 * BLOCK_WORDS):
        before, after = " ".join(words[:num_words]), " ".join(words[num_words:])
        texts += [before, f"{before} ", f"{before} </s> {after}", f"{before}\n{after}"]
        texts += [f"{before} __label__1 {after}", f"{before} __label__1"]
    check_equal(load_model(models[kind]), LibraryModel(models[kind]), texts)


@pytest.mark.parametrize("loss", ["ova", "ns"])
def test_other_losses_are_left_to_the_library(tmp_path: Path, loss: str) -> None:
    """The door is the same."""
    model = load_model(train(tmp_path, loss, loss=loss))
    assert isinstance(model, LibraryModel)
    labels, scores = model.predict_best(pa.array(["the end", None]))
    assert labels[0] in model.labels
    assert scores[0] == model.score_label(pa.array(["the end"]), labels[0] or "")[0]


@pytest.mark.parametrize(
    ("value", "is_ours"), [(0.0, True), (1e13, False), (np.nan, False)]
)
def test_unusual_weights(
    models: dict[str, Path], tmp_path: Path, value: float, is_ours: bool
) -> None:
    """With equal weights all labels tie, and the last one that fastText meets wins."""
    for kind in ("tree, words", "softmax, words"):
        content = bytearray(models[kind].read_bytes())
        weights = np.full(NUM_LABELS * 16, value, np.float32).tobytes()
        content[-len(weights) :] = weights
        path = tmp_path / "changed.bin"
        path.write_bytes(content)
        model = load_model(path)
        assert isinstance(model, CompiledModel) == is_ours
        if is_ours:
            check_equal(model, LibraryModel(path), ["the end", "wort1", ""])


def test_a_tree_of_one_label(tmp_path: Path) -> None:
    """Its probability is 1."""
    (tmp_path / "train.txt").write_text("__label__a one two\n" * 5, encoding="utf-8")
    # Threads draw a tenth of the 3 x 10 weights each; a remainder would stay as malloc gave it.
    model = fasttext.train_supervised(
        str(tmp_path / "train.txt"), dim=10, loss="hs", thread=11, verbose=0
    )
    model.save_model(str(tmp_path / "one.bin"))
    ours = load_model(tmp_path / "one.bin")
    assert isinstance(ours, CompiledModel)
    check_equal(ours, LibraryModel(tmp_path / "one.bin"), ["one", "three", ""])


@pytest.mark.parametrize("kind", ["tree, characters", "pruned softmax"])
def test_a_cut_or_longer_file_is_refused(
    models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """The error names the file. fastText itself reads cut files without an error or without end."""
    content = models[kind].read_bytes()
    path = tmp_path / "cut.bin"
    cuts = [0, 3, 60, 70, 100, 3000, *range(4000, len(content), len(content) // 40)]
    for damaged in (*(content[:cut] for cut in cuts), content + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"cut\.bin"):
            load_model(path)


@pytest.mark.parametrize("kind", ["tree, characters", "pruned softmax"])
def test_a_changed_byte_never_leads_outside_of_the_arrays(
    models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """A damaged file is refused, or the model predicts without an error."""
    content = models[kind].read_bytes()
    path = tmp_path / "changed.bin"
    texts = pa.array(["the end слово1 語2 __label__1", "wort1 wort2"])

    @settings(max_examples=25, deadline=None)
    @given(
        at=st.integers(0, 120) | st.integers(0, len(content) - 1),
        value=st.sampled_from([0, 1, 2, 3, 127, 128, 255]),
    )
    def check(at: int, value: int) -> None:
        changed = bytearray(content)
        changed[at] = value
        path.write_bytes(changed)
        try:
            model = load_model(path)
        except ValueError as error:
            message = str(error)
        else:
            message = "changed.bin"
            if isinstance(model, CompiledModel):
                assert len(model.predict_best(texts)[0]) == 2
        assert "changed.bin" in message

    check()


@pytest.mark.parametrize("name", ["missing.bin", "train.txt"])
def test_a_file_that_is_no_model_is_refused(models: dict[str, Path], name: str) -> None:
    """The error names the file."""
    folder = next(iter(models.values())).parent
    with pytest.raises(ValueError, match=name):
        load_model(folder / name)


def read_sentences(shared_data: Path, step: int) -> list[str | None]:
    """Return every `step`-th of 60,000 sentences in 60 languages."""
    with lzma.open(
        shared_data / "labels" / "eld_big-test_60langs.tsv.xz", "rt", encoding="utf-8"
    ) as lines:
        return [line.partition("\t")[2] for line in islice(lines, 0, None, step)]


def test_sentences_of_60_languages_equal_lid_176(shared_data: Path) -> None:
    """Bit for bit, on every 40th sentence."""
    path = shared_data / "models" / "lid.176.ftz"
    sentences = read_sentences(shared_data, 40)
    check_best(path, sentences)


@pytest.mark.heavy
def test_all_sentences_of_60_languages_equal_lid_176(shared_data: Path) -> None:
    """Bit for bit, on 60,000 sentences and 600 documents of 100."""
    path = shared_data / "models" / "lid.176.ftz"
    sentences = read_sentences(shared_data, 1)
    check_best(path, sentences)
    documents = [
        " ".join(str(sentence) for sentence in sentences[first : first + 100])
        for first in range(0, len(sentences), 100)
    ]
    check_best(path, [*documents])


def check_best(path: Path, texts: list[str | None]) -> None:
    """Compare the best labels and their scores with fastText's."""
    ours = load_model(path)
    assert isinstance(ours, CompiledModel)
    column = pa.array(texts, pa.large_string())
    labels, scores = ours.predict_best(column)
    wanted_labels, wanted_scores = LibraryModel(path).predict_best(column)
    assert labels == wanted_labels
    assert scores.tolist() == wanted_scores.tolist()
