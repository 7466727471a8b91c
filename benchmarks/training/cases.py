"""The models and rows that the GPU suite measures, and the dataset that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Size:
    """The model, rows and steps to measure, and the time to plan for them.

    Attributes:
        micro_batches: of a step.
        num_tokens: of the dataset.
        entrant_s: start, warm-up and rounds of an entrant. The first one, which compiles, takes
            twice as long.
    """

    shape: Mapping[str, int]
    vocab_size: int
    seq_lens: tuple[int, int]
    micro_batch_tokens: int
    micro_batches: int
    num_tokens: int
    warmup_steps: int
    steps: int
    rounds: int
    compile: bool
    entrant_s: float


# 1.2 B parameters.
FULL = Size(
    shape={
        "dim": 2048,
        "num_layers": 16,
        "num_heads": 32,
        "num_kv_heads": 8,
        "ffn_dim": 8192,
    },
    vocab_size=50_304,
    seq_lens=(2048, 8192),
    micro_batch_tokens=16_384,
    micro_batches=2,
    num_tokens=12_000_000,
    warmup_steps=4,
    steps=10,
    rounds=2,
    compile=True,
    entrant_s=33,
)

TINY = Size(
    shape={"dim": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 64},
    vocab_size=256,
    seq_lens=(16, 32),
    micro_batch_tokens=64,
    micro_batches=2,
    num_tokens=20_000,
    warmup_steps=1,
    steps=1,
    rounds=1,
    compile=False,
    entrant_s=0,
)


@dataclass(frozen=True)
class Case:
    """A size at one length of rows, with its dataset."""

    size: Size
    dataset: str
    seq_len: int

    @property
    def micro_batch_rows(self) -> int:
        """Rows of a micro-batch."""
        return self.size.micro_batch_tokens // self.seq_len

    @property
    def global_batch_rows(self) -> int:
        """Rows of a step."""
        return self.micro_batch_rows * self.size.micro_batches


def make_dataset(folder: Path, size: Size) -> None:
    """Write four shards of documents with 200 to 3,000 tokens drawn by Zipf's law."""
    import numpy as np

    from benchmarks.shards import write_dataset
    from shardwriter import Documents
    from shardwriter.format import TokenizerEntry

    rng = np.random.default_rng(1)
    num_ids = size.vocab_size - 47  # 50,257 of GPT-2, which a model rounds up
    tokenizer = TokenizerEntry("benchmark", "0" * 64, num_ids, 0)
    tokens = np.minimum(rng.zipf(1.2, size.num_tokens), num_ids - 1).astype(np.uint16)
    parts: list[Documents] = []
    first_id = 0
    for part in np.array_split(tokens, 4):
        lengths = rng.integers(200, 3001, len(part) // 1000)
        lengths = lengths[np.cumsum(lengths) < len(part)]
        lengths = np.append(lengths, len(part) - lengths.sum())
        part[np.cumsum(lengths) - 1] = 0
        ids = np.arange(first_id, first_id + len(lengths), dtype=np.uint64)
        first_id += len(lengths)
        parts.append(Documents(part, lengths, ids))
    write_dataset(folder, tokenizer, parts)
