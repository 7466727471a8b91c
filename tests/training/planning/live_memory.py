"""Counts the bytes of live tensors on CPU, like the statistics of the CUDA allocator."""

# What of a tensor is where, torch tells only in names with an underscore.
# pyright: reportPrivateUsage=false, reportUnnecessaryComparison=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Counts tensors created inside the context; `peak_bytes` is the maximum after any operator."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, StorageWeakRef] = {}
        self.peak_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes alive now. Sizes are read again, because fully_shard resizes storages to free them."""
        total = 0
        for key, reference in list(self._storages.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self._storages[key]
            else:
                total += storage.nbytes()
        return total

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            if storage._cdata not in given:
                self._storages.setdefault(storage._cdata, StorageWeakRef(storage))
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)
        return out


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [
        _local(leaf).untyped_storage()
        for leaf in tree_leaves(tree)
        if isinstance(leaf, Tensor)
    ]


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def local_bytes(tensors: Sequence[Tensor | None]) -> int:
    """Return the bytes of this rank's shards."""
    return sum(_local(tensor).nbytes for tensor in tensors if tensor is not None)
