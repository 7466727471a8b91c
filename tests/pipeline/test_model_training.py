"""Training: what is recorded is what the model does, and it can be done again to the byte."""

from __future__ import annotations

import dataclasses
import gzip
import json
import lzma
import random
from pathlib import Path
from typing import Any

import kenlm
import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from pipeline.models.download import AssetError
from pipeline.models.kenlm_build import KenlmTools
from pipeline.models.training import (
    CRAWL_LABEL,
    REFERENCE_LABEL,
    DemoLm,
    DemoReference,
    TrainingFailed,
    is_held_out,
    kenlm_tools,
    precision_and_recall,
    read_texts,
    roc_auc,
    train_lm,
    train_reference,
)
from stages.filters import classifiers
from stages.filters.language_model import normalize_for_lm

SCORES = st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=1, max_size=30)


def documents(n: int, seed: int = 0) -> list[str]:
    """Short encyclopedic documents with some grammar, many names, accents and line breaks."""
    rng = random.Random(seed)
    syllables, things = (
        ("Év", "reux", "ly", "on", "nî", "mes", "bre", "st", "do", "le"),
        ("bridge", "market", "river"),
    )

    def sentence() -> str:
        name = "".join(rng.choices(syllables, k=4)).capitalize()
        return f"{name} has a {rng.choice(things)} of {rng.randint(1200, 1999)}, near its old {rng.choice(things)}."

    return ["\n".join(sentence() for _ in range(rng.randint(1, 5))) for _ in range(n)]


# ---- texts ----


def test_texts_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    """Lines of text or JSON objects, plain, gzip or xz, in the order given, blank lines left out."""
    (tmp_path / "a.txt").write_text("one\n\ntwo\r\n", encoding="utf-8")
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(b"drei\n"))
    lines = '{"text": "vier\\nlang"}\n{"raw_content": "fünf"}\n'
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    files = [tmp_path / name for name in ("a.txt", "b.txt.xz", "c.jsonl.gz")]
    assert list(read_texts(files)) == ["one", "two", "drei", "vier\nlang", "fünf"]


@pytest.mark.parametrize("line", ['{"txt": "x"}', '{"text": 3}', "[1]", "{", '"text"'])
def test_a_line_that_is_no_document_is_named(line: str, tmp_path: Path) -> None:
    """The error gives file, line number and what was wanted."""
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' + line, encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.jsonl:2: wanted an object with a string text"):
        list(read_texts([tmp_path / "a.jsonl"]))


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    """A file in another encoding is refused with its place, not read as something else."""
    (tmp_path / "a.txt").write_bytes(b"ok\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"a\.txt:2: wanted UTF-8"):
        list(read_texts([tmp_path / "a.txt"]))


def test_a_share_of_the_texts_is_held_out() -> None:
    """About the share asked for; a larger share holds out all that a smaller one does."""
    texts = [f"text {i}" for i in range(4_000)]
    tenth = {text for text in texts if is_held_out(text, 0.1)}
    assert len(tenth) == pytest.approx(400, rel=0.15)
    assert tenth < {text for text in texts if is_held_out(text, 0.3)}
    assert not any(is_held_out(text, 0.0) for text in texts)


# ---- figures ----


@given(SCORES, SCORES)
def test_roc_auc_is_the_share_of_pairs_in_order(
    positive: list[float], negative: list[float]
) -> None:
    """The rank sum equals counting all pairs, ties as half."""
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    assert roc_auc(np.array(positive), np.array(negative)) == pytest.approx(np.mean(pairs))


@given(SCORES, SCORES, st.floats(0, 1))
def test_precision_and_recall_count_what_is_kept(
    positive: list[float], negative: list[float], limit: float
) -> None:
    """Both are shares; recall is that of the positives at or above the limit."""
    precision, recall = precision_and_recall(np.array(positive), np.array(negative), limit)
    kept = [p for p in positive if p >= limit]
    assert recall == len(kept) / len(positive)
    assert precision == len(kept) / max(1, len(kept) + sum(n >= limit for n in negative))


# ---- the classifier ----


def test_the_classifier_separates_two_obvious_corpora(tmp_path: Path) -> None:
    """Encyclopedic sentences against trade: nearly all held-out texts are told apart, and the record says so."""
    positive = documents(400)
    negative = [f"buy cheap shoes now {i} click here free shipping" for i in range(400)]
    record = train_reference(positive, negative, tmp_path / "model", num_epochs=20, dimension=8)
    assert record["roc_auc"] > 0.99
    assert record["recall"] > 0.95
    assert record["positive"]["num_docs"] == 400
    assert json.loads((tmp_path / "model" / "record.json").read_text()) == record
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == [
        "model.bin",
        "record.json",
    ]
    model = classifiers.load_model(tmp_path / "model")
    lines = [classifiers.to_line(documents(1, seed=9)[0]), "buy shoes click"]
    good, bad = classifiers.score_lines(model, REFERENCE_LABEL, lines)
    assert good > 0.5 > bad


def test_training_a_classifier_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """In one process, after other work has left its traces in memory; another seed gives another model."""
    negative = [f"spam {i % 7} offer" * 5 + str(i) for i in range(300)]
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        train_reference(documents(300), negative, folder, dimension=50, seed=seed)
        np.full(1_000_000, np.nan)  # what fastText might find in memory it did not set
    a, b, c = (
        [(folder / name).read_bytes() for name in ("model.bin", "record.json")]
        for folder in folders
    )
    assert a == b
    assert a[0] != c[0]


def test_words_that_look_like_labels_do_not_become_labels(tmp_path: Path) -> None:
    """A text may quote fastText's own notation."""
    negative = [f"__label__spam {i} x" for i in range(300)]
    train_reference(documents(300), negative, tmp_path, num_epochs=1, dimension=4)
    model = classifiers.load_model(tmp_path)
    assert set(model.get_labels()) == {REFERENCE_LABEL, CRAWL_LABEL}


def test_too_few_texts_for_a_classifier_are_refused(tmp_path: Path) -> None:
    """Figures from a handful of texts would mean nothing, so there are none."""
    with pytest.raises(
        TrainingFailed, match=r"train reference: \d+ references and 0 crawl pages held out"
    ):
        train_reference(documents(300), ["one"], tmp_path)


# ---- language models ----


@pytest.fixture(scope="module")
def tools() -> tuple[Path, Path]:
    """Lmplz and build_binary out of the user's cache, built if this machine has none yet."""
    return kenlm_tools()


@pytest.fixture(scope="module")
def trained(
    tools: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A folder with a language model of 500 small documents, and its record."""
    folder = tmp_path_factory.mktemp("lm")
    return folder, train_lm(documents(500), "fr", folder, kenlm=tools)


@pytest.mark.models
def test_the_recorded_cutoffs_are_percentiles_of_held_out_perplexity(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    """KenLM's score of the joined pieces, one sentence per document, gives the recorded numbers."""
    folder, record = trained
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "fr.sp.model"))
    lm = kenlm.Model(str(folder / "fr.arpa.bin"))
    perplexities: list[float] = []
    for text in documents(500):
        if is_held_out(text, 0.1):
            tokens = pieces.encode(normalize_for_lm(text), out_type=str)
            perplexities.append(round(10 ** (-lm.score(" ".join(tokens)) / (len(tokens) + 1)), 1))
    assert lm.order == 5
    assert record["num_held_out_docs"] == len(perplexities) > 20
    for percentile in (30, 60):
        expected = round(float(np.percentile(perplexities, percentile)), 1)
        assert record["cutoffs"][str(percentile)] == expected


@pytest.mark.models
def test_a_language_model_folder_is_whole(trained: tuple[Path, dict[str, Any]]) -> None:
    """Three files, no leftovers, and the record on disk is what was returned."""
    folder, record = trained
    assert sorted(file.name for file in folder.iterdir()) == [
        "fr.arpa.bin",
        "fr.sp.model",
        "record.json",
    ]
    assert json.loads((folder / "record.json").read_text()) == record
    assert record["language"] == "fr"
    assert record["kind"] == "lm"


@pytest.mark.models
def test_the_model_prefers_its_own_language(trained: tuple[Path, dict[str, Any]]) -> None:
    """A document of the same grammar is likelier than the same words in no order."""
    from stages.filters.language_model import LanguageModel

    lm = LanguageModel(trained[0], "fr")
    text = documents(1, seed=77)[0]
    words = text.split()
    random.Random(0).shuffle(words)
    assert (lm.perplexity(text) or 0) * 2 < (lm.perplexity(" ".join(words)) or 0)


@pytest.mark.models
def test_training_a_language_model_again_gives_the_same_bytes(
    trained: tuple[Path, dict[str, Any]], tools: tuple[Path, Path], tmp_path: Path
) -> None:
    """Another folder, the same texts: all three files are equal."""
    train_lm(iter(documents(500)), "fr", tmp_path, kenlm=tools)
    for name in ("fr.sp.model", "fr.arpa.bin", "record.json"):
        assert (tmp_path / name).read_bytes() == (trained[0] / name).read_bytes()


@pytest.mark.models
def test_settings_reach_the_model(
    trained: tuple[Path, dict[str, Any]], tools: tuple[Path, Path], tmp_path: Path
) -> None:
    """Vocabulary, order and structure are what was asked for."""
    record = train_lm(
        documents(500), "fr", tmp_path, vocab_size=90, order=3, structure="trie", kenlm=tools
    )
    assert record["num_pieces"] <= 90 < trained[1]["num_pieces"]
    assert kenlm.Model(str(tmp_path / "fr.arpa.bin")).order == 3
    assert (tmp_path / "fr.arpa.bin").stat().st_size < (trained[0] / "fr.arpa.bin").stat().st_size


def test_too_few_documents_for_a_language_model_are_refused(tmp_path: Path) -> None:
    """Percentiles of a handful of documents would mean nothing."""
    tools = (tmp_path / "lmplz", tmp_path / "build_binary")
    with pytest.raises(
        TrainingFailed, match=r"train lm fr: \d documents to train on, \d held out; wanted 10"
    ):
        train_lm(documents(8), "fr", tmp_path / "out", kenlm=tools)


def test_a_tool_that_fails_has_its_last_lines_in_the_error(tmp_path: Path) -> None:
    """The tools are silent as long as they work; then their own words are shown, and no record is written."""
    lmplz = tmp_path / "lmplz"
    lmplz.write_text("#!/bin/sh\necho counting\necho out of luck >&2\nexit 3\n", encoding="utf-8")
    lmplz.chmod(0o755)
    with pytest.raises(
        TrainingFailed, match=r"(?s)lmplz failed with exit code 3.*counting.*out of luck"
    ):
        train_lm(documents(500), "fr", tmp_path / "out", kenlm=(lmplz, lmplz))
    assert not list((tmp_path / "out").iterdir())


# ---- tools and recipes ----


def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building is not begun, and nothing is fetched."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(AssetError, match=r"needs a C\+\+ compiler.*CORPUSMILL_KENLM_BIN"):
        KenlmTools().make(tmp_path, offline=True)


def test_tools_of_ones_own_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder named in the environment is used as it is, or refused by name."""
    monkeypatch.setenv("CORPUSMILL_KENLM_BIN", str(tmp_path))
    with pytest.raises(
        AssetError, match=r"lmplz is not there or cannot be run; CORPUSMILL_KENLM_BIN"
    ):
        kenlm_tools()
    for name in ("lmplz", "build_binary"):
        (tmp_path / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    assert kenlm_tools() == (tmp_path / "lmplz", tmp_path / "build_binary")


@pytest.mark.parametrize(
    "changed",
    [
        DemoLm("fr"),
        DemoLm("en", vocab_size=1_000),
        DemoLm("en", order=4),
        DemoLm("en", structure="trie"),
        DemoReference("en"),
        DemoReference("en", num_epochs=7),
        DemoReference("en", seed=3),
    ],
)
def test_a_recipe_has_another_fingerprint_with_another_setting(
    changed: DemoLm | DemoReference,
) -> None:
    """Equal recipes are equal, and any setting makes another one."""
    assert DemoLm("en").fingerprint() == DemoLm("en").fingerprint()
    assert changed.fingerprint() == dataclasses.replace(changed).fingerprint()
    others = {DemoLm("en").fingerprint(), DemoReference("fr").fingerprint()}
    assert changed.fingerprint() not in others


def test_another_lmplz_is_another_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools of one's own go by their digest, because their version is not known."""
    before = DemoLm("en").fingerprint()
    (tmp_path / "lmplz").write_bytes(b"one build")
    monkeypatch.setenv("CORPUSMILL_KENLM_BIN", str(tmp_path))
    first = DemoLm("en").fingerprint()
    (tmp_path / "lmplz").write_bytes(b"another build")
    assert len({before, first, DemoLm("en").fingerprint()}) == 3
