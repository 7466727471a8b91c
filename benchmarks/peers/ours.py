"""The programs of this project."""

from __future__ import annotations

import json
import subprocess
import sys
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


def run_blocks(task: Task) -> None:
    """Extract the main content of every page with this project's engine `blocks`."""
    from stages.html.extraction import Page, extract
    from stages.settings.warc import HtmlSettings

    settings = HtmlSettings(main_content=True, engine="blocks")
    pages = ((url, extract(html, "text/html", settings)) for url, html in read_html(task))
    write_texts(task, ((url, p.text if isinstance(p, Page) else None) for url, p in pages))
