"""Reads the questions of multiple-choice tasks from JSON-lines files.

The four known tasks are downloaded once, into the cache folder, and verified by their digests.
Prompts are those of EleutherAI's lm-evaluation-harness (lm_eval/tasks/: hellaswag/utils.py,
arc/arc_easy.yaml, piqa/piqa.yaml), without examples in front of the question.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import re
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.local import put_file
from training.data.tokenizer import find_cache
from training.errors import IncompatibleConfig

log = logging.getLogger(__name__)

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Question:
    """A prompt and its endings, of which one is right.

    Attributes:
        prompt: without the space before the ending.
        endings: in the order of the file.
        answer: number of the right ending.
    """

    prompt: str
    endings: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class _KnownTask:
    """A published file, pinned by its commit and digest, and how its lines are read."""

    url: str
    sha256: str
    parse: Callable[[Mapping[str, Any]], Question]


def _parse_plain(line: Mapping[str, Any]) -> Question:
    """Read {"query": ..., "choices": [...], "gold": 0}; the prompt is the query."""
    return Question(line["query"], tuple(line["choices"]), int(line["gold"]))


def _parse_answer(line: Mapping[str, Any]) -> Question:
    """Read the same keys, where the query begins with `Question:`."""
    plain = _parse_plain(line)
    prompt = f"{plain.prompt.rstrip()}\nAnswer:"
    return Question(prompt, plain.endings, plain.answer)


def _parse_hellaswag(line: Mapping[str, Any]) -> Question:
    """Read a line of Zellers et al. 2019."""
    context = f"{line['ctx_a']} {line['ctx_b'].capitalize()}"
    prompt = _clean_wikihow(f"{line['activity_label']}: {context}")
    endings = tuple(_clean_wikihow(ending) for ending in line["endings"])
    return Question(prompt, endings, int(line["label"]))


def _clean_wikihow(text: str) -> str:
    """Remove the marks of WikiHow's articles, such as [header]."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


# Digests: that of HellaSwag is also in the list of TensorFlow Datasets (12,246,618 bytes), the others
# are of the files at this commit.
#
# Conversions of the test files of ARC (Clark et al. 2018) and the validation file of PIQA
# (Bisk et al. 2020), with as many questions as the originals: 2,376, 1,172 and 1,838.
_FOUNDRY = (
    "https://raw.githubusercontent.com/mosaicml/llm-foundry/"
    "8c8dd48f72168c5d51e2f7b151595892a8fba43d/scripts/eval/local_data"
)
_KNOWN: Mapping[str, _KnownTask] = {
    "hellaswag": _KnownTask(
        "https://raw.githubusercontent.com/rowanz/hellaswag/"
        "a29ff8e9a04bba4bd6588223785ce105328adc57/data/hellaswag_val.jsonl",
        "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588",
        _parse_hellaswag,
    ),
    "arc_easy": _KnownTask(
        f"{_FOUNDRY}/world_knowledge/arc_easy.jsonl",
        "d2d12e59543acf9a5ef6079634a72b30215e36c2fd4236fff3bc855d287b87f5",
        _parse_answer,
    ),
    "arc_challenge": _KnownTask(
        f"{_FOUNDRY}/world_knowledge/arc_challenge.jsonl",
        "1ae3aeedf1951d881cbd5c2e3a31e78a1993d251479afbe4cb413b6707244636",
        _parse_answer,
    ),
    "piqa": _KnownTask(
        f"{_FOUNDRY}/commonsense_reasoning/piqa.jsonl",
        "d2870e73aec5154df3faf259b7700876e11608eebdf69e9d6667435673dbe4e0",
        _parse_answer,
    ),
}


def read_questions(
    name: str, path: str | None, max_questions: int | None
) -> list[Question]:
    """Return the first questions of a task.

    Args:
        name: one of the known tasks, or any other name for a file of {"query", "choices", "gold"}.
        path: the file; None: downloads that of a known task.
        max_questions: None: all.

    Raises:
        IncompatibleConfig: the file cannot be read or downloaded, or a line is no question.
    """
    known = _KNOWN.get(name)
    if path is not None:
        file, parse = Path(path), known.parse if known else _parse_plain
    elif known is not None:
        file, parse = _fetch(name, known), known.parse
    else:
        raise IncompatibleConfig(
            f"tasks.files.{name} is null, but only {', '.join(_KNOWN)} can be downloaded; give the "
            f"path of a JSON-lines file of {{query, choices, gold}}"
        )
    try:
        lines = file.read_bytes().splitlines()[:max_questions]
    except OSError as error:
        raise IncompatibleConfig(
            f"tasks.files.{name}: {file} cannot be read ({error}); correct the path"
        ) from error
    return [_parse_line(parse, line, f"{file}:{at}") for at, line in enumerate(lines, 1)]


def _parse_line(
    parse: Callable[[Mapping[str, Any]], Question], line: bytes, where: str
) -> Question:
    try:
        question = parse(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IncompatibleConfig(
            f"{where}: not a question of this task ({error!r}); correct the line"
        ) from error
    if not question.prompt.strip() or not 0 <= question.answer < len(question.endings):
        raise IncompatibleConfig(
            f"{where}: the prompt is {question.prompt!r} and the answer {question.answer} of "
            f"{len(question.endings)} endings; wanted a prompt and the number of an ending"
        )
    return question


def _fetch(name: str, known: _KnownTask) -> Path:
    """Return the cached file of a known task, verified; download it first if it is missing."""
    path = find_cache() / "tasks" / f"{name}-{known.sha256[:16]}.jsonl"
    remedy = (
        f"Put the file with this digest at {path}, give a path in tasks.files.{name}, or remove "
        f"the task"
    )
    if path.is_file():
        # It may have been put there by hand.
        _check_digest(path.read_bytes(), f"tasks.files.{name}: {path}", known, remedy)
        return path
    if os.environ.get("CORPUSMILL_OFFLINE", "").lower() not in ("", "0", "false", "no"):
        raise IncompatibleConfig(
            f"tasks.files.{name}: {path} is missing, and CORPUSMILL_OFFLINE forbids to download "
            f"{known.url} (sha256 {known.sha256}). {remedy}"
        )
    log.info("downloading %s", known.url)
    try:
        # Only the https addresses above.
        with urllib.request.urlopen(known.url, timeout=_TIMEOUT_S) as response:  # noqa: S310
            content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise IncompatibleConfig(
            f"tasks.files.{name}: {known.url} (sha256 {known.sha256}) cannot be downloaded: "
            f"{error}. {remedy}"
        ) from error
    _check_digest(content, f"tasks.files.{name}: {known.url}", known, remedy)
    path.parent.mkdir(parents=True, exist_ok=True)
    put_file(path, content)
    return path


def _check_digest(content: bytes, where: str, known: _KnownTask, remedy: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != known.sha256:
        raise IncompatibleConfig(
            f"{where} has sha256 {found}, wanted {known.sha256} ({known.url}). {remedy}"
        )
