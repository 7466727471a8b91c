"""The programs of this project, and the bare library calls of CCNet's chain."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.peers.task import Decisions, Task, read_ccnet_files, read_html, write_texts

# CCNet's chain, tokens and shards; every language and bucket is kept.
_CCNET = {
    "extract": {"warc": {"first_line_is_title": True}, "length": {"min_chars": 300}},
    "paragraph_dedup": {"keep": "drop_all_copies"},
    "select": {"language": {"min_score": 0.5}, "perplexity": {}},
}

# Language, Gopher's quality rules and MinHash as datatrove's; no other rule.
_QUALITY = {
    "extract": {"warc": {"first_line_is_title": False}, "length": None},
    "paragraph_dedup": {"keep": "keep_all"},
    "fuzzy_dedup": None,
    "select": {
        "language": {"min_score": 0.65, "keep": ["en"]},
        "quality": {
            "languages": ["en"],
            "max_duplicate_line_share": None,
            "max_duplicate_paragraph_share": None,
            "max_duplicate_line_char_share": None,
            "max_duplicate_paragraph_char_share": None,
            **{f"max_top_{n}gram_char_share": None for n in (2, 3, 4)},
            **{f"max_duplicate_{n}gram_char_share": None for n in range(5, 11)},
        },
    },
}
_QUALITY_ANNOTATE = {
    "quality": {},
    "minhash": {"ngram_words": 5, "bands": [14, 8], "num_permutations": 112},
}


def run_ccnet(task: Task) -> None:
    """Run CCNet's chain by `python -m pipeline run`."""
    models = {language: f"demo-lm-{language}" for language in task.languages()}
    _run_pipeline(task, task.wet, _CCNET, {"perplexity": {"models": models}})


def run_quality(task: Task) -> None:
    """Run language, quality rules and MinHash on the WET file."""
    _run_pipeline(task, task.wet, _QUALITY, _QUALITY_ANNOTATE)


def run_html(task: Task) -> None:
    """Run main content, language, quality rules and MinHash on the WARC file."""
    _run_html(task, "blocks")


def run_html_trafilatura(task: Task) -> None:
    """Run the same with the engine that datatrove calls."""
    _run_html(task, "trafilatura")


def _run_html(task: Task, engine: str) -> None:
    html = {"main_content": True, "engine": engine}
    config = _QUALITY | {"extract": {"warc": {"html": html}, "length": None}}
    _run_pipeline(task, task.warc, config, _QUALITY_ANNOTATE)


def _run_pipeline(
    task: Task, source: Path, config: dict[str, Any], annotate: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {
        "run_dir": str(task.output / "run"),
        "input": {"files": [str(source)]},
        **config,
        "annotate": {"language": {"model": "lid.176.ftz"}, **annotate},
        "tokenize": {"tokenizer": "gpt2-bpe"},
        "engine": {"kind": "inline", "workers": 1},
    }
    path = task.output / "config.yaml"  # JSON is YAML
    path.write_text(json.dumps(settings))
    subprocess.run([sys.executable, "-m", "pipeline", "run", "-q", path], check=True)


def read_decisions(task: Task) -> Decisions:
    """Return the decisions of this project, out of its export in CCNet's layout."""
    exported = task.output / "export"
    command = [sys.executable, "-m", "pipeline", "export", task.output / "run"]
    command += ["--to", exported, "--format", "ccnet", "-q"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return read_ccnet_files(exported)


def run_bare_calls(task: Task) -> None:
    """Call the libraries that CCNet's chain needs, and store the CPU seconds of each.

    The texts are prepared before: decoded, without duplicate lines, normalized. Only the calls
    are timed.
    """
    import fasttext
    import kenlm
    import sentencepiece

    lines, texts = _prepare_bare_texts(task.wet)
    seconds: dict[str, float] = {}
    with _Timer(seconds, "SHA-1"):
        for line in lines:
            hashlib.sha1(line, usedforsecurity=False).digest()
    lid: Any = fasttext.load_model(str(task.models / "lid.bin"))
    flat = [text.replace("\n", "") + "\n" for text in texts]
    with _Timer(seconds, "fastText"):
        predicted = [lid.f.predict(line, 1, 0.0, "strict") for line in flat]
    by_language = _normalize_by_language(texts, predicted, task.languages())
    for language, normalized in by_language.items():
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
    (task.output / "cpu_seconds.json").write_text(json.dumps(seconds))


class _Timer:
    """Adds the CPU seconds of a block to `seconds[name]`."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *exc: object) -> None:
        taken = time.process_time() - self._start
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + taken


def _prepare_bare_texts(wet: Path) -> tuple[list[bytes], list[str]]:
    """Return all lines, and the texts of at least 300 characters without duplicate lines."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    documents: list[list[str]] = []
    with wet.open("rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.conversion):
            _, _, text = record.reader.read().decode("utf-8", "replace").partition("\n")
            if len(text) >= 300:
                documents.append(text.split("\n"))
    counts = Counter(line for document in documents for line in document)
    lines = [line.encode() for document in documents for line in document]
    unique = ("\n".join(line for line in each if counts[line] == 1) for each in documents)
    return lines, [text for text in unique if text]


def _normalize_by_language(
    texts: list[str], predicted: list[Any], languages: list[str]
) -> dict[str, list[str]]:
    """Return the texts of the languages that have a model, as CCNet normalizes them."""
    from stages.filters.language_model import normalize_for_lm

    by_language: dict[str, list[str]] = {language: [] for language in languages}
    for text, ((score, label),) in zip(texts, predicted, strict=True):
        language = label.removeprefix("__label__")
        if language in by_language and score >= 0.5:
            by_language[language].append(normalize_for_lm(text))
    return by_language


def run_blocks(task: Task) -> None:
    """Extract the main content of every page with this project's engine `blocks`."""
    from stages.html.extraction import Page, extract
    from stages.settings.warc import HtmlSettings

    settings = HtmlSettings(main_content=True, engine="blocks")
    pages = ((url, extract(html, "text/html", settings)) for url, html in read_html(task))
    write_texts(task, ((url, p.text if isinstance(p, Page) else None) for url, p in pages))
