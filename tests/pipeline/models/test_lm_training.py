"""Training of language models: reproducible, with correct cutoffs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import kenlm
import numpy as np
import pytest
import sentencepiece

from pipeline.models.corpus import TrainingFailed, is_held_out
from pipeline.models.kenlm_build import kenlm_tools
from pipeline.models.lm_training import train_lm
from stages.filters.language_model import normalize_for_lm
from tests.pipeline.models.documents import make_documents


@pytest.fixture(scope="module")
def tools() -> tuple[Path, Path]:
    """Lmplz and build_binary from the user's cache, built if needed."""
    return kenlm_tools()


@pytest.fixture(scope="module")
def trained(
    tools: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A folder with a language model of 500 small documents, and its record."""
    folder = tmp_path_factory.mktemp("lm")
    return folder, train_lm(make_documents(500), "fr", folder, kenlm=tools)


@pytest.mark.models
def test_cutoffs_are_percentiles_of_held_out_perplexity(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    """KenLM's score of the joined pieces, one sentence per document, gives the recorded numbers."""
    folder, record = trained
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "fr.sp.model"))
    lm = kenlm.Model(str(folder / "fr.arpa.bin"))
    perplexities: list[float] = []
    for text in make_documents(500):
        if is_held_out(text, 0.1):
            tokens = pieces.encode(normalize_for_lm(text), out_type=str)
            perplexities.append(
                round(10 ** (-lm.score(" ".join(tokens)) / (len(tokens) + 1)), 1)
            )
    assert lm.order == 5
    assert record["num_held_out_docs"] == len(perplexities) > 20
    for percentile in (30, 60):
        expected = round(float(np.percentile(perplexities, percentile)), 1)
        assert record["cutoffs"][str(percentile)] == expected


@pytest.mark.models
def test_language_model_folder_is_complete(trained: tuple[Path, dict[str, Any]]) -> None:
    """It has three files and no temporary ones; the record on disk is the returned one."""
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
def test_model_prefers_text_of_its_grammar(trained: tuple[Path, dict[str, Any]]) -> None:
    """A document of the same grammar is likelier than its words in random order."""
    from stages.filters.language_model import LanguageModel

    lm = LanguageModel(trained[0], "fr")
    text = make_documents(1, seed=77)[0]
    words = text.split()
    random.Random(0).shuffle(words)
    assert (lm.perplexity(text) or 0) * 2 < (lm.perplexity(" ".join(words)) or 0)


@pytest.mark.models
def test_language_model_training_is_reproducible(
    trained: tuple[Path, dict[str, Any]], tools: tuple[Path, Path], tmp_path: Path
) -> None:
    """The same texts in another folder give three equal files."""
    train_lm(iter(make_documents(500)), "fr", tmp_path, kenlm=tools)
    for name in ("fr.sp.model", "fr.arpa.bin", "record.json"):
        assert (tmp_path / name).read_bytes() == (trained[0] / name).read_bytes()


@pytest.mark.models
def test_the_vocabulary_has_the_given_size(
    trained: tuple[Path, dict[str, Any]], tools: tuple[Path, Path], tmp_path: Path
) -> None:
    """By default it depends on the texts."""
    record = train_lm(make_documents(500), "fr", tmp_path, 90, kenlm=tools)
    assert record["num_pieces"] <= 90 < trained[1]["num_pieces"]


def test_too_few_documents_for_a_language_model_are_refused(tmp_path: Path) -> None:
    """Percentiles of a handful of documents mean nothing."""
    tools = (tmp_path / "lmplz", tmp_path / "build_binary")
    with pytest.raises(
        TrainingFailed,
        match=r"train lm fr: \d documents? to train on, \d held out; wanted 10",
    ):
        train_lm(make_documents(8), "fr", tmp_path / "out", kenlm=tools)


def test_failed_tool_has_its_last_lines_in_the_error(tmp_path: Path) -> None:
    """Output is shown only on failure, and no record is written."""
    lmplz = tmp_path / "lmplz"
    lmplz.write_text(
        "#!/bin/sh\necho counting\necho out of luck >&2\nexit 3\n", encoding="utf-8"
    )
    lmplz.chmod(0o755)
    with pytest.raises(
        TrainingFailed, match=r"(?s)lmplz failed with exit code 3.*counting.*out of luck"
    ):
        train_lm(make_documents(500), "fr", tmp_path / "out", kenlm=(lmplz, lmplz))
    assert not list((tmp_path / "out").iterdir())
