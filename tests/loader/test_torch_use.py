"""Which GPU the threads of the loader use, with a simulated torch.cuda of a machine with two GPUs."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from loader.batches.torch_use import CudaCopier


class Cuda:
    """Current device and contexts of a process, as c10/cuda/CUDAFunctions.cpp keeps them.

    Attributes:
        contexts: devices with a CUDA context of this process, which takes memory there.
    """

    def __init__(self) -> None:
        self.contexts = {1}  # the trainer has called set_device(1)
        self._current = threading.local()  # 0 in each new thread

    def Event(self) -> Any:  # noqa: N802 - torch's name
        """Return an event that can be recorded."""
        return SimpleNamespace(record=lambda: None)

    @contextmanager
    def stream(self, stream: Any) -> Generator[None]:
        """Set the device of the stream, then the previous one again."""
        previous = self._get()
        self._set(stream.device)
        yield
        self._set(previous)

    @contextmanager
    def device(self, device: int) -> Generator[None]:
        """Set a device, then the previous one, which gets no context if it has none."""
        previous = self._get()
        self._set(device)
        yield
        self._current.number = previous

    def _get(self) -> int:
        return getattr(self._current, "number", 0)

    def _set(self, device: int) -> None:
        if device != self._get():
            self.contexts.add(device)
        self._current.number = device


def test_a_thread_makes_no_context_on_another_gpu() -> None:
    """Rank 1 copies from a new thread, where GPU 0 is current, and takes no memory of GPU 0."""
    cuda = Cuda()
    copier = CudaCopier.__new__(CudaCopier)
    copier.device = torch.device("cpu")
    vars(copier)["_torch"] = SimpleNamespace(
        cuda=cuda,
        uint16=torch.uint16,
        uint32=torch.uint32,
        empty=lambda shape, dtype, **_: torch.empty(shape, dtype=dtype),
    )
    vars(copier)["_copy_stream"] = SimpleNamespace(device=1)
    tokens = np.arange(6, dtype=np.uint16).reshape(2, 3)
    copies: list[Any] = []
    thread = threading.Thread(target=lambda: copies.append(copier.start_copy(tokens)[0]))
    thread.start()
    thread.join()
    assert copies[0].tolist() == tokens.tolist()
    assert cuda.contexts == {1}
