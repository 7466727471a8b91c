"""The datasets of the ablation: four increasingly filtered versions of one crawl, and held-out text.

    raw                every document of the crawl, unchanged
    deduplicated       without duplicate paragraphs; at least 300 characters; English, French or Spanish
    head               only the third of each language with the lowest perplexity (CCNet's head)
    head + reference   only documents that LLaMA's reference classifier keeps

All are runs of configs/ccnet.yaml with overrides. Near-duplicates stay in all datasets. All use one tokenizer, trained
here on the training texts of the language models.

The held-out text has two parts: Wikipedia summaries of titles that are neither in the crawl nor in the training text of
any model, classifier or tokenizer; and sentences of web pages and news that are not in the crawl (the classifier was
trained on them as negatives). Texts that share a 13-gram of words (Brown et al. 2020, appendix C) with the raw crawl
are left out, and Wikipedia texts that share one with a training text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.shards import write_dataset
from pipeline.config import RunConfig, load
from pipeline.execution.engine import run
from pipeline.models import registry as model_registry
from pipeline.models.corpus import is_held_out
from pipeline.models.demo import texts as demo_texts
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.stage_spec import StageSpec
from pipeline.phases.tokenize import describe_tokenizer
from pipeline.planning.plan import make_plan
from pipeline.planning.prepare import prepare
from shardwriter import Documents
from shardwriter.format import MANIFEST_FILE
from stages.transform.tokenize import Tokenize

RAW = "raw"
# Overrides of ccnet.yaml, in addition to COMMON.
VARIANTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        RAW: (
            "extract.length=null",
            "paragraph_dedup.keep=keep_all",
            "select.language=null",
            "select.perplexity=null",
            "select.classifiers=null",
        ),
        "deduplicated": ("select.perplexity=null", "select.classifiers=null"),
        "head": ("select.perplexity.keep=[head]", "select.classifiers=null"),
        "head + reference": ("select.perplexity.keep=[head]",),
    }
)

COMMON = (
    f"select.language.keep=[{', '.join(demo_texts.LANGUAGES)}]",
    "fuzzy_dedup=null",
    "annotate.minhash=null",
    "engine.kind=inline",
    "write_shards.shard_tokens=2000000",
)

HELD_OUT = "held-out"
END_OF_DOCUMENT = "<|endoftext|>"
NGRAM_WORDS = 13


@dataclass(frozen=True)
class Sizes:
    """Pages of the crawl, size of the vocabulary, and held-out texts of each kind per language."""

    documents: int
    vocab_size: int
    held_out_per_language: int


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def create_datasets(folder: Path, sizes: Sizes) -> dict[str, str]:
    """Create all datasets below the folder, and return the folder of each, HELD_OUT included."""
    folder.mkdir(parents=True)
    tokenizer = folder / "tokenizer.json"
    learn_tokenizer(tokenizer, sizes.vocab_size)
    made: dict[str, Path] = {}
    for name, overrides in VARIANTS.items():
        config = _config(folder, sizes, overrides)
        prepare(config)
        plan = make_plan(config)
        _say(f"{name}: {' '.join(overrides)}")
        for _ in run(plan):
            pass
        made[name] = plan.folder("write_shards").path("")
    with_raw = make_plan(_config(folder, sizes, VARIANTS[RAW]))
    _say(f"{HELD_OUT}: without what shares {NGRAM_WORDS} words with the crawl")
    held_out = _held_out(with_raw, sizes.held_out_per_language)
    made[HELD_OUT] = _write(folder / HELD_OUT, with_raw.config, held_out)
    return {name: str(path) for name, path in made.items()}


def read_totals(dataset: str) -> dict[str, int]:
    """Return the number of documents and tokens from the manifest."""
    found = json.loads((Path(dataset) / MANIFEST_FILE).read_bytes())["totals"]
    return {"num_docs": found["num_docs"], "num_tokens": found["num_tokens"]}


def _config(folder: Path, sizes: Sizes, overrides: Sequence[str]) -> RunConfig:
    return load(
        "ccnet",
        [
            f"run_dir={folder / 'run'}",
            f"input.sample_crawl.documents={sizes.documents}",
            f"input.sample_crawl.documents_per_file={-(-sizes.documents // 4)}",
            f"tokenize.tokenizer={folder / 'tokenizer.json'}",
            *COMMON,
            *overrides,
        ],
    )


# --------------------------------------------------------------------------------------------------------------- texts


def learn_tokenizer(path: Path, vocab_size: int) -> None:
    """Train a byte-level BPE tokenizer on the training texts of the language models, and save it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        (
            text
            for language in demo_texts.LANGUAGES
            for text in _read_training_texts(language)
        ),
        trainer,
    )
    tokenizer.save(str(path))


def _held_out_share(language: str) -> float:
    """Return the share of the summaries that the language model's training leaves out."""
    record = json.loads(
        (model_registry.resolve(f"demo-lm-{language}") / "record.json").read_bytes()
    )
    return record["settings"]["held_out_share"]


def _read_training_texts(language: str) -> Iterator[str]:
    share = _held_out_share(language)
    return (
        text
        for _, text in demo_texts.summaries(language, "lm")
        if not is_held_out(text, share)
    )


def _held_out(raw: RunPlan, per_language: int) -> pa.Table:
    """Return held-out documents with their language, and `wikipedia` or `web` as their bucket."""
    found: list[tuple[str, str, str]] = []
    crawled = NgramSet(_read_texts(raw))
    for language in demo_texts.LANGUAGES:
        share = _held_out_share(language)
        trained_on = NgramSet(
            [
                *_read_training_texts(language),
                *(text for _, text in demo_texts.summaries(language, "reference")),
            ]
        )
        summaries = (
            text
            for _, text in demo_texts.summaries(language, "lm")
            if is_held_out(text, share)
        )
        unseen = (
            text
            for text in summaries
            if not crawled.shares(text) and not trained_on.shares(text)
        )
        found += [(language, "wikipedia", text) for text in islice(unseen, per_language)]
        unseen = (
            text for text in demo_texts.sentences(language) if not crawled.shares(text)
        )
        found += [(language, "web", text) for text in islice(unseen, per_language)]
    languages, buckets, texts = zip(*found, strict=True)
    return pa.table(
        {
            "doc_id": pa.array(range(len(found)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
            "language": languages,
            "bucket": buckets,
        }
    )


class NgramSet:
    """The 13-grams of words of many texts, as 64-bit hashes. Case and punctuation are ignored."""

    def __init__(self, texts: Iterable[str]) -> None:
        hashes = [_ngrams(text) for text in texts]
        self._hashes = np.sort(np.concatenate([*hashes, np.empty(0, np.uint64)]))

    def shares(self, text: str) -> bool:
        """Return whether the text has a 13-gram of this set."""
        ngrams = _ngrams(text)
        places = np.searchsorted(self._hashes, ngrams).clip(
            max=max(0, len(self._hashes) - 1)
        )
        return bool(len(self._hashes)) and bool((self._hashes[places] == ngrams).any())


_POWERS = np.array(
    [pow(0x9E3779B97F4A7C15, k, 2**64) for k in range(1, NGRAM_WORDS + 1)], np.uint64
)


def _ngrams(text: str) -> NDArray[np.uint64]:
    words = "".join(c if c.isalnum() else " " for c in text.casefold()).split()
    if len(words) < NGRAM_WORDS:
        return np.empty(0, np.uint64)
    # one hash per word, shape (num_words,)
    hashes = np.array([hash(word) for word in words], np.int64).astype(np.uint64)
    return (np.lib.stride_tricks.sliding_window_view(hashes, NGRAM_WORDS) * _POWERS).sum(
        1, dtype=np.uint64
    )


# ---- shards ----


def _read_texts(plan: RunPlan) -> Iterator[str]:
    """Yield the texts of the documents of a run."""
    for split in plan.splits:
        with plan.folder("annotate").open(f"{split.key}.documents.parquet") as file:
            yield from pq.read_table(file, columns=["text"]).column("text").to_pylist()


def _write(folder: Path, config: RunConfig, documents: pa.Table) -> Path:
    """Tokenize the documents, and write them as one shard."""
    stage = StageSpec(Tokenize, config.tokenize).opened()
    kept = stage.apply(documents).kept
    entry = describe_tokenizer(config)
    tokens = kept.column("tokens").combine_chunks().flatten().to_numpy()
    part = Documents(
        tokens=tokens.astype(entry.token_dtype),
        doc_num_tokens=kept.column("num_tokens").to_numpy(),
        doc_ids=kept.column("doc_id").to_numpy(),
        metadata=kept.select(["doc_id", "language", "bucket"]).to_pylist(),
    )
    write_dataset(folder, entry, [part])
    return folder
