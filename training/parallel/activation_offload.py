"""What backward needs of the forward pass, kept in CPU memory in between and fetched before it is wanted.

Promises: results are the same bit for bit. On CUDA, copies run on a stream of their own, out while later blocks compute
and back one block ahead of backward; both use pinned memory. torch's own `save_on_cpu` copies in the middle of the
computation, which waits for it. On a processor the same steps are taken, without streams.
Leaves to others: which activations there are (parallel.py).

    forward    block 0 | block 1 | block 2      backward   block 2 | block 1 | block 0
    out                | of 0    | of 1         back         of 1  |  of 0
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

MIN_BYTES = 1 << 20
"""Smaller ones stay: a copy's launch costs more than they take."""


@dataclass(eq=False)
class _Saved:
    """One tensor: on the host, and again on the device once it has been asked back."""

    host: Tensor
    returned: Tensor | None = None


@dataclass(eq=False)
class _Visit:
    """One block in one forward pass; `before` is the block that ran before it."""

    before: _Visit | None
    saved: list[_Saved] = field(default_factory=list[_Saved])
    has_arrived: Any = None
    is_fetched: bool = False


class ActivationOffload:
    """Offloads what the functions that it is put `around` save for backward."""

    def __init__(self, device: torch.device, min_bytes: int = MIN_BYTES) -> None:
        self._device, self._min_bytes = device, min_bytes
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._latest: _Visit | None = None

    def around(self, compute: Callable[..., Any], *, is_last: bool) -> Callable[..., Any]:
        """The same function; what the last block saves is wanted at once and stays, but what came before is fetched."""

        @functools.wraps(compute)
        def offloaded(*args: Any) -> Any:
            visit = _Visit(self._latest)
            self._latest = None if is_last else visit
            pack = functools.partial(self._keep if is_last else self._send, visit)
            with saved_tensors_hooks(pack, functools.partial(self._receive, visit)):
                return compute(*args)

        return offloaded

    def _keep(self, _: _Visit, tensor: Tensor) -> Tensor:
        return tensor

    def _send(self, visit: _Visit, tensor: Tensor) -> Tensor | _Saved:
        is_weight = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)  # noqa: SLF001
        if is_weight or tensor.device != self._device or tensor.nbytes < self._min_bytes:
            return tensor
        host = torch.empty_like(tensor, device="cpu", pin_memory=self._stream is not None)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            tensor.record_stream(self._stream)
        with self._on_stream():
            host.copy_(tensor, non_blocking=True)
        saved = _Saved(host)
        visit.saved.append(saved)
        return saved

    def _receive(self, visit: _Visit, packed: Tensor | _Saved) -> Tensor:
        self._fetch(visit)
        if visit.before is not None:
            self._fetch(visit.before)
        if isinstance(packed, Tensor):
            return packed
        assert packed.returned is not None
        if visit.has_arrived is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(visit.has_arrived)
            packed.returned.record_stream(stream)
        return packed.returned

    def _fetch(self, visit: _Visit) -> None:
        """Begin to copy a block's tensors back, once; autograd drops them one by one as they are used."""
        if visit.is_fetched:
            return
        visit.is_fetched = True
        with self._on_stream():
            for saved in visit.saved:
                saved.returned = torch.empty_like(saved.host, device=self._device)
                saved.returned.copy_(saved.host, non_blocking=True)
        if self._stream is not None:
            visit.has_arrived = self._stream.record_event()
        visit.saved = []  # autograd's graph holds each of them, for as long as it is wanted

    def _on_stream(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()
