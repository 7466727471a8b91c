"""The compared loaders: each yields shuffled int64 tensors of 8 x 2,049 tokens, reproducible by a seed.

TokenLoader yields rows of 2,048 input ids; its labels are not counted. `memmap` is the upper bound: a global permutation
of a flat file. `ours_stored` yields uint16, for a GPU that widens the tokens; `memmap_stored` is its upper bound.
"""

from __future__ import annotations

# ruff: noqa: D101, D102 - the class name is the library, and the methods are those of Entrant
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from loader import TokenDataset, TokenLoader

BATCH, BLOCK, SEED = 8, 2049, 7


def widen(array: Any) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64))


def import_streaming() -> None:
    """Import streaming with a stub for torchvision, which would install a CUDA build and is not used."""
    parts = {
        "torchvision": {},
        "torchvision.datasets": {
            "VisionDataset": object,
            "CIFAR10": object,
            "ImageFolder": object,
        },
        "torchvision.transforms": {},
        "torchvision.transforms.functional": {"to_tensor": None},
    }
    for name, content in parts.items():
        module = types.ModuleType(name)
        module.__dict__.update(
            content, __spec__=importlib.machinery.ModuleSpec(name, None), __path__=[]
        )
        sys.modules[name] = module
    import streaming  # noqa: F401 - imported for its side effect

    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]


@dataclass
class Entrant:
    """A loader of one data folder. `state` returns None if the loader can only resume by replay."""

    root: Path
    workers: int = 0

    def __post_init__(self) -> None:
        self.loader: Any = None
        self.build()

    def build(self) -> None: ...

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.loader)

    def state(self) -> Any:
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        self.loader.load_state_dict(state)


# ---------------------------------------------------------------------------------------------------------------- bare


def map_blocks(root: Path) -> Any:
    """Return (num, BLOCK) uint16: a memory map of the flat file."""
    tokens = np.memmap(root / "memmap/tokens.bin", np.uint16, mode="r")
    return tokens[: len(tokens) // BLOCK * BLOCK].reshape(-1, BLOCK)


class _Blocks(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, root: Path, as_tensor: Callable[[Any], torch.Tensor]) -> None:
        self.root, self.first, self.as_tensor = root, 0, as_tensor

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        blocks = map_blocks(self.root)
        order = np.random.RandomState(SEED).permutation(len(blocks))[self.first :]
        for batch in range(worker, len(order) // BATCH, workers):
            yield self.as_tensor(blocks[order[batch * BATCH : (batch + 1) * BATCH]])


@dataclass
class Memmap(Entrant):
    as_tensor: Callable[[Any], torch.Tensor] = widen

    def build(self) -> None:
        self.blocks, self.seen = _Blocks(self.root, self.as_tensor), 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.blocks.first = self.seen
        batches: Any = self.blocks
        if self.workers:
            batches = DataLoader(self.blocks, batch_size=None, num_workers=self.workers)
        for batch in batches:
            self.seen += BATCH
            yield batch

    def state(self) -> Any:
        return self.seen

    def load(self, state: Any) -> None:
        self.seen = state


# ---------------------------------------------------------------------------------------------------------------- ours


@dataclass
class Ours(Entrant):
    """TokenLoader; `workers` is the number of chunks that threads read ahead.

    With `packing`, the rows are those that generate.py packs beside the shards.
    """

    tokens: Any = "int64"
    packing: Any = None

    def build(self) -> None:
        self.loader = TokenLoader(
            self.root / "shards", seq_len=BLOCK - 1, global_batch_rows=BATCH, rank=0, world_size=1, seed=SEED,
            epochs=1, drop_last=True, tokens=self.tokens, prefetch_chunks=self.workers, packing=self.packing,
        )  # fmt: skip

    def __iter__(self) -> Iterator[torch.Tensor]:
        key = "tokens" if self.tokens == "stored" else "input_ids"
        return (batch[key] for batch in self.loader)


@dataclass
class OursDataset(Entrant):
    """TokenDataset with torch's DataLoader; the rows of a batch stay together.

    Without `collates`, DataLoader's own function stacks rows.
    """

    collates: bool = True

    def build(self) -> None:
        dataset = TokenDataset(self.root / "shards", seq_len=BLOCK - 1, seed=SEED)
        self.sampler = dataset.sampler(
            global_batch_rows=BATCH, rank=0, world_size=1, drop_last=True
        )
        self.seen = 0
        self.loader = DataLoader(
            dataset,
            batch_sampler=self.sampler,
            num_workers=self.workers,
            collate_fn=dataset.collate if self.collates else None,
        )

    def __iter__(self) -> Iterator[torch.Tensor]:
        for batch in self.loader:
            self.seen += 1
            yield batch["input_ids"]

    def state(self) -> Any:
        return self.sampler.state_dict(batches=self.seen)

    def load(self, state: Any) -> None:
        self.sampler.load_state_dict(state)


# --------------------------------------------------------------------------------------------------------------- peers


class _MapBlocks(Dataset):  # type: ignore[type-arg]
    def __init__(self, root: Path, convert: Callable[[Any], Any] = widen) -> None:
        self.root, self.convert, self.blocks = root, convert, None
        self.num = len(map_blocks(root))

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, number: int) -> Any:
        if self.blocks is None:  # in the process of a worker, which gets no map
            self.blocks = map_blocks(self.root)
        return self.convert(self.blocks[number])


class Torchdata(Entrant):
    def build(self) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        generator = torch.Generator().manual_seed(SEED)
        settings = {
            "batch_size": BATCH,
            "shuffle": True,
            "generator": generator,
            "drop_last": True,
        }
        self.loader = StatefulDataLoader(
            _MapBlocks(self.root), num_workers=self.workers, **settings
        )


def _stack_tokens(samples: list[dict[str, Any]]) -> torch.Tensor:
    return widen(np.stack([sample["tokens"] for sample in samples]))


class Mosaic(Entrant):
    def build(self) -> None:
        import_streaming()
        from streaming import StreamingDataLoader, StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        order = {
            "batch_size": BATCH,
            "shuffle": True,
            "shuffle_seed": SEED,
            "num_canonical_nodes": 1,
        }
        dataset = StreamingDataset(local=str(self.root / "mds"), **order)
        settings = {"batch_size": BATCH, "collate_fn": _stack_tokens, "drop_last": True}
        self.loader = StreamingDataLoader(dataset, num_workers=self.workers, **settings)


def _stack_tensors(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples).to(torch.int64)


class Litdata(Entrant):
    def build(self) -> None:
        import litdata
        from litdata.streaming.item_loader import TokensLoader

        blocks = TokensLoader(block_size=BLOCK)
        dataset = litdata.StreamingDataset(
            str(self.root / "litdata"),
            item_loader=blocks,
            shuffle=True,
            seed=SEED,
            drop_last=True,
        )
        settings = {"batch_size": BATCH, "collate_fn": _stack_tensors, "drop_last": True}
        self.loader = litdata.StreamingDataLoader(
            dataset, num_workers=self.workers, **settings
        )


def _decode(sample: dict[str, bytes]) -> Any:
    return np.frombuffer(sample["tok"], np.uint16)


def _stack_arrays(samples: list[Any]) -> torch.Tensor:
    return widen(np.stack(samples))


def _pack(samples: Iterator[Any]) -> Iterator[torch.Tensor]:
    wanted, held, num = BATCH * BLOCK, [], 0
    for sample in samples:
        held.append(sample)
        num += len(sample)
        if num >= wanted:
            tokens = np.concatenate(held)
            yield widen(tokens[:wanted]).view(BATCH, BLOCK)
            held, num = [tokens[wanted:]], num - wanted


class WebdatasetPacked(Entrant):
    folder = "packed"

    def build(self) -> None:
        import webdataset

        urls = sorted(map(str, (self.root / self.folder).glob("*.tar")))
        single = webdataset.shardlists.single_node_only
        shards = webdataset.WebDataset(
            urls, shardshuffle=len(urls), detshuffle=True, seed=SEED, nodesplitter=single
        )
        shuffled = shards.compose(webdataset.filters.detshuffle(1000, 1000, seed=SEED)).map(
            _decode
        )
        self.loader = webdataset.WebLoader(
            self.batched(shuffled), batch_size=None, num_workers=self.workers
        )

    def batched(self, samples: Any) -> Any:
        return samples.batched(BATCH, collation_fn=_stack_arrays, partial=False)

    def state(self) -> Any:
        return None


class WebdatasetDocuments(WebdatasetPacked):
    folder = "documents"

    def batched(self, samples: Any) -> Any:
        return samples.compose(_pack)


class Grain(Entrant):
    def build(self) -> None:
        import grain.python as grain

        blocks = (
            grain.MapDataset.source(_MapBlocks(self.root, np.asarray)).seed(SEED).shuffle()
        )
        batches = blocks.batch(
            BATCH,
            drop_remainder=True,
            batch_fn=lambda each: np.stack(each).astype(np.int64),
        )
        dataset = batches.to_iter_dataset(
            grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        )
        if self.workers:
            options = grain.MultiprocessingOptions(
                num_workers=self.workers, per_worker_buffer_size=2
            )
            dataset = dataset.mp_prefetch(options)
        self.iterator = iter(dataset)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.from_numpy(batch) for batch in self.iterator)

    def state(self) -> Any:
        return self.iterator.get_state()

    def load(self, state: Any) -> None:
        self.iterator.set_state(state)


class HuggingFace(Entrant):
    def build(self) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import datasets
        from torchdata.stateful_dataloader import StatefulDataLoader

        datasets.disable_progress_bars()
        files = sorted(map(str, (self.root / "parquet").glob("*.parquet")))
        dataset = datasets.load_dataset(
            "parquet", data_files=files, split="train", streaming=True
        )
        dataset = dataset.shuffle(seed=SEED, buffer_size=1000).with_format("numpy")
        settings = {"batch_size": BATCH, "collate_fn": _stack_tokens, "drop_last": True}
        self.loader = StatefulDataLoader(dataset, num_workers=self.workers, **settings)


ENTRANTS: dict[str, Callable[..., Entrant]] = {
    "memmap": Memmap,
    "memmap_stored": partial(Memmap, as_tensor=torch.from_numpy),
    "ours": Ours,
    "ours_stored": partial(Ours, tokens="stored"),
    "ours_packed": partial(Ours, packing=True),
    "ours_packed_stored": partial(Ours, tokens="stored", packing=True),
    "ours_dataset": OursDataset,
    "ours_dataset_rows": partial(OursDataset, collates=False),
    "torchdata": Torchdata,
    "litdata": Litdata,
    "grain": Grain,
    "webdataset_packed": WebdatasetPacked,
    "webdataset_documents": WebdatasetDocuments,
    "hugging_face": HuggingFace,
    "mosaicml": Mosaic,
}
