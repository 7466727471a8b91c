"""Tasks and bits per byte equal a plain computation, in training and for a checkpoint."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from typer.testing import CliRunner

from tests.training.conftest import make_config, make_settings, read_log, train_all
from tests.training.evaluation.texts import TextDataset
from training.checkpoint.checkpointer import load_weights
from training.checkpoint.marker import list_complete_checkpoints
from training.cli import app
from training.config import TrainConfig
from training.errors import IncompatibleConfig
from training.evaluation.evaluations import evaluate_checkpoint
from training.evaluation.task_files import read_questions
from training.model.attention import AttentionMask
from training.model.decoder import Decoder
from training.parallel import distributed
from training.trainer import train

SEQ_LEN = 32
QUESTIONS: list[dict[str, Any]] = [
    {"query": "The cat sat on", "choices": ["the mat", "the garden"], "gold": 0},
    {"query": "Où dort le", "choices": ["rideau bleu", "chat", "cat"], "gold": 1},
    {"query": "猫は庭で", "choices": ["静か", "眠って"], "gold": 1},
    {"query": "looked at ", "choices": ["bleu", "the garden."], "gold": 1},
    {"query": "The cat " * 12 + "sat", "choices": ["on", "off the mat"], "gold": 0},
]


@pytest.fixture
def settings(texts: TextDataset, tmp_path: Path) -> dict[str, Any]:
    """Return a run that evaluates twice."""
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    data = {
        "seq_len": SEQ_LEN,
        "global_batch_rows": 4,
        "micro_batch_rows": 2,
        "tokenizer": str(texts.tokenizer),
    }
    return make_settings(
        tmp_path / "run",
        texts.folder,
        steps=4,
        data=data,
        validation={"manifest": str(texts.folder), "every_steps": 2},
        tasks={"files": {"mine": str(path)}, "every_steps": 2},
    )


def train_here(settings: dict[str, Any]) -> TrainConfig:
    """Train as a single rank."""
    config = TrainConfig.model_validate(settings)
    context = distributed.init_distributed(
        config.parallel, timeout_s=600, dump_dir=Path(config.run_dir)
    )
    train(config, context)
    return config


def load_model(config: TrainConfig) -> Decoder:
    """Return the model of the newest checkpoint."""
    model = Decoder(config.model, 384)
    newest = list_complete_checkpoints(Path(config.run_dir) / "checkpoints")[-1]
    load_weights(newest, dict(model.named_parameters()))
    return model


def compute_losses(model: Decoder, tokens: list[int]) -> torch.Tensor:
    """Return the loss of each token but the first, by torch's cross entropy over all logits."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = model(ids[:, :-1], None, AttentionMask())
    assert isinstance(logits, torch.Tensor)
    return torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="none")


def compute_accuracies(model: Decoder, tokenizer: Tokenizer) -> tuple[float, float]:
    """Return acc and acc_norm, one ending at a time."""
    right, right_norm = [], []
    for question in QUESTIONS:
        likelihoods: list[float] = []
        for ending in question["choices"]:
            whole = tokenizer.encode(f"{question['query']} {ending}").ids
            num_prompt = len(tokenizer.encode(question["query"].rstrip()).ids)
            losses = compute_losses(model, whole[-(SEQ_LEN + 1) :])
            likelihoods.append(-float(losses[-(len(whole) - num_prompt) :].sum()))
        lengths = [len(ending) for ending in question["choices"]]
        right.append(np.argmax(likelihoods) == question["gold"])
        right_norm.append(np.argmax(np.divide(likelihoods, lengths)) == question["gold"])
    return float(np.mean(right)), float(np.mean(right_norm))


def compute_bits_per_byte(
    model: Decoder, texts: TextDataset, language: str | None
) -> float:
    """Return the bits per byte of the documents of a language, one window at a time."""
    tokenizer = Tokenizer.from_file(str(texts.tokenizer))
    bits, num_bytes = 0.0, 0
    for text, its_language in texts.documents:
        if language not in (None, its_language):
            continue
        tokens = tokenizer.encode(text).ids
        for start in range(0, len(tokens) - 1, SEQ_LEN):
            losses = compute_losses(model, tokens[start : start + SEQ_LEN + 1])
            bits += float(losses.sum()) / math.log(2)
        # Documents begin with a digit, a token of one byte, which is not predicted.
        num_bytes += len(text.encode()) - 1
    return bits / num_bytes


def test_figures_equal_a_plain_computation(
    settings: dict[str, Any], texts: TextDataset
) -> None:
    """Accuracies, and bits per byte in total and by language, on the model of the last step."""
    config = train_here(settings)
    evaluated = [line for line in read_log(config.run_dir) if "tasks/mine/acc" in line]
    assert [line["step"] for line in evaluated] == [2, 4]
    figures, model = evaluated[-1], load_model(config)
    tokenizer = Tokenizer.from_file(str(texts.tokenizer))
    found = figures["tasks/mine/acc"], figures["tasks/mine/acc_norm"]
    assert found == compute_accuracies(model, tokenizer)
    assert figures["tasks/mine/questions"] == len(QUESTIONS)
    for language in (None, "en", "fr", "ja"):
        name = "/".join(filter(None, ["validation/bits_per_byte", language]))
        expected = compute_bits_per_byte(model, texts, language)
        assert figures[name] == pytest.approx(expected, rel=1e-5)


def test_a_checkpoint_has_the_figures_of_its_step(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """On two ranks, and by the command on one, they equal those in the log."""
    parallel = {"strategy": "zero3"}
    train_all(2, [{**settings, "parallel": parallel}], tmp_path)
    (logged,) = [
        line
        for line in read_log(settings["run_dir"])
        if line.get("tasks/mine/acc") and line["step"] == 4
    ]
    config = TrainConfig.model_validate(settings)
    context = distributed.init_distributed(
        config.parallel, timeout_s=600, dump_dir=tmp_path
    )
    path, figures = evaluate_checkpoint(config, context)
    assert path.name == "step-00000004"
    del logged["step"], logged["time"]
    assert figures == pytest.approx(logged, rel=1e-6)
    accuracies = {name for name in figures if name.startswith("tasks/")}
    assert {name: figures[name] for name in accuracies} == {
        name: logged[name] for name in accuracies
    }


def test_the_command_prints_the_figures(settings: dict[str, Any], tmp_path: Path) -> None:
    """`eval` writes JSON with the checkpoint and the figures."""
    train_here(settings)
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(settings))
    result = CliRunner().invoke(app, ["eval", str(path)], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert found["checkpoint"].endswith("step-00000004")
    assert found["validation/bits_per_byte"] == pytest.approx(
        read_log(settings["run_dir"])[-1]["validation/bits_per_byte"], rel=1e-6
    )


def test_published_formats_become_prompts(tmp_path: Path) -> None:
    """HellaSwag's own lines, and lines of ARC and PIQA, have the prompts of lm-eval."""
    hellaswag = {
        "activity_label": "Roof shingle removal",
        "ctx_a": "A man is sitting on a roof. [step] Look.",
        "ctx_b": "he",
        "endings": ["is using  wrap [title] Next", "is ripping tiles off."],
        "label": 1,
    }
    arc = {"query": "Question: What is hot?\n", "choices": ["ice", "fire"], "gold": 1}
    for name, line in (("hellaswag", hellaswag), ("arc_easy", arc)):
        (tmp_path / name).write_text(json.dumps(line))
    (first,) = read_questions("hellaswag", str(tmp_path / "hellaswag"), None)
    assert first.prompt == "Roof shingle removal: A man is sitting on a roof. Look. He"
    assert first.endings == ("is using wrap. Next", "is ripping tiles off.")
    (second,) = read_questions("arc_easy", str(tmp_path / "arc_easy"), None)
    assert second.prompt == "Question: What is hot?\nAnswer:"
    assert (first.answer, second.answer) == (1, 1)


def test_a_missing_file_says_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, the error has the address, the digest and the place; another file there is refused."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path))
    monkeypatch.setenv("CORPUSMILL_OFFLINE", "1")
    with pytest.raises(
        IncompatibleConfig, match=r"(?s)hellaswag_val.*sha256 0aa3b.*Put the"
    ) as raised:
        read_questions("hellaswag", None, None)
    (place,) = re.findall(r"Put the file with this digest at (\S+),", str(raised.value))
    Path(place).parent.mkdir()
    Path(place).write_text("{}")
    with pytest.raises(
        IncompatibleConfig, match=r"jsonl has sha256 44136f.*wanted 0aa3b.*Put the"
    ):
        read_questions("hellaswag", None, None)
    with pytest.raises(IncompatibleConfig, match="only hellaswag, arc_easy"):
        read_questions("other", None, None)


@pytest.mark.parametrize(
    "line", ['{"query": "a"}', "[]", '{"query": "a", "choices": ["b"], "gold": 1}', "{"]
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    """The error names the file and the line."""
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(QUESTIONS[0]) + "\n" + line + "\n")
    with pytest.raises(IncompatibleConfig, match=r"q.jsonl:2: "):
        read_questions("mine", str(path), None)


def test_another_tokenizer_is_refused(
    settings: dict[str, Any], language: Path, tmp_path: Path
) -> None:
    """Tasks cannot be encoded for a dataset of another tokenizer."""
    changed = {**settings, "data": {**settings["data"], "manifest": str(language)}}
    with pytest.raises(IncompatibleConfig, match="was made with another"):
        train_here({**changed, "validation": None})
    without = make_settings(tmp_path, language, tasks=settings["tasks"])
    with pytest.raises(ValueError, match=r"tasks need data.tokenizer"):
        TrainConfig.model_validate(without)
    assert make_config(tmp_path, language).tasks is None
