"""Keeps activations in CPU memory between forward and backward. Results are bit-identical.

On CUDA the copies run on their own stream, with pinned memory. Activations leave while later
blocks compute, and return one block ahead of backward. `torch.autograd.graph.save_on_cpu` copies
on the compute stream instead, so the computation waits for it.

    forward    block 0 | block 1    | block 2       backward   block 2    | block 1    | block 0
    copy out             of block 0 | of block 1    copy back  of block 1 | of block 0 |

The host is ahead of the device, often by many blocks. So no memory is given back by
`Tensor.record_stream`: it could be used again only after the device has reached that point, and the
host would allocate new memory for each block until then. Instead, the compute stream waits for the
copies of a block before their memory is freed, and memory of all tensors is that of this stream.
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

# Smaller tensors stay on the device: launching the copy costs more than they take.
MIN_BYTES = 1 << 20


@dataclass(eq=False)
class _SavedTensor:
    """A tensor in CPU memory, and its copy on the device after backward has requested it."""

    host: Tensor
    device_copy: Tensor | None = None


@dataclass(eq=False)
class _BlockVisit:
    """One block in one forward pass.

    Attributes:
        previous: the visit of the block that ran before; it is fetched next in backward.
        saved: tensors that were sent to CPU memory and not fetched yet.
        originals: tensors whose copies to CPU memory may not have ended.
        send_done: CUDA event after these copies.
        fetch_done: CUDA event after the copies back to the device.
    """

    previous: _BlockVisit | None
    saved: list[_SavedTensor] = field(default_factory=list[_SavedTensor])
    originals: list[Tensor] = field(default_factory=list[Tensor])
    send_done: Any = None
    fetch_done: Any = None
    is_fetched: bool = False


class ActivationOffload:
    """Offloads the tensors that wrapped functions save for backward."""

    def __init__(self, device: torch.device, min_bytes: int = MIN_BYTES) -> None:
        self._device, self._min_bytes = device, min_bytes
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._latest: _BlockVisit | None = None

    def wrap(self, forward: Callable[..., Any], *, is_last: bool) -> Callable[..., Any]:
        """Return the forward function of a block with its saved tensors offloaded.

        The last block keeps its tensors on the device, because backward needs them at once. Its
        backward starts fetching those of the block before it.
        """

        @functools.wraps(forward)
        def offloaded(*args: Any) -> Any:
            # Visits form a list from the last block to the first, which is the order of backward.
            visit = _BlockVisit(self._latest)
            # The next forward pass, of another micro-batch, starts a new list.
            self._latest = None if is_last else visit
            if visit.previous is not None and visit.previous.previous is not None:
                # Its copies had the time of a whole block. No more than two blocks are in memory.
                self._release(visit.previous.previous)
            pack = self._keep if is_last else functools.partial(self._send, visit)
            unpack = functools.partial(self._receive, visit)
            with saved_tensors_hooks(pack, unpack):
                result = forward(*args)
            if self._stream is not None:
                visit.send_done = self._stream.record_event()
            return result

        return offloaded

    def _keep(self, tensor: Tensor) -> Tensor:
        return tensor

    def _send(self, visit: _BlockVisit, tensor: Tensor) -> Tensor | _SavedTensor:
        """Start the copy to CPU memory. Weights and small tensors stay where they are."""
        # Weights stay in memory anyway. Linear layers save a transposed view, whose _base is the
        # weight.
        base = tensor._base  # noqa: SLF001
        is_weight = isinstance(tensor, nn.Parameter) or isinstance(base, nn.Parameter)
        if is_weight or tensor.device != self._device or tensor.nbytes < self._min_bytes:
            return tensor
        pin_memory = self._device.type == "cuda"
        host = torch.empty_like(tensor, device="cpu", pin_memory=pin_memory)
        with self._use_stream():
            host.copy_(tensor, non_blocking=True)
        saved = _SavedTensor(host)
        visit.saved.append(saved)
        visit.originals.append(tensor.detach())
        return saved

    def _release(self, visit: _BlockVisit) -> None:
        """Free the memory of tensors that are in CPU memory now."""
        if visit.originals and self._stream is not None:
            self._wait_for(visit.send_done)
        visit.originals = []

    def _receive(self, visit: _BlockVisit, packed: Tensor | _SavedTensor) -> Tensor:
        """Return a tensor for backward, and start fetching those of the previous block."""
        self._fetch(visit)
        if visit.fetch_done is not None:
            # Before the first tensor of the block is used, and so before any of them is freed
            self._wait_for(visit.fetch_done)
            visit.fetch_done = None
        # One block ahead: its copies run while this block's backward computes.
        if visit.previous is not None:
            self._fetch(visit.previous)
        if isinstance(packed, Tensor):
            return packed
        assert packed.device_copy is not None
        return packed.device_copy

    def _fetch(self, visit: _BlockVisit) -> None:
        """Start the copies of a block's tensors back to the device, once."""
        if visit.is_fetched:
            return
        visit.is_fetched = True
        self._release(visit)
        # In memory of the compute stream, which can use it again as soon as autograd frees it.
        for saved in visit.saved:
            saved.device_copy = torch.empty_like(saved.host, device=self._device)
        with self._use_stream():
            for saved in visit.saved:
                assert saved.device_copy is not None
                saved.device_copy.copy_(saved.host, non_blocking=True)
        if self._stream is not None and visit.saved:
            visit.fetch_done = self._stream.record_event()
        # From here on only autograd's graph holds the tensors, and frees each after its use.
        visit.saved = []

    def _wait_for(self, event: Any) -> None:
        """Let the compute stream wait; the host does not."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def _use_stream(self) -> AbstractContextManager[Any]:
        """Return a context for copies. They begin after all kernels that were launched before.

        These write the tensors that are sent, and have used the memory of those that return.
        """
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)
