"""The phase write_shards: cut the global shuffle into shards, and write the manifest.

Shard k is the k-th equal part of the key space, from all splits, in key order. A process reads the documents of
several consecutive shards at once, as many as fit into its memory, because it opens the files of all splits for that.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.artifact import Artifact, MergedArtifact
from pipeline.phases.mix_percentiles import describe_mix
from pipeline.phases.phase import PartitionPhase
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments, describe_tokenizer
from pipeline.runs.damaged_outputs import check_output
from pipeline.runs.exchange import read_keys
from pipeline.runs.verified_file import Damage
from shardwriter import Documents, build_manifest, write_shard
from shardwriter.format import (
    MANIFEST_FILE,
    Count,
    Manifest,
    ShardEntry,
    TokenizerEntry,
    index_file,
    shard_file,
)
from stages.contract import Counters

# Memory of the process, its libraries and Arrow's pool. The rest can hold documents.
PROCESS_MB = 1000

# Memory of documents that are read ahead, per token: 4, and 1 for their rows of the index.
BYTES_READ_AHEAD = 5

# Memory of a task per token of the shard that it writes.
BYTES_PER_TOKEN = 16

# Shards that a process reads at once, at most.
MAX_SHARDS_PER_READ = 64

# The index rows and the tokens of one split.
SplitRows = tuple[pa.Table, NDArray[Any]]


class WriteShards(PartitionPhase):
    """Write each part of the key space as one shard, in key order."""

    name = "write_shards"
    version = 2
    parents = (TokenizeDocuments,)
    task_kind = "shards"

    shard = Artifact("tar")
    index = Artifact("idx")
    manifest = MergedArtifact(MANIFEST_FILE)

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        # The shards that this process writes one after another.
        self._group: frozenset[int] = frozenset()
        # Shard -> its documents, one part per split.
        self._read_ahead: dict[int, list[SplitRows]] = {}

    @classmethod
    def count_tasks_per_read(cls, config: RunConfig) -> int:
        """Return the number of shards whose documents fit into the memory of a task, beside one that is written."""
        memory_mb = config.engine.get_memory_mb(cls.name)
        shard_tokens = config.write_shards.shard_tokens
        room_mb = min(0.75 * memory_mb, memory_mb - PROCESS_MB)
        room_bytes = room_mb * 2**20 - BYTES_PER_TOKEN * shard_tokens
        num_ahead = int(room_bytes / (BYTES_READ_AHEAD * shard_tokens))
        return max(1, min(MAX_SHARDS_PER_READ, 1 + num_ahead))

    def task_ids(self) -> list[str]:
        """Return the names of the shards."""
        return [f"shard-{number:06d}" for number in range(self.num_shards)]

    @cached_property
    def num_shards(self) -> int:
        """The tokens of the run, with all copies, divided by the tokens of a shard, rounded up."""
        counts = self._token_counts
        num_tokens = counts["tokens"] + counts["extra_tokens"]
        return math.ceil(num_tokens / self.config.write_shards.shard_tokens)

    @cached_property
    def _token_counts(self) -> Counter[str]:
        return TokenizeDocuments(self.plan).counters().counts

    @contextlib.contextmanager
    def reading_together(self, task_ids: Sequence[str]) -> Generator[None]:
        """Read the documents of these shards when the first of them is written."""
        self._group = frozenset(map(_parse_number, task_ids))
        try:
            yield
        finally:
            self._group, self._read_ahead = frozenset(), {}

    def run(self, task_id: str) -> None:
        """Collect the shard's range of keys from every split, and write it in key order."""
        number = _parse_number(task_id)
        rows, tokens = self._collect(number)
        documents = self._make_documents(rows, tokens)
        with self.folder.commit(task_id) as output:
            with (
                output.path(shard_file(number)).open("wb") as tar,
                output.path(index_file(number)).open("wb") as index,
            ):
                entry = write_shard(
                    tar,
                    index,
                    shard=number,
                    tokenizer=self._tokenizer,
                    documents=documents,
                    sample_tokens=self.config.write_shards.sample_tokens,
                )
            counters = Counters()
            counters.add("tokens", len(documents.tokens))
            counters.add("documents", len(documents.doc_ids))
            _count_labels(counters, rows)
            output.record = {"counters": counters.to_json(), "entry": entry.to_json()}

    def _collect(self, number: int) -> SplitRows:
        """Return the rows and the tokens of a shard's documents from all splits, in key order."""
        dtype = self._tokenizer.token_dtype
        parts = self._read_ahead.pop(number, None) or self._read_shards(number)
        rows = pa.concat_tables([part_rows for part_rows, _ in parts])
        tokens = np.concatenate([part_tokens for _, part_tokens in parts])
        order = np.argsort(rows.column("order_key").to_numpy())
        lengths = rows.column("num_tokens").to_numpy()
        starts = np.cumsum(lengths) - lengths
        in_order = [tokens[starts[i] : starts[i] + lengths[i]] for i in order]
        sorted_rows = rows.take(pa.array(order)).drop_columns(["order_key", "token_start"])
        return sorted_rows, np.concatenate([np.empty(0, dtype), *in_order])

    def _make_documents(self, rows: pa.Table, tokens: NDArray[Any]) -> Documents:
        has_json = self.config.write_shards.documents_json
        return Documents(
            tokens=tokens,
            doc_num_tokens=rows.column("num_tokens").to_numpy(),
            doc_ids=rows.column("doc_id").to_numpy(),
            metadata=rows.drop_columns("num_tokens").to_pylist() if has_json else None,
        )

    def _read_shards(self, number: int) -> list[SplitRows]:
        """Return the documents of a shard, one part per split, and keep those of the next shards of the group."""
        last = number
        while last + 1 in self._group:
            last += 1
        bounds = [2**64 * k // self.num_shards for k in range(number, last + 2)]
        tokenized = self.plan.folder(TokenizeDocuments.name)
        by_split = tokenized.read_each(
            self.plan.splits, lambda split: self._read(split, bounds)
        )
        for index in range(number, last + 1):
            self._read_ahead[index] = [parts[index - number] for parts in by_split]
        return self._read_ahead.pop(number)

    def _read(self, split: InputSplit, bounds: Sequence[int]) -> list[SplitRows]:
        """Return the index rows and the tokens of one split, for the keys from each bound to before the next."""
        folder = self.plan.folder(TokenizeDocuments.name)
        dtype = self._tokenizer.token_dtype
        index = folder.open(TokenizeDocuments.documents.file_name(split.key))
        rows = pa.Table.from_batches([read_keys(index, bounds[0], bounds[-1])])
        lengths = rows.column("num_tokens").to_numpy()
        start = rows.column("token_start")[0].as_py() if rows.num_rows else 0
        with folder.open(TokenizeDocuments.tokens.file_name(split.key)) as file:
            file.seek(start * dtype.itemsize)
            content = file.read(int(lengths.sum()) * dtype.itemsize)
        tokens = np.frombuffer(content, dtype)
        keys = rows.column("order_key").to_numpy()
        inner = np.searchsorted(keys, np.array(bounds[1:-1], np.uint64))
        row_bounds = [0, *inner.tolist(), len(keys)]
        token_bounds = np.append(0, np.cumsum(lengths))[row_bounds]
        parts: list[SplitRows] = []
        for part in range(len(bounds) - 1):
            first, end = row_bounds[part : part + 2]
            part_tokens = tokens[token_bounds[part] : token_bounds[part + 1]]
            parts.append((rows.slice(first, end - first), part_tokens))
        return parts

    @cached_property
    def _tokenizer(self) -> TokenizerEntry:
        return describe_tokenizer(self.config)

    def finish(self) -> None:
        """Write manifest.json from the entries of all shards."""
        entries: list[ShardEntry] = []
        counters = Counters()
        for record in self.folder.records(self.task_ids()):
            entries.append(ShardEntry.from_json(record["entry"]))
            counters += Counters.from_json(record["counters"])
        fingerprint = self.plan.phase(self.name).fingerprint
        assert fingerprint is not None
        order = {
            "function": "splitmix64(doc_id + splitmix64(seed))",
            "seed": self.config.write_shards.seed,
        }
        description: dict[str, Any] = {"order": order}
        if self.config.select.mix is not None:
            selected = Select(self.plan).counters().counts
            description["mix"] = describe_mix(self.config, selected, self._token_counts)
        manifest = build_manifest(
            entries,
            tokenizer=self._tokenizer,
            fingerprint=fingerprint,
            languages=_take_labels(counters, "language"),
            buckets=_take_labels(counters, "bucket"),
            run=description,
        )
        with self.folder.commit(self.manifest.name) as output:
            output.path(self.manifest.file_name).write_bytes(manifest.dumps())

    def find_damage(self) -> Iterator[Damage]:
        """Yield the files that `verify` has reported, and those that are missing or of another size."""
        yield from super().find_damage()
        damage = check_output(self.folder, self.manifest.file_name)
        if damage is not None:
            yield damage
            return
        root = self.folder.root
        content = root.read_bytes(self.manifest.file_name)
        sizes: dict[str, int] = {}
        for entry in Manifest.loads(content, root.locate(self.manifest.file_name)).shards:
            sizes |= {entry.file: entry.shard_bytes, entry.index_file: entry.index_bytes}
        for file, num_bytes in zip(
            sizes, root.read_each(sizes, self._read_size), strict=True
        ):
            if num_bytes != sizes[file]:
                found = "no file" if num_bytes is None else f"{num_bytes} bytes"
                yield Damage(str(root), file, found, f"a file of {sizes[file]} bytes")

    def _read_size(self, file: str) -> int | None:
        try:
            return self.folder.root.get_size(file)
        except FileNotFoundError:
            return None


# Label of documents that have none.
_NO_LABEL = {"language": "unknown", "bucket": "all"}


def _count_labels(counters: Counters, rows: pa.Table) -> None:
    """Count documents and tokens of each language and bucket.

    The names differ from the `language_tokens.` of tokenize: a metric that adds up all phases would
    have each token twice.
    """
    for name, no_label in _NO_LABEL.items():
        labels = rows.column(name).fill_null(no_label)
        counted = pa.table({"label": labels, "num_tokens": rows.column("num_tokens")})
        sums = counted.group_by("label", use_threads=False).aggregate(
            [("num_tokens", "count"), ("num_tokens", "sum")]
        )
        for row in sums.to_pylist():
            counters.add(
                f"written_{name}_documents.{row['label']}", row["num_tokens_count"]
            )
            counters.add(f"written_{name}_tokens.{row['label']}", row["num_tokens_sum"])


def _take_labels(counters: Counters, name: str) -> dict[str, Count]:
    """Return what `_count_labels` counted: label -> documents and tokens."""
    counts: dict[str, Count] = {}
    for key, num_docs in counters.counts.items():
        family, _, label = key.partition(".")
        if family == f"written_{name}_documents":
            counts[label] = Count(
                num_docs, counters.counts[f"written_{name}_tokens.{label}"]
            )
    return counts


def _parse_number(task_id: str) -> int:
    """Return the number of a shard from the id of its task."""
    return int(task_id.removeprefix("shard-"))
