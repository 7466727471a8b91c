"""A dataset of sentences in two languages, with its tokenizer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from shardwriter import Documents, build_manifest, write_shard
from shardwriter.format import MANIFEST_FILE, TokenizerEntry, index_file, shard_file

END = "<|endoftext|>"
SENTENCES = {
    "en": "The cat sat on the mat and looked at the garden.",
    "fr": "Où dort le chat ? Près de la fenêtre, à côté du rideau bleu.",
    "ja": "猫は庭で静かに眠っています。",
}


@dataclass(frozen=True)
class TextDataset:
    """A dataset, its tokenizer.json, and the text and language of each document."""

    folder: Path
    tokenizer: Path
    documents: list[tuple[str, str]]


def write_texts(folder: Path) -> TextDataset:
    """Train a byte-level tokenizer of about 300 ids, and write 30 documents in one shard."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=[END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES.values(), trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    entry = TokenizerEntry(
        "texts",
        hashlib.sha256(path.read_bytes()).hexdigest(),
        vocab_size=tokenizer.get_vocab_size(),
        end_of_document=tokenizer.get_vocab()[END],
    )
    documents: list[tuple[str, str]] = []
    for number in range(30):
        language = sorted(SENTENCES)[number % 3]
        documents.append((f"{number} {SENTENCES[language]}" * (1 + number % 4), language))
    tokens = [[*tokenizer.encode(text).ids, entry.end_of_document] for text, _ in documents]
    shard = Documents(
        np.concatenate([np.array(ids, np.uint16) for ids in tokens]),
        np.array([len(ids) for ids in tokens], np.int64),
        np.arange(len(documents), dtype=np.uint64),
        metadata=[
            {"doc_id": number, "language": language, "bucket": "all"}
            for number, (_, language) in enumerate(documents)
        ],
    )
    dataset = folder / "dataset"
    dataset.mkdir()
    with (
        (dataset / shard_file(0)).open("wb") as tar,
        (dataset / index_file(0)).open("wb") as index,
    ):
        written = write_shard(tar, index, shard=0, tokenizer=entry, documents=shard)
    manifest = build_manifest([written], tokenizer=entry, fingerprint="f00d")
    (dataset / MANIFEST_FILE).write_bytes(manifest.dumps())
    return TextDataset(dataset, path, documents)
