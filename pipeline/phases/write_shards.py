"""The phase write_shards: cut the global shuffle into shards, and write the manifest.

Shard k is the k-th equal part of the key space, from all splits, in key order. A process reads the documents of
several consecutive shards at once, because it opens the files of all splits for that: as many as fit into its memory,
or more on its local disk where there would be too many openings.

    splits  ──▶ in memory: a part of each split                ──▶ shard after shard, sorted by key
            └─▶ on disk: two files per shard of the group ─────┘
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.artifact import Artifact, MergedArtifact
from pipeline.phases.mix_percentiles import describe_mix
from pipeline.phases.phase import PartitionPhase
from pipeline.phases.select import Select
from pipeline.phases.tokenize import TokenizeDocuments, describe_tokenizer
from pipeline.runs.damaged_outputs import check_output
from pipeline.runs.exchange import (
    MAX_READS,
    MAX_SCRATCH_BYTES,
    find_bounds,
    read_keys,
    slice_keys,
)
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

# Tokens of a shard in one split below which it costs more to open the split's files again for the
# next shard than to keep its tokens in scratch.
MIN_TOKENS_PER_READ = 2**16

# Groups of shards per slot, at least, so that the slots end at about the same time.
GROUPS_PER_SLOT = 4

# Index rows and their tokens, of one split or of several.
Rows = tuple[pa.RecordBatch, NDArray[Any]]


class WriteShards(PartitionPhase):
    """Write each part of the key space as one shard, in key order."""

    name = "write_shards"
    version = 2
    parents = (TokenizeDocuments,)
    task_kind = "shards"

    shard = Artifact("tar")
    index = Artifact("idx")
    manifest = MergedArtifact(MANIFEST_FILE)

    @classmethod
    def count_group_tasks(
        cls, config: RunConfig, num_splits: int, num_tasks: int, num_slots: int
    ) -> int:
        """Return as many shards as memory holds, or MIN_TOKENS_PER_READ requires, if enough groups remain for the slots.

        More if MAX_READS requires it.
        """
        shard_tokens = config.write_shards.shard_tokens
        for_slots = num_tasks // (GROUPS_PER_SLOT * max(1, num_slots))
        for_reads = MIN_TOKENS_PER_READ * num_splits // shard_tokens
        max_groups = max(1, MAX_READS // max(1, num_splits))
        max_held = MAX_SCRATCH_BYTES // (BYTES_READ_AHEAD * shard_tokens)
        on_disk = min(math.ceil(num_tasks / max_groups), max_held)
        wanted = max(cls.count_held(config), min(for_reads, max_held))
        return max(1, min(wanted, for_slots), on_disk)

    @classmethod
    def count_held(cls, config: RunConfig) -> int:
        """Return the number of shards whose documents fit into the memory of a task, beside one that is written."""
        memory_mb = config.engine.get_memory_mb(cls.name)
        shard_tokens = config.write_shards.shard_tokens
        room_mb = min(0.75 * memory_mb, memory_mb - PROCESS_MB)
        room_bytes = room_mb * 2**20 - BYTES_PER_TOKEN * shard_tokens
        return 1 + max(0, int(room_bytes / (BYTES_READ_AHEAD * shard_tokens)))

    def task_ids(self) -> list[str]:
        """Return the names of the shards."""
        return [_name_task(number) for number in range(self.num_shards)]

    @cached_property
    def num_shards(self) -> int:
        """The tokens of the run, with all copies, divided by the tokens of a shard, rounded up."""
        counts = self._token_counts
        num_tokens = counts["tokens"] + counts["extra_tokens"]
        return math.ceil(num_tokens / self.config.write_shards.shard_tokens)

    @cached_property
    def _token_counts(self) -> Counter[str]:
        return TokenizeDocuments(self.plan).counters().counts

    def run(self, task_id: str) -> None:
        """Collect the shard's range of keys from every split, and write it in key order."""
        for _ in self.run_each([task_id]):
            pass

    def run_each(self, task_ids: Sequence[str]) -> Generator[None]:
        """Read each range of consecutive shards once from every split, and write one shard after another."""
        for shards in _join_consecutive(task_ids):
            with self._read_shards(shards) as take:
                for number in shards:
                    self._write(number, *self._sort(*take(number)))
                    yield

    def _write(self, number: int, rows: pa.Table, tokens: NDArray[Any]) -> None:
        """Write a shard of documents in key order."""
        documents = self._make_documents(rows, tokens)
        with self.folder.commit(_name_task(number)) as output:
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

    def _sort(self, rows: pa.RecordBatch, tokens: NDArray[Any]) -> tuple[pa.Table, Any]:
        """Return the rows and the tokens of documents in key order."""
        order = np.argsort(rows["order_key"].to_numpy())
        lengths = rows["num_tokens"].to_numpy()
        starts = np.cumsum(lengths) - lengths
        in_order = [tokens[starts[i] : starts[i] + lengths[i]] for i in order]
        sorted_rows = pa.table(rows).take(pa.array(order))
        columns = sorted_rows.drop_columns(["order_key", "token_start"])
        return columns, np.concatenate([tokens[:0], *in_order])

    def _make_documents(self, rows: pa.Table, tokens: NDArray[Any]) -> Documents:
        has_json = self.config.write_shards.documents_json
        return Documents(
            tokens=tokens,
            doc_num_tokens=rows.column("num_tokens").to_numpy(),
            doc_ids=rows.column("doc_id").to_numpy(),
            metadata=rows.drop_columns("num_tokens").to_pylist() if has_json else None,
        )

    @contextlib.contextmanager
    def _read_shards(self, shards: range) -> Generator[Callable[[int], Rows]]:
        """Read the documents of consecutive shards. Provide a function that is called once for each shard, in order."""
        bounds = [2**64 * k // self.num_shards for k in (*shards, shards.stop)]
        ranges = dict(zip(shards, pairwise(bounds), strict=True))
        tokenized = self.plan.folder(TokenizeDocuments.name)

        def read(splits: Sequence[InputSplit]) -> list[Rows]:
            return tokenized.read_each(
                splits, lambda split: self._read(split, bounds[0], bounds[-1])
            )

        num_reads = math.ceil(len(shards) / self.count_held(self.config))
        if num_reads == 1:
            held = read(self.plan.splits)
            yield lambda number: _collect(held, *ranges[number])
            return
        with self.folder.root.staging_folder("shards") as scratch:
            start = len(self.plan.splits) * shards.start // self.num_shards
            for splits in _divide_splits(self.plan.splits, start, num_reads):
                parts = read(splits)
                for number in shards:
                    _append(scratch / str(number), _collect(parts, *ranges[number]))
            yield lambda number: _take(scratch / str(number), self._tokenizer.token_dtype)

    def _read(self, split: InputSplit, first: int, end: int) -> Rows:
        """Return the index rows and the tokens of one split, for the keys from `first` to before `end`."""
        folder = self.plan.folder(TokenizeDocuments.name)
        dtype = self._tokenizer.token_dtype
        index = folder.open(TokenizeDocuments.documents.file_name(split.key))
        rows = read_keys(index, first, end)
        start, stop = _find_tokens(rows)
        with folder.open(TokenizeDocuments.tokens.file_name(split.key)) as file:
            file.seek(start * dtype.itemsize)
            content = file.read((stop - start) * dtype.itemsize)
        return rows, np.frombuffer(content, dtype)

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


def _name_task(number: int) -> str:
    """Return the id of the task that writes a shard."""
    return f"shard-{number:06d}"


def _join_consecutive(task_ids: Sequence[str]) -> list[range]:
    """Return the numbers of the shards that tasks write, as ranges."""
    ranges: list[range] = []
    for number in [int(task_id.removeprefix("shard-")) for task_id in task_ids]:
        is_next = ranges and ranges[-1].stop == number
        ranges.append(range(ranges.pop().start if is_next else number, number + 1))
    return ranges


def _divide_splits(
    splits: Sequence[InputSplit], start: int, num_parts: int
) -> Iterator[Sequence[InputSplit]]:
    """Yield parts of about the same number of bytes, from one split to the one before it.

    Tasks that start at the same time with different splits do not ask for the same objects.
    """
    rotated = [*splits[start:], *splits[:start]]
    sizes = np.array([max(1, split.num_bytes) for split in rotated])
    parts = (np.cumsum(sizes) - sizes) * num_parts // sizes.sum()
    for begin, end in pairwise(find_bounds(parts).tolist()):
        yield rotated[begin:end]


def _find_tokens(rows: pa.RecordBatch) -> tuple[int, int]:
    """Return the range of consecutive rows of a split in its tokens file."""
    if not rows.num_rows:
        return 0, 0
    start = rows["token_start"][0].as_py()
    return start, start + pc.sum(rows["num_tokens"]).as_py()


def _collect(parts: Sequence[Rows], first: int, end: int) -> Rows:
    """Return the documents of all parts with keys from `first` to before `end`, part after part.

    Args:
        parts: consecutive documents of one split each.
        first: 0 or more.
        end: more than `first`, at most 2**64.
    """
    all_rows: list[pa.RecordBatch] = []
    all_tokens: list[NDArray[Any]] = []
    for part_rows, tokens in parts:
        rows = slice_keys(part_rows, first, end)
        before, _ = _find_tokens(part_rows)
        start, stop = _find_tokens(rows)
        all_rows.append(rows)
        all_tokens.append(tokens[start - before : stop - before])
    return pa.concat_batches(all_rows), np.concatenate(all_tokens)


def _append(path: Path, documents: Rows) -> None:
    """Append documents to the two files of a shard: their rows as one more Arrow stream, and their tokens."""
    rows, tokens = documents
    rows_file = path.with_suffix(".rows").open("ab")
    with rows_file, pa.ipc.new_stream(rows_file, rows.schema) as stream:
        stream.write_batch(rows)
    with path.with_suffix(".tokens").open("ab") as file:
        file.write(tokens.data)


def _take(path: Path, dtype: np.dtype[Any]) -> Rows:
    """Return the documents that were appended to the files of a shard, and delete these."""
    rows_path, tokens_path = path.with_suffix(".rows"), path.with_suffix(".tokens")
    batches: list[pa.RecordBatch] = []
    with pa.OSFile(str(rows_path)) as source:
        while source.tell() < source.size():
            batches += pa.ipc.open_stream(source)
    tokens = np.fromfile(tokens_path, dtype)
    rows_path.unlink()
    tokens_path.unlink()
    return pa.concat_batches(batches), tokens
