"""The bare library calls of CCNet's chain: two sums of CPU seconds.

CCNET_LIBRARIES are what CCNet computes. ALL_CALLS is these and what else our program does with
libraries: it reads the WET file, writes and reads the documents between phases, and makes tokens and
shards. Neither sum has a start, models being loaded, or Python between the calls.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.peers.task import Task

CCNET_LIBRARIES = "SHA-1", "fastText", "SentencePiece", "KenLM"

# A row of the table: every call that is timed.
ALL_CALLS = "all bare calls"
ALL_CALLS_WORK = (
    "the bare calls, and FastWARC, Parquet of the documents (twice written and read), "
    "gigatoken, tarfile with SHA-256"
)

Prediction = tuple[str | None, float]


class _Timer:
    """Adds the CPU seconds of a block to `seconds[name]`."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *exc: object) -> None:
        taken = time.process_time() - self._start
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + taken


def run_bare_calls(task: Task) -> None:
    """Call the libraries that our chain needs, and store the CPU seconds of each.

    Duplicate lines are removed, and texts normalized, between the calls. Only the calls are timed.
    """
    from benchmarks.frame import read_records

    seconds: dict[str, float] = {}
    with _Timer(seconds, "FastWARC"):
        payloads = read_records(task.wet)
    documents = _split_into_lines(payloads)
    lines = [line.encode() for document in documents for line in document]
    with _Timer(seconds, "SHA-1"):
        for line in lines:
            hashlib.sha1(line, usedforsecurity=False).digest()
    del lines
    _exchange(task, seconds, ["\n".join(document) for document in documents])
    texts = _remove_duplicate_lines(documents)
    predictions = _predict_languages(task, seconds, texts)
    _score(task, seconds, texts, predictions)
    _exchange(task, seconds, texts)
    kept = [text for text, (_, s) in zip(texts, predictions, strict=True) if s >= 0.5]
    _write_shards(task, seconds, kept)
    (task.output / "cpu_seconds.json").write_text(json.dumps(seconds))


def _split_into_lines(payloads: list[str]) -> list[list[str]]:
    """Return the lines of the texts of at least 300 characters; the first line is the title."""
    texts = (payload.partition("\n")[2] for payload in payloads)
    return [text.split("\n") for text in texts if len(text) >= 300]


def _remove_duplicate_lines(documents: list[list[str]]) -> list[str]:
    counts = Counter(line for document in documents for line in document)
    unique = ("\n".join(line for line in each if counts[line] == 1) for each in documents)
    return [text for text in unique if text]


def _exchange(task: Task, seconds: dict[str, float], texts: list[str]) -> None:
    """Write texts as a phase does, and read them as the next phase does."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.stages.bare_calls import write_parquet

    table = pa.table({"text": pa.array(texts, pa.large_string())})
    path = task.output / "documents.parquet"
    with _Timer(seconds, "Parquet"):
        write_parquet(table, path)
        pq.read_table(path, use_threads=False)


def _predict_languages(
    task: Task, seconds: dict[str, float], texts: list[str]
) -> list[Prediction]:
    """Return the language of each text, with its score."""
    import fasttext

    lid: Any = fasttext.load_model(str(task.models / "lid.bin"))
    flat = [text.replace("\n", "") + "\n" for text in texts]
    with _Timer(seconds, "fastText"):
        predicted = [lid.f.predict(line, 1, 0.0, "strict") for line in flat]
    return [
        (found[0][1].removeprefix("__label__"), found[0][0]) if found else (None, 0.0)
        for found in predicted
    ]


def _score(
    task: Task, seconds: dict[str, float], texts: list[str], predictions: list[Prediction]
) -> None:
    """Compute the perplexity of the texts of the languages that have a model."""
    import kenlm
    import sentencepiece

    from stages.filters.language_model import normalize_for_lm

    for language in task.languages():
        normalized = [
            normalize_for_lm(text)
            for text, (found, score) in zip(texts, predictions, strict=True)
            if found == language and score >= 0.5
        ]
        pieces = sentencepiece.SentencePieceProcessor(
            model_file=str(task.models / f"{language}.sp.model")
        )
        lm = kenlm.Model(str(task.models / f"{language}.arpa.bin"))
        with _Timer(seconds, "SentencePiece"):
            encoded = [pieces.encode(text, out_type=str) for text in normalized]
        joined = [" ".join(each) for each in encoded]
        with _Timer(seconds, "KenLM"):
            for text in joined:
                lm.score(text)


def _write_shards(task: Task, seconds: dict[str, float], texts: list[str]) -> None:
    """Convert the texts to GPT-2's tokens, and write these as samples of one tar."""
    import awkward
    import numpy as np
    import pyarrow as pa
    from gigatoken.gigatoken_rs import load_hf_json

    from benchmarks.stages.bare_calls import write_tar
    from pipeline.config.phases import WriteShardsConfig
    from pipeline.models import registry
    from stages.transform.tokenizer_files import read_definition

    definition = read_definition(Path(registry.resolve("gpt2-bpe")), None)
    backend: Any = load_hf_json(json.dumps(definition.spec))
    column = pa.array(texts, pa.large_string())
    with _Timer(seconds, "gigatoken"):
        encoded: Any = backend.encode_batch(awkward.from_arrow(column), parallel=False)
    tokens = encoded.layout.content.data.astype(np.uint16)
    starts = [*range(0, len(tokens), WriteShardsConfig().sample_tokens), len(tokens)]
    samples = [tokens[start:end] for start, end in pairwise(starts)]
    with _Timer(seconds, "tarfile, SHA-256"):
        write_tar(samples, task.output / "shard.tar")
