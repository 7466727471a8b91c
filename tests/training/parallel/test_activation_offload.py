"""Order and memory of the copies of offloaded activations, with two simulated CUDA streams.

Operators run on the CPU at once. Beside that, each counts as launched to the current one of two
streams that wait for each other only where the code says so. The CPU's allocator gives memory to
the next tensor as soon as it is freed, as the CUDA allocator does within one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from training.parallel.activation_offload import ActivationOffload

NUM_BLOCKS = 5


class Stream:
    """A CUDA stream, as the numbers of the latest operators of each stream that it comes after."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: dict[str, int] = {}

    def launch(self) -> int:
        """Count one more operator, and return its number."""
        self.seen[self.name] = self.seen.get(self.name, 0) + 1
        return self.seen[self.name]

    def record_event(self) -> dict[str, int]:
        """Return what comes before the event."""
        return dict(self.seen)

    def wait_event(self, event: Mapping[str, int]) -> None:
        """Come after an event."""
        for name, number in event.items():
            self.seen[name] = max(number, self.seen.get(name, 0))

    def wait_stream(self, other: Stream) -> None:
        """Come after everything that was launched to another stream."""
        self.wait_event(other.seen)


class Device(TorchDispatchMode):
    """Two streams, and the latest operator of each that used a range of memory.

    Attributes:
        races: operators that used memory before an operator of the other stream was over.
    """

    def __init__(self) -> None:
        super().__init__()
        self.compute, self.copies = Stream("compute"), Stream("copies")
        self.current = self.compute
        self.races: list[str] = []
        # (start, stop) of memory: number of the latest operator by stream and kind of use
        self._uses: dict[tuple[int, int], dict[tuple[str, str], int]] = {}

    @contextmanager
    def use_stream(self, stream: Stream) -> Generator[None]:
        """Launch to this stream."""
        self.current = stream
        yield
        self.current = self.compute

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator, and note the memory that it uses."""
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.detach.default, torch.ops.aten.empty_like.default):
            return result  # nothing is launched
        number = self.current.launch()
        for argument, tensor in zip(func._schema.arguments, args, strict=False):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            for each in tree_iter(tensor):
                self._note(str(func), each, number, "write" if is_written else "read")
        for returned, tensor in zip(func._schema.returns, _as_tuple(result), strict=True):
            if returned.alias_info is None:  # not a view
                self._note(str(func), tensor, number, "write")
        return result

    def _note(self, operator: str, tensor: Any, number: int, kind: str) -> None:
        if not isinstance(tensor, Tensor):
            return
        start = tensor.untyped_storage().data_ptr()
        memory = start, start + tensor.untyped_storage().nbytes()
        for (other_start, other_stop), uses in self._uses.items():
            if other_start >= memory[1] or other_stop <= memory[0]:
                continue
            for (stream, other_kind), latest in uses.items():
                is_over = latest <= self.current.seen.get(stream, 0)
                if not is_over and "write" in (kind, other_kind):
                    self.races.append(f"{operator} of {self.current.name}")
        self._uses.setdefault(memory, {})[self.current.name, kind] = number


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def refuse_record_stream(tensor: Tensor, stream: Any) -> None:
    """Fail: memory would be free only when the device has come as far as the host."""
    raise AssertionError("record_stream")


class CountedOffload(ActivationOffload):
    """Notes after each copy how many blocks have tensors on the device and in CPU memory."""

    def __init__(self, device: Device | None) -> None:
        super().__init__(torch.device("cpu"), min_bytes=1)
        if device is not None:
            vars(self)["_stream"] = device.copies
        self.num_held: list[int] = []
        self._visits: list[Any] = []

    def _send(self, visit: Any, tensor: Tensor) -> Any:
        sent = super()._send(visit, tensor)
        if visit not in self._visits:
            self._visits.append(visit)
        self.num_held.append(sum(bool(each.originals) for each in self._visits))
        return sent


class BackwardDoesNotWait(CountedOffload):
    """Lets the compute stream wait for no copy."""

    def _wait_for(self, event: Any) -> None:
        pass


class CopiesDoNotWait(CountedOffload):
    """Copies without waiting for the compute stream."""

    def _use_stream(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(vars(self)["_stream"])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Return a device whose streams torch.cuda gives."""
    device = Device()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: device.current)
    monkeypatch.setattr(torch.cuda, "stream", device.use_stream)
    monkeypatch.setattr(Tensor, "record_stream", refuse_record_stream)
    return device


def train(offload: ActivationOffload, num_micro_batches: int = 2) -> list[Tensor]:
    """Run forward and backward of some blocks; return their gradients."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        for _ in range(NUM_BLOCKS)
    ]
    computes: list[Callable[..., Tensor]] = [
        offload.wrap(block, is_last=block is blocks[-1]) for block in blocks
    ]
    for _ in range(num_micro_batches):
        out = torch.randn(64, 8)
        for compute in computes:
            out = compute(out)
        out.square().sum().backward()
        del out
    return [p.grad for block in blocks for p in block.parameters() if p.grad is not None]


def test_memory_is_used_again_only_after_its_copies(device: Device) -> None:
    """Nothing is computed, sent, fetched or overwritten too early, and no memory waits for the host."""
    expected = train(CountedOffload(None))
    with device:
        found = train(CountedOffload(device))
    assert device.races == []
    assert min(device.compute.seen["copies"], device.copies.seen["compute"]) > 0
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("broken", [BackwardDoesNotWait, CopiesDoNotWait])
def test_the_simulated_device_finds_a_missing_wait(
    broken: type[CountedOffload], device: Device
) -> None:
    """Without either wait, memory is used too early."""
    with device:
        train(broken(device))
    assert device.races


def test_no_more_than_two_blocks_have_memory_on_the_device(device: Device) -> None:
    """Tensors are freed as soon as the copies are over, however far the host is ahead."""
    with device:
        offload = CountedOffload(device)
        train(offload, num_micro_batches=1)
    assert max(offload.num_held) == 2
