"""The programs of others. Each function runs in the environment of its program."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.task import (
    Decisions,
    Task,
    digest_text,
    read_ccnet_files,
    read_html,
    read_json_lines,
    write_texts,
)

# ---- cc_net ----


def run_cc_net(task: Task) -> None:
    """Run cc_net's `hashes` and `mine` on the WET file, in this process."""
    from cc_net import mine

    config = _configure_cc_net(task)
    hashes = config.output_dir / "hashes" / "0000.bin"
    mined = config.get_mined_dir() / "0000"
    for path in (hashes, mined):
        path.parent.mkdir(parents=True)
    os.chdir(task.output)  # cc_net reads bin/lid.bin
    # The functions that mine.main submits to Slurm, without its sleep of 20 s.
    mine._hashes_shard(config, 0, hashes)  # noqa: SLF001
    mine._mine_shard(config, [hashes], 0, mined)  # noqa: SLF001


def _configure_cc_net(task: Task) -> Any:
    """Lay out the WET file as cc_net's cache of downloads, and return its config."""
    from cc_net import mine

    cache = task.output / "cache"
    (cache / "debian").mkdir(parents=True)
    (cache / "debian" / task.wet.name).symlink_to(task.wet)
    with gzip.open(cache / "debian" / "wet_debian.paths.gz", "wt") as paths:
        paths.write(f"{task.wet.name}\n")
    (task.output / "bin").mkdir()
    (task.output / "bin" / "lid.bin").symlink_to(task.models / "lid.bin")
    return mine.Config(
        dump="debian",
        output_dir=task.output,
        num_shards=1,
        hash_in_mem=1,
        mine_num_processes=0,
        cache_dir=cache,
        lm_dir=task.models,
        lm_languages=task.languages(),
    )


def read_cc_net(task: Task) -> Decisions:
    """Return the decisions of cc_net."""
    return read_ccnet_files(task.output / "mined_split" / "debian" / "0000")


# ---- datatrove ----


def run_datatrove(task: Task) -> None:
    """Run language, Gopher's quality rules and MinHash signatures on the WET file."""
    _run_datatrove(task, task.wet, [])


def run_datatrove_html(task: Task) -> None:
    """Run the same on the WARC file, after trafilatura."""
    from datatrove.pipeline.extractors import Trafilatura

    # Its default is 1 s of wall time per page: a busy machine would drop all pages.
    extractor = Trafilatura(favour_precision=True, timeout=60)
    _run_datatrove(task, task.warc, [extractor])


def _run_datatrove(task: Task, source: Path, extractors: list[Any]) -> None:
    os.environ["HF_HOME"] = str(task.output / "hf")  # the copy of the language model
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import MinhashDedupSignature
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.filters import GopherQualityFilter, LanguageFilter
    from datatrove.pipeline.readers import WarcReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.lid import FT176LID

    FT176LID.MODEL_URL = str(task.models / "lid.bin")
    steps = [
        WarcReader(str(source.parent), glob_pattern=source.name),
        *extractors,
        LanguageFilter(["en"], 0.65),
        GopherQualityFilter(),
        JsonlWriter(str(task.output / "kept")),
        MinhashDedupSignature(str(task.output / "signatures"), MinhashConfig()),
    ]
    logs = str(task.output / "logs")
    LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=logs).run()


def read_datatrove(task: Task) -> Decisions:
    """Return the decisions of datatrove."""
    decisions: Decisions = {}
    for path in sorted((task.output / "kept").glob("*.jsonl.gz")):
        for row in read_json_lines(path):
            metadata = row["metadata"]
            decisions[metadata["url"]] = (
                metadata["language"],
                None,
                digest_text(row["text"]),
            )
    return decisions


# ---- dolma ----


def run_dolma(task: Task) -> None:
    """Tag languages and Gopher's rules, find duplicate paragraphs, and mix the English pages."""
    from dolma.cli.main import main
    from dolma.taggers.language import FastTextAllLanguagesDocumentTagger

    FastTextAllLanguagesDocumentTagger.MODEL_PATH = str(task.models / "lid.bin")
    documents = task.output / "documents" / task.json_lines.name
    documents.parent.mkdir()
    documents.symlink_to(task.json_lines)
    source = ["--documents", str(documents), "--processes", "1"]
    taggers = ["--taggers", "ft_lang_id_1e2", "gopher_v2"]
    main(["tag", *source, "--experiment", "tags", *taggers, "--debug"])
    dedupe = {
        "dedupe.name": "duplicates",
        "dedupe.paragraphs.attribute_name": "duplicates",
        "bloom_filter.file": str(task.output / "bloom.bin"),
        "bloom_filter.estimated_doc_count": "5000000",
        "bloom_filter.desired_false_positive_rate": "0.00001",
    }
    options: list[str] = []
    for key, value in dedupe.items():
        options += [f"--{key}", value]
    main(["dedupe", *source, "--no-bloom_filter.read_only", *options])
    config = task.output / "mix.json"
    config.write_text(json.dumps(_configure_dolma_mix(task, documents)))
    main(["-c", str(config), "mix"])


def _configure_dolma_mix(task: Task, documents: Path) -> dict[str, Any]:
    english = "@.tags__ft_lang_id_1e2__en && @.tags__ft_lang_id_1e2__en[0][2] >= 0.65"
    stream = {
        "name": "kept",
        "documents": [str(documents)],
        "attributes": ["tags", "duplicates"],
        "output": {"path": str(task.output / "kept"), "max_size_in_bytes": 1 << 32},
        "filter": {"include": [f"$.attributes[?({english})]"], "exclude": []},
        "span_replacement": [
            {"span": "$.attributes.duplicates", "min_score": 0.5, "replacement": ""}
        ],
    }
    return {"streams": [stream], "processes": 1}


def read_dolma(task: Task) -> Decisions:
    """Return the decisions of dolma."""
    decisions: Decisions = {}
    for path in sorted((task.output / "kept").glob("*.json.gz")):
        for row in read_json_lines(path):
            decisions[row["id"]] = ("en", None, digest_text(row["text"]))
    return decisions


# ---- data-juicer ----


def run_data_juicer(task: Task) -> None:
    """Run its filters of language and number of words, and its MinHash deduplication."""
    models = task.output / "models"
    models.mkdir()
    (models / "lid.176.bin").symlink_to(task.models / "lid.bin")
    pages = (
        task.output / "pages.jsonl"
    )  # data-juicer reads the language model from its cache
    pages.write_bytes(gzip.decompress(task.json_lines.read_bytes()))
    minhash = {"tokenization": "space", "window_size": 5, "num_permutations": 112}
    config = {
        "dataset_path": str(pages),
        "export_path": str(task.output / "kept" / "kept.jsonl"),
        "np": 1,
        "process": [
            {"language_id_score_filter": {"lang": "en", "min_score": 0.65}},
            {"words_num_filter": {"min_num": 50, "max_num": 100_000}},
            {
                "document_minhash_deduplicator": minhash
                | {"num_bands": 14, "num_rows_per_band": 8}
            },
        ],
    }
    path = task.output / "config.yaml"  # JSON is YAML
    path.write_text(json.dumps(config))
    program = Path(sys.executable).with_name("dj-process")
    environment = os.environ | {"DATA_JUICER_CACHE_HOME": str(task.output)}
    subprocess.run([program, "--config", path], env=environment, check=True)


def read_data_juicer(task: Task) -> Decisions:
    """Return the decisions of data-juicer."""
    decisions: Decisions = {}
    for row in read_json_lines(task.output / "kept" / "kept.jsonl"):
        decisions[row["id"]] = ("en", None, digest_text(row["text"]))
    return decisions


# ---- trafilatura ----


def run_trafilatura(task: Task) -> None:
    """Extract the text of every page with trafilatura."""
    from trafilatura import extract

    found = (
        (url, extract(html.decode("utf-8", "replace"))) for url, html in read_html(task)
    )
    write_texts(task, found)
