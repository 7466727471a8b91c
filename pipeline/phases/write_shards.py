"""The phase write_shards: cut the global shuffle into shards, and write the manifest.

Shard k is the k-th equal part of the key space, from all splits, in key order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.phases.phase import Artifact, MergedArtifact, PartitionPhase, TaskCost
from pipeline.phases.tokenize import TokenizeDocuments, describe_tokenizer
from pipeline.planning.input_splits import InputSplit
from pipeline.runs.damaged_outputs import check_output
from pipeline.runs.hash_partitions import read_keys
from pipeline.runs.verified_file import Damage
from shardwriter import Documents, build_manifest, write_shard
from shardwriter.format import (
    MANIFEST_FILE,
    Manifest,
    ShardEntry,
    TokenizerEntry,
    index_file,
    shard_file,
)
from stages.contract import Counters


class WriteShards(PartitionPhase):
    """Write each part of the key space as one shard, in key order."""

    name = "write_shards"
    version = 1
    parents = (TokenizeDocuments,)
    task_kind = "shards"

    shard = Artifact("tar")
    index = Artifact("idx")
    manifest = MergedArtifact(MANIFEST_FILE)

    reads = (TokenizeDocuments.tokens, TokenizeDocuments.documents)
    cost = TaskCost(
        grows_with="tokens",
        held_bytes=16,
        # benchmarks/driver_scale.py, 2,000 splits
        open_s=0.0006,
    )

    @classmethod
    def estimate_num_tasks(
        cls, config: RunConfig, num_splits: int, amounts: Mapping[str, float]
    ) -> int:
        """Return the number of shards."""
        del num_splits
        return math.ceil(amounts["tokens"] / config.write_shards.shard_tokens)

    @classmethod
    def suggest_smaller_tasks(
        cls, room_bytes: float, amount_per_split: float
    ) -> str | None:
        """Return the largest shard that fits."""
        del amount_per_split
        return f"set write_shards.shard_tokens to {int(room_bytes / cls.cost.held_bytes):,}"

    def task_ids(self) -> list[str]:
        """Return the names of the shards."""
        return [f"shard-{number:06d}" for number in range(self.num_shards)]

    @cached_property
    def num_shards(self) -> int:
        """The tokens of the run divided by the tokens of a shard, rounded up."""
        num_tokens = TokenizeDocuments(self.plan).counters().counts["tokens"]
        return math.ceil(num_tokens / self.config.write_shards.shard_tokens)

    def run(self, task_id: str) -> None:
        """Collect the shard's range of keys from every split, and write it in key order."""
        number = int(task_id.removeprefix("shard-"))
        documents = self._collect(number)
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
            output.record = {"counters": counters.to_json(), "entry": entry.to_json()}

    def _collect(self, number: int) -> Documents:
        """Read the documents of a shard from all splits, in key order."""
        first, end = (2**64 * k // self.num_shards for k in (number, number + 1))
        dtype = self._tokenizer.token_dtype
        tokenized = self.plan.folder(TokenizeDocuments.name)
        parts = tokenized.each(
            self.plan.splits, lambda split: self._read(split, first, end, dtype)
        )
        rows = pa.concat_tables([part_rows for part_rows, _ in parts])
        tokens = np.concatenate([part_tokens for _, part_tokens in parts])
        order = np.argsort(rows.column("order_key").to_numpy())
        lengths = rows.column("num_tokens").to_numpy()
        starts = np.cumsum(lengths) - lengths
        in_order = [tokens[starts[i] : starts[i] + lengths[i]] for i in order]
        sorted_rows = rows.take(pa.array(order)).drop_columns(["order_key", "token_start"])
        has_json = self.config.write_shards.documents_json
        return Documents(
            tokens=np.concatenate([np.empty(0, dtype), *in_order]),
            doc_num_tokens=lengths[order],
            doc_ids=sorted_rows.column("doc_id").to_numpy(),
            languages=sorted_rows.column("language").fill_null("unknown").to_pylist(),
            buckets=sorted_rows.column("bucket").fill_null("all").to_pylist(),
            metadata=sorted_rows.drop_columns("num_tokens").to_pylist()
            if has_json
            else None,
        )

    def _read(
        self, split: InputSplit, first: int, end: int, dtype: np.dtype[Any]
    ) -> tuple[pa.Table, NDArray[Any]]:
        """Return the index rows and the tokens of one split with keys from `first` to before `end`."""
        folder = self.plan.folder(TokenizeDocuments.name)
        index = folder.open(TokenizeDocuments.documents.file_name(split.key))
        rows = pa.Table.from_batches([read_keys(index, first, end)])
        start = rows.column("token_start")[0].as_py() if rows.num_rows else 0
        num_tokens = pc.sum(rows.column("num_tokens")).as_py() or 0
        with folder.open(TokenizeDocuments.tokens.file_name(split.key)) as file:
            file.seek(start * dtype.itemsize)
            return rows, np.frombuffer(file.read(num_tokens * dtype.itemsize), dtype)

    @cached_property
    def _tokenizer(self) -> TokenizerEntry:
        return describe_tokenizer(self.config)

    def finish(self) -> None:
        """Write manifest.json from the entries of all shards."""
        entries = [
            ShardEntry.from_json(record["entry"])
            for record in self.folder.records(self.task_ids())
        ]
        fingerprint = self.plan.phase(self.name).fingerprint
        assert fingerprint is not None
        order = {
            "function": "splitmix64(doc_id + splitmix64(seed))",
            "seed": self.config.write_shards.seed,
        }
        manifest = build_manifest(
            entries,
            tokenizer=self._tokenizer,
            fingerprint=fingerprint,
            run={"order": order},
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
